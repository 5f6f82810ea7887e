//! A source of rules that a test controls, and layers that follow it.

use std::{
    future::pending,
    mem::take,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use serde_json::{Value, json};
use test_kit::{Answered, limits, request};
use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Rules};
use tower_quota_fleet::{
    AccessEntry, FleetError, InstanceReport, RulesDocument, RulesFollower, RulesSource, RulesVersion, SourceFuture,
    SourceState, SwitchOrder,
};

/// How a source responds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Manner {
    #[default]
    Answers,
    Fails,
    Hangs,
    Panics,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// The default is `test`.
    pub(crate) name: Option<&'static str>,
    pub(crate) manner: Manner,
    pub(crate) head: Option<RulesVersion>,
    pub(crate) document: Vec<u8>,
    /// The number of requests for the version and for the document.
    pub(crate) asked: [u32; 2],
    pub(crate) reports: Vec<InstanceReport>,
    /// `None` for a source without a separate switch and access list.
    pub(crate) controls: Option<Orders>,
    /// True if no report gets an answer.
    pub(crate) hangs_on_reports: bool,
}

/// A switch and an access list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders {
    pub(crate) switch: Option<SwitchOrder>,
    pub(crate) access: Option<(RulesVersion, Vec<u8>)>,
    /// The reason why they cannot be read.
    pub(crate) failure: Option<&'static str>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Source(Arc<Mutex<State>>);

impl Source {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn publish(&self, document: &RulesDocument) -> RulesVersion {
        self.publish_bytes(document.version(), document.to_json().unwrap())
    }

    pub(crate) fn publish_bytes(&self, number: u64, document: impl Into<Vec<u8>>) -> RulesVersion {
        let mut state = self.state();
        state.document = document.into();
        let version = RulesVersion::of(number, &state.document);
        state.head = Some(version);
        version
    }

    /// Sets a switch that takes effect without rules.
    pub(crate) fn order(&self, switch: impl Into<Option<SwitchOrder>>) {
        self.state().controls.get_or_insert_default().switch = switch.into();
    }

    /// Sets an access list that takes effect without rules.
    pub(crate) fn list(&self, number: u64, entries: &[AccessEntry]) {
        let json = serde_json::to_vec(entries).unwrap();
        let head = RulesVersion::of(number, &json);
        self.state().controls.get_or_insert_default().access = Some((head, json));
    }

    /// Loses all data, as `FLUSHALL` does.
    pub(crate) fn lose_everything(&self) {
        let mut state = self.state();
        state.head = None;
        state.document.clear();
        state.controls = Some(Orders::default());
    }

    /// The number of requests for the version and for the document since the last call.
    pub(crate) fn asked(&self) -> [u32; 2] {
        take(&mut self.state().asked)
    }

    fn answer<T: Send + 'static>(&self, number: usize, answer: impl FnOnce(&State) -> T) -> SourceFuture<'_, T> {
        let mut state = self.state();
        state.asked[number] += 1;
        match state.manner {
            Manner::Answers => {
                let answer = answer(&state);
                Box::pin(async { Ok(answer) })
            }
            Manner::Fails => Box::pin(async { Err(FleetError::unavailable("it is a test")) }),
            Manner::Hangs => Box::pin(pending()),
            Manner::Panics => {
                drop(state);
                panic!("as a source of a program may")
            }
        }
    }
}

impl RulesSource for Source {
    fn name(&self) -> &str {
        self.state().name.unwrap_or("test")
    }

    fn state(&self) -> SourceFuture<'_, SourceState> {
        self.answer(0, |state| {
            let found = SourceState::new(state.head);
            let Some(controls) = &state.controls else { return found };
            let access = controls.access.as_ref().map(|(head, _)| *head);
            match controls.failure {
                Some(failure) => found.without_controls(failure),
                None => found.with_controls(controls.switch.clone(), access),
            }
        })
    }

    fn access(&self, _: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        let state = self.state();
        let access = state.controls.as_ref().and_then(|controls| controls.access.clone());
        Box::pin(async { Ok(access.map(|(_, json)| json).unwrap_or_default()) })
    }

    fn document(&self, _: RulesVersion) -> SourceFuture<'_, Vec<u8>> {
        self.answer(1, |state| state.document.clone())
    }

    fn report<'a>(&'a self, report: &'a InstanceReport) -> SourceFuture<'a, ()> {
        let mut state = self.state();
        state.reports.push(report.clone());
        match state.hangs_on_reports {
            true => Box::pin(pending()),
            false => Box::pin(async { Ok(()) }),
        }
    }
}

/// The report of an instance, with more fields than its name.
pub(crate) fn reported(name: &str, more: Value) -> InstanceReport {
    let mut report = json!({"instance": name});
    for (field, value) in more.as_object().unwrap() {
        report[field] = value.clone();
    }
    serde_json::from_value(report).unwrap()
}

/// A layer whose program limits to one request an hour.
pub(crate) fn layer() -> RateLimitLayer {
    builder().build().unwrap()
}

pub(crate) fn builder() -> RateLimitLayerBuilder {
    limits(MemoryStore::new()).policy(QuotaPolicy::per_hour("hour", 1))
}

pub(crate) fn follow(layer: &RateLimitLayer, source: impl RulesSource) -> RulesFollower {
    RulesFollower::builder(layer.limiter().rules(), source).start().unwrap()
}

/// Rules with this quota an hour.
pub(crate) fn hour(quota: u64) -> Rules {
    Rules::new().policy(QuotaPolicy::per_hour("hour", quota))
}

/// A document whose quota is its number.
pub(crate) fn version(number: u64) -> RulesDocument {
    RulesDocument::new(number, hour(number)).with_author("alice")
}

/// The quota by which the layer limits.
pub(crate) fn quota(layer: &RateLimitLayer) -> u64 {
    layer.limiter().rules().current().policies()[0].quota()
}

/// The status of a response to this user, and its field with the policies.
pub(crate) async fn send(layer: &RateLimitLayer, user: &str) -> (u16, String) {
    let response = test_kit::send(layer, request(user)).await;
    (response.code(), response.field("ratelimit-policy").to_owned())
}

/// Time of the test passes.
#[allow(clippy::disallowed_methods, reason = "the time of the test is virtual")]
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Advances the time by more than the longest poll interval, so that each follower has polled again.
pub(crate) async fn poll() {
    pass(Duration::from_millis(1_400)).await;
}
