mod address;
mod forwarded;
mod one_address;
mod peer;
#[cfg(test)]
mod tests;
mod x_forwarded_for;

use std::{borrow::Cow, net::IpAddr};

use http::{HeaderName, HeaderValue, header, request::Parts};
use ipnet::IpNet;

pub(crate) use self::address::{canonical, network};
pub use self::peer::PeerAddress;
use crate::{
    error::{ConfigError, ConfigErrorKind},
    key::KeyExtractor,
    mistake::{Diagnostics, Finding, PartName},
    partition::{PartitionKey, ToPartitionKey},
};

/// Extracts the client's IP address. IPv6 clients are grouped by their /64 network.
///
/// Use this for callers that are not, or not yet, authenticated. By default, header fields are ignored, and the client
/// is the peer of the connection. Behind a proxy, all clients would thus share one quota: declare the proxy and the
/// field that it writes with [`trusted_proxies`](ClientIp::trusted_proxies). [`docs::proxies`](crate::docs::proxies)
/// has the settings for common proxies.
///
/// ```
/// use tower_quota::key::{self, ForwardingField};
///
/// let direct = key::client_ip();
/// let behind_proxy = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.0/24"]);
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # let mut request = set_up::from("10.0.0.1");
/// # request.headers.insert("x-forwarded-for", "203.0.113.9".parse().unwrap());
/// # assert_eq!(direct.resolve(&request), "10.0.0.1".parse().ok());
/// # assert_eq!(behind_proxy.resolve(&request), "203.0.113.9".parse().ok());
/// ```
///
/// # The peer's address
///
/// The peer's address is taken from the first of these request extensions:
///
/// - [`PeerAddress`], which a server built on hyper must set;
/// - with the feature `axum`, `axum::extract::ConnectInfo<SocketAddr>`, set by
///   `into_make_service_with_connect_info::<SocketAddr>()`;
/// - with the feature `tonic`, `tonic::transport::server::TcpConnectInfo`, which tonic's server sets.
///
/// A request with none of them, for example from a Unix socket, has no key.
pub fn client_ip() -> ClientIp {
    ClientIp {
        field: ForwardingField::XForwardedFor,
        name: X_FORWARDED_FOR,
        proxies: Ok(Vec::new()),
        ipv4_prefix: 32,
        ipv6_prefix: DEFAULT_IPV6_PREFIX,
        any_peer: false,
    }
}

/// The extractor created by [`client_ip`].
///
/// As a key, clients are grouped by network. [`resolve`](Self::resolve), [`AccessList`](crate::AccessList) and
/// [`Exemption`](crate::Exemption) use the address without grouping.
///
/// ```
/// use http::Request;
/// use tower_quota::key::{self, ClientIp, ForwardingField, KeyExtractor, PeerAddress};
///
/// let client_ip: ClientIp = key::client_ip()
///     .trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.0/24", "fd00::1"])
///     .ipv4_prefix(24)
///     .ipv6_prefix(56);
///
/// // The client (203.0.113.9) sent a false address, and the proxy (10.0.0.1) appended the actual one:
/// let peer = PeerAddress("10.0.0.1:4711".parse()?);
/// let forwarded = Request::get("/").header("x-forwarded-for", "192.0.2.66, 203.0.113.9");
/// let (mut request, _) = forwarded.extension(peer).body(String::new())?.into_parts();
/// assert_eq!(client_ip.resolve(&request), Some("203.0.113.9".parse()?));
/// assert_eq!(client_ip.network(&request), Some(("203.0.113.0".parse()?, 24)));
/// assert_eq!(client_ip.extract(&request), Some(client_ip.key_of("203.0.113.77".parse()?)));
///
/// // The field is ignored if the peer is not a trusted proxy:
/// request.extensions.insert(PeerAddress("[2001:db8:0:a1::9]:4711".parse()?));
/// assert_eq!(client_ip.resolve(&request), Some("2001:db8:0:a1::9".parse()?));
/// assert_eq!(client_ip.network(&request), Some(("2001:db8::".parse()?, 56)));
/// # let first: std::net::IpAddr = "2001:db8::".parse()?;
/// # assert_eq!(client_ip.extract(&request), Some(tower_quota::ToPartitionKey::to_partition_key(&first)));
/// # assert_eq!(client_ip.key_of("2001:db8:0:b2::2".parse()?), client_ip.extract(&request).unwrap());
/// #
/// # // Or if the peer is unknown:
/// # request.extensions.remove::<PeerAddress>();
/// # assert!(client_ip.extract(&request).is_none());
/// # assert!(client_ip.check().is_ok());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientIp {
    field: ForwardingField,
    name: HeaderName,
    proxies: Result<Vec<IpNet>, String>,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
    any_peer: bool,
}

