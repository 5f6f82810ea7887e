use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::{
    look_up::{Answer, LookUp, Waited},
    on_unknown_tier::OnUnknownTier,
    shard::{Age, Shard, Times},
};
use crate::{
    clock::Clock,
    partition::Scope,
    rules::{NoTier, ResolvedTier},
    sync::sharded::Sharded,
    telemetry::{TierTelemetry, Unresolved},
};

/// How long a request with a stale tier waits for a newer one.
const RENEWAL_DEADLINE: Duration = Duration::from_millis(50);

/// Each waiting request occupies memory and a ready inner service.
const MAX_WAITING: usize = 4_096;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) times: Times,
    pub(super) on_unknown_tier: OnUnknownTier,
    pub(super) max_look_ups: usize,
    pub(super) max_users: usize,
}

pub(super) struct Shared {
    pub(super) shards: Sharded<Shard>,
    pub(super) scope: Scope,
    pub(super) settings: Settings,
    pub(super) places: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    pub(super) clock: Clock,
    pub(super) log: TierTelemetry,
}

pub(super) struct Place {
    pub(super) is_queued: bool,
    pub(super) _permit: OwnedSemaphorePermit,
}

pub(super) type TierOfRequest = Result<ResolvedTier, NoTier>;
pub(super) type PendingLookup = Pin<Box<dyn Future<Output = TierOfRequest> + Send>>;

pub(super) enum Found {
    Later(PendingLookup),
    Now(TierOfRequest),
}

impl Shared {
    pub(super) fn new(settings: Settings, clock: Clock) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            shards: Sharded::new(settings.max_users, Shard::new),
            scope: Scope::new("tiers"),
            places: semaphore(settings.max_look_ups),
            queue: semaphore(MAX_WAITING),
            waiting: semaphore(MAX_WAITING),
            settings,
            clock,
            log: TierTelemetry::default(),
        }
    }

    /// If all lookups are in use, reserves a position in the queue for a request that may wait.
    pub(super) fn place(&self, age: Age) -> Result<(Handle, Place), Unresolved> {
        let runtime = Handle::try_current().map_err(|_| Unresolved::Failed)?;
        let take = |semaphore: &Arc<Semaphore>, is_queued| {
            let _permit = Arc::clone(semaphore).try_acquire_owned().ok()?;
            Some(Place { is_queued, _permit })
        };
        let may_queue = age == Age::Unknown && self.settings.on_unknown_tier.wait.is_some();
        let place = take(&self.places, false).or_else(|| take(&self.queue, true).filter(|_| may_queue));
        if let Some(place) = place {
            return Ok((runtime, place));
        }
        let most = self.settings.max_look_ups;
        self.log.failed(
            self.clock.now(),
            &format_args!("limit of {most} lookups in progress reached"),
        );
        Err(Unresolved::Full)
    }

    pub(super) fn wait(self: &Arc<Self>, look_up: LookUp, known: Option<Answer>) -> Found {
        let limit = match known {
            Some(_) => RENEWAL_DEADLINE,
            None => self.settings.on_unknown_tier.wait.unwrap_or_default(),
        };
        // Another thread may have completed the lookup already, even if the lookup has only just begun.
        if let Some(result) = look_up.result(limit) {
            return Found::Now(self.go_on_after(result, known));
        }
        let Ok(place) = Arc::clone(&self.waiting).try_acquire_owned() else {
            self.log.failed(
                self.clock.now(),
                &format_args!("limit of {MAX_WAITING} requests waiting for lookups reached"),
            );
            return Found::Now(self.go_on(known, Unresolved::Full));
        };
        self.log.waits();
        let shared = Arc::clone(self);
        Found::Later(Box::pin(async move {
            let missed = || {
                let message = format!("no response within {limit:?}; requests proceed without it");
                shared.log.failed(shared.clock.now(), &message);
            };
            let result = look_up.wait(limit, missed).await;
            drop(place);
            shared.go_on_after(result, known)
        }))
    }

    fn go_on_after(&self, result: Waited, known: Option<Answer>) -> TierOfRequest {
        match result {
            Waited::Answered(answer) => answer.ok_or(NoTier::First),
            Waited::Failed => self.go_on(known, Unresolved::Failed),
            Waited::TimedOut => self.go_on(known, Unresolved::Unanswered),
        }
    }

    pub(super) fn go_on(&self, known: Option<Answer>, reason: Unresolved) -> TierOfRequest {
        match known {
            Some(answer) => answer.ok_or(NoTier::First),
            None => {
                self.log.metrics().unresolved.increment(reason);
                self.settings.on_unknown_tier.go_on()
            }
        }
    }
}
