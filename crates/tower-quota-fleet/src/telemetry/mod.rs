//! Events and metrics. Events have the same target as the core's events.

#[cfg(feature = "metrics")]
mod meters;
#[cfg(not(feature = "metrics"))]
#[path = "no_meters.rs"]
mod meters;
mod throttle;

use std::fmt::Display;

use self::{
    meters::{ContractsMeter, FleetMeters},
    throttle::EventThrottle,
};
use tower_quota::clock::Timestamp;

#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($name:ident = %$value:expr,)* $message:literal) => {
        tracing::event!(target: "tower_quota", tracing::Level::$level, $($name = %$value,)* $message)
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($name:ident = %$value:expr,)* $message:literal) => {{
        $(let _ = &$value;)*
    }};
}

#[derive(Debug)]
pub(crate) struct FleetTelemetry {
    name: Box<str>,
    unread: EventThrottle,
    unreported: EventThrottle,
    meters: FleetMeters,
}

#[derive(Debug)]
pub(crate) struct ContractsTelemetry {
    name: Box<str>,
    unread: EventThrottle,
    meter: ContractsMeter,
}

impl ContractsTelemetry {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            unread: EventThrottle::default(),
            meter: ContractsMeter::new(name),
        }
    }

    pub(crate) fn unread(&self, now: Timestamp, error: &dyn Display) {
        self.meter.unread();
        self.unread.record(now, |suppressed| {
            event!(
                WARN,
                contracts = %self.name,
                error = %error,
                suppressed = %suppressed,
                "changes of contracts cannot be read; callers keep the quotas that this instance knows"
            );
        });
    }
}

/// Logs an error if the task that owns the alarm panics.
pub(crate) struct PanicAlarm<'a>(&'a FleetTelemetry);

impl FleetTelemetry {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            unread: EventThrottle::default(),
            unreported: EventThrottle::default(),
            meters: FleetMeters::new(name),
        }
    }

    pub(crate) fn applied(&self, version: &dyn Display, author: &str) {
        event!(
            INFO,
            rules = %self.name,
            version = %version,
            author = %author,
            "new rules of the fleet are in force"
        );
    }

    /// The number is smaller than the previous version's.
    pub(crate) fn went_back(&self, version: &dyn Display, before: &dyn Display, author: &str) {
        event!(
            WARN,
            rules = %self.name,
            version = %version,
            before = %before,
            author = %author,
            "rules of the fleet with a lower number are in force; has a fail-over lost a publication?"
        );
    }

    /// Pairs of tier and policy name.
    pub(crate) fn runs(&self, version: u64, policies: &[(&str, &str)]) {
        self.meters.runs(version, policies);
    }

    pub(crate) fn rejected(&self, version: &dyn Display, running: &dyn Display, reason: &str, error: &str) {
        event!(
            WARN,
            rules = %self.name,
            version = %version,
            running = %running,
            reason = %reason,
            error = %error,
            "published rules are rejected; the rules before stay in force"
        );
    }

    /// `None` if the latest version is not rejected.
    pub(crate) fn rejects(&self, reason: Option<&'static str>) {
        self.meters.rejects(reason);
    }

    pub(crate) fn no_access_list(&self) {
        event!(
            WARN,
            rules = %self.name,
            "the rules of the fleet have an access list, and the follower has none to put it into; \
             give it that of the layer"
        );
    }

    pub(crate) fn switched(&self, is_on: bool, author: &str) {
        let state = if is_on { "on" } else { "off" };
        event!(
            WARN,
            rules = %self.name,
            limits = %state,
            author = %author,
            "the fleet has switched the limits"
        );
    }

    pub(crate) fn switched_by_file(&self, is_on: bool) {
        let state = if is_on { "on" } else { "off" };
        event!(WARN, rules = %self.name, limits = %state, "the file of the switch has changed");
    }

    pub(crate) fn unknown_switch(&self) {
        event!(
            WARN,
            rules = %self.name,
            "the file of the switch cannot be read, or holds neither `off` nor `on`; the switch stays as it is"
        );
    }

    pub(crate) fn unread(&self, now: Timestamp, error: &str) {
        self.meters.unread();
        self.unread.record(now, |suppressed| {
            event!(
                WARN,
                rules = %self.name,
                error = %error,
                suppressed = %suppressed,
                "the rules of the fleet cannot be read; those in force stay"
            );
        });
    }

    pub(crate) fn unreported(&self, now: Timestamp, error: &dyn Display) {
        self.unreported.record(now, |suppressed| {
            event!(
                WARN,
                rules = %self.name,
                error = %error,
                suppressed = %suppressed,
                "this instance could not report which rules it runs"
            );
        });
    }

    /// Pairs of metric label and description; empty if the source has recovered.
    pub(crate) fn lost(&self, lost: &[(&'static str, String)]) {
        self.meters.lost(lost);
        match lost {
            [] => event!(INFO, rules = %self.name, "the source of the rules has everything again that it had lost"),
            lost => {
                let texts: Vec<_> = lost.iter().map(|(_, text)| text.as_str()).collect();
                event!(
                    WARN,
                    rules = %self.name,
                    lost = %texts.join("; "),
                    "the source of the rules lost something that it had; this instance keeps enforcing it. \
                     Publish the rules again: see \"When Redis loses its data\" in the page on the fleet"
                );
            }
        }
    }

    /// `None` without an order that switches limits off, and `Some(None)` if the order has no end.
    pub(crate) fn switch_ends(&self, until: Option<Option<u64>>) {
        self.meters.switch_ends(until);
    }

    /// `None` after recovery.
    pub(crate) fn controls_unread(&self, failure: Option<&str>) {
        self.meters.controls_unread(failure.is_some());
        match failure {
            None => event!(INFO, rules = %self.name, "the kill switch and the access list of the fleet are read"),
            Some(failure) => event!(
                WARN,
                rules = %self.name,
                error = %failure,
                "the kill switch or the access list of the fleet is not read; this instance does not obey it"
            ),
        }
    }

    pub(crate) fn overridden(&self, is_overridden: bool) {
        self.meters.overridden(is_overridden);
        event!(
            WARN,
            rules = %self.name,
            overrides = %is_overridden,
            "this process has begun, or ceased, to override the rules or the switch of the fleet"
        );
    }

    pub(crate) fn watch_for_panic(&self) -> PanicAlarm<'_> {
        PanicAlarm(self)
    }
}

impl Drop for PanicAlarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            event!(
                ERROR,
                rules = %self.0.name,
                "a source of rules has panicked; the rules in force stay and are not followed any more"
            );
        }
    }
}
