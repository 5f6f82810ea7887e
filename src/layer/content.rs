use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http::{Request, header, request::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use tower_layer::Layer;
use tower_service::Service;

use crate::{limiter::OpenCharge, sync::mutex::Mutex};

/// A layer that counts the bytes of request bodies as they are read, for policies that count [request
/// content](crate::Direction::Request).
///
/// Add it *outside* the [`RateLimitLayer`](crate::RateLimitLayer), which cannot change the type of request bodies. A
/// request is then charged the bytes that are read; otherwise, its `Content-Length`, or one byte if it has none.
///
/// The layer neither reads ahead nor delays requests. Bytes that the inner service does not read are not counted, even
/// if a rejection [discards](crate::content::LingeringClose) them.
///
/// ```
/// use axum::{Router, routing::post};
/// use tower::ServiceBuilder;
/// use tower_quota::{Direction, MemoryStore, QuotaPolicy, RateLimitLayer, content::RequestContentLayer, key};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("uploads")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("upload", 1_000).with_content_bytes(Direction::Request))
///     .build()?;
/// let app: Router = Router::new()
///     .route("/", post(|body: String| async move { body.len().to_string() }))
///     .layer(ServiceBuilder::new().layer(RequestContentLayer::new()).layer(limits));
/// # use tower::ServiceExt;
/// # // The length is unknown.
/// # let request = || http::Request::post("/").header("x-user-id", "alice").body("x".repeat(300)).unwrap();
/// # app.clone().oneshot(request()).await?;
/// # let response = app.oneshot(request()).await?;
/// # assert_eq!(response.headers()["ratelimit"], r#""upload";r=400;t=1440"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestContentLayer(());

impl RequestContentLayer {
    /// Creates the layer.
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for RequestContentLayer {
    type Service = RequestContent<S>;

    fn layer(&self, inner: S) -> RequestContent<S> {
        RequestContent { inner }
    }
}

/// The service of [`RequestContentLayer`], which wraps the body of each request in a [`RequestContentBody`].
#[derive(Clone, Copy, Debug)]
pub struct RequestContent<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for RequestContent<S>
where
    S: Service<Request<RequestContentBody<B>>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        let reader = Reader::default();
        request.extensions_mut().insert(reader.clone());
        let counted = |inner| RequestContentBody {
            inner,
            reading: Reading(Some(reader)),
        };
        self.inner.call(request.map(counted))
    }
}

#[derive(Clone, Default)]
pub(super) struct Reader(Arc<Mutex<Listeners>>);

#[derive(Default)]
struct Listeners {
    charges: SmallVec<[Arc<OpenCharge>; 1]>,
    /// The body has ended or was dropped.
    is_over: bool,
}

impl Reader {
    /// The charge stays open until the body has ended.
    pub(super) fn count_for(&self, charge: &Arc<OpenCharge>) {
        let mut listeners = self.0.lock();
        if !listeners.is_over {
            charge.count_request_bytes();
            listeners.charges.push(Arc::clone(charge));
        }
    }

    fn read(&self, bytes: usize) {
        for charge in &self.0.lock().charges {
            charge.request_bytes(bytes);
        }
    }

    /// Later bytes are not counted, and no charge stays open for them.
    pub(super) fn end(&self) {
        let mut listeners = self.0.lock();
        listeners.is_over = true;
        let charges = std::mem::take(&mut listeners.charges);
        // Dropped after the lock, because dropping a charge may settle it.
        drop(listeners);
        drop(charges);
    }
}

struct Reading(Option<Reader>);

impl Reading {
    fn end(&mut self) {
        if let Some(reader) = self.0.take() {
            reader.end();
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.end();
    }
}

pin_project! {
    /// A request body whose bytes are counted. See [`RequestContentLayer`].
    ///
    /// Bytes that the inner service does not read are not counted, even if a rejection
    /// [discards](crate::content::LingeringClose) them.
    pub struct RequestContentBody<B> {
        #[pin]
        inner: B,
        reading: Reading,
    }
}

impl<B: Body> Body for RequestContentBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        if let (Some(data), Some(reader)) = (data, &this.reading.0) {
            reader.read(data.remaining());
        }
        if !matches!(frame, Some(Ok(_))) || this.inner.is_end_stream() {
            this.reading.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B: Default> Default for RequestContentBody<B> {
    fn default() -> Self {
        Self {
            inner: B::default(),
            reading: Reading(None),
        }
    }
}

impl<B> fmt::Debug for RequestContentBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestContentBody")
    }
}

pub(super) fn announced_bytes(request: &Parts) -> Option<u64> {
    request.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