/// The header field in which proxies report the client. Trust only the field that your proxies
/// [write](crate::docs::proxies#the-rule): they forward the others as the client sent them.
///
/// ```
/// use tower_quota::key::{self, ForwardingField};
///
/// let by_list = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.1"]);
///
/// let field = ForwardingField::SingleAddress("X-Real-IP".into());
/// let by_real_ip = key::client_ip().trusted_proxies(field, ["10.0.0.1"]);
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # let by_forwarded = key::client_ip().trusted_proxies(ForwardingField::Forwarded, ["10.0.0.1"]);
/// # let mut request = set_up::from("10.0.0.1");
/// # request.headers.insert("forwarded", "for=203.0.113.9".parse()?);
/// # request.headers.insert("x-forwarded-for", "192.0.2.66".parse()?);
/// # request.headers.insert("x-real-ip", "192.0.2.77".parse()?);
/// # assert_eq!(by_forwarded.resolve(&request), Some("203.0.113.9".parse()?));
/// # assert_eq!(by_list.resolve(&request), Some("192.0.2.66".parse()?));
/// # assert_eq!(by_real_ip.resolve(&request), Some("192.0.2.77".parse()?));
/// # request.headers.append("x-real-ip", "192.0.2.78".parse()?);
/// # assert_eq!(by_real_ip.resolve(&request), None);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForwardingField {
    /// `Forwarded` of [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239): `for=192.0.2.43, for="[2001:db8::17]:4711"`.
    Forwarded,
    /// `X-Forwarded-For`, a comma-separated list written by most proxies: `192.0.2.43, 2001:db8::17`.
    XForwardedFor,
    /// A field with this name that contains exactly one address: `X-Real-IP`, `CF-Connecting-IP`, `Fly-Client-IP`,
    /// `True-Client-IP`, or a custom field.
    ///
    /// The outermost proxy must **overwrite** the field, and all other proxies forward it. If a proxy only adds the
    /// field when it is missing, clients can choose their address. With two lines or two addresses, the client is
    /// unknown, because the client may have sent one of them. [`build`](crate::RateLimitLayerBuilder::build) rejects
    /// `Forwarded` and `X-Forwarded-For`, which are lists.
    SingleAddress(Cow<'static, str>),
}

