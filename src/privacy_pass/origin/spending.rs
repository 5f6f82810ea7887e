//! Spends tags, each once: over all instances in a store that they share, or in the memory of this process.

use std::{sync::Arc, time::Duration};

use super::tags::{Entry, Reservation, Tags};
use crate::{
    clock::{Clock, Timestamp},
    decision::{Outcome, Plan},
    error::ConfigError,
    guard::{DecisionState, Guard, GuardConfig},
    partition::{PartitionId, PartitionKey, Scope},
    policy::{Algorithm, PolicySet, QuotaPolicy},
    store::Store,
    telemetry::TokenTelemetry,
};

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
    shared: Option<(Arc<Guard>, PolicySet)>,
    scope: Scope,
    clock: Clock,
}

impl Spending {
    /// All origins share the tags of a context, so this is not a setting.
    const SCOPE: &str = "tower-quota privacy-pass spent tags";

    /// `lifetime` is how long a tag is kept.
    pub(super) fn new(
        tags: Tags,
        store: Option<Arc<dyn Store>>,
        terms: GuardConfig,
        clock: &Clock,
        (policy, lifetime): (&str, Duration),
    ) -> Result<Self, ConfigError> {
        // A bucket that holds one unit, which comes back when no origin accepts the tag any more. A fixed window would end at
        // a border of its own, and accept the tag once more behind it.
        let once = QuotaPolicy::new("spent tag", 1, lifetime)
            .with_burst_capacity(1)
            .with_algorithm(Algorithm::TokenBucket);
        let once = PolicySet::new([once])?;
        let shared = store.map(|store| (Arc::new(Guard::new(store, None, terms, clock.clone(), policy)), once));
        Ok(Self {
            tags,
            shared,
            scope: Scope::new(Self::SCOPE),
            clock: clock.clone(),
        })
    }

    /// The name of a tag in its context, and nothing else: all layers that accept the context see each other's spent tags.
    pub(super) fn partition(&self, presentation_context: &[u8], tag: &[u8]) -> PartitionId {
        let context = PartitionKey::new("presentation context", presentation_context);
        self.scope.partition(&context.and(PartitionKey::new("tag", tag)))
    }

    /// Returns `true` if this process knows that the tag is spent. It does not ask the store.
    pub(super) fn knows(&self, tag: PartitionId) -> bool {
        self.tags.knows(tag, self.clock.now())
    }

    /// Spends a tag.
    pub(super) async fn spend(&self, tag: PartitionId, log: &TokenTelemetry) -> Spent {
        let now = self.clock.now();
        let reservation = match self.tags.enter(tag, now) {
            Entry::Spent => return Spent::Before,
            Entry::New(reservation) => Some(reservation),
            Entry::Full => None,
        };
        let Some((guard, once)) = &self.shared else {
            return self.spend_here(reservation, now, log);
        };
        let decision = match guard.decide(Plan::new(once.clone(), tag, 1)) {
            DecisionState::Decided(decision) => decision,
            DecisionState::Pending(decision) => decision.await,
        };
        match decision.outcome() {
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
