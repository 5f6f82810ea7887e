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

macro_rules! event {
    ($level:ident, $($name:ident = %$value:expr,)* $message:literal) => {
        tracing::event!(target: "tower_quota", tracing::Level::$level, $($name = %$value,)* $message)
    };
}

/// Makes `work` log to the subscriber of this thread, on whichever thread it runs.
pub(crate) fn with_subscriber<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let subscriber = tracing::dispatcher::get_default(Clone::clone);
    move || tracing::dispatcher::with_default(&subscriber, work)
}

#[derive(Debug)]
pub(crate) struct FleetTelemetry {
    name: Box<str>,
    unread: EventThrottle,
    unreported: EventThrottle,
    pub(crate) meters: FleetMeters,
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
                "contract changes cannot be read; callers keep the quotas known to this instance"
            );
        });
    }
}

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
            "fleet rules applied"
        );
    }

    pub(crate) fn went_back(&self, version: &dyn Display, before: &dyn Display, author: &str) {
        event!(
            WARN,
            rules = %self.name,
            version = %version,
            before = %before,
            author = %author,
            "fleet rules with a lower number applied; did a failover lose a publication?"
        );
    }

    pub(crate) fn rejected(&self, version: &dyn Display, running: &dyn Display, reason: &str, error: &str) {
        event!(
            WARN,
            rules = %self.name,
            version = %version,
            running = %running,
            reason = %reason,
            error = %error,
            "published rules rejected; the previous rules stay in effect"
        );
    }

    pub(crate) fn no_access_list(&self) {
        event!(
            WARN,
            rules = %self.name,
            "fleet rules have an access list, which is not enforced; pass the layer's access list to the follower"
        );
    }

    pub(crate) fn switched(&self, is_on: bool, author: &str) {
        let state = if is_on { "on" } else { "off" };
        event!(
            WARN,
            rules = %self.name,
            limits = %state,
            author = %author,
            "limits switched by the fleet"
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
                "fleet rules cannot be read; the current rules stay in effect"
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
                "report of this instance failed; publishers do not see its rules"
            );
        });
    }

    /// Pairs of metric label and description; empty after recovery.
    pub(crate) fn lost(&self, lost: &[(&'static str, String)]) {
        self.meters.lost(lost);
        match lost {
            [] => event!(INFO, rules = %self.name, "rules source recovered the data that it had lost"),
            lost => {
                let texts: Vec<_> = lost.iter().map(|(_, text)| text.as_str()).collect();
                event!(
                    WARN,
                    rules = %self.name,
                    lost = %texts.join("; "),
                    "rules source lost data; this instance keeps enforcing it. Publish the rules again: see \"When \
                     Redis loses its data\" in the fleet guide"
                );
            }
        }
    }

    pub(crate) fn controls_unread(&self, failure: Option<&str>) {
        self.meters.controls_unread(failure.is_some());
        match failure {
            None => event!(INFO, rules = %self.name, "fleet kill switch and access list are readable again"),
            Some(failure) => event!(
                WARN,
                rules = %self.name,
                error = %failure,
                "fleet kill switch or access list cannot be read; changes do not reach this instance"
            ),
        }
    }

    pub(crate) fn overridden(&self, is_overridden: bool) {
        self.meters.overridden(is_overridden);
        event!(
            WARN,
            rules = %self.name,
            overrides = %is_overridden,
            "local override of the fleet's rules or switch started or ended"
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
                "rules source panicked; the current rules stay in effect, and new versions are not applied"
            );
        }
    }
}
