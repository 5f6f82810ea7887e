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
    builder::IssuerBuilder,
    policy::{IssuanceDecision, IssuanceDecisionFuture, IssuancePolicy, IssuanceRequest},
    service::IssuerFuture,
};
use super::{BuildError, KeySet, telemetry::IssuerTelemetry, workers::Workers};
use tower_quota::clock::Clock;

/// An issuer of anonymous credentials: a Tower service for the directory and credential requests.
///
/// Implements RFC 9578, section 4, and draft-yun-privacypass-arc-00, "Issuance". Origins need the same
/// [`IssuerKey`](super::IssuerKey)s. Mount the service at both paths:
///
/// ```
/// use axum::Router;
/// use http::{Request, header::CONTENT_TYPE};
/// use http_body_util::BodyExt;
/// use tower::ServiceExt;
/// use tower_quota::{MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer, ToPartitionKey, key};
/// use tower_quota_anonymous::{CredentialRequest, Directory, Issuer, KeySet, Profile};
///
/// /// Inserted into the request extensions by authentication.
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
/// // One credential per day for each account, and none without a login.
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
/// // The client's side, without `TokenClientLayer`:
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
/// // Repeating the request, because the response was lost, is not charged. A new request is.
/// assert_eq!(app.clone().oneshot(ask(7, &request)).await?.status(), 200);
/// let another = CredentialRequest::new(key, b"request context")?;
/// assert_eq!(app.clone().oneshot(ask(7, &another)).await?.status(), 429);
/// assert_eq!(app.oneshot(ask(8, &another)).await?.status(), 200);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Responses
///
/// | request | response |
/// |---|---|
/// | `GET` or `HEAD` of the [directory](super::Directory::PATH) | 200 with the keys, which caches keep for the [lifetime](IssuerBuilder::cache_lifetime) |
/// | valid `POST` that the policy grants | 200 with the credential response |
/// | unknown token type or key, wrong length, invalid point or proof | 422 |
/// | rejected by the [policy](IssuancePolicy) | 403, 429, or the policy's response |
/// | another content type | 415 |
/// | another method | 405 with `Allow` |
/// | full [queue](IssuerBuilder::max_queued) | 503 with `Retry-After`; see [repeats](IssuancePolicy#repeats) |
/// | another path | 404 |
///
/// Rejections are `application/problem+json` and must not be cached. Put authentication and limits by address around
/// the issuer, which does not authenticate callers, or limit directory and invalid requests. Credentials expire only
/// when origins no longer accept their key.
#[derive(Clone)]
pub struct Issuer(Arc<Issuing>);

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
    /// The media type of credential requests.
    pub const REQUEST_TYPE: &str = "application/private-credential-request";
    /// The media type of credential responses.
    pub const RESPONSE_TYPE: &str = "application/private-credential-response";

    /// Returns the path for credential requests.
    pub fn request_path(&self) -> &str {
        &self.0.request_path
    }

    /// Returns the current keys.
    pub fn keys(&self) -> Arc<KeySet> {
        self.0.keys.load_full()
    }

    /// Replaces the keys in all clones. Requests in progress use the previous ones.
    ///
    /// Keep each key in the set until its period has ended. Fails like [`build`](IssuerBuilder::build); the issuer then
    /// keeps its keys.
    pub fn replace_keys(&self, keys: KeySet) -> Result<(), BuildError> {
        let checked = keys.check(("cache_lifetime", self.0.cache_lifetime));
        checked.map_err(|message| BuildError::new("issuer", message))?;
        self.0.keys.store(Arc::new(keys));
        Ok(())
    }
}

/// Omits secrets.
impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer")
            .field("request_uri", &self.0.request_uri)
            .field("keys", &self.0.keys.load())
            .finish_non_exhaustive()
    }
}
