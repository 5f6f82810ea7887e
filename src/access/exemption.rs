use std::fmt;

use http::{Method, request::Parts};

use super::{
    keyed_request::KeyedRequest,
    networks::Networks,
    path::{self, PathPrefix},
};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    key::{self, ClientIp, KeyExtractor},
    mistake::Diagnostics,
    partition::PartitionKey,
};

/// Requests that pass uncounted, such as health checks, a monitoring network or a partner.
///
/// Pass an `Exemption` to [`exempt`](crate::RateLimitLayerBuilder::exempt). Exempt requests do not call the store,
/// their responses have no `RateLimit` fields, and their outcome is [`Outcome::Unlimited`](crate::Outcome::Unlimited).
/// The hooks for [abnormal usage](crate::RateLimitLayerBuilder::abnormal_usage) and
/// [capacity](crate::RateLimitLayerBuilder::capacity) are not called. Clients blocked by an
/// [`AccessList`](crate::AccessList) are still rejected.
///
/// Exemptions are fixed when the layer is built. For rules that change at run time, use an
/// [`AccessList`](crate::AccessList).
///
/// ```
/// use http::{Method, Request, Response};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_quota::{Exemption, MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// # tokio_test::block_on(async {
/// let limits = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .exempt(Exemption::method(Method::GET).and(Exemption::path("/health")))
///     .exempt(Exemption::network(key::client_ip(), ["192.0.2.0/24"]).and(Exemption::path_prefix("/metrics")))
///     .build()?;
/// let service = ServiceBuilder::new()
///     .layer(limits)
///     .service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
///
/// let request = |path| Request::get(path).header("x-user-id", "alice").body(()).unwrap();
/// let health = service.clone().oneshot(request("/health")).await?;
/// assert!(!health.headers().contains_key("ratelimit"));
/// let other = service.oneshot(request("/healthy")).await?;
/// assert_eq!(other.headers()["ratelimit"], r#""minute";r=59;t=59"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct Exemption(Condition);

enum Condition {
    And(Box<(Exemption, Exemption)>),
    Key(PartitionKey),
    Method(Method),
    Network {
        client_ip: ClientIp,
        /// The networks, or the error in the first invalid network.
        networks: Result<Networks<()>, String>,
    },
    Path(String),
    PathPrefix(String, PathPrefix),
    When(Box<When>),
}

type When = dyn Fn(&Parts) -> bool + Send + Sync;

impl Exemption {
    /// Exempts requests with this method.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # use http::Method;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .exempt(Exemption::method(Method::HEAD))
    ///     .build()?;
    ///
    /// assert!(!is_counted(&layer, Request::head("/")).await);
    /// assert!(is_counted(&layer, Request::get("/")).await);
    /// # Ok(()) });
    /// ```
    pub const fn method(method: Method) -> Self {
        Self(Condition::Method(method))
    }

