use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The response body of [`OriginService`](super::OriginService): that of the inner service, or of a rejection.
    ///
    /// ```
    /// use http_body::Body;
    /// use tower_quota_anonymous::OriginBody;
    ///
    /// let body = OriginBody::from("hello".to_owned());
    /// assert_eq!(body.size_hint().exact(), Some(5));
    /// ```
    #[derive(Debug)]
    pub struct OriginBody<B> {
        #[pin]
        inner: Option<B>,
        rejection: Option<Bytes>,
    }
}

impl<B> OriginBody<B> {
    pub(super) fn rejected(content: Bytes) -> Self {
        Self {
            inner: None,
            rejection: Some(content).filter(|content| !content.is_empty()),
        }
    }
}

impl<B> From<B> for OriginBody<B> {
    fn from(body: B) -> Self {
        Self {
            inner: Some(body),
            rejection: None,
        }
    }
}

impl<B: Default> Default for OriginBody<B> {
    fn default() -> Self {
        B::default().into()
    }
}

impl<B: Body<Data = Bytes>> Body for OriginBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        match this.inner.as_pin_mut() {
            Some(body) => body.poll_frame(cx),
            None => Poll::Ready(this.rejection.take().map(|content| Ok(Frame::data(content)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Some(body) => body.is_end_stream(),
            None => self.rejection.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(self.rejection.as_ref().map_or(0, |content| content.len() as u64)),
        }
    }
}
