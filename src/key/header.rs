use http::{HeaderName, request::Parts};

use super::{KeyExtractor, client_ip::FORWARDING_FIELDS};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    mistake::{Diagnostics, PartName},
    partition::PartitionKey,
};

/// Extracts the value of a request header, as `PartitionKey::new(name, value)` with the name in lower case.
///
/// Use this only for a header that a trusted gateway sets or removes, because any client can send any header. Requests
/// with several values of the header, or with an empty value, have no key. The value is used byte for byte.
///
/// ```
/// use http::Request;
/// use tower_quota::{PartitionKey, key::{self, KeyExtractor}};
///
/// let by_user = key::header("X-User-Id");
/// let (request, _) = Request::get("/").header("x-user-id", "alice").body(String::new())?.into_parts();
/// assert_eq!(by_user.extract(&request), Some(PartitionKey::new("x-user-id", "alice")));
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # use set_up::parts;
/// # assert_eq!(by_user.extract(&parts(Request::get("/").header("x-user-id", ""))), None);
/// # let both = parts(Request::get("/").header("x-user-id", "alice").header("x-user-id", "bob"));
/// # assert_eq!(by_user.extract(&both), None);
/// # Ok::<_, http::Error>(())
/// ```
///
/// [`build`](crate::RateLimitLayerBuilder::build) rejects invalid names, and fields in which proxies report addresses
/// (`x-forwarded-for`, `x-real-ip`, …): use [`client_ip`](super::client_ip()) with
/// [`trusted_proxies`](super::ClientIp::trusted_proxies), or [`even_if_forwarded`](Header::even_if_forwarded). For the
/// host, use [`Host`](super::Host), because HTTP/2 does not send it in a header.
pub fn header(name: impl AsRef<str>) -> Header {
    let name = HeaderName::from_bytes(name.as_ref().as_bytes()).map_err(|_| name.as_ref().to_owned());
    let kind = match &name {
        Ok(name) => PartitionKey::of_kind(name),
        Err(name) => PartitionKey::of_kind(name),
    };
    Header {
        name,
        kind,
        even_if_forwarded: false,
    }
}

/// The extractor created by [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    name: Result<HeaderName, String>,
    kind: PartitionKey,
    even_if_forwarded: bool,
}

impl Header {
    /// Accepts a field in which proxies report addresses, and uses its value unchecked. A gateway must overwrite the
    /// field in every request, and nothing else may reach the service.
    ///
    /// ```
    /// use tower_quota::key::{self, KeyExtractor};
    ///
    /// assert!(key::header("x-real-ip").check().is_err()); // any client can send this field
    /// assert!(key::header("x-real-ip").even_if_forwarded().check().is_ok());
    /// # assert_eq!(
    /// #     key::header("x-real-ip").check().unwrap_err().to_string(),
    /// #     "key: header x-real-ip can be forged by any client; \
    /// #      use `client_ip().trusted_proxies(…)`, or `even_if_forwarded()` if a gateway overwrites it",
    /// # );
    /// ```
    #[must_use]
    pub fn even_if_forwarded(mut self) -> Self {
        self.even_if_forwarded = true;
        self
    }

    /// Returns the key of requests with this value, for [`Limiter::caller`](crate::Limiter::caller) and [access
    /// lists](crate::AccessList). The key of a plain string, such as `"alice"`, is different.
    ///
    /// ```
    /// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let by_user = key::header("x-user-id");
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(by_user.clone())
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .build()?;
    ///
    /// # set_up::send(&layer, http::Request::get("/").header("x-user-id", "alice")).await;
    /// // The quota of the user `alice`, without charging it:
    /// let quota = layer.limiter().caller(&by_user.key_of("alice")).peek().await?;
    /// # let remaining = quota.expect("there is a policy").allowances().next().map(|hour| hour.remaining());
    /// # assert_eq!(remaining, Some(9));
    /// # Ok(()) });
    /// ```
    pub fn key_of(&self, value: impl AsRef<[u8]>) -> PartitionKey {
        self.kind.with_value(value.as_ref())
    }
}

impl KeyExtractor for Header {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        let name = self.name.as_ref().ok()?;
        let mut values = request.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => Some(self.kind.with_value(value.as_bytes())),
            _ => None,
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let error = |message| Err(ConfigError::new(ConfigErrorKind::Key, message));
        match &self.name {
            Err(name) => error(format!("key: {name:?} is not a valid header name")),
            Ok(name) if FORWARDING_FIELDS.contains(&name.as_str()) && !self.even_if_forwarded => error(format!(
                "key: header {name} can be forged by any client; use `client_ip().trusted_proxies(…)`, or \
                 `even_if_forwarded()` if a gateway overwrites it"
            )),
            Ok(_) => Ok(()),
        }
    }

    fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        if let Ok(name) = &self.name {
            findings.asked_for(PartName::Header(name.clone()), request.headers.contains_key(name));
        }
    }
}
