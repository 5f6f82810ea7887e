use http::request::Parts;

use crate::{key::KeyExtractor, mistake::Diagnostics, partition::PartitionKey};

/// Extracts the axum route of the request, such as `/users/{id}`, including prefixes of outer routers.
///
/// Requires the feature `axum`. Combine it with the caller's key for a quota per caller and route. Clients can invent
/// any number of paths, but there are only as many keys as routes. The methods of a route share its key; separate them
/// with [`from_fn`](crate::key::from_fn) if necessary.
///
/// The route is available to layers of a `Router` or a `MethodRouter`, but not to layers around a whole `Router`.
/// Requests without an available route, including those that match no route, have no key. `Router::route_layer` is not
/// called for unmatched requests.
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

/// The extractor created by [`matched_path`], for use in structs and signatures.
///
/// ```
/// use tower_quota::key::{self, KeyExtractor, MatchedPath};
///
/// let by_route: MatchedPath = key::matched_path();
/// // No router has processed the request.
/// let (request, ()) = http::Request::get("/users/7").body(())?.into_parts();
/// assert!(by_route.extract(&request).is_none());
/// # Ok::<_, http::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MatchedPath(());

impl MatchedPath {
    /// Returns the key of a route as registered with the router, for example to read the quota of a caller.
    ///
    /// The route is not checked for existence. The key differs from all keys of [`PartitionKey::new`].
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
