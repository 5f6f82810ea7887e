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
/// The client fetches a credential from the issuer, makes one token per request that needs one, and stops when the
/// limit is reached. Place it around the service that sends requests. The request content must be `Clone`, because a
/// challenged request is sent again with a token.
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
/// After a challenge, the client sends further requests to that origin with a token at once. After a 401, the client
/// does so until the challenge ends, if the challenge has a `max-age`. After a 429, the client does so until the time
/// in `Retry-After` has passed or the challenge ends, whichever happens first. These tokens are optional: if the
/// credential has no unused tokens, the client sends requests without one.
///
/// # Which challenges are answered
///
/// The client answers well-formed challenges in 401 and 429 responses if all of these conditions are met:
///
/// - The crate supports the [profile](super::Profile).
/// - The issuer was [configured](TokenClientLayerBuilder::issuer) for the [origin](TrustedIssuer::origin) of the
///   request.
/// - The challenge names that origin: its host, with a port unless it is the default port.
/// - The limit is present or [pinned](TrustedIssuer::pin_limit), and does not exceed
///   [`max_rate_limit`](TokenClientLayerBuilder::max_rate_limit).
/// - The key is in the issuer's directory, or pinned.
///
/// Responses with other challenges are returned unchanged. Each request answers at most one challenge, and requests
/// with an `Authorization` field are not changed.
///
/// # Requests to the issuer
///
/// The client requests the directory and credentials over `https`, or over `http` on this computer, and contacts only
/// the issuer's host or a [configured URL](TrustedIssuer::request_url), never a URL specified by an origin. Requests
/// time out after ten seconds. The client obeys `Retry-After` up to ten minutes, and [waits](TrustedIssuer) after
/// failed requests and invalid responses. At most 12 credential requests per hour are sent for each origin, or 60 in
/// total if the issuer is configured for [any origin](TrustedIssuer::any_origin).
///
/// If origins also send `Retry-After`, put a `ClientLayer` *outside* of this layer. Inside, the `ClientLayer` would
/// delay requests that already have a token.
///
/// # Security
///
/// An origin or issuer can track a client by showing each client a different key, context or limit. Pin
/// [keys](TrustedIssuer::pin_key) and [limits](TrustedIssuer::pin_limit) if you know them. Requests of one client also
/// share its address, connections and other properties, which tokens do not hide.
///
/// Some origins of an issuer share credentials: with [`Profile::P384`](super::Profile::P384), all of them; with
/// [`Profile::P256`](super::Profile::P256), those with the same list of origins in their challenges. An origin can
/// therefore detect by timing whether the client already had a credential. An origin can also force another fetch by
/// exhausting the storage: with [`MemoryCredentials`], 64 credentials, or 4,096 contexts or 1,048,576 tokens of one
/// credential.
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
