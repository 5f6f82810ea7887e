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

/// Extracts the client's IP address. IPv6 clients are grouped by their /64 network.
///
/// Use this for callers that are not, or not yet, authenticated. By default, header fields are ignored, and the client
/// is the peer of the connection. The peer's address is taken from the first of these request extensions:
///
/// - [`PeerAddress`], which a server built on hyper must set;
/// - with the feature `axum`, `axum::extract::ConnectInfo<SocketAddr>`, set by
///   `into_make_service_with_connect_info::<SocketAddr>()`;
/// - with the feature `tonic`, `tonic::transport::server::TcpConnectInfo`, which tonic's server sets with and without
///   TLS.
///
/// Requests without any of these extensions, for example from a Unix socket, have no key, regardless of their header
/// fields.
///
/// Behind a load balancer or gateway, that machine is the peer of every connection, so all clients would share one
/// quota. Declare such machines as [trusted proxies](ClientIp::trusted_proxies), together with the field that they
/// write. [`docs::proxies`] contains the settings for nginx, Envoy, AWS and Cloudflare.
///
/// ```
/// use std::net::SocketAddr;
/// use tower_quota::key::{self, ForwardingField, KeyExtractor, PeerAddress};
///
/// let by_address = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.0/8", "::1"]);
///
/// // The client (203.0.113.9) sent a false address, and the proxy (10.0.0.1) appended the actual one:
/// let mut request = http::Request::get("/").header("x-forwarded-for", "192.0.2.66, 203.0.113.9").body(()).unwrap();
/// request.extensions_mut().insert(PeerAddress(SocketAddr::from(([10, 0, 0, 1], 4711))));
/// let (mut request, ()) = request.into_parts();
/// assert_eq!(by_address.resolve(&request), "203.0.113.9".parse().ok());
///
/// // The same field from any other peer is ignored:
/// request.extensions.insert(PeerAddress(SocketAddr::from(([198, 51, 100, 7], 4711))));
/// assert_eq!(by_address.resolve(&request), "198.51.100.7".parse().ok());
///
/// // It is also ignored if the peer is unknown:
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

/// The extractor created by [`client_ip`]. [`build`](crate::RateLimitLayerBuilder::build) validates its settings.
///
/// As a key extractor, `ClientIp` groups clients by network, while [`resolve`](Self::resolve) returns the address
/// itself. [`AccessList`](crate::AccessList) and [`Exemption`](crate::Exemption) also use it to get addresses, without
/// grouping.
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
    name: HeaderName,
    /// The trusted networks, or the first error in the settings.
    proxies: Result<Vec<IpNet>, String>,
    ipv4_prefix: u8,
    ipv6_prefix: u8,
    /// Trusts every peer as a proxy.
    any_peer: bool,
}

/// The header field in which proxies report the client.
///
/// Only one field is trusted, which must be the field that your proxies write: a proxy that writes `X-Forwarded-For`
/// forwards `Forwarded` and `X-Real-IP` fields as the client sent them, and vice versa. Trusting two fields means
/// trusting clients. [`docs::proxies`](crate::docs::proxies) lists which proxy writes which field.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::key::{self, ForwardingField};
/// # use std::net::IpAddr;
///
/// let mut request = from("10.0.0.1");
/// request.headers.insert("forwarded", "for=203.0.113.9".parse()?);
/// request.headers.insert("x-forwarded-for", "192.0.2.66".parse()?); // forwarded as the client sent it
/// request.headers.insert("x-real-ip", "192.0.2.77".parse()?); // this field, too
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
    /// `Forwarded` of [RFC 7239](https://www.rfc-editor.org/rfc/rfc7239): `for=192.0.2.43, for="[2001:db8::17]:4711"`.
    Forwarded,
    /// `X-Forwarded-For`, a comma-separated list written by most proxies: `192.0.2.43, 2001:db8::17`.
    XForwardedFor,
    /// A field with this name that contains exactly one address: `X-Real-IP`, `CF-Connecting-IP`, `Fly-Client-IP`,
    /// `True-Client-IP`, or a custom field.
    ///
    /// Use this if the outermost proxy determines the client and **overwrites** the field, and all other proxies
    /// forward it. If a proxy only adds the field when it is missing, clients can choose their address.
    ///
    /// If the field has two lines, or two addresses in one line, the client is unknown, because the client may have
    /// sent one of the two addresses.
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
    /// assert_eq!(
    ///     error.to_string(),
    ///     "key: \"X-Forwarded-For\" contains a list of addresses; use `ForwardingField::XForwardedFor`",
    /// );
    /// # use tower_quota::key::KeyExtractor;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    SingleAddress(Cow<'static, str>),
}

