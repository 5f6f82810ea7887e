//! What handlers of axum get to know, and rejections that they can make.

use std::{
    convert::Infallible,
    error::Error,
    fmt,
    pin::pin,
    task::{Context, Poll, Waker},
};

use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::IntoResponse,
};
use bytes::Bytes;
use http::{Response, StatusCode, request::Parts};
use http_body::Body as _;

use super::RateLimitLayerBuilder;
use crate::{exchange::Decision, rejection::Rejection, telemetry::StreamTelemetry};

/// The decision about the request, for handlers: what is left for this caller. Needs
/// [`decision_in_request`](RateLimitLayerBuilder::decision_in_request), without which the answer is 500; an
/// `Option<Decision>` takes both.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_quota::{Decision, MemoryStore, QuotaPolicy, RateLimitLayer, key};
/// # use tower::ServiceExt;
///
/// async fn report(decision: Decision) -> String {
///     match decision.allowances().map(|allowance| allowance.remaining()).min() {
///         Some(left) => format!("you may ask {left} more times"),
///         None => "you may ask as often as you like".to_owned(),
///     }
/// }
///
/// # tokio_test::block_on(async {
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("reports")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_day("day", 9))
///     .decision_in_request()
///     .build()?;
/// let app: Router = Router::new().route("/", get(report)).layer(limits);
///
/// let request = http::Request::get("/").header("x-user-id", "alice").body(String::new())?;
/// let body = app.oneshot(request).await?.into_body();
/// assert_eq!(axum::body::to_bytes(body, 99).await?, "you may ask 8 more times");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
impl<S: Sync> FromRequestParts<S> for Decision {
    type Rejection = NoDecision;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoDecision> {
        parts.extensions.get().cloned().ok_or(NoDecision(()))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Decision {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}

/// A handler of axum takes a [`Decision`], and no layer has left one in the request: a mistake in the program, answered
/// with status 500.
///
/// Either no [`RateLimitLayer`](crate::RateLimitLayer) is around the handler, or it was built without
/// [`decision_in_request`](RateLimitLayerBuilder::decision_in_request).
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_quota::Decision;
/// # use tower::ServiceExt;
///
/// async fn report(decision: Decision) -> String {
///     format!("{:?}", decision.outcome())
/// }
///
/// # tokio_test::block_on(async {
/// let app: Router = Router::new().route("/", get(report)); // … and no layer.
/// let response = app.oneshot(http::Request::get("/").body(String::new())?).await?;
/// assert_eq!(response.status(), 500);
/// let body = axum::body::to_bytes(response.into_body(), 999).await?;
/// assert!(str::from_utf8(&body)?.contains("is `decision_in_request` missing?"));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NoDecision(());

impl fmt::Display for NoDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no rate limit layer has left its decision in the request; is `decision_in_request` missing?")
    }
}

impl Error for NoDecision {}

impl IntoResponse for NoDecision {
    fn into_response(self) -> Response<Body> {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

impl RateLimitLayerBuilder {
    /// Replaces the response to rejected requests by what axum makes of a value: `Json`, `Html`, a status with a text.
    /// Needs the feature `axum`.
    ///
    /// It is [`respond_with`](Self::respond_with) with other types; the fields are added afterwards here, too. The body
    /// has to be in memory as a whole, as it is of texts, `Html`, `Json` and bytes. A stream is not waited for: in its
    /// place there is the response that the layer gives by default, and the first time a `tracing` event.
    ///
    /// ```
    /// use axum::{Router, response::{Html, IntoResponse}, routing::get};
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Rejection, key};
    /// # use tower::ServiceExt;
    ///
    /// fn slow_down(rejection: &Rejection<'_>) -> impl IntoResponse + use<> {
    ///     let seconds = rejection.retry_after().map_or(0, |wait| wait.as_secs());
    ///     (rejection.status(), Html(format!("<p>Come back in {seconds} seconds.")))
    /// }
    ///
    /// # tokio_test::block_on(async {
    /// let limits = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("pages")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 1))
    ///     .respond_with_axum(slow_down)
    ///     .build()?;
    /// let app: Router = Router::new().route("/", get(|| async {})).layer(limits);
    ///
    /// let request = || http::Request::get("/").header("x-user-id", "alice").body(String::new()).unwrap();
    /// app.clone().oneshot(request()).await?;
    /// let rejected = app.oneshot(request()).await?;
    /// assert_eq!(rejected.status(), 429);
    /// assert_eq!(rejected.headers()["content-type"], "text/html; charset=utf-8");
    /// assert_eq!(rejected.headers()["retry-after"], "60");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn respond_with_axum<F, R>(self, respond: F) -> Self
    where
        F: Fn(&Rejection<'_>) -> R + Send + Sync + 'static,
        R: IntoResponse,
    {
        let log = StreamTelemetry::default();
        self.respond_with(move |rejection| {
            let (head, body) = respond(rejection).into_response().into_parts();
            match in_memory(body) {
                Some(body) => Response::from_parts(head, body),
                None => {
                    log.record();
                    rejection.to_response()
                }
            }
        })
    }
}

/// A body of one piece that need not be waited for. Nothing is copied.
fn in_memory(body: Body) -> Option<Bytes> {
    let mut body = pin!(body);
    let mut poll = || body.as_mut().poll_frame(&mut Context::from_waker(Waker::noop()));
    let data = match poll() {
        Poll::Ready(None) => return Some(Bytes::new()),
        Poll::Ready(Some(Ok(frame))) => frame.into_data().ok()?,
        Poll::Ready(Some(Err(_))) | Poll::Pending => return None,
    };
    matches!(poll(), Poll::Ready(None)).then_some(data)
}
