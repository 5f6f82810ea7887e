use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
};
use http_body::Body;
use tokio::time::timeout;
use tower_service::Service;

use super::{
    error::{BoxError, NoToken},
    origin_state::OriginState,
    transport::{Answer, ServiceTransport, Transport},
};
use crate::{CredentialRequest, Directory, Issuer, Profile, PublicKey, TokenChallenge, mutex::Mutex};
use tower_quota::{
    clock::{Clock, Timestamp},
    fields::RetryAfter,
};

/// An issuer whose credentials a [`TokenClientLayer`](super::TokenClientLayer) uses.
///
/// The client reaches it through a service of `Request<Bytes>`, which usually adds a login; for another body type, use
/// `ServiceBuilder::new().map_request(|request: Request<Bytes>| request.map(Full::new))`. **The service must not follow
/// redirects**, because the issuer could redirect the login to another host.
///
/// Each [origin](Self::origin) has a separate directory cache, wait and budget of **12 credential requests per hour**.
/// Requests time out after 10 s.
///
/// ```
/// use std::convert::Infallible;
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::service_fn;
/// use tower_quota_anonymous::{IssuerKey, Profile, TokenClientLayer, TrustedIssuer};
///
/// let service = service_fn(async |request: Request<Bytes>| {
///     // … sends the request to the issuer
///     Ok::<_, Infallible>(Response::new(Full::new(request.into_body())))
/// });
/// // Trust only a key that is built into the program.
/// let key = IssuerKey::generate(Profile::P256)?.public_key().clone();
/// let issuer = || TrustedIssuer::new("issuer.example", service);
/// let pinned = issuer().origin("api.example").origin("www.example:8443").pin_key(key).pin_limit(100);
/// assert!(TokenClientLayer::builder().issuer(pinned).build().is_ok());
///
/// let error = TokenClientLayer::builder().issuer(issuer()).build().unwrap_err().to_string();
/// assert!(error.starts_with(r#"token client: issuer "issuer.example" has no origins: "#));
/// # Ok::<_, tower_quota_anonymous::CredentialError>(())
/// ```
///
/// # After a failure
///
/// The client does not contact the issuer for 10 s, doubled for each further failure up to 5 minutes, or for its
/// `Retry-After` of up to 10 minutes. After an invalid credential, it requests no other of the key for 5 minutes.
/// Meanwhile, requests that need one fail with [`TokenClientError::Issuer`](super::TokenClientError::Issuer).
pub struct TrustedIssuer {
    pub(super) name: String,
    transport: Box<dyn Transport>,
    request_url: Option<String>,
    pinned_keys: Vec<PublicKey>,
    pub(super) pinned_limit: Option<u32>,
    /// Keys are lowercase.
    origins: BTreeMap<String, Arc<OriginState>>,
    any_origin: Option<Arc<OriginState>>,
}

impl TrustedIssuer {
    /// Of a directory without `max-age`, and the maximum.
    const USUAL_AGE: Duration = Duration::from_secs(300);
    const MAX_AGE: Duration = Duration::from_secs(86_400);
    const MAX_WAIT: Duration = Duration::from_secs(600);
    const DEADLINE: Duration = Duration::from_secs(10);
    const PER_HOUR: usize = 12;
    const PER_HOUR_OF_ALL: usize = 60;

