//! The cached tiers of users, and the look-ups in progress.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::{
    look_up::LookUp,
    shard::{Age, Shard, Times},
};
use crate::{
    clock::{Clock, Timestamp},
    partition::{PartitionId, PartitionKey, Scope, ToPartitionKey},
    rules::ResolvedTier,
    sharded::Sharded,
    telemetry::TierTelemetry,
};

/// The cached tiers of a [`TierLayer`](crate::tier::TierLayer)'s users. Clones share one cache.
///
/// You want it to have a change of a plan seen at once, rather than after the
/// [time to live](crate::tier::TierLayerBuilder::time_to_live). It speaks of this process only: other instances keep what they
/// know until its time is over, or until they are told too.
///
/// It holds a digest of each user's key, never the key, and at most so many users as
/// [`max_users`](crate::tier::TierLayerBuilder::max_users) says. With short names of tiers each takes less than 200 bytes, so
/// that it is 20 MB at most by default.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// static HAS_PAID: AtomicBool = AtomicBool::new(false);
/// let layer = TierLayer::by_extension(|_user: u64| async {
///     Ok::<_, Infallible>(HAS_PAID.load(Ordering::Relaxed).then_some("premium"))
/// })
/// .build()?;
/// let cache = layer.cache().clone();
/// for user in [7, 8] {
///     assert_eq!(tier_of(&layer, user).await, None);
/// }
///
/// // Later, where payments are handled:
/// HAS_PAID.store(true, Ordering::Relaxed);
/// cache.forget(&7_u64);
/// assert_eq!(tier_of(&layer, 7).await.as_deref(), Some("premium"));
/// assert_eq!(tier_of(&layer, 8).await, None);
///
/// assert_eq!(cache.users(), 2);
/// cache.forget_all();
/// assert_eq!(cache.users(), 0);
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct TierCache(Arc<Shared>);

/// The answer of a resolver: the tier, or the reason why it is not known.
pub(super) type SourceAnswer = Result<Option<ResolvedTier>, String>;
/// Asks the resolver about one user, at each call.
pub(super) type Ask = Box<dyn Fn() -> Pin<Box<dyn Future<Output = SourceAnswer> + Send>> + Send>;

/// The tier of a user who is being looked up.
pub(super) type FoundLater = Pin<Box<dyn Future<Output = Option<ResolvedTier>> + Send>>;

/// The way to the tier of a request's user.
pub(super) enum Found {
    Later(FoundLater),
    Now(Option<ResolvedTier>),
}

/// The sizes and times of a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) times: Times,
    pub(super) deadline: Duration,
    pub(super) look_up_timeout: Duration,
    pub(super) max_look_ups: usize,
    pub(super) max_users: usize,
}

struct Shared {
    shards: Sharded<Shard>,
    scope: Scope,
    settings: Settings,
    places: Arc<Semaphore>,
    clock: Clock,
    log: TierTelemetry,
}

impl TierCache {
    pub(super) fn new(settings: Settings, clock: Clock) -> Self {
        Self(Arc::new(Shared {
            shards: Sharded::new(settings.max_users, Shard::new),
            scope: Scope::new("tiers"),
            settings,
            places: Arc::new(Semaphore::new(settings.max_look_ups)),
            clock,
            log: TierTelemetry::default(),
        }))
    }

    /// Forgets what is known of a user, whose next request looks it up again.
    ///
    /// A look-up in progress is repeated, by the same task, before it is answered: what was read before this call
    /// is not used after it, but by requests that came before. If the source does not answer then, the user has no
    /// tier: a tier that was forgotten does not come back.
    pub fn forget<U: ToPartitionKey + ?Sized>(&self, user: &U) {
        let user = self.0.scope.partition(&user.to_partition_key());
        self.0.shards.lock(user).forget(user);
    }

    /// Forgets what is known of all users, as [`forget`](Self::forget) does of one.
    pub fn forget_all(&self) {
        for mut shard in self.0.shards.lock_each() {
            shard.forget_all();
        }
    }

    /// The current number of cached users, including those whose look-up has
    /// failed.
    pub fn users(&self) -> usize {
        self.0.shards.lock_each().map(|shard| shard.len()).sum()
    }

