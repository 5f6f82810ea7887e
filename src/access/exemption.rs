//! Requests that a layer does not count, by what is known when it is built.

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

/// Requests that pass uncounted: health checks, the metrics of a monitoring network, a partner.
///
/// Give it to [`exempt`](crate::RateLimitLayerBuilder::exempt). No store is asked about such a request, its response
/// carries no `RateLimit` fields, and its outcome is [`Outcome::Unlimited`](crate::Outcome::Unlimited). The hooks for
/// [abnormal usage](crate::RateLimitLayerBuilder::abnormal_usage) and [capacity](crate::RateLimitLayerBuilder::capacity)
/// are not called for it. It is rejected all the same if an [`AccessList`](crate::AccessList) blocks its client.
///
/// An exemption is fixed when the layer is built. Rules that change while the service runs are an
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
        /// The networks, or the problem of the first one that is invalid.
        networks: Result<Networks<()>, String>,
    },
    /// A path, and whether it is one.
    Path(String),
    PathPrefix(String, PathPrefix),
    When(Box<When>),
}

type When = dyn Fn(&Parts) -> bool + Send + Sync;

impl Exemption {
    /// Requests with this method.
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

    /// Requests with exactly this path: `/health` is neither `/health/` nor `/Health` nor `/%68ealth`.
    ///
    /// The layer compares the path of the URI as it sees it, byte for byte, without the query; it decodes
    /// nothing. In a router that is nested in one of axum, that is the path without the prefix of the nesting. For a
    /// gRPC method it is `/package.Service/Method`.
    ///
    /// A path that no request can have is an error of [`build`](crate::RateLimitLayerBuilder::build), and so is one with
    /// empty segments, with `.` or `..`, or with percent-encoded delimiters: servers do not agree about what these mean.
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
    /// assert!(error.to_string().starts_with("exemption: \"/health?verbose\" is not a path"));
    /// # Ok(()) });
    /// ```
    pub fn path(path: impl Into<String>) -> Self {
        Self(Condition::Path(path.into()))
    }

    /// Requests with this path or one below it: `/health` holds `/health/` and `/health/live`, but not `/healthy`.
    ///
    /// Paths are compared as in [`path`](Self::path). A slash at the end of the prefix makes no difference, and `/` holds
    /// all paths. A path that a server behind the layer may take for another one is not exempt, whatever it begins with,
    /// so that no client calls `/admin` uncounted as `/health/../admin`: one with an empty segment that is not the last one,
    /// a segment `.` or `..` (with or without something behind a semicolon), a backslash, or a percent-encoded dot,
    /// slash, backslash, semicolon or percent sign.
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

    /// Requests of clients in these networks, `"192.0.2.0/24"` or a bare address, as `client_ip` finds their address.
    ///
    /// Behind a proxy, `client_ip` has to name it as [trusted](ClientIp::trusted_proxies), or all requests have the
    /// proxy's address: an exemption of the proxy's network would then exempt all clients. A request whose peer is unknown,
    /// or whose client a trusted proxy's field does not show, is in no network. The prefix lengths by which `client_ip` groups clients have no effect here.
    ///
    /// IPv4-mapped networks are IPv4 networks, and `::/0` holds no IPv4 address. A network that cannot be read is an
    /// error of [`build`](crate::RateLimitLayerBuilder::build).
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

    /// Requests that the layer would count for this partition key, which has to be equal as a whole.
    ///
    /// A mere claim of a client exempts it, too: see [`key::extension`](crate::key::extension) and
    /// [`key::header`](crate::key::header) for what the key should be made from.
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

    /// Requests for which the closure says so. It is called at most once for each request, not if an earlier exemption
    /// applies, and must not block. A field that any client can send is no good reason.
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

    /// Requests to which both apply. The second one is not looked at where the first one does not.
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
                format!("{path:?} is not a path, or one that not everybody takes for the same")
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
    /// Shows neither networks nor keys, which may identify a person.
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
