mod answer;
mod builder;
mod error;
mod issuer;
mod known;
mod origin_state;
mod service;
mod storage;
mod transport;

use std::{fmt, sync::Arc};

use self::known::Known;
pub use self::{
    builder::TokenClientLayerBuilder,
    error::TokenClientError,
    issuer::TrustedIssuer,
    service::{TokenClient, TokenClientFuture},
    storage::{ContextName, CredentialStorage, MemoryCredentials, Reserved, StorageError, StorageFuture},
};
use tower_quota::clock::Clock;

/// Answers the challenges of origins with anonymous tokens.
///
/// The client fetches a credential, makes one token per request that needs one, and stops at the limit. Place it around
/// the service that sends requests, and *inside* of a `ClientLayer`, so that requests with a token are not delayed. The
/// request content must be `Clone`, because a challenged request is sent again.
///
/// ```
/// use std::convert::Infallible;
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_quota_anonymous::{TokenClientError, TokenClientLayer, TrustedIssuer};
///
/// # tokio_test::block_on(async {
/// // Replace both services with HTTP clients. The client for the issuer logs in.
/// let to_issuer = service_fn(async |_: Request<Bytes>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
/// let to_origin = service_fn(async |_: Request<String>| {
///     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
/// });
/// # use std::time::Duration;
/// # use tower::Layer;
/// # use tower_quota_anonymous::{Directory, IssuerKey, OriginLayer, Profile};
/// # let key = IssuerKey::generate(Profile::P256)?;
/// # let issuer_key = key.clone();
/// # let _ = to_issuer;
/// # let to_issuer = service_fn(move |request: Request<Bytes>| {
/// #     let directory = Directory::new("/arc").with_key(issuer_key.public_key().clone(), None).to_json();
/// #     let content = match request.body().get(3..) {
/// #         None => directory.into(),
/// #         Some(request) => issuer_key.issue(request).unwrap(),
/// #     };
/// #     let response = Response::builder().header("content-type", "application/private-credential-response");
/// #     async move { Ok::<_, Infallible>(response.body(Full::new(Bytes::from(content))).unwrap()) }
/// # });
/// # let origin = OriginLayer::builder("issuer.example", &[7; 32]).origin("api.example").key(key);
/// # let to_origin = origin.policy("anonymous", 3, Duration::from_secs(3_600)).build()?.layer(to_origin);
/// let issuer = TrustedIssuer::new("issuer.example", to_issuer).origin("api.example");
/// let tokens = TokenClientLayer::builder().issuer(issuer).build()?;
/// let client = ServiceBuilder::new().layer(tokens).service(to_origin);
/// # let send = || client.clone().oneshot(Request::get("https://api.example/").body(String::new()).unwrap());
/// # for _ in 0..2 {
/// #     assert_eq!(send().await?.status(), 200);
/// # }
///
/// match client.clone().oneshot(Request::get("https://api.example/").body(String::new())?).await {
///     Ok(response) => assert_eq!(response.status(), 200),
///     Err(TokenClientError::LimitReached { retry_after }) => println!("no tokens; retry after {retry_after:?}"),
///     Err(error) => return Err(error.into()),
/// }
/// # assert!(matches!(send().await, Err(TokenClientError::LimitReached { retry_after: Some(_) })));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Which challenges are answered
///
/// Well-formed challenges in 401 and 429 responses, if the crate supports the [profile](super::Profile), and
///
/// - the challenge names the origin of the request, which is an [origin](TrustedIssuer::origin) of a configured issuer,
/// - the limit is present or [pinned](TrustedIssuer::pin_limit), and at most 65,536, and
/// - the key is in the issuer's directory, or pinned.
///
/// Each request answers at most one challenge. Further requests carry a token at once: after a 401, until the `max-age`
/// of the challenge; after a 429, until `Retry-After` or the challenge ends, as long as unused tokens remain. Other
/// responses, and requests with an `Authorization` field, are not changed.
///
/// # Security
///
/// The client contacts only the issuer's host or a [configured URL](TrustedIssuer::request_url), over `https`, or
/// `http` on this computer. An origin or issuer can track a client by its own key, context or limit: pin
/// [keys](TrustedIssuer::pin_key) and [limits](TrustedIssuer::pin_limit). See [what origins can
/// learn](crate::guide#what-it-does-not-promise).
#[derive(Clone)]
pub struct TokenClientLayer(Arc<Settings>);

struct Settings {
    issuers: Vec<Arc<TrustedIssuer>>,
    storage: Arc<dyn CredentialStorage>,
    known: Known,
    clock: Clock,
}

impl fmt::Debug for TokenClientLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenClientLayer")
            .field("issuers", &self.0.issuers)
            .finish_non_exhaustive()
    }
}
