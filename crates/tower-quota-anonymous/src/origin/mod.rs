mod accepted;
mod body;
mod builder;
mod forgeries;
mod future;
mod known;
mod outcome;
mod rejection;
mod response;
mod service;
mod spending;
mod tags;
mod windows;

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use http::{
    HeaderName,
    header::{RETRY_AFTER, WWW_AUTHENTICATE},
};

pub use self::{
    accepted::AcceptedToken, body::OriginBody, builder::OriginLayerBuilder, future::OriginFuture,
    service::OriginService,
};
use self::{forgeries::Forgeries, known::KnownGroups, spending::Spending, windows::Windows};
use super::{BuildError, KeySet, telemetry::TokenTelemetry, workers::Workers};
use tower_quota::{
    clock::Clock,
    fields::{LayerFields, draft06, draft11, legacy},
    key::ClientIp,
};

/// All fields that this crate writes, for `Access-Control-Expose-Headers`.
///
/// Without tokens, use [`fields::EXPOSED`](tower_quota::fields::EXPOSED).
///
/// ```
/// use tower_http::cors::CorsLayer;
/// use tower_quota_anonymous::EXPOSED;
///
/// let cors = CorsLayer::permissive().expose_headers(EXPOSED);
/// # tokio_test::block_on(async {
/// # use tower::{Layer, ServiceExt, service_fn};
/// # let service = service_fn(async |_: http::Request<String>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// # });
/// # let response = cors.layer(service).oneshot(http::Request::default()).await.unwrap();
/// # let exposed = response.headers()["access-control-expose-headers"].to_str().unwrap();
/// # assert!(exposed.starts_with("www-authenticate,ratelimit,ratelimit-policy,retry-after,"));
/// # });
/// ```
pub const EXPOSED: [HeaderName; 10] = [
    WWW_AUTHENTICATE,
    draft11::RateLimit::NAME,
    draft11::RateLimitPolicy::NAME,
    RETRY_AFTER,
    draft06::RateLimitLimit::NAME,
    draft06::RateLimitRemaining::NAME,
    draft06::RateLimitReset::NAME,
    legacy::XRateLimitLimit::NAME,
    legacy::XRateLimitRemaining::NAME,
    legacy::XRateLimitReset::NAME,
];

/// Admits requests with a valid, unspent token, and counts callers without identifying them.
///
/// Place this layer *outside* of a [`RateLimitLayer`](tower_quota::RateLimitLayer) by user or address, to which
/// requests without a token pass if tokens are [optional](OriginLayerBuilder::optional).
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, body::Body, routing::get};
/// use http::Request;
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_quota::{Exemption, MemoryStore, QuotaPolicy, RateLimitLayer, key};
/// use tower_quota_anonymous::{AcceptedToken, IssuerKey, OriginLayer, Profile};
///
/// # tokio_test::block_on(async {
/// // Load the issuer's key, and a secret that all instances share, from a secret store.
/// let (issuer_key, secret) = (IssuerKey::generate(Profile::P256)?, [7; 32]);
/// # let issuer = issuer_key.clone();
/// let tokens = OriginLayer::builder("issuer.example", &secret)
///     .origin("api.example")
///     .key(issuer_key)
///     .policy("anonymous", 100, Duration::from_secs(3_600))
///     .optional()
///     .build()?;
/// let by_address = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::client_ip())
///     .policy(QuotaPolicy::per_minute("address", 1))
///     .exempt(Exemption::when(|request| request.extensions.get::<AcceptedToken>().is_some()))
///     .build()?;
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .layer(ServiceBuilder::new().layer(tokens).layer(by_address));
///
/// // Requests without a token are limited by address. The rejection contains a challenge.
/// let request = || Request::get("http://api.example/").body(Body::empty());
/// assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
/// let rejected = app.clone().oneshot(request()?).await?;
/// assert_eq!(rejected.status(), 429);
/// assert!(rejected.headers()["www-authenticate"].to_str()?.starts_with("PrivateToken challenge="));
/// assert_eq!(rejected.headers()["ratelimit-policy"], r#""address";q=1;w=60, "anonymous";q=100;w=3600"#);
/// # use tower_quota_anonymous::{Challenge, CredentialRequest, Token, token_to_header_value};
/// # let challenge = Challenge::from_headers(rejected.headers())[0].token_challenge()?;
/// # let key_id = issuer.key_id();
/// # let asked = CredentialRequest::new(issuer.public_key(), &challenge.request_context(&key_id))?;
/// # let credential = { let response = issuer.issue(asked.as_bytes())?; asked.finalize(&response)? };
/// # let presentation = credential.present(&challenge.presentation_context(&key_id), 0, 100)?;
/// # let token = Token::new(&challenge, key_id, 0, presentation.as_bytes().to_vec())?;
/// # for status in [200, 429] {
/// #     let mut with_token = request()?;
/// #     with_token.headers_mut().insert("authorization", token_to_header_value(&token));
/// #     assert_eq!(app.clone().oneshot(with_token).await?.status(), status);
/// # }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Responses
///
/// | request | status | fields |
/// |---|---|---|
/// | valid, unspent token | that of the inner service, which sees an [`AcceptedToken`] instead of the token | `RateLimit-Policy` |
/// | no token, but one is required | 401 | the challenges, `RateLimit-Policy`, `Cache-Control: no-store` |
/// | no token, which is optional, and an inner limit rejects the request | 429 of that limit | as for 401 |
/// | token that is malformed, has an unknown key, context or nonce, or an invalid proof | 401, without the reason | as for 401 |
/// | spent token | 429, `quota-exceeded` | `Retry-After` to the end of the window, `RateLimit-Policy`; for gRPC, `grpc-retry-pushback-ms: -1`, because the token never passes |
/// | token from a network with too many [failed proofs](OriginLayerBuilder::failed_proofs), while the verifier is busy | 429 | `Retry-After` |
/// | token that cannot be verified or spent now | 503, `temporary-reduced-capacity` | `Retry-After` |
///
/// Credentials of other schemes in `Authorization` are forwarded. There is no `RateLimit` field, because only the
/// client knows the remaining tokens.
///
/// Proofs are verified on a [few blocking threads](OriginLayerBuilder::verifier_threads) behind a
/// [queue](OriginLayerBuilder::max_queued). For browsers, let preflight requests
/// [pass](OriginLayerBuilder::skip_cors_preflight), and [expose](EXPOSED) the challenge.
#[derive(Clone)]
pub struct OriginLayer(Arc<Origin>);

