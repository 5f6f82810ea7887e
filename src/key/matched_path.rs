use http::request::Parts;

use crate::{
    key::KeyExtractor,
    mistake::{Diagnostics, PartName},
    partition::PartitionKey,
};

/// The axum route of the request as a key, such as `/users/{id}`, including prefixes of outer routers.
///
/// Requires the feature `axum`. Combine it with the caller's key for a quota per caller and route: there are only as
/// many keys as routes, while clients can invent any number of paths. The methods of a route share its key.
///
/// Layers of a `Router` or a `MethodRouter` know the route, but not layers around a whole `Router`. Requests without a
/// route have no key; with `route_layer`, they do not reach the layer.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key::{self, KeyExtractor}};
///
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("routes")
///     .key(key::header("x-user-id").and(key::MatchedPath))
///     .policy(QuotaPolicy::per_day("day", 9))
///     .build()?;
/// let app: Router = Router::new()
///     .route("/users/{id}", get(|| async { "a user" }))
///     .route("/items", get(|| async { "all items" }))
///     .route_layer(limits);
/// #
/// # use tower::ServiceExt;
/// # let (request, _) = http::Request::get("/users/7").body(String::new())?.into_parts();
/// # assert!(key::MatchedPath.extract(&request).is_none(), "no router has processed the request");
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// #     let get = |path| http::Request::get(path).header("x-user-id", "alice").body(String::new()).unwrap();
/// #     for (path, remaining) in [("/users/1", "r=8"), ("/users/2", "r=7"), ("/items", "r=8")] {
/// #         let response = app.clone().oneshot(get(path)).await.unwrap();
/// #         assert!(response.headers()["ratelimit"].to_str().unwrap().contains(remaining), "{path}");
/// #     }
/// # });
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MatchedPath;

impl MatchedPath {
    /// Returns the key of a route as registered with the router, for [`Limiter::caller`](crate::Limiter::caller).
    ///
    /// ```
    /// use tower_quota::key::{self, KeyExtractor, MatchedPath};
    ///
    /// let by_user = key::header("x-user-id");
    /// let by_user_and_route = by_user.clone().and(key::MatchedPath);
    /// // The key of `alice` on this route:
    /// let alice = by_user.key_of("alice").and(MatchedPath::key_of("/users/{id}"));
    /// #
    /// # use axum::{Router, routing::get};
    /// # use tower::ServiceExt;
    /// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer};
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let limits = RateLimitLayer::builder(MemoryStore::new())
    /// #     .scope("routes")
    /// #     .key(by_user_and_route)
    /// #     .policy(QuotaPolicy::per_day("day", 9))
    /// #     .build()?;
    /// # let app: Router = Router::new().route("/users/{id}", get(|| async {})).route_layer(limits.clone());
    /// # app.oneshot(http::Request::get("/users/7").header("x-user-id", "alice").body(String::new())?).await?;
    /// # let quota = limits.limiter().caller(&alice).peek().await?.expect("there is a policy");
    /// # assert_eq!(quota.allowances().next().map(|day| day.remaining()), Some(8));
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
        findings.asked_for(PartName::Other("route of axum"), has_route);
    }
}
