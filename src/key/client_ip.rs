//! The client's address: the peer's, or what trusted proxies say of it.

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
    mistake::{Diagnostics, Finding},
    partition::{PartitionKey, ToPartitionKey},
};

/// The client's IP address; IPv6 clients are grouped by their /64 network.
///
/// Use it where callers are not known by name, or before they are. By default no header field is believed: the client
/// is the peer of the connection. The peer's address is looked for in the request's extensions, in this order:
/// - [`PeerAddress`], which a hyper server sets itself;
/// - with the feature `axum`, `axum::extract::ConnectInfo<SocketAddr>`, as left by
///   `into_make_service_with_connect_info::<SocketAddr>()`;
/// - with the feature `tonic`, `tonic::transport::server::TcpConnectInfo`, which tonic's server sets, with TLS as
///   without.
///
/// A request that has none of them, from a Unix socket for instance, has no key, whatever its header fields say.
///
/// Behind a load balancer or gateway every peer is that machine, and all clients would share one quota. Name the
/// machines as [trusted proxies](ClientIp::trusted_proxies), and the field that they write; [`docs::proxies`] has the
/// lines for nginx, Envoy, AWS and Cloudflare:
///
/// ```
/// use std::net::SocketAddr;
/// use tower_quota::key::{self, ForwardingField, KeyExtractor, PeerAddress};
///
/// let by_address = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.0/8", "::1"]);
///
/// // The claim of the client (203.0.113.9), and the address that the proxy (10.0.0.1) has appended:
/// let mut request = http::Request::get("/").header("x-forwarded-for", "192.0.2.66, 203.0.113.9").body(()).unwrap();
/// request.extensions_mut().insert(PeerAddress(SocketAddr::from(([10, 0, 0, 1], 4711))));
/// let (mut request, ()) = request.into_parts();
/// assert_eq!(by_address.resolve(&request), "203.0.113.9".parse().ok());
///
/// // The same field from any other peer is ignored:
/// request.extensions.insert(PeerAddress(SocketAddr::from(([198, 51, 100, 7], 4711))));
/// assert_eq!(by_address.resolve(&request), "198.51.100.7".parse().ok());
///
/// // Nor is it believed if the sender is unknown:
/// request.extensions.remove::<PeerAddress>();
/// assert!(by_address.extract(&request).is_none());
/// ```
///
/// [`docs::proxies`]: crate::docs::proxies
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

/// The extractor that [`client_ip`] makes, and its settings, which [`build`](crate::RateLimitLayerBuilder::build)
/// checks.
///
/// As a key it groups clients by network; [`resolve`](Self::resolve) finds the address itself. It is also what an
/// [`AccessList`](crate::AccessList) and an [`Exemption`](crate::Exemption) find addresses by, without the grouping.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::key::{self, ClientIp, KeyExtractor};
/// # use std::net::IpAddr;
///
/// let client_ip: ClientIp = key::client_ip().ipv6_prefix(56);
/// let (one, other) = (from("2001:db8:0:a1::1"), from("2001:db8:0:b2::2"));
/// assert_eq!(client_ip.extract(&one), client_ip.extract(&other));
/// assert_ne!(client_ip.resolve(&one), client_ip.resolve(&other));
///
/// let error = key::client_ip().ipv6_prefix(129).check().unwrap_err();
/// assert_eq!(error.to_string(), "key: IPv6 prefix 129 is outside 1..=128");
/// ```
#[derive(Clone, Debug)]
pub struct ClientIp {
    field: ForwardingField,
    /// The name under which requests have the field.
    name: HeaderName,
    /// The networks, or the first mistake in the settings of proxies.
    proxies: Result<Vec<IpNet>, String>,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
    /// True if whoever has connected is a proxy.
    any_peer: bool,
}