impl ClientIp {
    /// Trusts the proxies in `networks` to report the client in `field`. A second call replaces both.
    ///
    /// A network is written as `"10.0.0.0/8"`, a machine as its address. The field is read from right to left: the
    /// first address outside `networks` is the client. A trusted peer that sends no field is the client itself. If the
    /// field is malformed, the request has no [key](crate::MissingKey), and matches no network. See [all
    /// cases](crate::docs::proxies#how-the-client-is-found).
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) fails if a network is malformed or has bits after its prefix
    /// (`10.0.0.1/8`), or if the networks cover all addresses.
    ///
    /// # Security
    ///
    /// Machines in `networks` can choose their address and quota. List only proxies that append to the field or
    /// overwrite it.
    #[must_use]
    pub fn trusted_proxies(
        mut self,
        field: ForwardingField,
        networks: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Self {
        let name = field.name();
        let network = |network: &str| address::network(network).map_err(|error| format!("trusted proxy {error}"));
        let networks = networks.into_iter().map(|text| network(text.as_ref()));
        self.proxies = name.and_then(|name| {
            self.name = name;
            networks.collect()
        });
        self.field = field;
        self
    }

    /// Trusts every peer of a connection as a proxy, not only those in the trusted networks.
    ///
    /// Use this only if nothing but a proxy can reach the service, as with a sidecar whose address is not known in
    /// advance. Otherwise, every client can choose its address and so its quota. Further proxies must be in the trusted
    /// networks.
    ///
    /// ```
    /// use tower_quota::key::{self, ForwardingField};
    ///
    /// let behind_sidecar = key::client_ip()
    ///     .trusted_proxies(ForwardingField::XForwardedFor, [""; 0]) // no further proxies
    ///     .trust_any_peer();
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # let mut request = set_up::from("192.0.2.1");
    /// # request.headers.insert("x-forwarded-for", "192.0.2.66, 203.0.113.9".parse()?);
    /// # assert_eq!(behind_sidecar.resolve(&request), Some("203.0.113.9".parse()?));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn trust_any_peer(mut self) -> Self {
        self.any_peer = true;
        self
    }

    /// Sets the prefix length by which IPv4 clients are grouped, from 1 to 32. Default: 32, which means no grouping.
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) rejects other values.
    #[must_use]
    pub fn ipv4_prefix(mut self, length: u8) -> Self {
        self.ipv4_prefix = length;
        self
    }

    /// Sets the prefix length by which IPv6 clients are grouped, from 1 to 128. Default: 64.
    ///
    /// If `length` is longer than a subscriber's prefix (at least a /64, often a /56 or a /48), a client can use a new
    /// address, with a fresh quota, for every request. [`build`](crate::RateLimitLayerBuilder::build) rejects other
    /// values.
    #[must_use]
    pub fn ipv6_prefix(mut self, length: u8) -> Self {
        self.ipv6_prefix = length;
        self
    }

    /// Returns the client's address before grouping, for logs. In many jurisdictions, addresses are personal data.
    ///
    /// `None` if the peer's address is unknown, or if a trusted peer sent a field that does not [identify the
    /// client](Self::trusted_proxies). IPv4-mapped addresses such as `::ffff:192.0.2.1` are returned as IPv4.
    pub fn resolve(&self, request: &Parts) -> Option<IpAddr> {
        self.walk_of(request, |_| ()).map(|(address, _)| address)
    }

    /// `None` if the walk stopped at the maximum number of hops.
    pub(crate) fn believed(&self, request: &Parts) -> Option<IpAddr> {
        let (address, is_believed) = self.walk_of(request, |_| ())?;
        is_believed.then_some(address)
    }

    /// Returns the key of requests from `address`, for [`Limiter::caller`](crate::Limiter::caller) and [access
    /// lists](crate::AccessList).
    pub fn key_of(&self, address: IpAddr) -> PartitionKey {
        let address = address::canonical(address);
        let first = self.network_of(address).map_or(address, |network| network.addr());
        first.to_partition_key()
    }

    /// Returns the network whose addresses share the key of this request: its first address and its prefix length.
    pub fn network(&self, request: &Parts) -> Option<(IpAddr, u8)> {
        let network = self.network_of(self.resolve(request)?)?;
        Some((network.addr(), network.prefix_len()))
    }

    fn network_of(&self, address: IpAddr) -> Option<IpNet> {
        let prefix = match address {
            IpAddr::V4(_) => self.ipv4_prefix,
            IpAddr::V6(_) => self.ipv6_prefix,
        };
        Some(IpNet::new(address, prefix).ok()?.trunc())
    }

    fn walk_of(&self, request: &Parts, note: impl FnMut(&Option<IpAddr>)) -> Option<(IpAddr, bool)> {
        let peer = address::canonical(peer::address(&request.extensions)?.ip());
        // The nearest proxy wrote the right end of the last line.
        let lines = request.headers.get_all(&self.name).iter().rev();
        let lines = lines.map(HeaderValue::as_bytes);
        match self.field {
            ForwardingField::Forwarded => self.walk(peer, lines.flat_map(forwarded::hops).inspect(note)),
            ForwardingField::XForwardedFor => self.walk(peer, lines.flat_map(x_forwarded_for::hops).inspect(note)),
            ForwardingField::SingleAddress(_) => {
                self.walk(peer, one_address::hop(lines, self.name == VIEWER_ADDRESS).inspect(note))
            }
        }
    }

    fn walk_as_text(&self, request: &Parts) -> String {
        let Some(peer) = peer::address(&request.extensions) else {
            return "no client address: the request has no peer address".to_owned();
        };
        let (name, has_field) = (&self.name, request.headers.contains_key(&self.name));
        let mut passed = vec![address::canonical(peer.ip())];
        let walk = self.walk_of(request, |hop| passed.extend(hop));
        let is_trusted = self.any_peer || self.trusts(passed[0]);
        let Some((client, is_believed)) = walk else {
            return format!(
                "no client address: the next entry of {name} after {} is not an address",
                text_of(&passed)
            );
        };
        match (passed.len(), is_trusted) {
            _ if !is_believed => format!(
                "client {client}, from {name}, truncated after {} hops",
                address::MAX_HOPS
            ),
            (2.., _) => {
                let proxies = text_of(&passed[..passed.len() - 1]);
                format!("client {client}, from {name}, through the trusted proxies {proxies}")
            }
            (_, true) => format!("client {client}: the peer, a trusted proxy without {name}"),
            (_, false) if has_field => {
                format!("client {client}: the peer, not a trusted proxy; its {name} is ignored")
            }
            (_, false) => format!("client {client}: the peer"),
        }
    }

    /// `None` at an unreadable hop. The flag is `false` at the maximum number of hops: the address may belong to a
    /// proxy.
    fn walk(&self, peer: IpAddr, mut hops: impl Iterator<Item = Option<IpAddr>>) -> Option<(IpAddr, bool)> {
        let mut client = peer;
        for hop in 0..address::MAX_HOPS {
            let is_trusted_peer = hop == 0 && self.any_peer;
            if !is_trusted_peer && !self.trusts(client) {
                return Some((client, true));
            }
            match hops.next() {
                Some(reported) => client = reported?,
                None => return Some((client, true)),
            }
        }
        Some((client, !self.trusts(client) || hops.next().is_none()))
    }

    /// Also notes whether a trusted proxy has written its field.
    fn finding(&self, request: &Parts, findings: &mut Diagnostics) -> Option<Finding> {
        let Some(peer) = peer::address(&request.extensions) else {
            return Some(Finding::NoPeerAddress);
        };
        let peer = address::canonical(peer.ip());
        let known = FORWARDING_FIELDS
            .iter()
            .find(|field| request.headers.contains_key(**field));
        let has_named = request.headers.contains_key(&self.name);
        if self.any_peer || self.trusts(peer) {
            if has_named || known.is_none() {
                findings.asked_for(PartName::Header(self.name.clone()), has_named);
            }
            if has_named {
                return self.hides_a_proxy(request).then_some(Finding::SecondProxy);
            }
            let named = self.name.to_string();
            return known.map(|field| Finding::OtherForwardingField { field, named });
        }
        let field = known
            .map(|field| (*field).to_owned())
            .or_else(|| has_named.then(|| self.name.to_string()))?;
        Some(Finding::ProxyNotNamed {
            field,
            has_private_address: address::is_private(peer),
        })
    }

    /// An undeclared proxy: the walk ends at a private address although the list continues.
    fn hides_a_proxy(&self, request: &Parts) -> bool {
        let lines = request.headers.get_all(&self.name).iter().rev();
        let lines = lines.map(HeaderValue::as_bytes);
        match self.field {
            ForwardingField::Forwarded => self.ends_at_a_proxy(lines.flat_map(forwarded::hops)),
            ForwardingField::XForwardedFor => self.ends_at_a_proxy(lines.flat_map(x_forwarded_for::hops)),
            ForwardingField::SingleAddress(_) => false,
        }
    }

    fn ends_at_a_proxy(&self, hops: impl Iterator<Item = Option<IpAddr>>) -> bool {
        let mut hops = hops
            .take(address::MAX_HOPS)
            .skip_while(|hop| hop.is_some_and(|hop| self.trusts(hop)));
        matches!(hops.next(), Some(Some(client)) if address::is_private(client)) && hops.next().is_some()
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.proxies.iter().flatten().any(|network| network.contains(&address))
    }
}

