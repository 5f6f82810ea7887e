//! The client: answers challenges of origins with tokens, and fetches the credentials for them.

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

/// Answers the challenges of origins: fetches a credential from the issuer, makes a token of it for each request that needs
/// one, and stops when the limit is reached.
///
/// You want it in front of the service that sends requests, where servers ask for anonymous tokens. The content of requests
/// has to be `Clone`: a request is sent without a token, and once more with one when it is challenged. The client remembers
/// challenges that it has answered, and sends the next requests to that origin with a token at once: after a 401, until the
/// challenge ends, if it has a `max-age`; after a 429, for its `Retry-After`, or until the challenge ends if that is earlier
/// or there is no `Retry-After`. Tokens are optional after a 429: a request for which there is none is sent without one.
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
/// use tower_quota_anonymous::{TokenClientError, TokenClientLayer, TrustedIssuer};
/// # use tower_quota_anonymous::{Directory, IssuerKey, OriginLayer, Profile};
///
/// # tokio_test::block_on(async {
/// # let key = IssuerKey::generate(Profile::P256)?;
/// # let issuer_key = key.clone();
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
/// # let origin = origin.policy("anonymous", 2, Duration::from_secs(3_600)).build()?;
/// # let to_origin = origin.layer(service_fn(async |_: Request<()>| {
/// #     Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("hello"))))
/// # }));
/// // `to_issuer` and `to_origin` are clients of HTTP; the first one logs in at the issuer.
/// let issuer = TrustedIssuer::new("issuer.example", to_issuer).origin("api.example");
/// let tokens = TokenClientLayer::builder().issuer(issuer).build()?;
/// let client = ServiceBuilder::new().layer(tokens).service(to_origin);
///
/// let request = || Request::get("https://api.example/").body(()).unwrap();
/// // The origin lets each credential pass twice in an hour.
/// assert_eq!(client.clone().oneshot(request()).await?.status(), 200);
/// assert_eq!(client.clone().oneshot(request()).await?.status(), 200);
/// let error = client.oneshot(request()).await.unwrap_err();
/// assert!(matches!(error, TokenClientError::LimitReached { retry_after: Some(_) }));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Which challenges are answered
///
/// Those of a 401 or 429 that are well-formed, of a [profile](super::Profile) that the crate has, by an issuer that was
/// [configured](TokenClientLayerBuilder::issuer) for the [origin](TrustedIssuer::origin) of the request, and that name that
/// origin: its host, with the port where that is not the usual one. The limit has to be there or
/// [pinned](TrustedIssuer::pin_limit), and not above [`max_rate_limit`](TokenClientLayerBuilder::max_rate_limit). A key has to
/// be in the issuer's directory, or pinned. The response to any other challenge is passed on as it is.
///
/// One challenge is answered for each request, and a request that has an `Authorization` already is left alone.
///
/// # What the issuer is asked
///
/// It is asked over `https`, or over `http` on this very computer, for its directory and for credentials, at its own host
/// or at a [URL](TrustedIssuer::request_url) that was configured: never at one that an origin has named. A `Retry-After` is
/// obeyed, up to ten minutes, and requests that fail or have no valid response are followed by a
/// [wait](TrustedIssuer). Requests have ten seconds. For each origin, at most 12 requests for credentials are sent an hour,
/// or 60 for all origins together if the issuer answers to [any origin](TrustedIssuer::any_origin).
///
/// Origins can ask for waits, too. Put a `ClientLayer` *outside* of this one for them: inside, it would hold back the request
/// that has got its token.
///
/// # What cannot be prevented
///
/// An origin or an issuer that shows each client another key, context or limit can follow that client. Pin
/// [keys](TrustedIssuer::pin_key) and [limits](TrustedIssuer::pin_limit) where you know them. Requests of one client also
/// share its address, its connections and whatever else they have in common; tokens do not hide that.
///
/// The origins of an issuer share credentials where the protocol does: with [`Profile::P384`](super::Profile::P384), all of
/// them; with [`Profile::P256`](super::Profile::P256), those with the same list of origins in their challenges. An origin
/// can therefore measure whether the client already had a credential, because fetching one takes time. An origin can also
/// cause a credential to be fetched again, by using up what the storage has room for: with [`MemoryCredentials`], 64
/// credentials, or 4,096 contexts or 1,048,576 tokens of one credential.
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