/// The header field in which proxies write whom they forward for.
///
/// Only one is believed, the one that your proxies really write: a proxy that writes `X-Forwarded-For` passes on a
/// `Forwarded` or `X-Real-IP` field just as the client has sent it, and the other way round. To believe two is to
/// believe clients. [`docs::proxies`](crate::docs::proxies) says which proxy writes which.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::key::{self, ForwardingField};
/// # use std::net::IpAddr;
///
/// let mut request = from("10.0.0.1");
/// request.headers.insert("forwarded", "for=203.0.113.9".parse()?);
/// request.headers.insert("x-forwarded-for", "192.0.2.66".parse()?); // passed on as the client has sent it
/// request.headers.insert("x-real-ip", "192.0.2.77".parse()?); // and this one, too
///
/// let believing = |field| key::client_ip().trusted_proxies(field, ["10.0.0.1"]);
/// assert_eq!(believing(ForwardingField::Forwarded).resolve(&request), Some("203.0.113.9".parse()?));
/// assert_eq!(believing(ForwardingField::XForwardedFor).resolve(&request), Some("192.0.2.66".parse()?));
/// let real_ip = ForwardingField::SingleAddress("X-Real-IP".into());
/// assert_eq!(believing(real_ip).resolve(&request), Some("192.0.2.77".parse()?));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ForwardingField {
    /// `Forwarded`, of [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239): `for=192.0.2.43, for="[2001:db8::17]:4711"`.
    Forwarded,
    /// `X-Forwarded-For`, a bare list that most proxies write: `192.0.2.43, 2001:db8::17`.
    XForwardedFor,
    /// A field of this name with one address in it, and nothing else: `X-Real-IP`, `CF-Connecting-IP`,
    /// `Fly-Client-IP`, `True-Client-IP`, or one that you have named yourself.
    ///
    /// You want it where the outermost proxy finds the client and **overwrites** the field, and every proxy behind it
    /// passes it on. A proxy that only adds the field where there is none lets each client choose its address.
    ///
    /// Two lines of the field, or two addresses in one, show no client: one of them may be the client's own.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::key::{self, ForwardingField};
    /// # use std::net::IpAddr;
    ///
    /// let cloudflare = ForwardingField::SingleAddress("CF-Connecting-IP".into());
    /// let by_address = key::client_ip().trusted_proxies(cloudflare, ["173.245.48.0/20", "2400:cb00::/32"]);
    ///
    /// let mut request = from("173.245.48.1");
    /// request.headers.insert("cf-connecting-ip", "203.0.113.9".parse()?);
    /// assert_eq!(by_address.resolve(&request), Some("203.0.113.9".parse()?));
    /// request.headers.append("cf-connecting-ip", "192.0.2.66".parse()?);
    /// assert_eq!(by_address.resolve(&request), None);
    ///
    /// let list = ForwardingField::SingleAddress("X-Forwarded-For".into());
    /// let error = key::client_ip().trusted_proxies(list, ["10.0.0.1"]).check().unwrap_err();
    /// assert_eq!(error.to_string(), "key: \"X-Forwarded-For\" is a list of addresses; use `ForwardingField::XForwardedFor`");
    /// # use tower_quota::key::KeyExtractor;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    SingleAddress(Cow<'static, str>),
}

