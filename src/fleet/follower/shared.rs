//! The state that the tasks of a follower share: the document in force, and how it is put in force.

use tokio::sync::watch;

use super::status::{FollowerStatus, RejectedRules, RejectionReason};
use crate::{
    clock::Clock,
    error::ConfigError,
    fleet::{document::RulesDocument, version::RulesVersion},
    mutex::Mutex,
    rules::{FleetRules, Rules, RulesHandle},
    screening::{AccessList, FleetPlace},
    telemetry::FleetTelemetry,
};

pub(super) struct Shared {
    rules: RulesHandle,
    access_list: Option<(AccessList, FleetPlace)>,
    clock: Clock,
    status: watch::Sender<FollowerStatus>,
    pub(super) telemetry: FleetTelemetry,
    documents: Mutex<Documents>,
}

/// Documents that hold.
#[derive(Default)]
struct Documents {
    /// The one whose rules hold.
    rules: Option<RulesDocument>,
    /// The one whose access list holds, and the next time at which a rule of that ends, in seconds since the Unix epoch.
    access: Option<(RulesDocument, Option<u64>)>,
}

impl Shared {
    pub(super) fn new(
        rules: RulesHandle,
        access_list: Option<(AccessList, FleetPlace)>,
        clock: Clock,
        name: &str,
        status: watch::Sender<FollowerStatus>,
    ) -> Self {
        Self {
            rules,
            access_list,
            clock,
            status,
            telemetry: FleetTelemetry::new(name),
            documents: Mutex::default(),
        }
    }

    pub(super) fn rules(&self) -> &RulesHandle {
        &self.rules
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

    /// Puts a document in force. One whose rules the layer rejects turns the kill switch and changes the access list all the
    /// same: those who publish "off" in an incident need not know which instances have rejected the version before.
    pub(super) fn apply(&self, version: RulesVersion, document: RulesDocument) {
        let before = self.status().version;
        let mut documents = self.documents.lock();
        let applied = match self.apply_access(&mut documents, &document) {
            Ok(()) => self.apply_rules(&document),
            Err(error) => {
                self.turn_switch(&document, || self.rules.turn_by_fleet(!document.is_switched_off()));
                Err(error)
            }
        };
        if let Err(error) = applied {
            drop(documents);
            return self.reject(RejectedRules::new(version, RejectionReason::Invalid, &error));
        }
        let author = document.author();
        match before {
            Some(before) if version.number() < before.number() => self.telemetry.went_back(&version, &before, author),
            _ => self.telemetry.applied(&version, author),
        }
        self.telemetry.runs(version.number(), &policies(&document));
        documents.rules = Some(document);
        drop(documents);
        self.telemetry.rejects(None);
        self.change_status(|status| {
            status.version = Some(version);
            status.rejected = None;
        });
    }

    fn apply_rules(&self, document: &RulesDocument) -> Result<(), ConfigError> {
        let roll_out = document.roll_out();
        let rules = FleetRules {
            rules: document.rules(),
            roll_out: roll_out.map(|roll_out| (roll_out.percent(), roll_out.partitions(), roll_out.rules())),
            is_on: !document.is_switched_off(),
        };
        self.turn_switch(document, || self.rules.apply(&rules))
    }

    /// Does this, which may switch the limits on or off.
    fn turn_switch<T>(&self, document: &RulesDocument, turn: impl FnOnce() -> T) -> T {
        let was_on = self.rules.is_on();
        let turned = turn();
        if self.rules.is_on() != was_on {
            self.telemetry.switched(!was_on, document.author());
        }
        turned
    }

    fn apply_access(&self, documents: &mut Documents, document: &RulesDocument) -> Result<(), ConfigError> {
        let now = self.clock.now().as_micros() / 1_000_000;
        // Also those that have ended: a document is valid, or it is not.
        document.access_rules(0)?;
        let access = document.access_rules(now)?;
        match &self.access_list {
            Some((list, place)) => list.replace_fleet(place, access),
            None if !access.is_empty() => self.telemetry.no_access_list(),
            None => {}
        }
        let ends = document.access().iter().filter_map(|entry| entry.ends());
        let next = ends.filter(|end| *end > now).min();
        documents.access = Some((document.clone(), next));
        Ok(())
    }

    /// Rejects a version. The rules before stay.
    pub(super) fn reject(&self, rejected: RejectedRules) {
        let running = self.status().version;
        let reason = rejected.reason().as_str();
        let running = running.map_or_else(|| "none".to_owned(), |running| running.to_string());
        self.telemetry
            .rejected(&rejected.version(), &running, reason, rejected.message());
        self.telemetry.rejects(Some(reason));
        self.change_status(|status| status.rejected = Some(rejected));
    }

    /// The version that is in force is the one that the source has, after another one was rejected, of which the switch
    /// and the access list hold until now.
    pub(super) fn is_current(&self) {
        let mut documents = self.documents.lock();
        if let Some(document) = documents.rules.clone() {
            // They were valid before.
            let _ = self.apply_access(&mut documents, &document);
            let _ = self.apply_rules(&document);
        }
        drop(documents);
        self.telemetry.rejects(None);
        self.change_status(|status| status.rejected = None);
    }

    /// The source was read, or not.
    pub(super) fn read(&self, failure: Option<String>) {
        if let Some(failure) = &failure {
            self.telemetry.unread(self.clock.now(), failure);
        }
        self.change_status(|status| status.failure = failure);
    }

    /// Puts the fleet's rules in force again where the process has returned them, and ends rules of the access list.
    pub(super) fn keep(&self) {
        let mut documents = self.documents.lock();
        if self.rules.is_returned() {
            // They were valid before.
            let _ = documents.rules.as_ref().map(|document| self.apply_rules(document));
        }
        let now = self.clock.now().as_micros() / 1_000_000;
        if let Some((document, _)) = documents
            .access
            .take_if(|(_, ends)| ends.is_some_and(|ends| ends <= now))
        {
            // It was valid before.
            let _ = self.apply_access(&mut documents, &document);
        }
        drop(documents);
        let is_overridden = self.rules.is_overridden();
        if self.status.borrow().is_overridden != is_overridden {
            self.telemetry.overridden(is_overridden);
            self.change_status(|status| status.is_overridden = is_overridden);
        }
    }
}

/// The tier, empty where there are none, and the name of each policy of a document.
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
