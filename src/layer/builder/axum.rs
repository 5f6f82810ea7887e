use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use axum::{body::Body, response::IntoResponse};
use bytes::Bytes;
use http::Response;
use http_body::Body as _;

use super::RateLimitLayerBuilder;
use crate::{response::rejection::Rejection, telemetry::StreamTelemetry};

/// # Advanced: rejections from axum
impl RateLimitLayerBuilder {
    /// Sets the response to rejected requests to any axum response, such as `Json`, `Html`, or a status with text.
    /// Needs the feature `axum`.
    ///
    /// As with [`respond_with`](Self::respond_with), the layer then adds the fields. The body must be in memory, as it
    /// is for strings, bytes, `Html` and `Json`. Instead of a stream, the default response is sent; an
    /// [event](crate::docs::mistakes#streamed-rejection) reports the first one.
    ///
    /// ```
    /// use axum::{Router, response::{Html, IntoResponse}, routing::get};
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Rejection, key};
    ///
    /// fn slow_down(rejection: &Rejection<'_>) -> impl IntoResponse + use<> {
    ///     let seconds = rejection.retry_after_secs().unwrap_or_default();
    ///     (rejection.status(), Html(format!("<p>Retry in {seconds} seconds.")))
    /// }
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limits = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("pages")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("minute", 1))
    ///     .respond_with_axum(slow_down)
    ///     .build()?;
    /// let app: Router = Router::new().route("/", get(|| async {})).layer(limits);
    /// # use tower::ServiceExt;
    /// # let request = || http::Request::get("/").header("x-user-id", "alice").body(String::new()).unwrap();
    /// # app.clone().oneshot(request()).await?;
    /// # let rejected = app.oneshot(request()).await?;
    /// # assert_eq!(rejected.status(), 429);
    /// # assert_eq!(rejected.headers()["content-type"], "text/html; charset=utf-8");
    /// # assert_eq!(rejected.headers()["retry-after"], "60");
    /// # let body = axum::body::to_bytes(rejected.into_body(), 99).await?;
    /// # assert_eq!(body, "<p>Retry in 60 seconds.");
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

/// Returns `None` for a body that is not immediately available or has several frames.
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
