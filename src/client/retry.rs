//! Which requests are sent again.

use std::{fmt, sync::Arc};

use http::{Method, Request, StatusCode};

mod sealed {
    pub trait Sealed {}
}

/// Whether requests with content `B` are sent again after a refusal: [`NoRetries`] or [`Retries`].
pub trait Retry<B>: sealed::Sealed + Clone {
    /// How often a request is sent again.
    #[doc(hidden)]
    fn count(&self) -> u8;

    /// The content once more, if it can be had.
    #[doc(hidden)]
    fn clone_body(&self, body: &B) -> Option<B>;
}

/// Requests are sent once: the default, which asks nothing of their content.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRetries;

/// Requests are sent again: see [`ClientLayerBuilder::retries`](super::ClientLayerBuilder::retries).
pub struct Retries<F> {
    count: u8,
    clone_body: Arc<F>,
}

impl<F> Retries<F> {
    pub(super) const MAX: u8 = 10;

    pub(super) fn new(count: u8, clone_body: F) -> Self {
        Self {
            count,
            clone_body: Arc::new(clone_body),
        }
    }
}

impl sealed::Sealed for NoRetries {}

impl<B> Retry<B> for NoRetries {
    fn count(&self) -> u8 {
        0
    }

    fn clone_body(&self, _: &B) -> Option<B> {
        None
    }
}

impl<F> sealed::Sealed for Retries<F> {}

impl<B, F: Fn(&B) -> Option<B>> Retry<B> for Retries<F> {
    fn count(&self) -> u8 {
        self.count
    }

    fn clone_body(&self, body: &B) -> Option<B> {
        (self.clone_body)(body)
    }
}

impl<F> Clone for Retries<F> {
    fn clone(&self) -> Self {
        Self {
            count: self.count,
            clone_body: Arc::clone(&self.clone_body),
        }
    }
}

impl<F> fmt::Debug for Retries<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retries")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// The request once more, if its content can be had once more.
pub(super) fn clone_of<B>(request: &Request<B>, retry: &impl Retry<B>) -> Option<Request<B>> {
    let mut again = Request::new(retry.clone_body(request.body())?);
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.version_mut() = request.version();
    *again.headers_mut() = request.headers().clone();
    *again.extensions_mut() = request.extensions().clone();
    Some(again)
}

/// Whether a refusal says that the request has done nothing, or that doing it twice does no harm.
pub(super) fn may_repeat(method: &Method, status: StatusCode) -> bool {
    match status {
        StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::SERVICE_UNAVAILABLE => method.is_idempotent(),
        _ => false,
    }
}