    /// Exempts requests with exactly this path: `/health` does not match `/health/`, `/Health` or `/%68ealth`.
    ///
    /// The path of the URI is compared byte for byte, without the query and without decoding. Inside a nested axum
    /// router, the path does not contain the prefix of the nesting. For gRPC methods, it is `/package.Service/Method`.
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) rejects paths that no request can have, and paths with empty
    /// segments, `.`, `..` or percent-encoded delimiters, because servers interpret them differently.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = |exemption| RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .exempt(exemption)
    ///     .build();
    ///
    /// let healthy = layer(Exemption::path("/health"))?;
    /// assert!(!is_counted(&healthy, Request::get("/health?verbose")).await);
    /// assert!(is_counted(&healthy, Request::get("/health/")).await);
    ///
    /// let error = layer(Exemption::path("/health?verbose")).unwrap_err();
    /// assert!(error.to_string().starts_with("exemption: invalid path \"/health?verbose\": must start with"));
    /// # Ok(()) });
    /// ```
    pub fn path(path: impl Into<String>) -> Self {
        Self(Condition::Path(path.into()))
    }

    /// Exempts requests with this path or a path below it: `/health` includes `/health/` and `/health/live`, but not
    /// `/healthy`.
    ///
    /// Paths are compared as in [`path`](Self::path). A trailing slash of the prefix is ignored, and `/` includes all
    /// paths. To prevent clients from calling `/admin` uncounted as `/health/../admin`, paths that a server may
    /// interpret as another path are not exempt. Such paths contain an empty segment that is not the last, a segment
    /// `.` or `..` (with or without a semicolon and parameters), a backslash, or a percent-encoded dot, slash,
    /// backslash, semicolon or percent sign.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .exempt(Exemption::path_prefix("/health"))
    ///     .build()?;
    ///
    /// assert!(!is_counted(&layer, Request::get("/health/live")).await);
    /// assert!(is_counted(&layer, Request::get("/healthy")).await);
    /// assert!(is_counted(&layer, Request::get("/health/../admin")).await);
    /// # Ok(()) });
    /// ```
    pub fn path_prefix(path: impl Into<String>) -> Self {
        let path = path.into();
        let prefix = PathPrefix::new(&path);
        Self(Condition::PathPrefix(path, prefix))
    }

    /// Exempts clients in these networks, such as `"192.0.2.0/24"`, or with one of these addresses.
    ///
    /// Behind a proxy, `client_ip` must [trust the proxy](ClientIp::trusted_proxies). Otherwise, all requests have the
    /// proxy's address, so exempting the proxy's network would exempt all clients. Requests with an unknown peer, or
    /// with a forwarding field that does not identify the client, match no network. The prefix lengths by which
    /// `client_ip` groups clients have no effect here.
    ///
    /// IPv4-mapped networks are IPv4 networks, and `::/0` contains no IPv4 address.
    /// [`build`](crate::RateLimitLayerBuilder::build) rejects networks that cannot be parsed.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .exempt(Exemption::network(key::client_ip(), ["192.0.2.0/24", "2001:db8::1"]))
    ///     .build()?;
    ///
    /// let from = |address: [u8; 4]| Request::get("/").extension(PeerAddress(SocketAddr::from((address, 4711))));
    /// assert!(!is_counted(&layer, from([192, 0, 2, 7])).await);
    /// assert!(is_counted(&layer, from([198, 51, 100, 7])).await);
    /// // An unknown client.
    /// assert!(is_counted(&layer, Request::get("/")).await);
    /// # Ok(()) });
    /// ```
    pub fn network(client_ip: ClientIp, networks: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut read = Networks::default();
        let result = networks.into_iter().try_for_each(|network| {
            read.insert(key::network(network.as_ref())?, ());
            Ok(())
        });
        let networks = result.map(|()| read);
        Self(Condition::Network { client_ip, networks })
    }

    /// Exempts requests whose whole partition key is equal to `key`.
    ///
    /// Make sure that clients cannot simply claim the key: see [`key::extension`](crate::key::extension) and
    /// [`key::header`](crate::key::header).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .exempt(Exemption::key(PartitionKey::new("x-user-id", "partner")))
    ///     .build()?;
    ///
    /// assert!(!is_counted(&layer, Request::get("/").header("x-user-id", "partner")).await);
    /// assert!(is_counted(&layer, Request::get("/").header("x-user-id", "alice")).await);
    /// # Ok(()) });
    /// ```
    pub const fn key(key: PartitionKey) -> Self {
        Self(Condition::Key(key))
    }

    /// Exempts requests for which the closure returns `true`.
    ///
    /// The closure must not block. The closure is called at most once per request, and not at all if an earlier
    /// exemption applies. Do not rely on fields that any client can send.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .exempt(Exemption::when(|request| request.headers.contains_key("x-internal")))
    ///     .build()?;
    ///
    /// assert!(!is_counted(&layer, Request::get("/").header("x-internal", "1")).await);
    /// assert!(is_counted(&layer, Request::get("/")).await);
    /// # Ok(()) });
    /// ```
    pub fn when<F>(is_exempt: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        Self(Condition::When(Box::new(is_exempt)))
    }

    /// Exempts requests that match both conditions. The second condition is evaluated only if the first condition
    /// matches.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # use http::Method;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 100))
    ///     .exempt(Exemption::method(Method::GET).and(Exemption::path_prefix("/static")))
    ///     .build()?;
    ///
    /// assert!(!is_counted(&layer, Request::get("/static/logo.svg")).await);
    /// assert!(is_counted(&layer, Request::put("/static/logo.svg")).await);
    /// assert!(is_counted(&layer, Request::get("/")).await);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(Condition::And(Box::new((self, other))))
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let problem = match &self.0 {
            Condition::And(both) => return both.0.check().and_then(|()| both.1.check()),
            Condition::Network {
                networks: Err(problem), ..
            } => problem.clone(),
            Condition::Network { client_ip, .. } => return client_ip.check(),
            Condition::Path(path) | Condition::PathPrefix(path, _) if !path::is_sound(path) => {
                format!(
                    "invalid path {path:?}: must start with '/' and have no query, backslashes, empty or dot segments, \
                     or encoded delimiters"
                )
            }
            _ => return Ok(()),
        };
        let message = format!("exemption: {problem}");
        Err(ConfigError::new(ConfigErrorKind::Exemption, message))
    }

    pub(super) fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        match &self.0 {
            Condition::And(both) => {
                both.0.diagnose(request, findings);
                both.1.diagnose(request, findings);
            }
            Condition::Network { client_ip, .. } => client_ip.diagnose(request, findings),
            _ => {}
        }
    }

    pub(super) fn matches(&self, caller: &KeyedRequest<'_>) -> bool {
        let request = caller.request;
        match &self.0 {
            Condition::And(both) => both.0.matches(caller) && both.1.matches(caller),
            Condition::Key(key) => caller.key() == Some(key),
            Condition::Method(method) => request.method == method,
            Condition::Network { client_ip, networks } => {
                let address = client_ip.believed(request);
                let of = |networks: &Networks<()>| networks.longest_match(address?).copied();
                networks.as_ref().ok().and_then(of).is_some()
            }
            Condition::Path(path) => request.uri.path() == path,
            Condition::PathPrefix(_, prefix) => prefix.contains(request.uri.path()),
            Condition::When(is_exempt) => is_exempt(request),
        }
    }
}

impl fmt::Debug for Exemption {
    /// Omits networks and keys, which may identify a person.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Condition::And(both) => write!(f, "{:?} and {:?}", both.0, both.1),
            Condition::Key(_) => f.write_str("key"),
            Condition::Method(method) => write!(f, "method {method}"),
            Condition::Network { .. } => f.write_str("network"),
            Condition::Path(path) => write!(f, "path {path:?}"),
            Condition::PathPrefix(path, _) => write!(f, "path prefix {path:?}"),
            Condition::When(_) => f.write_str("when"),
        }
    }
}
