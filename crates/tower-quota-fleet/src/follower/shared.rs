use std::{
    mem::take,
    sync::{Arc, Mutex},
};

use tokio::sync::watch;

use super::status::{FollowerStatus, Lost};
use crate::{
    controls::{ControlledAccess, Controls, SwitchOrder},
    document::{AccessEntry, RulesDocument, access_rules},
    error::{FleetError, FleetErrorKind},
    sync::lock,
    telemetry::FleetTelemetry,
    version::RulesVersion,
};
use tower_quota::{
    AccessRules, ConfigError, Rules, RulesHandle,
    clock::Clock,
    updates::{AccessOverlay, RulesClaim, RulesUpdate},
};

pub(super) struct Shared {
    rules: RulesHandle,
    clock: Clock,
    status: watch::Sender<FollowerStatus>,
    pub(super) telemetry: FleetTelemetry,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// `None` after the follower was dropped.
    claim: Option<RulesClaim>,
    overlay: Option<AccessOverlay>,
    rules: Option<Arc<RulesDocument>>,
    /// The document with the largest number whose rules were applied.
    best: Option<Arc<RulesDocument>>,
    /// The largest number read, or the last one of a source without controls.
    newest: u64,
    /// The switch of a source without controls, even if its access list is invalid.
    is_off: bool,
    /// The last document of a source without controls. Its access list applies even if its rules are rejected.
    listed: Option<Arc<RulesDocument>>,
    switch: Option<SwitchOrder>,
    access: ControlledAccess,
    /// The next expiry of the order or an entry, in Unix seconds.
    ends: Option<u64>,
    /// `None` before the first read.
    found: Option<Found>,
    /// The source has controls.
    only_rises: bool,
}

#[derive(Clone, Copy, Default)]
struct Found {
    rules: Option<u64>,
    switch: Option<u64>,
    access: Option<u64>,
}

impl Held {
    fn is_on(&self, now: u64) -> bool {
        let order = self.switch.as_ref().filter(|order| order.applies_at(now));
        !order.map_or(self.is_off, SwitchOrder::is_off)
    }

    fn entries(&self) -> &[AccessEntry] {
        let listed = self.listed.as_deref();
        listed.map_or(&self.access.entries, RulesDocument::access)
    }

    fn access_rules(&self, now: u64) -> Result<AccessRules, ConfigError> {
        match &self.listed {
            Some(document) => document.access_rules(now),
            None => access_rules(&self.access.entries, now),
        }
    }

    fn next_end(&self, now: u64) -> Option<u64> {
        let ends = self.entries().iter().filter_map(AccessEntry::expiry);
        let switch = self.switch.as_ref().and_then(SwitchOrder::until);
        ends.chain(switch).filter(|end| *end > now).min()
    }

    /// For a document whose source has no controls.
    fn obey(&mut self, document: &Arc<RulesDocument>) -> Result<(), FleetError> {
        self.newest = document.version().max(if self.only_rises { self.newest } else { 0 });
        if self.only_rises {
            return document.check_without_controls();
        }
        self.is_off = document.is_switched_off();
        // Also checks expired entries, so that the validity of a document does not depend on the time.
        document.access_rules(0)?;
        self.listed = Some(Arc::clone(document));
        Ok(())
    }

