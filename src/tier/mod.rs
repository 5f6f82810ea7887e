//! The tier of each user from a slow source, such as a database: looked up once, cached, and waited for only so long.
//!
//! [`TierLayer`] stands inside of authentication and outside of the limits, and leaves a
//! [`ResolvedTier`](crate::ResolvedTier) in the request, which [`Tiers::resolved`](crate::Tiers::resolved) reads. You do not
//! want it if authentication knows the tier: see [`Tiers::from_fn`](crate::Tiers::from_fn).

mod builder;
mod cache;
mod future;
mod look_up;
mod on_unknown_tier;
mod ongoing;
mod service;
mod shard;
mod shared;
mod source;

use std::{fmt, future::Future, sync::Arc};

use http::request::Parts;
use tower_layer::Layer;

pub use self::{
    builder::TierLayerBuilder, cache::TierCache, future::ResponseFuture, on_unknown_tier::OnUnknownTier,
    service::ResolveTier,
};
use self::{
    cache::Found,
    source::{Source, ask},
};
use crate::{partition::ToPartitionKey, rules::NoTier};

/// Looks up the tier of each request's user in a slow source, a database most often, and leaves it in the request as a
/// [`ResolvedTier`](crate::ResolvedTier) for [`Tiers::resolved`](crate::Tiers::resolved).
///
/// You want it if authentication tells who calls, but not which plan they pay for. Put it *inside* of authentication and
/// *outside* of each [`RateLimitLayer`](crate::RateLimitLayer) that reads the tier; one is enough for all of them. A service
/// that knows the tier without waiting needs no such layer: see [`Tiers::from_fn`](crate::Tiers::from_fn).
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
/// An answer is cached for a [time to live](TierLayerBuilder::time_to_live) of 60 seconds, also the answer that a
/// user has no tier. In the last quarter of that time the next request looks it up again without waiting, so that
/// those who call often never wait again.
///
/// There is never more than one look-up of a user at a time: requests that come meanwhile share it. It is a task of its
/// own and goes on when the request that began it is cancelled, or waits no longer. In all there are at most
/// [256](TierLayerBuilder::max_look_ups) at a time, and none takes longer than
/// [10 seconds](TierLayerBuilder::look_up_timeout).
///
/// # While a tier is unknown
///
/// A new user's requests [wait](TierLayerBuilder::on_unknown_tier) for the look-up, for 1 s at most: else a paying user who
/// begins with ten requests at once would be rejected by the limits of the first tier. Up to
/// [4 096](TierLayerBuilder::max_waiting) requests wait at a time. A request that waits no longer is counted in the first
/// tier of [`Tiers`](crate::Tiers), or in one that [`OnUnknownTier`] names. It is always counted, unless you let such
/// requests pass: a client that invents users gets no more than the quota of that tier for each of them, so limit
/// addresses, too, where users are not authenticated.
///
/// # What happens on failure
///
/// A request with an expired answer waits for a newer one for 50 ms at most
/// ([`renewal_deadline`](TierLayerBuilder::renewal_deadline)). A resolver that fails, panics or hangs rejects no request: the
/// request goes on with the last answer, as long as that is [not too old](TierLayerBuilder::stale_for), and else the tier
/// is unknown. Once a look-up has been waited for in vain, no other request waits for it. After a failure the source is
/// not asked about the user for a [pause](TierLayerBuilder::failure_pause), and no request waits. A `tracing` event tells of
/// failures, at most every ten seconds; [`telemetry`](crate::telemetry) counts requests that wait and those that go on
/// with an unknown tier.
///
/// # What it does not do
///
/// - It shares nothing between instances: each asks for itself, and [forgets](TierCache::forget) for itself.
/// - It does not authenticate. A user name that any client can send is a way to have the source asked, and to evict others
///   from the cache.
/// - A resolver that blocks its thread instead of awaiting blocks others too: no timeout can help against that.
/// - Outside of a Tokio runtime nothing is looked up: all tiers are unknown, and no request waits.
#[derive(Clone)]
pub struct TierLayer(Arc<Resolving>);

/// The shared state of all services of one layer.
struct Resolving {
    source: Box<Source>,
    cache: TierCache,
}

impl TierLayer {
    /// A layer that looks up the tier of the value of type `U` that authentication has put into the request's
    /// extensions.
    ///
    /// The resolver gets a clone of the value, so `U` should hold what the source is asked by. It answers with the name
    /// of a tier (`String`, `&'static str`, `Cow<str>`, any type that is `AsRef<str>`), with `None` if the user has none,
    /// or with an error, which is logged: keep users' names out of it. A name of more than 256 bytes counts as an error.
    ///
    /// Requests without such a value go on without a tier.
    pub fn by_extension<U, R, A, N, E>(resolver: R) -> TierLayerBuilder
    where
        U: ToPartitionKey + Clone + Send + Sync + 'static,
        R: Fn(U) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<N>, E>> + Send + 'static,
        N: AsRef<str>,
        E: fmt::Display,
    {
        let resolver = Arc::new(resolver);
        TierLayerBuilder::new(move |request, cache| match request.extensions.get::<U>() {
            Some(user) => cache.find(&user.to_partition_key(), || ask(&resolver, user.clone())),
            None => Found::Now(Err(NoTier::First)),
        })
    }

    /// A layer that looks up the tier of the user that a closure finds in the request. Else as
    /// [`by_extension`](Self::by_extension).
    ///
    /// The closure is called once for each request and must not block; requests for which it returns `None` go on
    /// without a tier.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = TierLayer::from_fn(
    ///     // Set by the gateway in front of this service, which removes what clients send.
    ///     |request| request.headers.get("x-user-id")?.to_str().ok().map(str::to_owned),
    ///     |user: String| async move { Ok::<_, Infallible>((user == "alice").then_some("premium")) },
    /// )
    /// .build()?;
    /// let service = layer.layer(service_fn(async |request: Request<()>| {
    ///     Ok::<_, Infallible>(request.extensions().get::<ResolvedTier>().cloned())
    /// }));
    ///
    /// for (user, tier) in [("alice", Some(ResolvedTier::new("premium"))), ("bob", None)] {
    ///     let request = Request::get("/").header("x-user-id", user).body(())?;
    ///     assert_eq!(service.clone().oneshot(request).await?, tier);
    /// }
    /// # Ok(()) });
    /// ```
    pub fn from_fn<U, F, R, A, N, E>(user: F, resolver: R) -> TierLayerBuilder
    where
        U: ToPartitionKey + Clone + Send + 'static,
        F: Fn(&Parts) -> Option<U> + Send + Sync + 'static,
        R: Fn(U) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<N>, E>> + Send + 'static,
        N: AsRef<str>,
        E: fmt::Display,
    {
        let resolver = Arc::new(resolver);
        TierLayerBuilder::new(move |request, cache| match user(request) {
            Some(user) => cache.find(&user.to_partition_key(), || ask(&resolver, user)),
            None => Found::Now(Err(NoTier::First)),
        })
    }

    /// The cached tiers, to forget one when a plan changes; see [`TierCache`].
    pub fn cache(&self) -> &TierCache {
        &self.0.cache
    }
}

impl<S> Layer<S> for TierLayer {
    type Service = ResolveTier<S>;

    fn layer(&self, inner: S) -> ResolveTier<S> {
        ResolveTier::new(inner, self.clone())
    }
}

impl fmt::Debug for TierLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierLayer")
            .field("cache", &self.0.cache)
            .finish_non_exhaustive()
    }
}
