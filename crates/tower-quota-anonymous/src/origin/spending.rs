//! Spends tags, each once: over all instances in a store that they share, or in the memory of this process.

use std::time::Duration;

use super::tags::{Entry, Reservation, Tags};
use crate::telemetry::TokenTelemetry;
use tower_quota::{
    Algorithm, ConfigError, Limiter, LimiterBuilder, Outcome, PartitionId, PartitionKey, QuotaPolicy, Scope,
    clock::{Clock, Timestamp},
};

/// A tag in its context.
#[derive(Clone)]
pub(super) struct TagInContext {
    key: PartitionKey,
    id: PartitionId,
}

/// The result of spending a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spent {
    /// It was spent before.
    Before,
    /// It is spent now.
    Now,
    /// It is not known if it was.
    Unknown,
}

pub(super) struct Spending {
    tags: Tags,
    shared: Option<Limiter>,
    scope: Scope,
    clock: Clock,
}

impl Spending {
    /// All origins share the tags of a context, so this is not a setting.
    const SCOPE: &str = "tower-quota privacy-pass spent tags";

    /// A tag is accepted again after its `lifetime`. Without a `shared` limiter, each process has its own tags.
    pub(super) fn new(
        tags: Tags,
        shared: Option<LimiterBuilder>,
        clock: &Clock,
        lifetime: Duration,
    ) -> Result<Self, ConfigError> {
        // A bucket that holds one unit, which comes back when no origin accepts the tag any more. A fixed window would end at
        // a border of its own, and accept the tag once more behind it.
        let once = QuotaPolicy::new("spent tag", 1, lifetime)
            .with_burst_capacity(1)
            .with_algorithm(Algorithm::TokenBucket);
        // The origin looks at its own memory before it asks the store, so a rejection cache would hold nothing more.
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

    /// The name of a tag in its context, and nothing else: all layers that accept the context see each other's spent tags.
    pub(super) fn tag(&self, presentation_context: &[u8], tag: &[u8]) -> TagInContext {
        let context = PartitionKey::new("presentation context", presentation_context);
        let key = context.and(PartitionKey::new("tag", tag));
        let id = self.scope.partition(&key);
        TagInContext { key, id }
    }

    /// Returns `true` if this process knows that the tag is spent. It does not ask the store.
    pub(super) fn knows(&self, tag: &TagInContext) -> bool {
        self.tags.knows(tag.id, self.clock.now())
    }

    /// Spends a tag.
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
            // The store knows it now; so does this process, as long as it has room.
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

    /// This process alone decides.
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
