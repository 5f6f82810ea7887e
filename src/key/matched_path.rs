//! The route that axum has found.

use http::request::Parts;

use crate::{key::KeyExtractor, mistake::Diagnostics, partition::PartitionKey};

/// The route of axum that the request is for, as the router was given it: `/users/{id}`, with the paths of the routers
/// around it. Needs the feature `axum`.
///
/// Put it beside the caller for a quota per caller and route. Unlike the path of a request, of which any client can think
/// of new ones, there are as many as there are routes. Methods of one route share; part them with
/// [`from_fn`](crate::key::from_fn) if they should not.
///
/// The route is known to layers of a `Router` and of a `MethodRouter`, but not to those around a whole `Router`, nor for
/// a request that no route is for: such a request has no key. `Router::route_layer` is not called for those at all.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key::{self, KeyExtractor}};
/// # use tower::ServiceExt;
///
/// # tokio_test::block_on(async {
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("routes")
///     .key(key::header("x-user-id").and(key::matched_path()))
///     .policy(QuotaPolicy::per_day("day", 9))
///     .build()?;
/// let app: Router = Router::new()
///     .route("/users/{id}", get(|| async {}))
///     .route("/items", get(|| async {}))
///     .route_layer(limits);
///
/// let get = |path| http::Request::get(path).header("x-user-id", "alice").body(String::new()).unwrap();
/// for (path, left) in [("/users/1", "r=8"), ("/users/2", "r=7"), ("/items", "r=8")] {
///     let response = app.clone().oneshot(get(path)).await?;
///     assert!(response.headers()["ratelimit"].to_str()?.contains(left), "{path}");
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub const fn matched_path() -> MatchedPath {
    MatchedPath(())
}

/// The extractor that [`matched_path`] makes. It has its name for structs and signatures.
///
/// ```
/// use tower_quota::key::{self, KeyExtractor, MatchedPath};
///
/// let by_route: MatchedPath = key::matched_path();
/// // No router has seen the request.
/// let (request, ()) = http::Request::get("/users/7").body(())?.into_parts();
/// assert!(by_route.extract(&request).is_none());
/// # Ok::<_, http::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MatchedPath(());

impl MatchedPath {
    /// The key of a route, as the router was given it: to look at the quota of a caller on it, say.
    ///
    /// Nothing checks that there is such a route. It is another key than any of [`PartitionKey::new`].
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use tower_quota::{MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, key::{self, KeyExtractor, MatchedPath}};
    /// # use tower::ServiceExt;
    ///
    /// # tokio_test::block_on(async {
    /// let limits = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("routes")
    ///     .key(key::header("x-user-id").and(key::matched_path()))
    ///     .policy(QuotaPolicy::per_day("day", 9))
    ///     .build()?;
    /// let app: Router = Router::new().route("/users/{id}", get(|| async {})).route_layer(limits.clone());
    /// app.oneshot(http::Request::get("/users/7").header("x-user-id", "alice").body(String::new())?).await?;
    ///
    /// let alice = PartitionKey::new("x-user-id", "alice").and(MatchedPath::key_of("/users/{id}"));
    /// let left = limits.limiter().caller(&alice).peek().await?.expect("there is a policy");
    /// assert_eq!(left.allowances().next().map(|allowance| allowance.remaining()), Some(8));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn key_of(route: &str) -> PartitionKey {
        PartitionKey::own("route", route.as_bytes())
    }
}

impl KeyExtractor for MatchedPath {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        let route = request.extensions.get::<axum::extract::MatchedPath>()?;
        Some(Self::key_of(route.as_str()))
    }

    fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        let has_route = request.extensions.get::<axum::extract::MatchedPath>().is_some();
        findings.asked_for("route of axum".to_owned(), has_route);
    }
}
