//! Reveals neither the owner of a token nor the recipient of a credential.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tower_quota::clock::Timestamp;
use tracing::instrument::Instrumented;

macro_rules! token_event {
    ($level:ident, $($name:ident = $value:expr,)* $message:literal) => {
        tracing::event!(target: "tower_quota", tracing::Level::$level, $($name = %$value,)* $message)
    };
}

pub(super) fn in_current_span<F>(future: F) -> Instrumented<F> {
    tracing::Instrument::in_current_span(future)
}

#[derive(Debug, Default)]
pub(super) struct TokenTelemetry {
    told_of_address: AtomicBool,
    full: Throttle,
    overloaded: Throttle,
    counters: Counters,
}

impl TokenTelemetry {
    /// Once per checked request, unless it was cancelled first or needs no token.
    pub(super) fn judged(&self, policy: &str, outcome: &'static str) {
        self.counters.judged(policy, outcome);
    }

    pub(super) fn no_address(&self) {
        if !self.told_of_address.swap(true, Ordering::Relaxed) {
            token_event!(
                WARN,
                mistake = "no-peer-address",
                help = concat!(
                    "https://docs.rs/tower-quota/",
                    env!("CARGO_PKG_VERSION"),
                    "/tower_quota/docs/mistakes/index.html#no-peer-address"
                ),
                "a token request has no peer address, so failed proofs are not limited by address; is the peer address \
                 missing from the request's extensions?"
            );
        }
    }

    pub(super) fn tags_full(&self, now: Timestamp) {
        if let Some(suppressed) = self.full.due(now) {
            token_event!(
                ERROR,
                suppressed = suppressed,
                "token rejected: memory for spent tags is full; raise `max_tags`"
            );
        }
    }

    pub(super) fn overloaded(&self, now: Timestamp) {
        if let Some(suppressed) = self.overloaded.due(now) {
            token_event!(
                WARN,
                suppressed = suppressed,
                "token rejected: more tokens arrive than can be verified in time"
            );
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct IssuerTelemetry {
    overloaded: Throttle,
    counters: Counters,
}

impl IssuerTelemetry {
    pub(super) fn answered(&self, outcome: &'static str) {
        self.counters.answered(outcome);
    }

    pub(super) fn overloaded(&self, now: Timestamp) {
        if let Some(suppressed) = self.overloaded.due(now) {
            token_event!(
                WARN,
                suppressed = suppressed,
                "credential request rejected: more credentials are requested than can be issued in time"
            );
        }
    }
}

/// At most one event in ten seconds, with a count of suppressed ones.
#[derive(Debug, Default)]
struct Throttle {
    next: AtomicU64,
    suppressed: AtomicU64,
}

impl Throttle {
    const PAUSE_MICROS: u64 = 10_000_000;

    fn due(&self, now: Timestamp) -> Option<u64> {
        let (now, next) = (now.as_micros(), self.next.load(Ordering::Relaxed));
        let until = now.saturating_add(Self::PAUSE_MICROS);
        let order = Ordering::Relaxed;
        if now >= next && self.next.compare_exchange(next, until, order, order).is_ok() {
            return Some(self.suppressed.swap(0, order));
        }
        self.suppressed.fetch_add(1, order);
        None
    }
}

/// On first use, so that only programs with an origin or an issuer expose these metrics.
#[derive(Debug, Default)]
struct Counters {
    #[cfg(feature = "metrics")]
    described: std::sync::OnceLock<()>,
}

#[cfg(feature = "metrics")]
impl Counters {
    const CREDENTIALS: &str = "tower_quota_credentials_total";
    const TOKENS: &str = "tower_quota_tokens_total";

    fn judged(&self, policy: &str, outcome: &'static str) {
        self.describe();
        metrics::counter!(Self::TOKENS, "policy" => policy.to_owned(), "outcome" => outcome).increment(1);
    }

    fn answered(&self, outcome: &'static str) {
        self.describe();
        metrics::counter!(Self::CREDENTIALS, "outcome" => outcome).increment(1);
    }

    fn describe(&self) {
        use metrics::{Unit, describe_counter};

        self.described.get_or_init(|| {
            let credentials = "Requests for anonymous credentials, by response";
            describe_counter!(Self::CREDENTIALS, Unit::Count, credentials);
            let tokens = "Requests to an origin of anonymous tokens, by outcome";
            describe_counter!(Self::TOKENS, Unit::Count, tokens);
        });
    }
}

#[cfg(not(feature = "metrics"))]
impl Counters {
    fn judged(&self, _: &str, _: &str) {}

    fn answered(&self, _: &str) {}
}
