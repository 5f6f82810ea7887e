use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::limiter::OpenCharge;

pin_project! {
    /// The response body of [`RateLimit`](crate::RateLimit).
    ///
    /// Forwards the inner body frame by frame, including trailers and the size hint. If a policy counts bytes,
    /// concurrent requests or custom units, the charge is settled when the body has ended or is dropped.
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use http::{Request, Response};
    /// use http_body_util::BodyExt;
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limits = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::concurrent("in flight", 1))
    ///     .build()?;
    /// let service = ServiceBuilder::new()
    ///     .layer(limits)
    ///     .service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new("hello".to_owned())));
    /// let request = || Request::get("/").header("x-user-id", "alice").body(String::new());
    ///
    /// let response = service.clone().oneshot(request()?).await?;
    /// // The slot is held until the body is read or dropped.
    /// assert_eq!(service.clone().oneshot(request()?).await?.status(), 429);
    /// # use http_body::Body;
    /// # assert_eq!(response.body().size_hint().exact(), Some(5));
    /// assert_eq!(response.into_body().collect().await?.to_bytes(), "hello");
    /// assert_eq!(service.oneshot(request()?).await?.status(), 200);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[derive(Debug)]
    pub struct RateLimitBody<B> {
        #[pin]
        inner: Inner<B>,
        charge: Option<Arc<OpenCharge>>,
    }
}

pin_project! {
    #[project = InnerProjection]
    #[derive(Debug)]
    enum Inner<B> {
        Passed { #[pin] body: B },
        // The body of a rejection. Empty after any other body has ended.
        Whole { content: Option<Bytes> },
    }
}

impl<B> RateLimitBody<B> {
    pub(super) fn passed(body: B, charge: Option<Arc<OpenCharge>>) -> Self {
        Self {
            inner: Inner::Passed { body },
            charge,
        }
    }

    pub(super) fn rejected(body: Bytes) -> Self {
        let content = Some(body).filter(|body| !body.is_empty());
        Self {
            inner: Inner::Whole { content },
            charge: None,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for RateLimitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        match this.inner.as_mut().project() {
            InnerProjection::Passed { mut body } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                if let Some(charge) = this.charge {
                    let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
                    charge.response_bytes(data.map_or(0, Bytes::len));
                    let is_over = frame.is_none() || body.is_end_stream();
                    if is_over || matches!(frame, Some(Err(_))) {
                        // Dropped before the charge is settled, because a handler's stream may report usage when it is
                        // dropped.
                        this.inner.set(Inner::Whole { content: None });
                        if is_over {
                            charge.ended();
                        }
                        *this.charge = None;
                    }
                }
                Poll::Ready(frame)
            }
            InnerProjection::Whole { content } => Poll::Ready(content.take().map(|content| Ok(Frame::data(content)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Passed { body } => body.is_end_stream(),
            Inner::Whole { content } => content.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Passed { body } => body.size_hint(),
            Inner::Whole { content } => {
                SizeHint::with_exact(content.as_ref().map_or(0, |content| content.len() as u64))
            }
        }
    }
}

impl<B: Default> Default for RateLimitBody<B> {
    fn default() -> Self {
        Self::passed(B::default(), None)
    }
}
