use std::{fmt, sync::Arc};

use super::{cache::TierCache, source::Source};

/// Looks up the user's tier in a slow source, such as a database, and caches it.
///
/// The layer inserts a [`ResolvedTier`](crate::ResolvedTier) into the request, which
/// [`Tiers::resolved`](crate::Tiers::resolved) reads. Use it if authentication identifies the user but not the plan;
/// otherwise, use [`Tiers::from_fn`](crate::Tiers::from_fn). Place it *inside* authentication and *outside* every
/// [`RateLimitLayer`](crate::RateLimitLayer) that reads the tier; several such layers can share one `TierLayer`.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower::ServiceBuilder;
/// use tower_quota::{
///     MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, Tiers, ToPartitionKey, key, tier::TierLayer,
/// };
///
/// /// Inserted into the request by authentication.
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// impl ToPartitionKey for UserId {
///     fn to_partition_key(&self) -> PartitionKey {
///         PartitionKey::new("user", self.0.to_be_bytes())
///     }
/// }
///
/// async fn find_plan(user: UserId) -> Result<Option<String>, std::io::Error> {
///     // Query a database here.
///     Ok((user.0 == 7).then(|| "premium".to_owned()))
/// }
///
/// let tiers = TierLayer::by_extension(find_plan).build()?;
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::extension::<UserId>())
///     .tiers(
///         Tiers::resolved()
///             .tier("free", [QuotaPolicy::per_minute("minute", 100)])
///             .tier("premium", [QuotaPolicy::per_minute("minute", 1_000)]),
///     )
///     .build()?;
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(ServiceBuilder::new().layer(tiers.clone()).layer(limits));
///
/// // Where payments are handled: user 8 has paid, so apply the new tier immediately.
/// tiers.cache().forget(&UserId(8));
/// #
/// # use tower::ServiceExt;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let request = |user| http::Request::get("/").extension(UserId(user)).body(String::new()).unwrap();
/// # let premium = app.clone().oneshot(request(7)).await?;
/// # assert_eq!(premium.headers()["ratelimit-policy"], r#""minute";q=1000;w=60"#);
/// # let free = app.oneshot(request(8)).await?;
/// # assert_eq!(free.headers()["ratelimit-policy"], r#""minute";q=100;w=60"#);
/// # assert_eq!(tiers.cache().users(), 2);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Lookups
///
/// The result of a lookup is cached for a [time to live](super::TierLayerBuilder::time_to_live) of 60 seconds, even if
/// the user has no tier. During the last quarter of that time, the next request triggers a new lookup without waiting
/// for it, so frequent users never wait again.
///
/// Concurrent requests of a user share one lookup, which continues if they are cancelled or stop waiting. At most
/// [256](super::TierLayerBuilder::max_look_ups) lookups run concurrently, each for at most 10 seconds. All instances
/// look up and [forget](TierCache::forget) users independently.
///
/// # Failures
///
/// A resolver that fails, panics or hangs never causes a rejection. Requests use an expired tier [for a
/// while](super::TierLayerBuilder::stale_for); then, the tier is [unknown](super::OnUnknownTier).
///
/// After a failure, the user is not looked up again for 1 s, and the user's requests do not wait. The pause doubles
/// with each consecutive failure, up to 8 s. An event reports failures, at most every ten seconds, and
/// [metrics](crate::telemetry) count the requests that wait or have an unknown tier.
///
/// A resolver that blocks its thread also blocks other tasks. Outside a Tokio runtime, nothing is looked up: all tiers
/// are unknown, and no request waits.
///
/// # Security
///
/// The layer does not authenticate. A client that sends invented user IDs gets at most the quota of the first tier for
/// each of them, triggers lookups, and evicts other users from the cache. Limit addresses as well if users are not
/// authenticated.
#[derive(Clone)]
pub struct TierLayer(pub(super) Arc<Resolving>);

pub(super) struct Resolving {
    pub(super) source: Box<Source>,
    pub(super) cache: TierCache,
}

impl TierLayer {
    /// Returns the cached tiers, for example to [forget](TierCache::forget) a user whose plan has changed.
    pub fn cache(&self) -> &TierCache {
        &self.0.cache
    }
}

impl fmt::Debug for TierLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierLayer")
            .field("cache", &self.0.cache)
            .finish_non_exhaustive()
    }
}
