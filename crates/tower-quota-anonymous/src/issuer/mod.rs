//! The issuer: its directory, and credentials for those who may have them.

mod body;
mod builder;
mod issuance;
mod note;
mod policy;
mod ration;
mod response;
mod service;

use std::{fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;

pub use self::{
    body::IssuerBody,
    builder::IssuerBuilder,
    policy::{IssuanceDecision, IssuanceDecisionFuture, IssuancePolicy, IssuanceRequest},
    service::IssuerFuture,
};
use super::{BuildError, KeySet, telemetry::IssuerTelemetry, workers::Workers};
use tower_quota::clock::Clock;

/// The issuer of anonymous credentials: a Tower service with the issuer's directory and the URL to which requests for
/// credentials go (RFC 9578, section 4; draft-yun-privacypass-arc-00, "Issuance").
///
/// You want it beside an origin that accepts tokens; both need the same [`IssuerKey`](super::IssuerKey)s. Mount it at both
/// paths:
///
/// ```
/// use axum::Router;
/// use http::{Request, header::CONTENT_TYPE};
/// use http_body_util::BodyExt;
/// use tower::ServiceExt;
/// use tower_quota::{MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer, ToPartitionKey, key};
/// use tower_quota_anonymous::{CredentialRequest, Directory, Issuer, KeySet, Profile};
///
/// /// The value that authentication leaves in a request.
/// #[derive(Clone)]
/// struct Account(u64);
///
/// impl ToPartitionKey for Account {
///     fn to_partition_key(&self) -> PartitionKey {
///         PartitionKey::new("account", self.0.to_be_bytes())
///     }
/// }
///
/// # tokio_test::block_on(async {
/// // One credential a day for each account, and none without a login.
/// let ration = RateLimitLayer::builder(MemoryStore::new())
///     .scope("credentials")
///     .key(key::extension::<Account>())
///     .policy(QuotaPolicy::per_day("credentials", 1))
///     .build()?;
/// let mut keys = KeySet::new();
/// keys.insert(keys.generate(Profile::P256)?, ..);
/// let issuer = Issuer::builder(ration).keys(keys).build()?;
/// let app: Router = Router::new()
///     .route_service(Directory::PATH, issuer.clone())
///     .route_service(issuer.request_path(), issuer.clone());
///
/// // The client's side, by hand:
/// let response = app.clone().oneshot(Request::get(Directory::PATH).body(String::new())?).await?;
/// let directory = Directory::parse(&response.into_body().collect().await?.to_bytes())?;
/// let (key, _) = directory.keys().next().expect("the issuer has a key");
/// let request = CredentialRequest::new(key, b"request context")?;
/// let ask = |account, request: &CredentialRequest| {
///     let head = Request::post("/arc/request").header(CONTENT_TYPE, "application/private-credential-request");
///     head.extension(Account(account)).body(axum::body::Body::from(request.to_message())).unwrap()
/// };
///
/// let response = app.clone().oneshot(ask(7, &request)).await?;
/// assert_eq!(response.status(), 200);
/// assert!(request.finalize(&response.into_body().collect().await?.to_bytes()).is_ok());
/// // The same request is answered again, if the client has lost the response. Another one is charged.
/// assert_eq!(app.clone().oneshot(ask(7, &request)).await?.status(), 200);
/// let another = CredentialRequest::new(key, b"request context")?;
/// assert_eq!(app.clone().oneshot(ask(7, &another)).await?.status(), 429);
/// assert_eq!(app.oneshot(ask(8, &another)).await?.status(), 200);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # What it answers
///
/// | request | answer |
/// |---|---|
/// | `GET` or `HEAD` of the [directory](super::Directory::PATH) | 200 with the keys, which caches keep for the [lifetime](IssuerBuilder::cache_lifetime) |
/// | `POST` of a request that is valid and may have a credential | 200 with the credential's response |
/// | unknown token type or key, wrong length, a point or a proof that is not valid | 422 |
/// | the [policy](IssuancePolicy) says no | 403, 429, or what the policy answers |
/// | content of another type | 415 |
/// | another method | 405 with `Allow` |
/// | granted, but too many requests wait for arithmetic | 503 with `Retry-After`; see [repeats](IssuancePolicy#repeats) |
/// | any other path | 404 |
///
/// Rejections are `application/problem+json` and go into no cache.
///
/// The steps are in this order: the form of the request, the policy, a [place](IssuerBuilder::max_queued) in the queue, the
/// arithmetic. A caller that the policy rejects takes no place.
///
/// # What it does not do
///
/// - It does not authenticate: put that around it.
/// - It does not limit how often it is asked for the directory, or sent what is not valid: put limits by address around it.
/// - It cannot take a credential back. A credential ends when origins do not accept its key any more.
#[derive(Clone)]
pub struct Issuer(Arc<Issuing>);

/// The shared state of all clones of an issuer.
struct Issuing {
    policy: Box<dyn IssuancePolicy>,
    keys: ArcSwap<KeySet>,
    request_uri: String,
    request_path: String,
    cache_lifetime: Duration,
    workers: Workers,
    clock: Clock,
    log: IssuerTelemetry,
}

impl Issuer {
    /// The media type of requests for credentials.
    pub const REQUEST_TYPE: &str = "application/private-credential-request";
    /// The media type of the response to such a request.
    pub const RESPONSE_TYPE: &str = "application/private-credential-response";

    /// The path to which requests for credentials go.
    pub fn request_path(&self) -> &str {
        &self.0.request_path
    }

    /// The keys that are used now.
    pub fn keys(&self) -> Arc<KeySet> {
        self.0.keys.load_full()
    }

    /// Uses these keys from now on, in all clones. Requests that are under way keep the key that they have.
    ///
    /// Keep a key that ends in the set until its time is over: clients may have a directory that is as old as its
    /// [lifetime](IssuerBuilder::cache_lifetime).
    ///
    /// # Errors
    ///
    /// The first mistake found, as [`build`](IssuerBuilder::build) finds it. The issuer then keeps its keys.
    pub fn replace_keys(&self, keys: KeySet) -> Result<(), BuildError> {
        let checked = keys.check(("cache_lifetime", self.0.cache_lifetime));
        checked.map_err(|message| BuildError::new("issuer", message))?;
        self.0.keys.store(Arc::new(keys));
        Ok(())
    }
}

/// Shows no secret.
impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer")
            .field("request_uri", &self.0.request_uri)
            .field("keys", &self.0.keys.load())
            .finish_non_exhaustive()
    }
}
