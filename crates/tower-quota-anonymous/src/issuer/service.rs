use std::{
    convert::Infallible,
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
    request::Parts,
};
use http_body::Body;
use http_body_util::{BodyExt, Collected, Full, Limited};
use tower_quota::content::LingeringClose;
use tower_service::Service;

use super::{
    Issuer, Issuing,
    response::{method_not_allowed, problem, typed},
};
use crate::Directory;

/// The future of an [`Issuer`].
///
/// Dropping it refunds no charge of the [policy](super::IssuancePolicy), but the request can be
/// [repeated](super::IssuancePolicy#repeats).
#[must_use = "a future does nothing until it is polled"]
pub struct IssuerFuture(Pin<Box<dyn Future<Output = Response<Bytes>> + Send>>);

impl Future for IssuerFuture {
    type Output = Result<Response<Full<Bytes>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = self.0.as_mut().poll(cx);
        response.map(|response| Ok(response.map(Full::new)))
    }
}

impl fmt::Debug for IssuerFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IssuerFuture")
    }
}

impl<B> Service<Request<B>> for Issuer
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = IssuerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> IssuerFuture {
        let issuing = Arc::clone(&self.0);
        let (head, body) = request.into_parts();
        IssuerFuture(Box::pin(async move {
            let (answered, mut body) = (head.clone(), Box::pin(body));
            let mut response = match head.uri.path() {
                Directory::PATH => issuing.serve_directory(&head.method),
                path if path == issuing.request_path => match objection(&head) {
                    None => {
                        let content = Limited::new(&mut body, Issuing::MAX_REQUEST).collect().await;
                        issuing.issue(head, content.ok().map(Collected::to_bytes)).await
                    }
                    Some(response) => response,
                },
                _ => problem(
                    StatusCode::NOT_FOUND,
                    "Only the directory and the issuance resource exist.",
                ),
            };
            LingeringClose::new().discard(&answered, body, response.headers_mut());
            response
        }))
    }
}

/// `None` if the head is valid.
fn objection(head: &Parts) -> Option<Response<Bytes>> {
    if head.method != Method::POST {
        return Some(method_not_allowed("POST"));
    }
    let media_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.and_then(|value| value.split(';').next());
    if media_type.is_some_and(|value| value.trim().eq_ignore_ascii_case(Issuer::REQUEST_TYPE)) {
        return None;
    }
    let mut response = problem(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "The content is not a credential request.",
    );
    let accepted = HeaderValue::from_static(Issuer::REQUEST_TYPE);
    response.headers_mut().insert(ACCEPT, accepted);
    Some(response)
}

impl Issuing {
    fn serve_directory(&self, method: &Method) -> Response<Bytes> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return method_not_allowed("GET, HEAD");
        }
        let directory = self.keys.load().directory(&self.request_uri, self.clock.now());
        let mut response = typed(Directory::MEDIA_TYPE, directory.to_json());
        let lifetime = format!("public, max-age={}", self.cache_lifetime.as_secs());
        let lifetime = HeaderValue::try_from(lifetime).expect("digits");
        response.headers_mut().insert(CACHE_CONTROL, lifetime);
        response
    }
}