impl ClientIp {
    /// Believes what these machines write into `field`; a second call replaces the first.
    ///
    /// A network is written as `"10.0.0.0/8"`, or as a bare address if it is one machine. None at all is fine, then
    /// nothing is believed. The hops are walked from the nearest one, at the right end of the last field line,
    /// towards the client. Only a walk that can be read to its end finds a client:
    ///
    /// | the walk ends at | the client is |
    /// |---|---|
    /// | an address outside of these networks: the peer's, or the first one from the right | that address |
    /// | a trusted peer, and the request has no such field | the peer: a health check of the load balancer, say |
    /// | the address in a field with [one address](ForwardingField::SingleAddress) | that address, whether it is trusted or not |
    /// | a field with one address that has two lines, or anything else but one address in it | unknown |
    /// | the left end of the list, all of whose hops are trusted | the leftmost hop: a machine of yours behind a proxy |
    /// | a hop that is empty or no address: `unknown`, an obfuscated name (`_hidden`), a host name, a zone identifier, a port above 65535 | unknown |
    /// | a `Forwarded` element outside of the grammar, with no `for`, or with two of them | unknown |
    /// | a `Forwarded` line with a quoted string that has no end, or of more than 8 KiB | unknown |
    /// | the place where an `X-Forwarded-For` line was cut: its last 8 KiB are read | unknown |
    /// | a 33rd hop | counted for the 32nd, which matches no access list or exemption |
    ///
    /// Hops to the left of the end of the walk are not read and change nothing. An address may have a port
    /// (`192.0.2.1:4711`, `[2001:db8::1]:4711`) and brackets. Several lines are one list. A hop is also unreadable if its
    /// line has nothing in it.
    ///
    /// A request whose client is unknown has no key of this kind, and [`MissingKey`](crate::MissingKey) decides about it; its
    /// address is in no network of an [`AccessList`](crate::AccessList) or [`Exemption`](crate::Exemption). No
    /// address stands in for it, least of all a proxy's: that could be one that is allowed.
    ///
    /// **A client can make itself unknown** behind a proxy that appends to a `Forwarded` field from outside on the same
    /// line, since a quote that the client leaves open swallows what the proxy writes. No part of such a line is safe to
    /// read. With [`MissingKey::Share`](crate::MissingKey::Share), the default, all unknown clients use one quota, so that none of
    /// them gains one and none of them reaches that of a known client; with [`MissingKey::Reject`](crate::MissingKey::Reject) they
    /// are rejected; with [`MissingKey::Allow`](crate::MissingKey::Allow) they pass uncounted, so do not choose it there. Let proxies
    /// replace a `Forwarded` field from outside rather than append to it, then it cannot.
    ///
    /// **Trust no more than you must.** A sender in a trusted network chooses the address that is counted: a
    /// fresh quota for each request, or the quota of another client used up. Name the proxies rather than the network that they
    /// share with other machines. Every one of them has to append to the field or to
    /// replace it; one that passes it on as it came lets every client choose.
    ///
    /// IPv4-mapped addresses such as `::ffff:10.0.0.1` (`::ffff:0:0/96`), and those that translators write with the well-known
    /// prefix `64:ff9b::/96` ([RFC 6052](https://www.rfc-editor.org/rfc/rfc6052)), are IPv4 addresses here, in networks as
    /// in hops. Other transition prefixes stay IPv6: a local translator (`64:ff9b:1::/48`), 6to4 (`2002::/16`) and Teredo
    /// (`2001::/32`), in which a client chooses a part of its address.
    ///
    /// Errors of [`build`](crate::RateLimitLayerBuilder::build): a network that cannot be parsed, one with bits after its prefix
    /// (`10.0.0.1/8`), and networks that together are every address, for which there is
    /// [`trust_any_peer`](Self::trust_any_peer).
    ///
    /// ```
    /// use tower_quota::key::{self, ForwardingField, KeyExtractor};
    ///
    /// let error = key::client_ip().trusted_proxies(ForwardingField::Forwarded, ["10.0.0.0/99"]).check().unwrap_err();
    /// assert_eq!(error.to_string(), "key: trusted proxy \"10.0.0.0/99\" is not an address or a network");
    /// ```
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

