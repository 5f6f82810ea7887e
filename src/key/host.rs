use http::{header::HOST, request::Parts, uri::Authority};

use crate::{
    key::KeyExtractor,
    mistake::{Diagnostics, PartName},
    partition::PartitionKey,
};

/// The requested host as a key, for services where each tenant has its own domain.
///
/// The host comes from the authority of the URI (HTTP/2 and HTTP/3), or else from the `Host` field. Letter case, port
/// and trailing dot are ignored.
///
/// ```
/// use http::{Request, Version};
/// use tower_quota::key::{Host, KeyExtractor};
///
/// let by_host = Host;
/// let (over_http2, _) = Request::get("https://API.example.com/").version(Version::HTTP_2).body(String::new())?.into_parts();
/// let (over_http1, _) = Request::get("/").header("host", "api.example.com:443").body(String::new())?.into_parts();
/// assert_eq!(by_host.extract(&over_http2), Host::key_of("api.example.com"));
/// assert_eq!(by_host.extract(&over_http1), Host::key_of("api.example.com"));
/// # let contradiction = Request::get("https://api.example.com/").header("host", "other.example.com");
/// # assert_eq!(by_host.extract(&contradiction.body(String::new())?.into_parts().0), None);
/// # Ok::<_, http::Error>(())
/// ```
///
/// # Requests without a key
///
/// A request has no key if it contains no host, several `Host` fields, or different hosts in its URI and its `Host`
/// field; or if the host is malformed, longer than 255 bytes, or follows a user name (`user@example.com`).
///
/// # Security
///
/// Any client can send any host. Unless a proxy or router checks hosts first, each invented host has a full quota, and
/// clients can exhaust the quotas of other hosts. Use [`from_fn`](crate::key::from_fn) with a list of known hosts, or
/// add a limit per client address.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl Host {
    const MAX_LENGTH: usize = 255;

    /// Returns the key of a host, for [`Limiter::caller`](crate::Limiter::caller) and [access
    /// lists](crate::AccessList), or `None` if requests for this host have no key.
    ///
    /// ```
    /// use tower_quota::key::Host;
    ///
    /// assert_eq!(Host::key_of("Acme.example.com:443"), Host::key_of("acme.example.com"));
    /// assert_eq!(Host::key_of("no host"), None);
    /// ```
    pub fn key_of(host: &str) -> Option<PartitionKey> {
        let name = name(&host.parse().ok()?)?;
        Some(PartitionKey::own("host", name.as_bytes()))
    }
}

impl KeyExtractor for Host {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        let mut fields = request.headers.get_all(HOST).iter();
        let (field, second) = (fields.next(), fields.next());
        if second.is_some() {
            return None;
        }
        let of_field = || name(&Authority::try_from(field?.as_bytes()).ok()?);
        let host = match request.uri.authority() {
            None => of_field()?,
            Some(authority) => {
                let host = name(authority)?;
                if field.is_some() && of_field().as_ref() != Some(&host) {
                    return None;
                }
                host
            }
        };
        Some(PartitionKey::own("host", host.as_bytes()))
    }

    fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        let has_host = request.uri.authority().is_some() || request.headers.contains_key(HOST);
        findings.asked_for(PartName::Other("host"), has_host);
    }
}

fn name(authority: &Authority) -> Option<String> {
    let host = authority.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_valid = !host.is_empty() && host.len() <= Host::MAX_LENGTH && !authority.as_str().contains('@');
    is_valid.then(|| host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn host_of(uri: &str, fields: &[&[u8]]) -> Option<PartitionKey> {
        let mut request = Request::get(uri);
        for field in fields {
            request = request.header(HOST, *field);
        }
        Host.extract(&request.body(String::new()).unwrap().into_parts().0)
    }

    #[test]
    fn the_host_is_the_same_key_over_every_version_of_http() {
        let expected = Host::key_of("api.example.com");
        assert!(expected.is_some());
        for (uri, fields) in [
            ("https://api.example.com/", &[][..]),
            ("http://API.Example.COM:8080/a?b", &[]),
            ("/", &[&b"api.example.com"[..]]),
            ("/", &[b"Api.Example.Com.:443"]),
            ("https://api.example.com/", &[b"api.example.com:443"]),
        ] {
            assert_eq!(host_of(uri, fields), expected, "{uri} {fields:?}");
        }
        assert_ne!(Host::key_of("example.com"), expected);
        assert_eq!(host_of("/", &[b"[2001:DB8::1]:80"]), Host::key_of("[2001:db8::1]"));
        assert!(Host::key_of("[2001:db8::1]").is_some());
    }

    #[test]
    fn a_request_that_leaves_open_which_host_it_is_for_has_no_key() {
        for (uri, fields) in [
            ("/", &[][..]),
            ("/", &[&b""[..]]),
            ("/", &[b":80"]),
            ("/", &[b"."]),
            ("/", &[b"a.example", b"a.example"]),
            ("/", &[b"user@a.example"]),
            ("/", &[b"a.example, b.example"]),
            ("/", &[b"a b"]),
            ("/", &[b"\xff"]),
            ("/", &[b"a.example/b"]),
            ("https://user@a.example/", &[]),
            ("https://a.example/", &[b"b.example"]),
            ("https://a.example/", &[b""]),
        ] {
            assert_eq!(host_of(uri, fields), None, "{uri} {fields:?}");
        }
    }

    #[test]
    fn a_host_has_255_bytes_at_most() {
        let host = |length: usize| "a".repeat(length);
        assert!(Host::key_of(&host(255)).is_some());
        assert_eq!(Host::key_of(&host(256)), None);
        assert_eq!(host_of("/", &[host(256).as_bytes()]), None);
    }

    #[test]
    fn a_host_is_the_key_of_no_header_and_of_nothing_else() {
        let own = Host::key_of("a.example").unwrap();
        assert_ne!(own, PartitionKey::new("host", "a.example"));
        let (request, _) = Request::get("/")
            .header(HOST, "a.example")
            .body(String::new())
            .unwrap()
            .into_parts();
        assert_ne!(crate::key::header("host").extract(&request), Some(own));
    }
}