struct Origin {
    issuer: Arc<str>,
    policy: Arc<str>,
    limit: u32,
    keys: ArcSwap<KeySet>,
    windows: Windows,
    workers: Workers,
    address: ClientIp,
    forgeries: Forgeries,
    /// `None` without reserved places.
    known: Option<KnownGroups>,
    spending: Spending,
    is_optional: bool,
    skips_cors_preflight: bool,
    policy_field: LayerFields,
    clock: Clock,
    log: TokenTelemetry,
}

impl OriginLayer {
    /// Returns the keys whose tokens are accepted.
    pub fn keys(&self) -> Arc<KeySet> {
        self.0.keys.load_full()
    }

    /// Replaces the keys in all clones and services of this layer.
    ///
    /// Add the next key on all instances before its period begins and before the issuer lists it. Keep old keys whose
    /// credentials should be accepted. Fails like [`build`](OriginLayerBuilder::build); the origin then keeps its keys.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::clock::Timestamp;
    /// use tower_quota_anonymous::{KeySet, OriginLayer, Profile};
    ///
    /// let minute = Duration::from_secs(60);
    /// let tomorrow = Timestamp::from_micros(1_800_057_600_000_000);
    /// let mut keys = KeySet::new();
    /// keys.insert(keys.generate(Profile::P256)?, ..tomorrow.saturating_add(2 * minute));
    /// let origin = OriginLayer::builder("issuer.example", &[7; 32])
    ///     .origin("api.example")
    ///     .keys(keys.clone())
    ///     .policy("anonymous", 100, minute)
    ///     .build()?;
    ///
    /// // Later, from a secret store: a key that overlaps with the previous one for two minutes.
    /// keys.insert(keys.generate(Profile::P256)?, tomorrow..);
    /// origin.replace_keys(keys)?;
    /// assert_eq!(origin.keys().iter().len(), 2);
    /// assert!(origin.replace_keys(KeySet::new()).is_err());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace_keys(&self, keys: KeySet) -> Result<(), BuildError> {
        let checked = keys.check(("window", self.0.windows.length()));
        checked.map_err(|message| BuildError::new(&format!("tokens {:?}", self.0.policy), message))?;
        self.0.keys.store(Arc::new(keys));
        Ok(())
    }
}

impl fmt::Debug for OriginLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginLayer")
            .field("issuer", &self.0.issuer)
            .field("policy", &self.0.policy)
            .field("limit", &self.0.limit)
            .field("window", &self.0.windows.length())
            .finish_non_exhaustive()
    }
}
