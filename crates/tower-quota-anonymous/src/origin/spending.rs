use std::time::Duration;

use super::tags::{Entry, Reservation, Tags};
use crate::telemetry::TokenTelemetry;
use tower_quota::{
    Algorithm, ConfigError, Limiter, LimiterBuilder, Outcome, PartitionId, PartitionKey, QuotaPolicy, Scope,
    clock::{Clock, Timestamp},
};

#[derive(Clone)]
pub(super) struct TagInContext {
    key: PartitionKey,
    id: PartitionId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spent {
    Before,
    Now,
    Unknown,
}

pub(super) struct Spending {
    tags: Tags,
    shared: Option<Limiter>,
    scope: Scope,
    clock: Clock,
}

impl Spending {
    /// Not configurable, because all origins share the tags of a context.
    const SCOPE: &str = "tower-quota privacy-pass spent tags";

    /// A tag can be spent again after `lifetime`. Without `shared`, tags are per process.
    pub(super) fn new(
        tags: Tags,
        shared: Option<LimiterBuilder>,
        clock: &Clock,
        lifetime: Duration,
    ) -> Result<Self, ConfigError> {
        // A bucket with one unit that is restored when no origin accepts the tag anymore. A fixed window would reset at
        // its own boundary, and accept the tag once more.
        let once = QuotaPolicy::new("spent tag", 1, lifetime)
            .with_burst_capacity(1)
            .with_algorithm(Algorithm::TokenBucket);
        // A rejection cache would be redundant, because the origin checks its memory before it calls the store.
        let build = |limiter: LimiterBuilder| {
            let limiter = limiter.scope(Self::SCOPE).policy(once).rejection_cache(0);
            limiter.clock(clock.clone()).build()
        };
        Ok(Self {
            tags,
            shared: shared.map(build).transpose()?,
            scope: Scope::new(Self::SCOPE),
            clock: clock.clone(),
        })
    }

    /// All layers that accept the context share its spent tags.
    pub(super) fn tag(&self, presentation_context: &[u8], tag: &[u8]) -> TagInContext {
        let context = PartitionKey::new("presentation context", presentation_context);
        let key = context.and(PartitionKey::new("tag", tag));
        let id = self.scope.partition(&key);
        TagInContext { key, id }
    }

    /// Only in the memory of this process.
    pub(super) fn knows(&self, tag: &TagInContext) -> bool {
        self.tags.knows(tag.id, self.clock.now())
    }

    pub(super) async fn spend(&self, tag: &TagInContext, log: &TokenTelemetry) -> Spent {
        let now = self.clock.now();
        let reservation = match self.tags.enter(tag.id, now) {
            Entry::Spent => return Spent::Before,
            Entry::New(reservation) => Some(reservation),
            Entry::Full => None,
        };
        let Some(limiter) = &self.shared else {
            return self.spend_here(reservation, now, log);
        };
        match limiter.check(&tag.key).await.outcome() {
            // The tag is in the store, and in this process's memory as long as there is room.
            Outcome::Allowed => Spent::Now,
            Outcome::FailedOpen => self.spend_here(reservation, now, log),
            Outcome::FailedClosed => {
                if let Some(reservation) = reservation {
                    reservation.release();
                }
                Spent::Unknown
            }
            _ => Spent::Before,
        }
    }

    fn spend_here(&self, reservation: Option<Reservation>, now: Timestamp, log: &TokenTelemetry) -> Spent {
        match reservation {
            Some(reservation) => {
                reservation.keep();
                Spent::Now
            }
            None => {
                log.tags_full(now);
                Spent::Unknown
            }
        }
    }
}