    /// Creates an issuer with this name: a host, with a port unless it is the default port.
    ///
    /// The directory is at `https://name/.well-known/private-token-issuer-directory`, with `http` for `localhost` and
    /// loopback addresses.
    pub fn new<S, B>(name: impl Into<String>, service: S) -> Self
    where
        S: Service<Request<Bytes>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send,
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self {
            name: name.into(),
            transport: Box::new(ServiceTransport(Mutex::new(service))),
            request_url: None,
            pinned_keys: Vec::new(),
            pinned_limit: None,
            origins: BTreeMap::new(),
            any_origin: None,
        }
    }

    /// Answers challenges of this [origin](crate::OriginLayerBuilder::origin).
    ///
    /// Case is ignored. Required, unless [`any_origin`](Self::any_origin) is set.
    #[must_use]
    pub fn origin(mut self, name: impl Into<String>) -> Self {
        let state = Arc::new(OriginState::new(Self::PER_HOUR));
        self.origins.insert(name.into().to_ascii_lowercase(), state);
        self
    }

    /// Answers challenges of all origins, which share one state. Cannot be combined with [`origin`](Self::origin).
    ///
    /// # Security
    ///
    /// **One hostile origin can exhaust the budget** of 60 credential requests per hour and the issuer's ration, and
    /// can observe waits caused by other origins.
    #[must_use]
    pub fn any_origin(mut self) -> Self {
        self.any_origin = Some(Arc::new(OriginState::new(Self::PER_HOUR_OF_ALL)));
        self
    }

    /// Sends credential requests to this URL, such as an attester's.
    ///
    /// Default: the URL in the directory, which must be on the issuer's own host.
    #[must_use]
    pub fn request_url(mut self, url: impl Into<String>) -> Self {
        self.request_url = Some(url.into());
        self
    }

    /// Trusts only pinned keys, so that the issuer cannot distinguish clients by keys. Default: those in the directory.
    #[must_use]
    pub fn pin_key(mut self, key: PublicKey) -> Self {
        self.pinned_keys.push(key);
        self
    }

    /// Answers only challenges with this limit or without one.
    ///
    /// Default: any limit, but challenges without one are not answered.
    #[must_use]
    pub fn pin_limit(mut self, limit: u32) -> Self {
        self.pinned_limit = Some(limit);
        self
    }

    /// `https`, or `http` for this computer.
    pub(super) fn url(&self, path: &str) -> Result<Uri, BoxError> {
        let scheme = if is_loopback(&self.name) { "http" } else { "https" };
        Ok(format!("{scheme}://{}{path}", self.name).parse()?)
    }

    pub(super) fn configured_url(&self) -> Option<Result<Uri, BoxError>> {
        let url = self.request_url.as_ref()?;
        Some(url.parse().map_err(BoxError::from).and_then(|url: Uri| {
            let host = url.authority().map_or("", |authority| authority.as_str());
            let is_secure = url.scheme_str() == Some("https") || url.scheme_str() == Some("http") && is_loopback(host);
            is_secure.then_some(url).ok_or_else(|| "not an https URL".into())
        }))
    }

    /// Returns `None` if its challenges must not be answered. `origin` is lowercase.
    pub(super) fn state(&self, origin: &str) -> Option<&Arc<OriginState>> {
        self.any_origin.as_ref().or_else(|| self.origins.get(origin))
    }

    pub(super) fn check_origins(&self) -> Result<(), String> {
        let (issuer, first) = (&self.name, self.origins.keys().next());
        match (first, &self.any_origin) {
            (None, None) => Err(format!(
                "issuer {issuer:?} has no origins: call TrustedIssuer::origin for each origin that it serves, or \
                 TrustedIssuer::any_origin to answer challenges of all origins"
            )),
            (Some(origin), Some(_)) => Err(format!(
                "issuer {issuer:?}: origin {origin:?} and any_origin cannot be combined"
            )),
            _ => match self.origins.keys().find(|origin| !is_origin(origin)) {
                None => Ok(()),
                Some(origin) => Err(format!(
                    "origin {origin:?} of issuer {issuer:?} is not a host with an optional port, such as \
                     \"api.example\" or \"api.example:8443\""
                )),
            },
        }
    }

    /// The key in the challenge, or the issuer's preferred key.
    pub(super) async fn key(
        &self,
        state: &OriginState,
        profile: Profile,
        named: Option<&[u8]>,
        clock: &Clock,
    ) -> Result<Option<PublicKey>, NoToken> {
        let matches = |key: &PublicKey| key.profile() == profile && named.is_none_or(|named| named == key.as_bytes());
        if !self.pinned_keys.is_empty() {
            return Ok(self.pinned_keys.iter().find(|key| matches(key)).cloned());
        }
        let find = |directory: &Directory| match named {
            None => directory.preferred_key(profile, clock.now()).cloned(),
            Some(_) => directory.keys().map(|(key, _)| key).find(|key| matches(key)).cloned(),
        };
        let known = state.directory(clock.now());
        if let Some(key) = known.as_ref().and_then(find) {
            return Ok(Some(key));
        }
        if known.is_some() && !state.may_read_again(clock.now()) {
            return Ok(None);
        }
        self.directory(state, clock).await.map(|directory| find(&directory))
    }

    async fn directory(&self, state: &OriginState, clock: &Clock) -> Result<Directory, NoToken> {
        state.check_wait(clock.now())?;
        let url = self.url(Directory::PATH).map_err(NoToken::issuer)?;
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = url;
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static(Directory::MEDIA_TYPE));
        let answer = self.send(state, request, Directory::MAX_LENGTH, clock).await?;
        let age = max_age(&answer.headers).unwrap_or(Self::USUAL_AGE).min(Self::MAX_AGE);
        let directory = answer.content.and_then(|content| Ok(Directory::parse(&content)?));
        let directory = directory.map_err(|cause| NoToken::Issuer(cause, Some(state.fail(None, clock.now()))))?;
        state.keep_directory(directory.clone(), age, clock.now());
        Ok(directory)
    }

    /// Status 200 means that the issuer has counted the request.
    pub(super) async fn issue(
        &self,
        state: &OriginState,
        key: &PublicKey,
        request: &CredentialRequest,
        clock: &Clock,
    ) -> Result<Answer, NoToken> {
        let url = match self.configured_url() {
            Some(url) => url.map_err(NoToken::issuer)?,
            None => {
                let directory = match state.directory(clock.now()) {
                    Some(directory) => directory,
                    None => self.directory(state, clock).await?,
                };
                self.resolve(directory.request_uri()).map_err(NoToken::issuer)?
            }
        };
        let mut request = Request::new(Bytes::from(request.to_message()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Issuer::REQUEST_TYPE));
        headers.insert(ACCEPT, HeaderValue::from_static(Issuer::RESPONSE_TYPE));
        // Done last, so that only requests that are sent count against the budget.
        state.count_issuance(key.key_id(), clock.now())?;
        let answer = self.send(state, request, key.profile().response_len(), clock).await?;
        state.succeed();
        Ok(answer)
    }

    /// Fails if the URL is not on the issuer's host.
    fn resolve(&self, reference: &str) -> Result<Uri, BoxError> {
        let own = self.url("/")?;
        if reference.starts_with('/') && !reference.starts_with("//") {
            return self.url(reference);
        }
        if !reference.contains("://") && !reference.starts_with("//") {
            let folder = &Directory::PATH[..=Directory::PATH.rfind('/').unwrap_or(0)];
            return self.url(&format!("{folder}{reference}"));
        }
        let url: Uri = reference.parse()?;
        let is_own = url.scheme() == own.scheme() && authority(&url) == authority(&own);
        is_own
            .then_some(url)
            .ok_or_else(|| "the directory refers to a host other than the issuer".into())
    }

    async fn send(
        &self,
        state: &OriginState,
        request: Request<Bytes>,
        max_length: usize,
        clock: &Clock,
    ) -> Result<Answer, NoToken> {
        let answer = timeout(Self::DEADLINE, self.transport.send(request, max_length)).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no response within {:?}", Self::DEADLINE).into()));
        let now = clock.now();
        let (cause, asked) = match answer {
            Ok(answer) if answer.status == StatusCode::OK => return Ok(answer),
            Ok(Answer { status, headers, .. }) => (
                format!("the issuer responded with {status}").into(),
                retry_after(&headers, now).map(|wait| wait.min(Self::MAX_WAIT)),
            ),
            Err(cause) => (cause, None),
        };
        Err(NoToken::Issuer(cause, Some(state.fail(asked, now))))
    }
}

