use std::{
    future::{Future, poll_fn},
    pin::Pin,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower_service::Service;

use super::error::BoxError;
use crate::mutex::Mutex;

pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) content: Result<Bytes, BoxError>,
}

impl Answer {
    pub(super) fn content_of_type(self, media_type: &str) -> Result<Bytes, BoxError> {
        let sent = self.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        match sent.is_some_and(|sent| sent.eq_ignore_ascii_case(media_type.as_bytes())) {
            true => self.content,
            false => Err(format!("response content is not {media_type}").into()),
        }
    }
}

pub(super) trait Transport: Send + Sync {
    fn send(&self, request: Request<Bytes>, max_length: usize) -> Sending;
}

type Sending = Pin<Box<dyn Future<Output = Result<Answer, BoxError>> + Send>>;

/// Services need not be `Sync`.
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
                content: match Limited::new(body, max_length).collect().await {
                    Ok(content) => Ok(content.to_bytes()),
                    Err(error) if error.is::<LengthLimitError>() => {
                        Err(format!("response content is longer than {max_length} bytes").into())
                    }
                    Err(error) => Err(error),
                },
            })
        })
    }
}
