use std::{any::type_name, marker::PhantomData};

use http::request::Parts;

use crate::{
    error::ConfigError,
    mistake::{Diagnostics, PartName},
    partition::{PartitionKey, ToPartitionKey},
};

/// Extracts the partition key of a request, which identifies the caller.
///
/// The functions of this [module](crate::key) create extractors. Implement this trait for other keys.
///
/// ```
/// use http::{Request, request::Parts};
/// use tower_quota::{PartitionKey, key::KeyExtractor};
///
/// /// The first label of the host, which identifies the customer.
/// struct Tenant;
///
/// impl KeyExtractor for Tenant {
///     fn extract(&self, request: &Parts) -> Option<PartitionKey> {
///         // HTTP/2 sends the host in the URI.
///         let host = match request.uri.host() {
///             Some(host) => host,
///             None => request.headers.get("host")?.to_str().ok()?,
///         };
///         let (tenant, _) = host.split_once('.')?;
///         Some(PartitionKey::new("tenant", tenant))
///     }
/// }
///
/// let (request, _) = Request::get("/").header("host", "acme.example.com").body(String::new())?.into_parts();
/// assert_eq!(Tenant.extract(&request), Some(PartitionKey::new("tenant", "acme")));
/// let (request, _) = Request::get("/").body(String::new())?.into_parts();
/// assert_eq!(Tenant.extract(&request), None);
/// # Ok::<_, http::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract a key from requests",
    label = "not a key extractor",
    note = "for the value of a header, use `key::header(\"x-user-id\")`",
    note = "for an extension that authentication inserted, use `key::extension::<UserId>()`",
    note = "for the client's address, use `key::client_ip()`; for anything else, `key::from_fn(|request| …)`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key of the caller, or `None` if the request has none. Must not block.
    fn extract(&self, request: &Parts) -> Option<PartitionKey>;

    /// Validates the settings when the layer is [built](crate::RateLimitLayerBuilder::build). By default, succeeds.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Records misconfigurations that a request reveals.
    #[doc(hidden)]
    fn diagnose(&self, _: &Parts, _: &mut Diagnostics) {}

    /// Uses the key of `other` for requests without a key from this extractor.
    ///
    /// ```
    /// use tower_quota::key::{self, KeyExtractor};
    ///
    /// let by_caller = key::header("x-user-id").or_else(key::header("x-api-key"));
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # use {http::Request, set_up::parts, tower_quota::PartitionKey};
    /// # let both = parts(Request::get("/").header("x-user-id", "alice").header("x-api-key", "4711"));
    /// # assert_eq!(by_caller.extract(&both), Some(PartitionKey::new("x-user-id", "alice")));
    /// # let one = parts(Request::get("/").header("x-api-key", "4711"));
    /// # assert_eq!(by_caller.extract(&one), Some(PartitionKey::new("x-api-key", "4711")));
    /// # assert_eq!(by_caller.extract(&parts(Request::get("/"))), None);
    /// ```
    fn or_else<K: KeyExtractor>(self, other: K) -> impl KeyExtractor
    where
        Self: Sized,
    {
        OrElse(self, other)
    }

    /// Combines both keys, for example for a quota per user *and* method. Requests that lack either have no key.
    ///
    /// ```
    /// use tower_quota::{PartitionKey, key::{self, KeyExtractor}};
    ///
    /// let by_method = key::from_fn(|request| Some(PartitionKey::new("method", request.method.as_str())));
    /// let by_user_and_method = key::header("x-user-id").and(by_method);
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # use {http::Request, set_up::parts};
    /// # let request = parts(Request::put("/").header("x-user-id", "alice"));
    /// # let expected = PartitionKey::new("x-user-id", "alice").and(PartitionKey::new("method", "PUT"));
    /// # assert_eq!(by_user_and_method.extract(&request), Some(expected));
    /// # assert_eq!(by_user_and_method.extract(&parts(Request::put("/"))), None);
    /// ```
    fn and<K: KeyExtractor>(self, other: K) -> impl KeyExtractor
    where
        Self: Sized,
    {
        And(self, other)
    }
}

/// Extracts a value of type `T` from the request's extensions.
///
/// Authentication *outside* the rate limit layer must insert the value after verifying it: with unverified names,
/// clients can exhaust the quotas of others. Requests without such a value have no key.
///
/// ```
/// use http::Request;
/// use tower_quota::{PartitionKey, ToPartitionKey, key::{self, KeyExtractor}};
///
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// impl ToPartitionKey for UserId {
///     fn to_partition_key(&self) -> PartitionKey {
///         PartitionKey::new("user", self.0.to_be_bytes())
///     }
/// }
///
/// let by_user = key::extension::<UserId>();
/// let (request, _) = Request::get("/").extension(UserId(7)).body(String::new())?.into_parts();
/// assert_eq!(by_user.extract(&request), Some(UserId(7).to_partition_key()));
/// # assert_eq!(by_user.extract(&Request::new(String::new()).into_parts().0), None);
/// # Ok::<_, http::Error>(())
/// ```
pub fn extension<T: ToPartitionKey + Send + Sync + 'static>() -> impl KeyExtractor {
    Extension::<T>(PhantomData)
}

/// Extracts a key with a closure, which must not block.
///
/// If clients can choose the value freely, as with the path, each value has a full quota: use only a small, fixed set.
///
/// ```
/// use http::Request;
/// use tower_quota::{PartitionKey, key::{self, KeyExtractor}};
///
/// // The first segment of the path is the name of a service.
/// let by_service = key::from_fn(|request| {
///     let service = request.uri.path().split('/').nth(1)?;
///     ["mails", "files"].contains(&service).then(|| PartitionKey::new("service", service))
/// });
/// let (request, _) = Request::get("/mails/7").body(String::new())?.into_parts();
/// assert_eq!(by_service.extract(&request), Some(PartitionKey::new("service", "mails")));
/// # assert_eq!(by_service.extract(&Request::get("/unknown").body(String::new())?.into_parts().0), None);
/// # Ok::<_, http::Error>(())
/// ```
pub fn from_fn<F>(extract: F) -> impl KeyExtractor
where
    F: Fn(&Parts) -> Option<PartitionKey> + Send + Sync + 'static,
{
    FromFn(extract)
}

struct Extension<T>(PhantomData<fn() -> T>);

impl<T: ToPartitionKey + Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        request.extensions.get::<T>().map(ToPartitionKey::to_partition_key)
    }

    fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        let name = PartName::Extension(type_name::<T>());
        findings.asked_for(name, request.extensions.get::<T>().is_some());
    }
}

struct FromFn<F>(F);

impl<F> KeyExtractor for FromFn<F>
where
    F: Fn(&Parts) -> Option<PartitionKey> + Send + Sync + 'static,
{
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        (self.0)(request)
    }
}

struct OrElse<A, B>(A, B);

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for OrElse<A, B> {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        self.0.extract(request).or_else(|| self.1.extract(request))
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.0.check().and_then(|()| self.1.check())
    }

    fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        self.0.diagnose(request, findings);
        if self.0.extract(request).is_none() {
            self.1.diagnose(request, findings);
        }
    }
}

struct And<A, B>(A, B);

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for And<A, B> {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        Some(self.0.extract(request)?.and(self.1.extract(request)?))
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.0.check().and_then(|()| self.1.check())
    }

    fn diagnose(&self, request: &Parts, findings: &mut Diagnostics) {
        self.0.diagnose(request, findings);
        self.1.diagnose(request, findings);
    }
}