fn text_of(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(", ")
}

impl KeyExtractor for ClientIp {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        Some(self.network_of(self.resolve(request)?)?.addr().to_partition_key())
    }

    fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        let finding = self.finding(request, findings);
        findings.found.extend(finding);
        if let Some(walks) = &mut findings.walks {
            walks.push(self.walk_as_text(request));
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let error = |message: String| ConfigError::new(ConfigErrorKind::Key, format!("key: {message}"));
        let proxies = self.proxies.as_ref().map_err(|mistake| error(mistake.clone()))?;
        let all = IpNet::aggregate(proxies);
        if let Some(everybody) = all.iter().find(|network| network.prefix_len() == 0) {
            return Err(error(format!(
                "trusted proxies include all of {everybody}, so any client could forge its address; list the proxies, \
                 or use `trust_any_peer()` if only proxies can connect"
            )));
        }
        ConfigError::check_range(ConfigErrorKind::Key, "key: IPv4 prefix", self.ipv4_prefix, 1..=32)?;
        ConfigError::check_range(ConfigErrorKind::Key, "key: IPv6 prefix", self.ipv6_prefix, 1..=128)
    }
}

impl ForwardingField {
    fn name(&self) -> Result<HeaderName, String> {
        let name = match self {
            Self::Forwarded => return Ok(header::FORWARDED),
            Self::XForwardedFor => return Ok(X_FORWARDED_FOR),
            Self::SingleAddress(name) => name,
        };
        let parsed: HeaderName = name
            .parse()
            .map_err(|_| format!("{name:?} is not a valid header name"))?;
        let list = match parsed.as_str() {
            "forwarded" => "Forwarded",
            "x-forwarded-for" => "XForwardedFor",
            _ => return Ok(parsed),
        };
        Err(format!(
            "{name:?} contains a list of addresses; use `ForwardingField::{list}`"
        ))
    }
}

const VIEWER_ADDRESS: &str = "cloudfront-viewer-address";

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

pub(super) const FORWARDING_FIELDS: [&str; 14] = [
    VIEWER_ADDRESS,
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "fly-client-ip",
    "fastly-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-azure-clientip",
    "x-azure-socketip",
    "x-envoy-external-address",
    "x-original-forwarded-for",
];

const DEFAULT_IPV6_PREFIX: u8 = 64;
