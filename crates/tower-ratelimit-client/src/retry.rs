use std::{fmt, sync::Arc};

mod sealed {
    pub trait Sealed {}
}

/// The retry policy for requests with body `B`: [`NoRetries`] or [`Retries`].
///
/// For custom rules, place `tower::retry` outside the client.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use http::{Request, Response, StatusCode};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_ratelimit_client::{ClientLayer, Retry};
///
/// /// Sends one request to a server that rejects the first and serves the second.
/// async fn status<R: Retry<String>>(layer: ClientLayer<R>) -> StatusCode {
///     let calls = &AtomicUsize::new(0);
///     let server = service_fn(async |_: Request<String>| match calls.fetch_add(1, Ordering::Relaxed) {
///         0 => Response::builder().status(429).header("retry-after", "1").body(()),
///         _ => Response::builder().body(()),
///     });
///     let request = Request::post("http://a.example/").body("hello".to_owned()).unwrap();
///     layer.layer(server).oneshot(request).await.unwrap().status()
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// assert_eq!(status(ClientLayer::new()).await, 429);
/// let layer = ClientLayer::builder().retries(1, |body: &String| Some(body.clone())).build()?;
/// assert_eq!(status(layer).await, 200);
/// # Ok(())
/// # }
/// ```
pub trait Retry<B>: sealed::Sealed + Clone {
    #[doc(hidden)]
    fn count(&self) -> u8;

    #[doc(hidden)]
    fn clone_body(&self, body: &B) -> Option<B>;
}

/// Sends each request once, the default.
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_ratelimit_client::{ClientLayer, NoRetries};
///
/// /// A body that cannot be cloned.
/// struct Upload;
///
/// # tokio_test::block_on(async {
/// let layer: ClientLayer<NoRetries> = ClientLayer::new();
/// let server = service_fn(async |_: Request<Upload>| {
///     Response::builder().status(429).header("retry-after", "9").body(())
/// });
/// let response = layer.layer(server).oneshot(Request::post("http://a.example/").body(Upload)?).await?;
/// assert_eq!(response.status(), 429);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRetries;

/// Retries requests with a body cloned by `F`, as set by
/// [`ClientLayerBuilder::retries`](super::ClientLayerBuilder::retries).
///
/// ```
/// use tower_ratelimit_client::{ClientLayer, Retries};
///
/// type CloneBody = fn(&String) -> Option<String>;
///
/// fn layer(retries: u8) -> Result<ClientLayer<Retries<CloneBody>>, tower_ratelimit_client::BuildError> {
///     ClientLayer::builder().retries(retries, (|body| Some(body.clone())) as CloneBody).build()
/// }
///
/// assert!(layer(10).is_ok());
/// assert_eq!(layer(11).unwrap_err().to_string(), "client: retries 11 is outside 0..=10");
/// ```
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
