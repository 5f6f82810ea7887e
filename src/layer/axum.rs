use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::{StatusCode, request::Parts};

use crate::{decision::Decision, limiter::WeakPermit};

/// Extracts the decision on the request. Requires
/// [`decision_in_request`](crate::RateLimitLayerBuilder::decision_in_request); otherwise, the response has status 500.
/// `Option<Decision>` works with and without it.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_quota::{Decision, MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// async fn report(decision: Decision) -> String {
///     match decision.allowances().map(|allowance| allowance.remaining()).min() {
///         Some(remaining) => format!("{remaining} requests remain"),
///         None => "no limit".to_owned(),
///     }
/// }
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("reports")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_day("day", 9))
///     .decision_in_request()
///     .build()?;
/// let app: Router = Router::new().route("/", get(report)).layer(limits);
/// # use tower::ServiceExt;
/// # let request = http::Request::get("/").header("x-user-id", "alice").body(String::new())?;
/// # let body = app.oneshot(request).await?.into_body();
/// # assert_eq!(axum::body::to_bytes(body, 99).await?, "8 requests remain");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
impl<S: Sync> FromRequestParts<S> for Decision {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let missing = "the request contains no decision of a rate limit layer; is `decision_in_request` missing?";
        let decision = parts.extensions.get().cloned();
        decision.ok_or((StatusCode::INTERNAL_SERVER_ERROR, missing))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Decision {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}

/// Extracts the request's permit, or the default one, which cannot be upgraded, if the request is not limited or was
/// not counted.
///
/// ```
/// use axum::{Router, routing::post};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, WeakPermit, key};
///
/// async fn complete(permit: WeakPermit, prompt: String) -> String {
///     let answer = prompt.to_uppercase(); // … a model
///     if let Some(permit) = permit.upgrade() {
///         permit.finish("tokens", (prompt.len() + answer.len()) as u64 / 4);
///     }
///     answer
/// }
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("models")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_day("tokens", 86_400).with_unit("tokens"))
///     .unit_cost("tokens", |_| 1_000)
///     .build()?;
/// let app: Router = Router::new().route("/", post(complete)).layer(limits);
/// # use tower::ServiceExt;
/// # let request = http::Request::post("/").header("x-user-id", "alice").body("four score".to_owned())?;
/// # let response = app.oneshot(request).await?;
/// # assert_eq!(response.headers()["ratelimit"], r#""tokens";r=86395;t=86395"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
impl<S: Sync> FromRequestParts<S> for WeakPermit {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}
