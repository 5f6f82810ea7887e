//! Bodies: that of a response, and the beginning of that of a request.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};

/// The body of a response of an [`Issuer`](super::Issuer): one piece, or none.
#[derive(Clone, Debug, Default)]
pub struct IssuerBody(Option<Bytes>);

impl From<Bytes> for IssuerBody {
    fn from(bytes: Bytes) -> Self {
        Self(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for IssuerBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// All of a body that is not longer than this; nothing if it is, or breaks off.
pub(super) async fn collect<B: Body>(body: B, max_length: usize) -> Option<Vec<u8>> {
    let mut body = pin!(body);
    if body.size_hint().lower() > max_length as u64 {
        return None;
    }
    let mut collected = Vec::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        // Trailers say nothing here.
        let Ok(mut data) = frame.ok()?.into_data() else {
            continue;
        };
        if data.remaining() > max_length - collected.len() {
            return None;
        }
        while data.has_remaining() {
            let chunk = data.chunk();
            let length = chunk.len();
            collected.extend_from_slice(chunk);
            data.advance(length);
        }
    }
    Some(collected)
}