    /// The tier of the user with this key: what is known, if it is good, or the answer to a look-up, if one is worth
    /// waiting for.
    pub(super) fn find(&self, key: &PartitionKey, ask: impl FnOnce() -> Ask) -> Found {
        let shared = &self.0;
        let user = shared.scope.partition(key);
        let mut shard = shared.shards.lock(user);
        // Read under the lock, so that the requests of a user see time in order.
        let seen = shard.see(user, shared.clock.now(), &shared.settings.times);
        if seen.age == Age::Fresh {
            return Found::Now(seen.tier);
        }
        let running = shard.running(user).cloned();
        let look_up = match running {
            Some(look_up) => look_up,
            None if !seen.may_ask => return Found::Now(seen.tier),
            None => {
                let Some((runtime, place)) = shared.place() else {
                    return Found::Now(seen.tier);
                };
                let look_up = LookUp::new();
                shard.begin(user, look_up.clone());
                drop(shard);
                let ongoing = OngoingLookUp {
                    shared: Arc::clone(shared),
                    user,
                    look_up: look_up.clone(),
                    place: Some(place),
                };
                runtime.spawn(ongoing.run(ask()));
                look_up
            }
        };
        if seen.age == Age::Ageing {
            return Found::Now(seen.tier);
        }
        // It may be over already, also if it has begun just now: another thread can be faster than this one.
        if let Some(tier) = look_up.outcome(&seen.tier) {
            return Found::Now(tier);
        }
        let shared = Arc::clone(shared);
        let missed = move || {
            let (now, deadline) = (shared.clock.now(), shared.settings.deadline);
            let message = format!("no answer within {deadline:?}, requests do not wait for it");
            shared.log.record(now, &message);
        };
        Found::Later(Box::pin(look_up.wait(self.0.settings.deadline, seen.tier, missed)))
    }
}

impl Shared {
    /// A place for one more look-up, and what runs it.
    fn place(&self) -> Option<(Handle, OwnedSemaphorePermit)> {
        let runtime = Handle::try_current().ok()?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        if place.is_err() {
            let (now, most) = (self.clock.now(), self.settings.max_look_ups);
            self.log
                .record(now, &format_args!("{most} look-ups are in progress, no more may begin"));
        }
        Some((runtime, place.ok()?))
    }
}

/// The right to look up one user, until it is dropped.
struct OngoingLookUp {
    shared: Arc<Shared>,
    user: PartitionId,
    look_up: LookUp,
    /// The look-up's place among those that may run at the same time; `None` when it is over.
    place: Option<OwnedSemaphorePermit>,
}

impl OngoingLookUp {
    /// Asks until there is an answer that was not declared outdated while it was on its way.
    async fn run(mut self, ask: Ask) {
        let limit = self.shared.settings.look_up_timeout;
        loop {
            let began = self.shared.clock.now();
            // The resolver's future is gone before the look-up ends, and so before anything else asks about the user.
            let answer = tokio::time::timeout(limit, ask()).await;
            let answer =
                answer.unwrap_or_else(|_| Err(format!("no answer within {limit:?}, the look-up was cancelled")));
            if self.end(began, answer) {
                return;
            }
        }
    }

    /// Ends the look-up, unless it has to be repeated: then this is `false`.
    fn end(&mut self, began: Timestamp, answer: SourceAnswer) -> bool {
        let shared = Arc::clone(&self.shared);
        let times = &shared.settings.times;
        let mut shard = shared.shards.lock(self.user);
        if shard.take_outdated(self.user) {
            return false;
        }
        let now = shared.clock.now();
        let answer = match answer {
            Ok(tier) => {
                shard.learn(self.user, tier.clone(), began, now, times);
                Some(tier)
            }
            Err(error) => {
                shard.fail(self.user, now, times);
                shared.log.record(now, &error);
                None
            }
        };
        self.leave(shard, answer);
        true
    }

    fn leave(&mut self, mut shard: MutexGuard<'_, Shard>, answer: Option<Option<ResolvedTier>>) {
        // Before the next request of the user can begin a look-up, which needs it.
        self.place = None;
        shard.end(self.user);
        drop(shard);
        self.look_up.publish(answer);
    }
}

impl Drop for OngoingLookUp {
    /// Reached with a place only if the resolver has panicked or the runtime is shut down.
    fn drop(&mut self) {
        if self.place.is_some() {
            let shared = Arc::clone(&self.shared);
            let (mut shard, now) = (shared.shards.lock(self.user), shared.clock.now());
            shard.fail(self.user, now, &shared.settings.times);
            shared.log.record(now, &"the look-up has panicked or was shut down");
            self.leave(shard, None);
        }
    }
}

impl fmt::Debug for TierCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierCache")
            .field("users", &self.users())
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}