    /// Trusts whoever has connected as a proxy, in addition to the trusted networks.
    ///
    /// Use this only where nothing but a proxy can reach the service, and its address is not known in advance: a sidecar, a
    /// network policy, or a firewall. Otherwise every client chooses its own address, and so its quota. Further hops have to
    /// be in the trusted networks.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::key::{self, ForwardingField};
    /// # use std::net::IpAddr;
    ///
    /// let no_networks: [&str; 0] = [];
    /// let behind_sidecar = key::client_ip()
    ///     .trusted_proxies(ForwardingField::XForwardedFor, no_networks)
    ///     .trust_any_peer();
    /// let mut request = from("192.0.2.1");
    /// request.headers.insert("x-forwarded-for", "192.0.2.66, 203.0.113.9".parse()?);
    /// assert_eq!(behind_sidecar.resolve(&request), Some("203.0.113.9".parse()?));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn trust_any_peer(mut self) -> Self {
        self.any_peer = true;
        self
    }

    /// Groups IPv4 clients by networks of this prefix length, 1 to 32; 32, each address by itself, by default.
    ///
    /// Anything else is an error of [`build`](crate::RateLimitLayerBuilder::build).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::key::{self, KeyExtractor};
    /// # use std::net::IpAddr;
    ///
    /// let by_network = key::client_ip().ipv4_prefix(24);
    /// assert_eq!(by_network.extract(&from("192.0.2.1")), by_network.extract(&from("192.0.2.254")));
    /// assert_ne!(by_network.extract(&from("192.0.2.1")), by_network.extract(&from("192.0.3.1")));
    ///
    /// let error = key::client_ip().ipv4_prefix(0).check().unwrap_err();
    /// assert_eq!(error.to_string(), "key: IPv4 prefix 0 is outside 1..=32");
    /// ```
    #[must_use]
    pub fn ipv4_prefix(mut self, length: u8) -> Self {
        self.ipv4_prefix = length;
        self
    }

    /// Groups IPv6 clients by networks of this prefix length, 1 to 128; 64 by default. The key is that of the network's
    /// first address, as [`ToPartitionKey`] gives it.
    ///
    /// One subscriber has at least a /64, often a /56 or a /48. With a longer prefix than theirs, each can take a fresh
    /// address, and a fresh quota, for every request.
    ///
    /// Anything else is an error of [`build`](crate::RateLimitLayerBuilder::build).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::{ToPartitionKey, key::{self, KeyExtractor}};
    /// # use std::net::IpAddr;
    ///
    /// let by_subscriber = key::client_ip().ipv6_prefix(48);
    /// let first: IpAddr = "2001:db8:7::".parse()?;
    /// assert_eq!(by_subscriber.extract(&from("2001:db8:7:ffff::1")), Some(first.to_partition_key()));
    /// assert_ne!(by_subscriber.extract(&from("2001:db8:8::1")), Some(first.to_partition_key()));
    /// # Ok::<_, std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn ipv6_prefix(mut self, length: u8) -> Self {
        self.ipv6_prefix = length;
        self
    }

    /// The client's address as it is before grouping, for logs. `None` if the request does not show its peer, or if a
    /// trusted peer has sent a field that does not show the client: see [`trusted_proxies`](Self::trusted_proxies).
    ///
    /// IPv4-mapped addresses are returned as IPv4. The address identifies a person in many places; the crate itself
    /// logs it only in [explanations](crate::RateLimitLayer::explain), at level `DEBUG`.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::key;
    /// # use std::net::IpAddr;
    ///
    /// assert_eq!(key::client_ip().resolve(&from("::ffff:192.0.2.1")), Some("192.0.2.1".parse()?));
    /// assert_eq!(key::client_ip().resolve(&http::Request::new(()).into_parts().0), None);
    /// # Ok::<_, std::net::AddrParseError>(())
    /// ```
    pub fn resolve(&self, request: &Parts) -> Option<IpAddr> {
        self.walk_of(request, |_| ()).map(|(address, _)| address)
    }

    /// The client's address where it may open or close a door: not one at which the walk stopped early.
    pub(crate) fn believed(&self, request: &Parts) -> Option<IpAddr> {
        let (address, is_believed) = self.walk_of(request, |_| ())?;
        is_believed.then_some(address)
    }

    /// The key of a client with this address, as its requests have it: for [`Limiter::caller`](crate::Limiter::caller) and an
    /// [access list](crate::AccessList). IPv6 addresses are grouped by the [prefix](Self::ipv6_prefix).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::key::{self, KeyExtractor};
    ///
    /// let (client_ip, address) = (key::client_ip(), "2001:db8:7:1::9");
    /// assert_eq!(client_ip.extract(&from(address)), Some(client_ip.key_of(address.parse()?)));
    /// assert_eq!(client_ip.key_of(address.parse()?), client_ip.key_of("2001:db8:7:1::".parse()?));
    /// # Ok::<_, std::net::AddrParseError>(())
    /// ```
    pub fn key_of(&self, address: IpAddr) -> PartitionKey {
        let address = address::canonical(address);
        let first = self.network_of(address).map_or(address, |network| network.addr());
        first.to_partition_key()
    }

    /// Returns the network of the client's address, whose addresses share a key: its first address, and the length of the
    /// [IPv4](Self::ipv4_prefix) or [IPv6](Self::ipv6_prefix) prefix. `None` if there is no [address](Self::resolve).
    ///
    /// Use it for lines, logs or counts of your own that group clients as the key does.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::key;
    ///
    /// let network = key::client_ip().network(&from("2001:db8:7:1::9"));
    /// assert_eq!(network, Some(("2001:db8:7:1::".parse()?, 64)));
    /// # Ok::<_, std::net::AddrParseError>(())
    /// ```
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

    /// Calls `note` for each hop that is read.
    fn walk_of(&self, request: &Parts, note: impl FnMut(&Option<IpAddr>)) -> Option<(IpAddr, bool)> {
        let peer = address::canonical(peer::address(&request.extensions)?.ip());
        // The nearest proxy has written the right end of the last line.
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

    /// Describes how the client's address was found.
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

    /// From the peer to the first address that is not trusted, or to the end of the list. Reads no hop that it need
    /// not, and ends nowhere if it comes to one that it cannot read. With the address goes `true` if it is the client, as
    /// far as is known, and `false` if it is only the last hop that was read.
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

    /// The mistake that a request shows: a proxy that is not named, or that writes another field than the named one.
    fn finding(&self, request: &Parts) -> Option<Finding> {
        let Some(peer) = peer::address(&request.extensions) else {
            return Some(Finding::NoPeerAddress);
        };
        let peer = address::canonical(peer.ip());
        let known = FORWARDING_FIELDS
            .iter()
            .find(|field| request.headers.contains_key(**field));
        let has_named = request.headers.contains_key(&self.name);
        if self.any_peer || self.trusts(peer) {
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

    /// Returns `true` if the walk ends at a private address behind which the list goes on: a second proxy that is not trusted, whose
    /// clients share its quota.
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

    fn may_be_address(&self) -> bool {
        true
    }

    fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        findings.found.extend(self.finding(request));
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
                "the trusted proxies are all of {everybody}, so that any client may choose its address; \
                 name the proxies, or use `trust_any_peer()` where only proxies can connect"
            )));
        }
        ConfigError::check_range(ConfigErrorKind::Key, "key: IPv4 prefix", self.ipv4_prefix, 1..=32)?;
        ConfigError::check_range(ConfigErrorKind::Key, "key: IPv6 prefix", self.ipv6_prefix, 1..=128)
    }
}

impl ForwardingField {
    /// The name under which requests have the field, or the reason why none can.
    fn name(&self) -> Result<HeaderName, String> {
        let name = match self {
            Self::Forwarded => return Ok(header::FORWARDED),
            Self::XForwardedFor => return Ok(X_FORWARDED_FOR),
            Self::SingleAddress(name) => name,
        };
        let parsed: HeaderName = name
            .parse()
            .map_err(|_| format!("{name:?} is not the name of a header"))?;
        let list = match parsed.as_str() {
            "forwarded" => "Forwarded",
            "x-forwarded-for" => "XForwardedFor",
            _ => return Ok(parsed),
        };
        Err(format!(
            "{name:?} is a list of addresses; use `ForwardingField::{list}`"
        ))
    }
}

/// Its address has a port behind it, also one of IPv6, and no brackets.
const VIEWER_ADDRESS: &str = "cloudfront-viewer-address";

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The fields in which the usual proxies write their clients.
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

/// The smallest network that a subscriber gets, who may use any address in it.
const DEFAULT_IPV6_PREFIX: u8 = 64;
