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
/// the service that sends requests. The request content must be `Clone`, because a challenged request is sent again.
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
/// # When tokens are sent
///
/// After a 401, further requests to the origin carry a token at once until the `max-age` of the challenge. After a 429,
/// they do until `Retry-After` or the challenge ends, as long as unused tokens remain.
///
/// # Which challenges are answered
///
/// Well-formed challenges in 401 and 429 responses, if:
///
/// - the crate supports the [profile](super::Profile),
/// - the issuer was [configured](TokenClientLayerBuilder::issuer) for the [origin](TrustedIssuer::origin) of the
///   request, and the challenge names that origin,
/// - the limit is present or [pinned](TrustedIssuer::pin_limit), and at most
///   [`max_rate_limit`](TokenClientLayerBuilder::max_rate_limit), and
/// - the key is in the issuer's directory, or pinned.
///
/// Other responses are returned unchanged. Each request answers at most one challenge, and requests with an
/// `Authorization` field are not changed.
///
/// # Requests to the issuer
///
/// The client contacts only the issuer's host or a [configured URL](TrustedIssuer::request_url), over `https`, or
/// `http` on this computer. Requests time out after ten seconds. [`TrustedIssuer`] has the waits and the budget.
///
/// Put a `ClientLayer` *outside* of this layer, so that it does not delay requests that already have a token.
///
/// # Security
///
/// An origin or issuer can track a client by showing each client a different key, context or limit. Pin
/// [keys](TrustedIssuer::pin_key) and [limits](TrustedIssuer::pin_limit) if you know them.
///
/// Some origins of an issuer share credentials: with [`Profile::P384`](super::Profile::P384) all of them, with
/// [`Profile::P256`](super::Profile::P256) those with the same list of origins. By timing, an origin can detect whether
/// the client already had a credential, and it can force another fetch by exhausting the [storage](MemoryCredentials).
#[derive(Clone)]
pub struct TokenClientLayer(Arc<Settings>);

struct Settings {
    issuers: Vec<Arc<TrustedIssuer>>,
    storage: Arc<dyn CredentialStorage>,
    max_rate_limit: u32,
    known: Known,
    clock: Clock,
}

impl fmt::Debug for TokenClientLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenClientLayer")
            .field("issuers", &self.0.issuers)
            .field("max_rate_limit", &self.0.max_rate_limit)
            .finish_non_exhaustive()
    }
}