    /// Expired orders and entries do not count as lost.
    fn lost(&self, now: u64) -> Vec<Lost> {
        let Some(found) = self.found else {
            return Vec::new();
        };
        let order = self.switch.as_ref().filter(|order| order.applies_at(now));
        let has_entries = self.access.entries.iter().any(|entry| entry.holds_at(now));
        let access = if has_entries { self.access.number } else { 0 };
        [
            Lost::between("rules", self.newest, found.rules),
            Lost::between("switch", order.map_or(0, SwitchOrder::number), found.switch),
            Lost::between("access", access, found.access),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl Shared {
    pub(super) fn new(
        rules: &RulesHandle,
        claim: RulesClaim,
        overlay: Option<AccessOverlay>,
        clock: Clock,
        name: &str,
        status: watch::Sender<FollowerStatus>,
    ) -> Self {
        let held = Held {
            claim: Some(claim),
            overlay,
            ..Held::default()
        };
        Self {
            rules: rules.clone(),
            clock,
            status,
            telemetry: FleetTelemetry::new(name),
            held: Mutex::new(held),
        }
    }

    pub(super) fn end(&self) {
        let mut held = lock(&self.held);
        held.claim = None;
        if let Some(overlay) = held.overlay.take() {
            overlay.leave();
        }
    }

    pub(super) fn document(&self) -> Option<RulesDocument> {
        lock(&self.held).best.as_deref().cloned()
    }

    pub(super) fn controls(&self) -> Controls {
        let held = lock(&self.held);
        Controls {
            switch: held.switch.clone(),
            access: held.access.clone(),
            problem: None,
        }
    }

    fn seconds(&self) -> u64 {
        self.clock.now().as_micros() / 1_000_000
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn status(&self) -> FollowerStatus {
        self.status.borrow().clone()
    }

    fn change_status(&self, change: impl FnOnce(&mut FollowerStatus)) {
        self.status.send_if_modified(|status| {
            let before = status.clone();
            change(status);
            *status != before
        });
    }

    /// Applies the switch and access list of a file even if the layer rejects its rules, so that switching off in an
    /// incident works on every instance.
    pub(super) fn apply(&self, document: RulesDocument) -> Result<Arc<RulesDocument>, FleetError> {
        let mut held = lock(&self.held);
        let document = Arc::new(document);
        let applied = held.obey(&document).and_then(|()| {
            self.list_access(&mut held);
            Ok(self.apply_rules(&held, &document)?)
        });
        if let Err(error) = applied {
            self.turn_switch(&held, document.author());
            return Err(error);
        }
        let is_best = held
            .best
            .as_ref()
            .is_none_or(|best| document.version() >= best.version());
        if is_best || !held.only_rises {
            held.best = Some(Arc::clone(&document));
        }
        held.rules = Some(Arc::clone(&document));
        Ok(document)
    }

    pub(super) fn applied(&self, version: RulesVersion, applied: Result<Arc<RulesDocument>, FleetError>) {
        let document = match applied {
            Ok(document) => document,
            Err(error) => return self.reject(version, error),
        };
        let author = document.author();
        match self.status().version {
            Some(before) if version.number() < before.number() => self.telemetry.went_back(&version, &before, author),
            _ => self.telemetry.applied(&version, author),
        }
        self.telemetry.meters.runs(version.number(), &policies(&document));
        self.telemetry.meters.rejects(None);
        self.change_status(|status| {
            status.version = Some(version);
            status.rejected = None;
        });
    }

    fn apply_rules(&self, held: &Held, document: &RulesDocument) -> Result<(), ConfigError> {
        let mut update = RulesUpdate::new(document.rules().clone()).enabled(held.is_on(self.seconds()));
        if let Some(roll_out) = document.roll_out() {
            let partitions = roll_out.partitions().iter().copied();
            update = update.with_rollout(roll_out.percent(), partitions, roll_out.rules().clone());
        }
        let apply = |claim: &RulesClaim| claim.apply(update);
        self.watch_switch(document.author(), || held.claim.as_ref().map_or(Ok(()), apply))
    }

    fn turn_switch(&self, held: &Held, author: &str) {
        if let Some(claim) = &held.claim {
            let is_on = held.is_on(self.seconds());
            self.watch_switch(author, || claim.set_enabled(is_on));
        }
    }

    fn watch_switch<T>(&self, author: &str, turn: impl FnOnce() -> T) -> T {
        let was_on = self.rules.is_enabled();
        let turned = turn();
        if self.rules.is_enabled() != was_on {
            self.telemetry.switched(!was_on, author);
        }
        turned
    }

    fn list_access(&self, held: &mut Held) {
        let now = self.seconds();
        held.ends = held.next_end(now);
        // Cannot fail, because each list was validated before.
        let Ok(access) = held.access_rules(now) else { return };
        match &held.overlay {
            Some(overlay) => overlay.replace(access),
            None if held.claim.is_none() => {}
            None if !access.is_empty() => self.telemetry.no_access_list(),
            None => {}
        }
    }

    fn obey_switch(&self, held: &mut Held) {
        let now = self.seconds();
        held.ends = held.next_end(now);
        let order = held.switch.as_ref();
        let active = order.filter(|order| order.is_off() && order.applies_at(now));
        self.telemetry.meters.switch_ends(active.map(SwitchOrder::until));
        self.turn_switch(held, order.map_or("", SwitchOrder::author));
    }

    /// `None` stands for an unreadable value.
    pub(super) fn control(
        &self,
        switch: Option<Option<SwitchOrder>>,
        access: Option<Option<u64>>,
    ) -> Result<(), String> {
        let mut held = lock(&self.held);
        let found = held.found.get_or_insert_default();
        if let Some(order) = &switch {
            found.switch = order.as_ref().map(SwitchOrder::number);
        }
        found.access = access.unwrap_or(found.access);
        let newest = held.switch.as_ref().map_or(0, SwitchOrder::number);
        let Some(order) = switch.flatten().filter(|order| order.number() > newest) else {
            return Ok(());
        };
        self.check_number("switch", order.number())?;
        held.switch = Some(order.clone());
        self.obey_switch(&mut held);
        drop(held);
        self.change_status(|status| status.switch = Some(order));
        Ok(())
    }

    /// Such a number would block all later orders.
    pub(super) fn check_number(&self, what: &str, number: u64) -> Result<(), String> {
        match number > self.clock.now().as_micros() / 1_000 + SwitchOrder::FAR {
            true => Err(format!("{what}: number {number} is more than a year in the future")),
            false => Ok(()),
        }
    }

    pub(super) fn is_newer_access(&self, number: u64) -> bool {
        number > lock(&self.held).access.number
    }

    pub(super) fn control_access(&self, access: ControlledAccess) {
        let mut held = lock(&self.held);
        let number = access.number;
        held.access = access;
        self.list_access(&mut held);
        drop(held);
        self.change_status(|status| status.access = number);
    }

    pub(super) fn obeyed(&self, failure: Option<String>) {
        let before = self.status.borrow().controls_failure.clone();
        if before != failure {
            self.telemetry.controls_unread(failure.as_deref());
            self.change_status(|status| status.controls_failure = failure);
        }
    }

    pub(super) fn published(&self, version: Option<RulesVersion>, only_rises: bool) {
        let mut held = lock(&self.held);
        held.only_rises = only_rises;
        // Controls replace the switch and the list of earlier documents.
        if only_rises && (held.listed.take().is_some() | take(&mut held.is_off)) {
            self.list_access(&mut held);
            self.obey_switch(&mut held);
        }
        held.found.get_or_insert_default().rules = match version {
            Some(version) if !only_rises => Some(version.number().max(held.newest)),
            version => version.map(RulesVersion::number),
        };
        let (lost, newest) = (held.lost(self.seconds()), held.newest);
        drop(held);
        if self.status.borrow().lost != lost {
            let texts: Vec<_> = lost.iter().map(|lost| (lost.what(), lost.to_string())).collect();
            self.telemetry.lost(&texts);
        }
        self.change_status(|status| (status.lost, status.newest) = (lost, newest));
    }

    pub(super) fn reject(&self, version: RulesVersion, error: FleetError) {
        let running = self.status().version;
        let reason = match error.kind() {
            FleetErrorKind::Invalid => "invalid",
            FleetErrorKind::Mismatched => "mismatched",
            FleetErrorKind::NewerFormat => "newer_format",
            FleetErrorKind::TooLong => "too_long",
            _ => "malformed",
        };
        let running = running.map_or_else(|| "none".to_owned(), |running| running.to_string());
        self.telemetry.rejected(&version, &running, reason, &error.to_string());
        self.telemetry.meters.rejects(Some(reason));
        self.change_status(|status| status.rejected = Some((version, error)));
    }

    /// The source returned to the current version after a rejected one, whose switch and access list still applied.
    pub(super) fn is_current(&self) {
        let mut held = lock(&self.held);
        if let Some(document) = held.rules.clone()
            && held.obey(&document).is_ok()
        {
            self.list_access(&mut held);
            self.turn_switch(&held, document.author());
        }
        drop(held);
        self.telemetry.meters.rejects(None);
        self.change_status(|status| status.rejected = None);
    }

    pub(super) fn read(&self, failure: Option<String>) {
        if let Some(failure) = &failure {
            self.telemetry.unread(self.clock.now(), failure);
        }
        self.change_status(|status| status.failure = failure);
    }

    pub(super) fn keep(&self) {
        let mut held = lock(&self.held);
        let now = self.seconds();
        if held.ends.is_some_and(|ends| ends <= now) {
            self.list_access(&mut held);
            self.obey_switch(&mut held);
        }
        let is_overridden = held.claim.as_ref().is_some_and(RulesClaim::is_overridden);
        drop(held);
        let is_off = !self.rules.is_enabled();
        if self.status.borrow().is_overridden != is_overridden {
            self.telemetry.overridden(is_overridden);
        }
        self.change_status(|status| (status.is_overridden, status.is_off) = (is_overridden, is_off));
    }
}

fn policies(document: &RulesDocument) -> Vec<(&str, &str)> {
    let tried = document.roll_out().map(|roll_out| roll_out.rules());
    let all = std::iter::once(document.rules()).chain(tried);
    let mut names: Vec<(&str, &str)> = all
        .flat_map(Rules::all_policies)
        .map(|(tier, policy)| (tier.unwrap_or_default(), policy.name()))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}
