use std::{fmt, sync::Arc};

use super::{
    look_up::{Ask, LookUp},
    ongoing::Ongoing,
    shard::Age,
    shared::{Found, Settings, Shared},
};
use crate::{
    clock::Clock,
    partition::{PartitionId, PartitionKey, ToPartitionKey},
    telemetry::Unresolved,
};

/// The cached tiers of a [`TierLayer`](crate::tier::TierLayer). Clones share one cache.
///
/// Forget a user to apply a change of the user's plan immediately, in this process, instead of after the [time to
/// live](crate::tier::TierLayerBuilder::time_to_live).
///
/// ```
/// use std::convert::Infallible;
/// use tower_quota::tier::{TierCache, TierLayer};
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # use {set_up::tier_of, std::sync::atomic::{AtomicBool, Ordering}};
/// # static HAS_PAID: AtomicBool = AtomicBool::new(false);
///
/// async fn find_plan(user: u64) -> Result<Option<&'static str>, Infallible> {
///     // Query a database here.
/// #   if HAS_PAID.load(Ordering::Relaxed) { return Ok(Some("premium")); }
///     Ok((user == 9).then_some("premium"))
/// }
///
/// let tiers = TierLayer::by_extension(find_plan).build()?;
/// let cache: TierCache = tiers.cache().clone();
///
/// // Called where payments are handled:
/// let on_payment = move |user: u64| cache.forget(&user);
/// #
/// # set_up::run(async move {
/// # for user in [7, 8] {
/// #     assert_eq!(tier_of(&tiers, user).await, None);
/// # }
/// # HAS_PAID.store(true, Ordering::Relaxed);
/// # on_payment(7);
/// # assert_eq!(tier_of(&tiers, 7).await.as_deref(), Some("premium"));
/// # assert_eq!(tier_of(&tiers, 8).await, None);
/// # assert_eq!(tiers.cache().users(), 2);
/// # Ok(()) });
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
///
/// The cache contains a digest of each user's key, never the key. With short tier names, each user takes less than 200
/// bytes: at most 20 MB for the default [`max_users`](crate::tier::TierLayerBuilder::max_users).
#[derive(Clone)]
pub struct TierCache(Arc<Shared>);

impl TierCache {
    pub(super) fn new(settings: Settings, clock: Clock) -> Self {
        Self(Arc::new(Shared::new(settings, clock)))
    }

    /// Forgets a user. The user's next request triggers a new lookup.
    ///
    /// A lookup in progress is repeated, so that a request that arrives after this call never uses data from before. If
    /// the repeated lookup fails, the user's tier is [unknown](crate::tier::OnUnknownTier).
    pub fn forget<U: ToPartitionKey + ?Sized>(&self, user: &U) {
        self.forget_digest(self.0.scope.partition(&user.to_partition_key()));
    }

    /// Forgets a user by the digest of its key in the scope `tiers`: `Scope::new("tiers").partition(&key)`. Use this
    /// for a source that announces changes without naming users.
    pub fn forget_digest(&self, user: PartitionId) {
        self.0.shards.lock(user).forget(user);
    }

    /// Forgets all users, like [`forget`](Self::forget).
    pub fn forget_all(&self) {
        for mut shard in self.0.shards.lock_each() {
            shard.forget_all();
        }
    }

    /// Returns the number of cached users, including users whose lookup has failed.
    pub fn users(&self) -> usize {
        self.0.shards.lock_each().map(|shard| shard.len()).sum()
    }

    pub(super) fn find(&self, key: &PartitionKey, ask: impl FnOnce() -> Ask) -> Found {
        let shared = &self.0;
        let user = shared.scope.partition(key);
        let mut shard = shared.shards.lock(user);
        // The clock is read under the lock, so that the requests of a user see times in order.
        let seen = shard.see(user, shared.clock.now(), &shared.settings.times);
        let go_on = |reason| Found::Now(shared.go_on(seen.known.clone(), reason));
        if seen.age == Age::Fresh {
            return go_on(Unresolved::Unanswered);
        }
        let running = shard.running(user).cloned();
        let look_up = match running {
            Some(look_up) => look_up,
            None if !seen.may_ask => return go_on(Unresolved::Failed),
            None => {
                let (runtime, place) = match shared.place(seen.age) {
                    Ok(place) => place,
                    Err(reason) => return go_on(reason),
                };
                let look_up = LookUp::new();
                shard.begin(user, look_up.clone());
                drop(shard);
                runtime.spawn(Ongoing::new(shared, user, look_up.clone(), place).run(ask()));
                look_up
            }
        };
        match seen.age {
            Age::Fresh | Age::Ageing => go_on(Unresolved::Unanswered),
            Age::Stale | Age::Unknown => shared.wait(look_up, seen.known),
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
