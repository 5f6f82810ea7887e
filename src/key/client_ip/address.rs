//! Reading addresses: of hops in both header fields, and of networks in settings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The address of a hop, with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
///
/// `None` for anything else: names, `unknown`, zone identifiers, what is not ASCII.
pub(super) fn hop(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let address = if let Some(bracketed) = text.strip_prefix('[') {
        let (address, after) = bracketed.split_once(']')?;
        IpAddr::from(with_port(address.parse::<Ipv6Addr>().ok()?, after)?)
    } else if let Ok(address) = text.parse() {
        address
    } else {
        let (address, after) = text.split_at(text.find(':')?);
        IpAddr::from(with_port(address.parse::<Ipv4Addr>().ok()?, after)?)
    };
    Some(address.to_canonical())
}

/// The address if what follows it is nothing or a port, of up to five digits or, in RFC 7239, obfuscated (`_name`).
fn with_port<A>(address: A, after: &str) -> Option<A> {
    let Some(port) = after.strip_prefix(':') else {
        return after.is_empty().then_some(address);
    };
    let readable = match port.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)),
        None => port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok(),
    };
    readable.then_some(address)
}

/// Returns `true` for an address that no machine has on the Internet, as most proxies have in front of a service.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let is_carrier_grade = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
            address.is_loopback() || address.is_private() || address.is_link_local() || is_carrier_grade
        }
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local(),
    }
}

/// A network, `10.0.0.0/8`, or the network of one address. Bits after the prefix are ignored.
pub(crate) fn network(text: &str) -> Option<IpNet> {
    // IpNet's own FromStr takes neither bare addresses nor upper-case digits.
    let Some((address, prefix)) = text.split_once('/') else {
        let address: IpAddr = text.parse().ok()?;
        return Some(address.to_canonical().into());
    };
    if !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let network = IpNet::new(address.parse().ok()?, prefix.parse().ok()?).ok()?.trunc();
    match (network.addr().to_canonical(), network.prefix_len().checked_sub(96)) {
        // The prefix of an IPv4 network is shorter than this.
        (mapped @ IpAddr::V4(_), Some(prefix)) => IpNet::new(mapped, prefix).ok(),
        _ => Some(network),
    }
}
