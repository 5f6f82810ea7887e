//! The body of a response: the inner service's, untouched, or that of a refusal.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a response of [`RateLimit`](crate::RateLimit).
    ///
    /// What the inner service has sent is forwarded frame by frame, trailers and size hint included.
    #[derive(Debug)]
    pub struct RateLimitBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProjection]
    #[derive(Debug)]
    enum Inner<B> {
        Passed { #[pin] body: B },
        Refused { body: Option<Bytes> },
    }
}

impl<B> RateLimitBody<B> {
    pub(crate) fn passed(body: B) -> Self {
        Self {
            inner: Inner::Passed { body },
        }
    }

    pub(crate) fn refused(body: Bytes) -> Self {
        Self {
            inner: Inner::Refused {
                body: Some(body).filter(|body| !body.is_empty()),
            },
        }
    }
}

impl<B: Body<Data = Bytes>> Body for RateLimitBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().inner.project() {
            InnerProjection::Passed { body } => body.poll_frame(cx),
            InnerProjection::Refused { body } => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Passed { body } => body.is_end_stream(),
            Inner::Refused { body } => body.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Passed { body } => body.size_hint(),
            Inner::Refused { body } => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
        }
    }
}

impl<B: Default> Default for RateLimitBody<B> {
    fn default() -> Self {
        Self::passed(B::default())
    }
}
