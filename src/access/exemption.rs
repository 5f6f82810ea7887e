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
/// Exemptions are fixed when the layer is built. For rules that change at run time, use an
/// [`AccessList`](crate::AccessList).
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
/// Exempt requests do not call the store, and their responses have no `RateLimit` fields.
pub struct Exemption {
    /// Omits networks and keys, which may identify a person.
    name: String,
    matches: Box<Matches>,
    problem: Option<String>,
    addresses: Vec<ClientIp>,
}

type Matches = dyn Fn(&KeyedRequest<'_>) -> bool + Send + Sync;

impl Exemption {
    fn new(name: impl Into<String>, matches: impl Fn(&KeyedRequest<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self {
            name: name.into(),
            matches: Box::new(matches),
            problem: None,
            addresses: Vec::new(),
        }
    }

    /// Exempts requests with this method.
    pub fn method(method: Method) -> Self {
        Self::new(format!("method {method}"), move |caller| {
            caller.request.method == method
        })
    }

    /// Exempts requests with exactly this path.
    ///
    /// The path of the URI is compared byte for byte, without the query and without decoding: `/health` does not match
    /// `/health/`, `/Health` or `/%68ealth`. Inside a nested axum router, it lacks the prefix of the nesting. For gRPC
    /// methods, it is `/package.Service/Method`.
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) rejects paths that no request can have, and paths with empty
    /// segments, `.`, `..` or percent-encoded delimiters, because servers interpret them differently.
    pub fn path(path: impl Into<String>) -> Self {
        let path = path.into();
        let problem = path_problem(&path);
        let name = format!("path {path:?}");
        Self {
            problem,
            ..Self::new(name, move |caller| caller.request.uri.path() == path)
        }
    }

    /// Exempts requests with this path or a path below it.
    ///
    /// `/health` includes `/health/` and `/health/live`, but not `/healthy`. Paths are compared as in
    /// [`path`](Self::path). A trailing slash of the prefix is ignored, and `/` includes all paths.
    ///
    /// Paths that a server may interpret as another path are not exempt, such as `/health/../admin`: those with an
    /// empty segment that is not the last, a segment `.` or `..` (with or without a semicolon and parameters), a
    /// backslash, or a percent-encoded dot, slash, backslash, semicolon or percent sign.
    pub fn path_prefix(path: impl Into<String>) -> Self {
        let path = path.into();
        let prefix = PathPrefix::new(&path);
        Self {
            problem: path_problem(&path),
            ..Self::new(format!("path prefix {path:?}"), move |caller| {
                prefix.contains(caller.request.uri.path())
            })
        }
    }

    /// Exempts clients in these networks, such as `"192.0.2.0/24"`, or with these addresses.
    ///
    /// An unknown address matches no network. Behind a proxy, `client_ip` must [trust the
    /// proxy](ClientIp::trusted_proxies); otherwise, exempting the proxy's network would exempt all clients.
    /// [`build`](crate::RateLimitLayerBuilder::build) rejects networks that cannot be parsed.
    pub fn network(client_ip: ClientIp, networks: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut read = Networks::default();
        let result = networks.into_iter().try_for_each(|network| {
            read.insert(key::network(network.as_ref())?, ());
            Ok(())
        });
        let addresses = vec![client_ip.clone()];
        Self {
            problem: result.err(),
            addresses,
            ..Self::new("network", move |caller| {
                let address = client_ip.believed(caller.request);
                address.is_some_and(|address| read.longest_match(address).is_some())
            })
        }
    }

    /// Exempts requests whose whole partition key is equal to `key`.
    ///
    /// # Security
    ///
    /// Clients must not be able to claim the key: see [`key::extension`](crate::key::extension) and
    /// [`key::header`](crate::key::header).
    pub fn key(key: PartitionKey) -> Self {
        Self::new("key", move |caller| caller.key() == Some(&key))
    }

    /// Exempts requests for which the closure returns `true`. The closure must not block, is called at most once per
    /// request, and not at all if an earlier exemption applies.
    ///
    /// # Security
    ///
    /// Do not rely on header fields that any client can send.
    pub fn when<F>(is_exempt: F) -> Self
    where
        F: Fn(&Parts) -> bool + Send + Sync + 'static,
    {
        Self::new("when", move |caller| is_exempt(caller.request))
    }

    /// Exempts requests that match both conditions. The second is evaluated only if the first matches.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (first, second) = (self.matches, other.matches);
        Self {
            problem: self.problem.or(other.problem),
            addresses: [self.addresses, other.addresses].concat(),
            ..Self::new(format!("{} and {}", self.name, other.name), move |caller| {
                first(caller) && second(caller)
            })
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(problem) = &self.problem {
            let message = format!("exemption: {problem}");
            return Err(ConfigError::new(ConfigErrorKind::Exemption, message));
        }
        self.addresses.iter().try_for_each(ClientIp::check)
    }

    pub(super) fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        let addresses = self.addresses.iter();
        addresses.for_each(|client_ip| client_ip.diagnose(request, findings));
    }

    pub(super) fn matches(&self, caller: &KeyedRequest<'_>) -> bool {
        (self.matches)(caller)
    }
}

fn path_problem(path: &str) -> Option<String> {
    (!path::is_sound(path)).then(|| {
        format!(
            "invalid path {path:?}: must start with '/' and have no query, backslashes, empty or dot segments, or \
             encoded delimiters"
        )
    })
}

impl fmt::Debug for Exemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
