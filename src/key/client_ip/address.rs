use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// More than any real chain of proxies has.
pub(super) const MAX_HOPS: usize = 32;

/// Bytes.
pub(super) const MAX_LINE: usize = 8 * 1024;

use ipnet::IpNet;

/// Parses a hop with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
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
    Some(canonical(address))
}

/// CloudFront's viewer address always has a port, but no brackets.
pub(super) fn with_last_port(text: &[u8]) -> Option<IpAddr> {
    let (address, port) = str::from_utf8(text).ok()?.rsplit_once(':')?;
    let is_port = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    let address = address
        .parse()
        .ok()
        .filter(|_| is_port && port.parse::<u16>().is_ok())?;
    Some(canonical(address))
}

/// Converts IPv4-mapped addresses, and those of translators (64:ff9b::/96, RFC 6052), to IPv4. All clients behind a
/// translator would otherwise share one /64.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if address.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = address.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        address => address,
    }
}

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

/// Not routed on the Internet, like most proxies.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let is_carrier_grade = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
            address.is_loopback() || address.is_private() || address.is_link_local() || is_carrier_grade
        }
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local(),
    }
}

/// `10.0.0.1/8` is rejected because it is ambiguous.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let network = parsed(text).ok_or_else(|| format!("{text:?} is not an IP address or network"))?;
    if network.addr() != network.network() {
        let (address, whole) = (network.addr(), network.trunc());
        return Err(format!("{text:?} has host bits set; use \"{whole}\" or \"{address}\""));
    }
    Ok(
        match (canonical(network.addr()), network.prefix_len().checked_sub(96)) {
            // IPv4 networks have a shorter prefix.
            (embedded @ IpAddr::V4(_), Some(prefix)) => IpNet::new(embedded, prefix).unwrap_or(network),
            _ => network,
        },
    )
}

fn parsed(text: &str) -> Option<IpNet> {
    // `IpNet::from_str` accepts neither single addresses nor upper-case digits.
    let Some((address, prefix)) = text.split_once('/') else {
        return Some(canonical(text.parse().ok()?).into());
    };
    let is_number = prefix.bytes().all(|b| b.is_ascii_digit());
    let prefix = prefix.parse().ok().filter(|_| is_number)?;
    IpNet::new(address.parse().ok()?, prefix).ok()
}
