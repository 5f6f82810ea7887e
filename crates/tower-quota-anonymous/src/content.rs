use std::{error::Error, future::poll_fn, pin::pin};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body::Body;

#[derive(Debug)]
pub(super) enum Incomplete<E> {
    /// The limit in bytes.
    TooLong(usize),
    Broken(E),
}

impl<E: Into<Self>> From<Incomplete<E>> for Box<dyn Error + Send + Sync> {
    fn from(incomplete: Incomplete<E>) -> Self {
        match incomplete {
            Incomplete::TooLong(bound) => format!("response content is longer than {bound} bytes").into(),
            Incomplete::Broken(error) => error.into(),
        }
    }
}

/// Reads a body of at most `max_length` bytes. Nothing is read beyond the limit.
pub(super) async fn collect<B: Body>(body: B, max_length: usize) -> Result<Bytes, Incomplete<B::Error>> {
    let mut body = pin!(body);
    if body.size_hint().lower() > max_length as u64 {
        return Err(Incomplete::TooLong(max_length));
    }
    let mut content = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        // Trailers are ignored.
        let Ok(data) = frame.map_err(Incomplete::Broken)?.into_data() else {
            continue;
        };
        if data.remaining() > max_length - content.len() {
            return Err(Incomplete::TooLong(max_length));
        }
        content.put(data);
    }
    Ok(content.freeze())
}