impl fmt::Debug for TrustedIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustedIssuer")
            .field("name", &self.name)
            .field("origins", &self.origins.keys())
            .field("any_origin", &self.any_origin.is_some())
            .finish_non_exhaustive()
    }
}

fn is_origin(name: &str) -> bool {
    let url = format!("https://{name}").parse().ok();
    let of_url = url.as_ref().and_then(authority).is_some_and(|(host, port)| {
        !host.is_empty() && (name.eq_ignore_ascii_case(&host) || name.eq_ignore_ascii_case(&format!("{host}:{port}")))
    });
    let challenge = TokenChallenge::new(Profile::P256, name);
    of_url && challenge.is_ok()
}

pub(super) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let wall = UNIX_EPOCH.checked_add(Duration::from_micros(now.as_micros()));
    let retry_after = RetryAfter::read(headers).ok().flatten()?;
    Some(retry_after.wait(wall.unwrap_or(UNIX_EPOCH)))
}

fn is_loopback(name: &str) -> bool {
    let Ok(authority) = name.parse::<http::uri::Authority>() else {
        return false;
    };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    is_loopback || host.eq_ignore_ascii_case("localhost")
}

/// With the default port.
pub(super) fn authority(url: &Uri) -> Option<(String, u16)> {
    let authority = url.authority()?;
    let usual = if url.scheme_str() == Some("http") { 80 } else { 443 };
    Some((
        authority.host().to_ascii_lowercase(),
        authority.port_u16().unwrap_or(usual),
    ))
}

fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers
        .get_all(CACHE_CONTROL)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let mut directives = lines.flat_map(|line| line.split(',')).map(str::trim);
    let seconds = directives.find_map(|directive| {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.to_ascii_lowercase().as_str() {
            "max-age" => value.trim_matches('"').parse().ok(),
            "no-store" | "no-cache" => Some(0),
            _ => None,
        }
    });
    seconds.map(Duration::from_secs)
}
