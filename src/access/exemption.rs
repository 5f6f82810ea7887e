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
/// Pass an `Exemption` to [`exempt`](crate::RateLimitLayerBuilder::exempt). Exemptions are fixed when the layer is
/// built: for rules that change at run time, use an [`AccessList`](crate::AccessList).
///
/// ```
/// use http::Method;
/// use tower_quota::{Exemption, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, key};
///
/// #[derive(Clone)]
/// struct Staff; // an extension that the authentication adds to requests
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_minute("minute", 60))
///     .exempt(Exemption::path("/health"))
///     .exempt(Exemption::method(Method::GET).and(Exemption::path_prefix("/static")))
///     .exempt(Exemption::network(key::client_ip(), ["192.0.2.0/24", "2001:db8::1"]))
///     .exempt(Exemption::key(PartitionKey::new("x-user-id", "partner")))
///     .exempt(Exemption::when(|request| request.extensions.get::<Staff>().is_some()))
///     .build()?;
/// # use http::Request;
/// # let peer = |address: [u8; 4]| tower_quota::key::PeerAddress((address, 4711).into());
/// # for (request, is_counted) in [
/// #     (Request::get("/health?verbose"), false),
/// #     (Request::get("/health/"), true),
/// #     (Request::get("/healthy"), true),
/// #     (Request::get("/static/logo.svg"), false),
/// #     (Request::put("/static/logo.svg"), true),
/// #     (Request::get("/static/../admin"), true),
/// #     (Request::get("/").extension(peer([192, 0, 2, 7])), false),
/// #     (Request::get("/").extension(peer([198, 51, 100, 7])), true),
/// #     (Request::get("/").header("x-user-id", "partner"), false),
/// #     (Request::get("/").header("x-user-id", "alice"), true),
/// #     (Request::get("/").extension(Staff), false),
/// # ] {
/// #     assert_eq!(set_up::is_counted(&layer, request).await, is_counted);
/// # }
/// # Ok(()) });
/// ```
///
/// Exempt requests do not call the store, their responses have no `RateLimit` fields, and their outcome is
/// [`Outcome::Unlimited`](crate::Outcome::Unlimited). The closures for
/// [abnormal usage](crate::RateLimitLayerBuilder::abnormal_usage) and
/// [capacity](crate::RateLimitLayerBuilder::capacity) are not called. Clients blocked by an
/// [`AccessList`](crate::AccessList) are still rejected.
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
    pub const fn method(method: Method) -> Self {
        Self(Condition::Method(method))
    }

    /// Exempts requests with exactly this path.
    ///
    /// The path of the URI is compared byte for byte, without the query and without decoding: `/health` does not match
    /// `/health/`, `/Health` or `/%68ealth`. Inside a nested axum
    /// router, the path does not contain the prefix of the nesting. For gRPC methods, it is `/package.Service/Method`.
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) rejects paths that no request can have, and paths with empty
    /// segments, `.`, `..` or percent-encoded delimiters, because servers interpret them differently.
    pub fn path(path: impl Into<String>) -> Self {
        Self(Condition::Path(path.into()))
    }

    /// Exempts requests with this path or a path below it.
    ///
    /// `/health` includes `/health/` and `/health/live`, but not `/healthy`. Paths are compared as in
    /// [`path`](Self::path). A trailing slash of the prefix is ignored, and `/` includes all paths.
    ///
    /// To prevent clients from calling `/admin` uncounted as `/health/../admin`, paths that a server may interpret as
    /// another path are not exempt. Such paths contain an empty segment that is not the last, a segment `.` or `..`
    /// (with or without a semicolon and parameters), a backslash, or a percent-encoded dot, slash, backslash, semicolon
    /// or percent sign.
    pub fn path_prefix(path: impl Into<String>) -> Self {
        let path = path.into();
        let prefix = PathPrefix::new(&path);
        Self(Condition::PathPrefix(path, prefix))
    }

    /// Exempts clients in these networks, such as `"192.0.2.0/24"`, or with these addresses.
    ///
    /// Behind a proxy, `client_ip` must [trust the proxy](ClientIp::trusted_proxies). Otherwise, all requests have the
    /// proxy's address, so exempting the proxy's network would exempt all clients. Requests with an unknown peer, or
    /// with a forwarding field that does not identify the client, match no network. The prefix lengths by which
    /// `client_ip` groups clients have no effect here.
    ///
    /// IPv4-mapped networks are IPv4 networks, and `::/0` contains no IPv4 address.
    /// [`build`](crate::RateLimitLayerBuilder::build) rejects networks that cannot be parsed.
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
    /// # Security
    ///
    /// Clients must not be able to claim the key: see [`key::extension`](crate::key::extension) and
    /// [`key::header`](crate::key::header).
    pub const fn key(key: PartitionKey) -> Self {
        Self(Condition::Key(key))
    }

    /// Exempts requests for which the closure returns `true`.
    ///
    /// The closure must not block. It is called at most once per request, and not at all if an earlier exemption
    /// applies.
    ///
    /// # Security
    ///
    /// Do not rely on header fields that any client can send.
    pub fn when<F>(is_exempt: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        Self(Condition::When(Box::new(is_exempt)))
    }

    /// Exempts requests that match both conditions.
    ///
    /// The second condition is evaluated only if the first matches.
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
