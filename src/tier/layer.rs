//! The layer: a source of tiers and its cache.

use std::{fmt, sync::Arc};

use super::{cache::TierCache, source::Source};

/// Looks up the tier of each request's user in a slow source, a database most often, and leaves it in the request as a
/// [`ResolvedTier`](crate::ResolvedTier) for [`Tiers::resolved`](crate::Tiers::resolved).
///
/// You want it if authentication tells who calls, but not which plan they pay for. Put it *inside* of authentication
/// and *outside* of each [`RateLimitLayer`](crate::RateLimitLayer) that reads the tier; one is enough for all of them.
/// A service that knows the tier without waiting needs no such layer: see [`Tiers::from_fn`](crate::Tiers::from_fn).
///
/// ```
/// use axum::{Router, routing::get};
/// use tower::ServiceBuilder;
/// use tower_quota::{
///     MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, Tiers, ToPartitionKey, key, tier::TierLayer,
/// };
/// # use tower::ServiceExt;
///
/// /// The value that authentication leaves in a request.
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// impl ToPartitionKey for UserId {
///     fn to_partition_key(&self) -> PartitionKey {
///         PartitionKey::new("user", self.0.to_be_bytes())
///     }
/// }
///
/// async fn tier_of(user: u64) -> Result<Option<String>, std::io::Error> {
///     // Here a database is asked.
///     Ok((user == 7).then(|| "premium".to_owned()))
/// }
///
/// # tokio_test::block_on(async {
/// let tier = TierLayer::by_extension(|user: UserId| async move { tier_of(user.0).await }).build()?;
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
///     .layer(ServiceBuilder::new().layer(tier.clone()).layer(limits));
///
/// let request = |user| http::Request::get("/").extension(UserId(user)).body(String::new()).unwrap();
/// let premium = app.clone().oneshot(request(7)).await?;
/// assert_eq!(premium.headers()["ratelimit-policy"], r#""minute";q=1000;w=60"#);
/// let free = app.oneshot(request(8)).await?;
/// assert_eq!(free.headers()["ratelimit-policy"], r#""minute";q=100;w=60"#);
///
/// // User 8 has just paid, and need not wait for it.
/// tier.cache().forget(&UserId(8));
/// assert_eq!(tier.cache().users(), 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # The look-ups
///
/// An answer is cached for a [time to live](super::TierLayerBuilder::time_to_live) of 60 seconds, also the answer that
/// a user has no tier. In the last quarter of that time the next request looks it up again without waiting, so that
/// those who call often never wait again.
///
/// There is never more than one look-up of a user at a time: requests that come meanwhile share it. It is a task of its
/// own and goes on when the request that began it is cancelled, or waits no longer. In all there are at most
/// [256](super::TierLayerBuilder::max_look_ups) at a time, and none takes longer than
/// [10 seconds](super::TierLayerBuilder::look_up_timeout).
///
/// # While a tier is unknown
///
/// A new user's requests [wait](super::TierLayerBuilder::on_unknown_tier) for the look-up, for 1 s at most: else a
/// paying user who begins with ten requests at once would be rejected by the limits of the first tier. Up to [4
/// 096](super::TierLayerBuilder::max_waiting) requests wait at a time. A request that waits no longer is counted in the
/// first tier of [`Tiers`](crate::Tiers), or in one that [`OnUnknownTier`](super::OnUnknownTier) names. It is always
/// counted, unless you let such requests pass: a client that invents users gets no more than the quota of that tier for
/// each of them, so limit addresses, too, where users are not authenticated.
///
/// # What happens on failure
///
/// A request with an expired answer waits for a newer one for 50 ms at most
/// ([`renewal_deadline`](super::TierLayerBuilder::renewal_deadline)). A resolver that fails, panics or hangs rejects no
/// request: the request goes on with the last answer, as long as that is [not too
/// old](super::TierLayerBuilder::stale_for), and else the tier is unknown. Once a look-up has been waited for in vain,
/// no other request waits for it. After a failure the source is not asked about the user for a
/// [pause](super::TierLayerBuilder::failure_pause), and no request waits. A `tracing` event tells of failures, at most
/// every ten seconds; [`telemetry`](crate::telemetry) counts requests that wait and those that go on with an unknown
/// tier.
///
/// # What it does not do
///
/// - It shares nothing between instances: each asks for itself, and [forgets](TierCache::forget) for itself.
/// - It does not authenticate. A user name that any client can send is a way to have the source asked, and to evict others
///   from the cache.
/// - A resolver that blocks its thread instead of awaiting blocks others too: no timeout can help against that.
/// - Outside of a Tokio runtime nothing is looked up: all tiers are unknown, and no request waits.
#[derive(Clone)]
pub struct TierLayer(pub(super) Arc<Resolving>);

/// The shared state of all services of one layer.
pub(super) struct Resolving {
    pub(super) source: Box<Source>,
    pub(super) cache: TierCache,
}

impl TierLayer {
    /// The cached tiers, to forget one when a plan changes; see [`TierCache`].
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
