use std::{fmt, future::Future, sync::Arc, time::Duration};

use http::request::Parts;

use super::{
    cache::TierCache,
    layer::{Resolving, TierLayer},
    on_unknown_tier::OnUnknownTier,
    shard::Times,
    shared::{Found, Settings},
    source::{Source, ask},
};
use crate::{
    clock::Clock,
    error::{ConfigError, ConfigErrorKind::Tier},
    partition::ToPartitionKey,
    rules::{NoTier, ResolvedTier},
};

/// The settings of a [`TierLayer`], all with defaults.
///
/// ```
/// use std::{io, time::Duration};
/// use tower_quota::tier::{OnUnknownTier, TierLayer};
///
/// async fn find_plan(user: u64) -> io::Result<Option<&'static str>> {
///     // Query a database here.
///     Ok((user == 7).then_some("premium"))
/// }
///
/// let tiers = TierLayer::by_extension(find_plan)
///     .time_to_live(Duration::from_secs(300)) // a changed plan applies after five minutes
///     .stale_for(Duration::from_secs(3_600)) // while the database fails, use the last known plan for an hour
///     .on_unknown_tier(OnUnknownTier::wait(Duration::from_millis(500)).then_tier("trial"))
///     .max_look_ups(20) // the connections of the database pool
///     .max_users(10_000)
///     .build()?;
///
/// let error = TierLayer::by_extension(find_plan).max_look_ups(0).build().unwrap_err();
/// assert_eq!(error.to_string(), "tier layer: max_look_ups 0 is outside 1..=65536");
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async move {
/// # assert_eq!(set_up::tier_of(&tiers, 7).await.as_deref(), Some("premium"));
/// # assert_eq!(set_up::tier_of(&tiers, 8).await, None);
/// # assert_eq!(tiers.cache().users(), 2);
/// # Ok(()) });
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct TierLayerBuilder {
    source: Box<Source>,
    settings: Settings,
    clock: Clock,
}

impl TierLayer {
    /// Creates a layer that looks up the tier of a value of type `U` in the request's extensions.
    ///
    /// Authentication inserts the value; requests without it are forwarded without a tier. The resolver gets a clone of
    /// the value, which should contain all data that a lookup needs, and returns
    ///
    /// - the name of a tier, at most 256 bytes: any type that is `AsRef<str>`;
    /// - a [`ResolvedTier`], which can also contain the caller's [individual quotas](ResolvedTier::with_quotas);
    /// - `None` if the user has no tier;
    /// - an error, which is logged, so it should not contain users' names.
    pub fn by_extension<U, R, A, N, E>(resolver: R) -> TierLayerBuilder
    where
        U: ToPartitionKey + Clone + Send + Sync + 'static,
        R: Fn(U) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<N>, E>> + Send + 'static,
        N: Into<ResolvedTier>,
        E: fmt::Display,
    {
        let resolver = Arc::new(resolver);
        TierLayerBuilder::new(move |request, cache| match request.extensions.get::<U>() {
            Some(user) => cache.find(&user.to_partition_key(), || ask(&resolver, user.clone())),
            None => Found::Now(Err(NoTier::First)),
        })
    }

    /// Creates a layer that looks up the tier of the user that `user` extracts from the request.
    ///
    /// `user` is called once per request and must not block. Requests for which it returns `None` are forwarded without
    /// a tier. For the resolver, see [`by_extension`](Self::by_extension).
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use tower_quota::tier::TierLayer;
    ///
    /// let tiers = TierLayer::from_fn(
    ///     // Set by the gateway in front of this service, which removes the header from clients' requests.
    ///     |request| request.headers.get("x-user-id")?.to_str().ok().map(str::to_owned),
    ///     |user: String| async move { Ok::<_, Infallible>((user == "alice").then_some("premium")) },
    /// )
    /// .build()?;
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async move {
    /// # use {http::Request, tower::{Layer, ServiceExt, service_fn}, tower_quota::ResolvedTier};
    /// # let service = tiers.layer(service_fn(async |request: Request<String>| {
    /// #     Ok::<_, Infallible>(request.extensions().get::<ResolvedTier>().cloned())
    /// # }));
    /// # for (user, tier) in [("alice", Some(ResolvedTier::new("premium"))), ("bob", None)] {
    /// #     let request = Request::get("/").header("x-user-id", user).body(String::new())?;
    /// #     assert_eq!(service.clone().oneshot(request).await?, tier);
    /// # }
    /// # // The inner service is unchanged.
    /// # let request = Request::get("/").header("x-user-id", "alice").body(String::new())?;
    /// # assert_eq!(service.into_inner().oneshot(request).await?, None);
    /// # Ok(()) });
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    pub fn from_fn<U, F, R, A, N, E>(user: F, resolver: R) -> TierLayerBuilder
    where
        U: ToPartitionKey + Clone + Send + 'static,
        F: Fn(&Parts) -> Option<U> + Send + Sync + 'static,
        R: Fn(U) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<N>, E>> + Send + 'static,
        N: Into<ResolvedTier>,
        E: fmt::Display,
    {
        let resolver = Arc::new(resolver);
        TierLayerBuilder::new(move |request, cache| match user(request) {
            Some(user) => cache.find(&user.to_partition_key(), || ask(&resolver, user)),
            None => Found::Now(Err(NoTier::First)),
        })
    }
}

impl TierLayerBuilder {
    fn new(source: impl Fn(&Parts, &TierCache) -> Found + Send + Sync + 'static) -> Self {
        Self {
            source: Box::new(source),
            settings: Settings {
                times: Times {
                    time_to_live: Duration::from_secs(60),
                    stale_for: Duration::from_secs(600),
                },
                on_unknown_tier: OnUnknownTier::default(),
                max_look_ups: 256,
                max_users: 100_000,
            },
            clock: Clock::system(),
        }
    }

    /// Sets the time to live of a cached tier, from 1 ms to 7 days after the lookup began. Default: 60 s.
    ///
    /// A change of a user's plan can go unnoticed for this time, unless the user is [forgotten](TierCache::forget). The
    /// result of a lookup that takes longer is used as a [stale](Self::stale_for) tier.
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.settings.times.time_to_live = time;
        self
    }

    /// Sets how long an expired tier can be used, up to 7 days after it expired. Default: 10 minutes.
    ///
    /// An expired tier is used if no newer tier is available within 50 ms, for example while the source fails. With
    /// zero, requests wait as for an [unknown](Self::on_unknown_tier) tier.
    pub fn stale_for(mut self, time: Duration) -> Self {
        self.settings.times.stale_for = time;
        self
    }

    /// Sets the wait of requests with an unknown tier, and the tier after it. Default: [`OnUnknownTier::wait`] for 1 s,
    /// then the first tier of [`Tiers`](crate::Tiers).
    pub fn on_unknown_tier(mut self, on_unknown_tier: OnUnknownTier) -> Self {
        self.settings.on_unknown_tier = on_unknown_tier;
        self
    }

    /// Limits concurrent lookups of all users, from 1 to 65,536. Default: 256.
    ///
    /// Above the limit, lookups for users with an [unknown](Self::on_unknown_tier) tier are queued for as long as their
    /// requests wait. If a lookup cannot start in time, it counts as failed, and the user is looked up again after one
    /// second.
    pub fn max_look_ups(mut self, look_ups: usize) -> Self {
        self.settings.max_look_ups = look_ups;
        self
    }

    /// Limits the number of cached users, at least 1. Default: 100,000.
    ///
    /// Above the limit, a new user evicts one of a random sample: preferably one that has called only once, otherwise
    /// the one that has been idle for longest. Evictions can begin slightly below the limit.
    pub fn max_users(mut self, users: usize) -> Self {
        self.settings.max_users = users;
        self
    }

    /// Sets the clock that determines the age of cached tiers, for tests. Default: [`Clock::system`]. Waits and the
    /// lookup timeout are Tokio timers, which this setting does not affect.
    ///
    /// ```
    /// use std::{convert::Infallible, time::Duration};
    /// use tower_quota::{clock::{Clock, Timestamp}, tier::TierLayer};
    ///
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let tiers = TierLayer::by_extension(|_user: u64| async { Ok::<_, Infallible>(Some("premium")) })
    ///     .clock(clock.clone())
    ///     .build()?;
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # use std::sync::atomic::{AtomicUsize, Ordering};
    /// # static CALLS: AtomicUsize = AtomicUsize::new(0);
    /// # let tiers = TierLayer::by_extension(|_user: u64| async {
    /// #     CALLS.fetch_add(1, Ordering::Relaxed);
    /// #     Ok::<_, Infallible>(Some("premium"))
    /// # })
    /// # .clock(clock.clone())
    /// # .build()?;
    /// # set_up::run(async move {
    /// # set_up::tier_of(&tiers, 7).await;
    ///
    /// clock.advance(Duration::from_secs(60)); // cached tiers have expired, so each user is looked up again
    /// # set_up::tier_of(&tiers, 7).await;
    /// # assert_eq!(CALLS.load(Ordering::Relaxed), 2);
    /// # Ok(()) });
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigErrorKind::Tier`](crate::ConfigErrorKind::Tier) for the first setting that is out of its range.
    pub fn build(self) -> Result<TierLayer, ConfigError> {
        const MILLISECOND: Duration = Duration::from_millis(1);
        const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);

        let Settings {
            times: Times {
                time_to_live,
                stale_for,
            },
            on_unknown_tier,
            max_look_ups,
            max_users,
        } = &self.settings;
        ConfigError::check_range(Tier, "tier layer: time_to_live", *time_to_live, MILLISECOND..=WEEK)?;
        ConfigError::check_range(Tier, "tier layer: stale_for", *stale_for, Duration::ZERO..=WEEK)?;
        on_unknown_tier.check()?;
        ConfigError::check_range(Tier, "tier layer: max_look_ups", *max_look_ups, 1..=65_536)?;
        ConfigError::check_range(Tier, "tier layer: max_users", *max_users, 1..=usize::MAX)?;
        Ok(TierLayer(Arc::new(Resolving {
            source: self.source,
            cache: TierCache::new(self.settings, self.clock),
        })))
    }
}

impl fmt::Debug for TierLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierLayerBuilder")
            .field("settings", &self.settings)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
