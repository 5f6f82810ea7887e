//! The way to an issuer: any service that takes a request with bytes.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body::Body;
use tower_service::Service;

use super::error::BoxError;
use crate::{content::collect, mutex::Mutex};

/// The head of a response, and its content.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) content: Result<Bytes, BoxError>,
}

impl Answer {
    /// The content, if it has this media type.
    pub(super) fn content_of_type(self, media_type: &str) -> Result<Bytes, BoxError> {
        let sent = self.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        match sent.is_some_and(|sent| sent.eq_ignore_ascii_case(media_type.as_bytes())) {
            true => self.content,
            false => Err(format!("the content of the response is no {media_type}").into()),
        }
    }
}

/// The service as a client needs it, whatever its type.
pub(super) trait Transport: Send + Sync {
    /// Sends a request. Of the content, at most so many bytes are read.
    fn send(&self, request: Request<Bytes>, max_length: usize) -> Sending;
}

type Sending = Pin<Box<dyn Future<Output = Result<Answer, BoxError>> + Send>>;

/// Behind a lock only because not every service can be cloned by two threads at once.
pub(super) struct ServiceTransport<S>(pub(super) Mutex<S>);

impl<S, B> Transport for ServiceTransport<S>
where
    S: Service<Request<Bytes>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    fn send(&self, request: Request<Bytes>, max_length: usize) -> Sending {
        let mut service = self.0.lock().clone();
        Box::pin(async move {
            poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
            let response = service.call(request).await.map_err(Into::into)?;
            let (head, body) = response.into_parts();
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                content: collect(body, max_length).await.map_err(Into::into),
            })
        })
    }
}
