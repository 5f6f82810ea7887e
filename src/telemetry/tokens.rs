//! Events and counters of origins and issuers of anonymous tokens.

use super::{
    meters::TokenMeters,
    throttle::{EventThrottle, OnceFlags},
};
use crate::{clock::Timestamp, mistake::Mistake};

/// Events and counters of one origin. They say nothing about whose a token is.
#[derive(Debug, Default)]
pub(crate) struct TokenTelemetry {
    told: OnceFlags,
    full: EventThrottle,
    overloaded: EventThrottle,
    meters: TokenMeters,
}

impl TokenTelemetry {
    /// Every request that the origin has looked at ends here once, unless it was cancelled before or needs no token.
    pub(crate) fn judged(&self, policy: &str, outcome: &'static str) {
        self.meters.judged(policy, outcome);
    }

    pub(crate) fn no_address(&self) {
        if self.told.is_first(Mistake::NoPeerAddress) {
            mistake!(
                NoPeerAddress,
                "a token comes from an unknown address, so proofs that fail are not limited by address; \
                 is the peer address missing from the extensions of requests?"
            );
        }
    }

    /// This process can note no more tags, and rejects tokens until old ones expire.
    pub(crate) fn tags_full(&self, now: Timestamp) {
        self.full.record(now, |suppressed| {
            event!(
                ERROR,
                suppressed = %suppressed,
                "the memory for spent tags is full, and a token was rejected; raise `max_tags`"
            );
        });
    }

    pub(crate) fn overloaded(&self, now: Timestamp) {
        self.overloaded.record(now, |suppressed| {
            event!(
                WARN,
                suppressed = %suppressed,
                "more tokens come than can be verified in time, and one was rejected"
            );
        });
    }
}

/// Events and counters of one issuer. They say nothing about who gets a credential.
#[derive(Debug, Default)]
pub(crate) struct IssuerTelemetry {
    overloaded: EventThrottle,
    meters: TokenMeters,
}

impl IssuerTelemetry {
    /// Each request for a credential ends here once, unless it was cancelled before.
    pub(crate) fn answered(&self, outcome: &'static str) {
        self.meters.answered(outcome);
    }

    pub(crate) fn overloaded(&self, now: Timestamp) {
        self.overloaded.record(now, |suppressed| {
            event!(
                WARN,
                suppressed = %suppressed,
                "more credentials are requested than can be issued in time, and one request was rejected"
            );
        });
    }
}