impl ClientIp {
    /// Trusts the proxies in `networks` to report the client in `field`. A second call replaces the first call's
    /// settings.
    ///
    /// A network is written as `"10.0.0.0/8"`, and a single machine as its address. Without networks, the field is
    /// ignored. The hops are walked from the nearest hop, at the right end of the last field line, towards the client.
    /// A client is identified only if the walk ends successfully:
    ///
    /// | the walk ends at | the client is |
    /// |---|---|
    /// | an address outside these networks: the peer's address, or the first such address from the right | that address |
    /// | a trusted peer that sent no such field | the peer, for example a health check of the load balancer |
    /// | the address in a field with [one address](ForwardingField::SingleAddress) | that address, trusted or not |
    /// | a field with one address that has two lines, or whose content is not exactly one address | unknown |
    /// | the left end of the list, if all hops are trusted | the leftmost hop: one of your machines behind a proxy |
    /// | a hop that is empty or not an address: `unknown`, an obfuscated name (`_hidden`), a host name, a zone identifier, a port above 65535 | unknown |
    /// | a `Forwarded` element that is malformed, has no `for`, or has two of them | unknown |
    /// | a `Forwarded` line with an unterminated quoted string, or longer than 8 KiB | unknown |
    /// | the point where an `X-Forwarded-For` line was truncated: only its last 8 KiB are read | unknown |
    /// | a 33rd hop | the 32nd hop, which matches no access list or exemption |
    ///
    /// Hops to the left of the end of the walk are ignored. Addresses can have a port (`192.0.2.1:4711`,
    /// `[2001:db8::1]:4711`) and brackets. Several lines form one list. An empty line counts as an unreadable hop.
    ///
    /// Requests from an unknown client have no key, so [`MissingKey`](crate::MissingKey) applies, and they match no
    /// network of an [`AccessList`](crate::AccessList) or [`Exemption`](crate::Exemption). No other address is used
    /// instead, in particular not the address of a proxy, which may be allowed.
    ///
    /// IPv4-mapped addresses such as `::ffff:10.0.0.1` (`::ffff:0:0/96`), and addresses that translators write with the
    /// well-known prefix `64:ff9b::/96` ([RFC 6052](https://www.rfc-editor.org/rfc/rfc6052)), are treated as IPv4
    /// addresses, in networks and in hops. Other transition prefixes remain IPv6: local translators (`64:ff9b:1::/48`),
    /// 6to4 (`2002::/16`) and Teredo (`2001::/32`), in which clients choose a part of their address.
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) fails for a network that cannot be parsed or has bits after its
    /// prefix (`10.0.0.1/8`), and for networks that together cover all addresses; use
    /// [`trust_any_peer`](Self::trust_any_peer) instead.
    ///
    /// # Security
    ///
    /// **Clients can make themselves unknown** if a proxy appends to their `Forwarded` field on the same line, because
    /// an unterminated quote makes the proxy's element part of the quoted string. No part of such a line can be
    /// trusted. With [`MissingKey::Share`](crate::MissingKey::Share), the default, all unknown clients share one quota:
    /// they neither gain a quota nor affect known clients. With [`MissingKey::Reject`](crate::MissingKey::Reject), they
    /// are rejected. With [`MissingKey::Allow`](crate::MissingKey::Allow), they pass uncounted, so do not use it behind
    /// such a proxy. To prevent this, let proxies replace a client's `Forwarded` field instead of appending to it.
    ///
    /// **Trust as little as possible.** Any sender in a trusted network can choose the address that is counted, and so
    /// get a fresh quota for each request or exhaust another client's quota. List the proxies, not a network that they
    /// share with other machines. Every proxy must append to the field or replace it: a proxy that forwards the field
    /// unchanged lets clients choose their address.
    ///
    /// # Examples
    ///
    /// ```
    /// use tower_quota::key::{self, ForwardingField, KeyExtractor};
    ///
    /// let error = key::client_ip().trusted_proxies(ForwardingField::Forwarded, ["10.0.0.0/99"]).check().unwrap_err();
    /// assert_eq!(error.to_string(), "key: trusted proxy \"10.0.0.0/99\" is not an IP address or network");
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

    /// Trusts every peer of a connection as a proxy, not only those in the trusted networks.
    ///
    /// Use this only if nothing but a proxy can reach the service, and the proxy's address is not known in advance:
    /// with a sidecar, a network policy or a firewall. Otherwise, every client can choose its address and so its quota.
    /// Further hops must be in the trusted networks.
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

    /// Sets the prefix length by which IPv4 clients are grouped, from 1 to 32. Default: 32, which means no grouping.
    ///
    /// [`build`](crate::RateLimitLayerBuilder::build) rejects other values.
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

    /// Sets the prefix length by which IPv6 clients are grouped, from 1 to 128. Default: 64.
    ///
    /// The key is derived from the network's first address by [`ToPartitionKey`]. A subscriber has at least a /64,
    /// often a /56 or a /48. If this prefix is longer than the subscriber's prefix, a client can use a new address,
    /// with a fresh quota, for every request. [`build`](crate::RateLimitLayerBuilder::build) rejects other values.
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

    /// Returns the client's address before grouping, for logs.
    ///
    /// Returns `None` if the request does not contain its peer's address, or if a trusted peer sent a field that does
    /// not identify the client: see [`trusted_proxies`](Self::trusted_proxies). IPv4-mapped addresses are returned as
    /// IPv4. In many jurisdictions, addresses are personal data; the crate itself logs them only in
    /// [explanations](crate::RateLimitLayer::explain), at level `DEBUG`.
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

    /// The address for access decisions: `None` if the walk stopped at the maximum number of hops.
    pub(crate) fn believed(&self, request: &Parts) -> Option<IpAddr> {
        let (address, is_believed) = self.walk_of(request, |_| ())?;
        is_believed.then_some(address)
    }

    /// Returns the key of requests from this address, for [`Limiter::caller`](crate::Limiter::caller) and
    /// [access lists](crate::AccessList).
    ///
    /// IPv6 addresses are grouped by the [prefix](Self::ipv6_prefix).
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

    /// Returns the network whose addresses share the key of this request, as its first address and its prefix length.
    ///
    /// The length is the [IPv4](Self::ipv4_prefix) or [IPv6](Self::ipv6_prefix) prefix. Returns `None` if there is no
    /// [address](Self::resolve). Use this for logs or metrics that group clients in the same way as the key.
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

    /// Calls `note` for each hop read.
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

    /// Walks from the peer to the first untrusted address, or to the end of the list. Reads no further hops than
    /// necessary, and returns `None` at an unreadable hop. The flag is `false` if the walk stopped at the maximum
    /// number of hops, so the address may belong to a proxy.
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

    /// The misconfiguration that a request reveals: an undeclared proxy, or a proxy that writes another field.
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

    /// Returns `true` if the walk ends at a private address although the list continues: a second, undeclared proxy,
    /// whose clients share its quota.
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
                "trusted proxies include all of {everybody}, so any client could forge its address; list the proxies, \
                 or use `trust_any_peer()` if only proxies can connect"
            )));
        }
        ConfigError::check_range(ConfigErrorKind::Key, "key: IPv4 prefix", self.ipv4_prefix, 1..=32)?;
        ConfigError::check_range(ConfigErrorKind::Key, "key: IPv6 prefix", self.ipv6_prefix, 1..=128)
    }
}

impl ForwardingField {
    /// The header name, or the reason why it is invalid.
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

/// Contains an address with a port, but without brackets, even for IPv6.
const VIEWER_ADDRESS: &str = "cloudfront-viewer-address";

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Fields in which common proxies report the client.
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

/// The smallest network of a subscriber. The subscriber can use any address in this network.
const DEFAULT_IPV6_PREFIX: u8 = 64;
