//! Who is counted: from a request to a [`PartitionKey`].
//!
//! Take the user where you know the user, else the address:
//!
//! ```
//! use tower_quota::key::{self, KeyExtractor};
//!
//! # #[derive(Clone)] struct UserId(u64);
//! # impl tower_quota::ToPartitionKey for UserId {
//! #     fn to_partition_key(&self) -> tower_quota::PartitionKey {
//! #         tower_quota::PartitionKey::new("user", self.0.to_be_bytes())
//! #     }
//! # }
//! let by_user = key::extension::<UserId>().or_else(key::client_ip());
//!
//! let mut request = http::Request::new(());
//! request.extensions_mut().insert(UserId(7));
//! let (parts, _) = request.into_parts();
//! assert!(by_user.extract(&parts).is_some());
//! ```
//!
//! A request without a key is not an error: the layer's [`NoKey`](crate::NoKey) says what happens to it.

mod client_ip;
#[cfg(feature = "axum")]
mod matched_path;

use std::{fmt, marker::PhantomData};

use http::{HeaderName, request::Parts};

pub(crate) use self::client_ip::network;
pub use self::client_ip::{ClientIp, ForwardingField, PeerAddress, client_ip};
#[cfg(feature = "axum")]
pub use self::matched_path::{MatchedPath, matched_path};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    partition::{PartitionKey, ToPartitionKey},
};

/// Finds out whose quota a request uses.
///
/// The crate's extractors are made by the functions of this [module](self) and combined with
/// [`or_else`](Self::or_else) and [`and`](Self::and).
pub trait KeyExtractor: Send + Sync + 'static {
    /// The key of the caller, `None` if this request does not show it.
    fn extract(&self, request: &Parts) -> Option<PartitionKey>;

    /// Called once by [`build`](crate::RateLimitLayerBuilder::build), to find mistakes before the first request.
    ///
    /// # Errors
    ///
    /// If the extractor was given settings that cannot work.
    fn check(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Takes the key of `other` for requests that have none of this kind.
    fn or_else<K: KeyExtractor>(self, other: K) -> OrElse<Self, K>
    where
        Self: Sized,
    {
        OrElse {
            first: self,
            second: other,
        }
    }

    /// Takes both keys together, for a quota per user *and* route, say. A request that lacks one of them has no key.
    fn and<K: KeyExtractor>(self, other: K) -> And<Self, K>
    where
        Self: Sized,
    {
        And {
            first: self,
            second: other,
        }
    }
}

/// The value of type `T` that an outer layer, most often authentication, has put into the request's extensions.
///
/// The layer that puts it there has to be *outside* of the rate limit layer, and must have verified what it says: a
/// quota that is charged to an unverified name is a way to use up somebody else's.
pub fn extension<T: ToPartitionKey + Send + Sync + 'static>() -> Extension<T> {
    Extension(PhantomData)
}

/// The value of a request header, byte for byte: `PartitionKey::new(name, value)`, with the name in lower case.
///
/// Use it only for a header that a trusted gateway in front of the service sets or removes: any client can send any
/// header. A request with several values of the header, or with an empty one, has no key of this kind, since it is
/// unclear who it is from.
pub fn header(name: impl AsRef<str>) -> Header {
    Header(HeaderName::from_bytes(name.as_ref().as_bytes()).map_err(|_| name.as_ref().to_owned()))
}

/// Whatever a closure makes of the request.
///
/// ```
/// use tower_quota::{PartitionKey, key};
///
/// let by_method = key::from_fn(|request| Some(PartitionKey::new("method", request.method.as_str())));
/// ```
pub fn from_fn<F>(extract: F) -> FromFn<F>
where
    F: Fn(&Parts) -> Option<PartitionKey> + Send + Sync + 'static,
{
    FromFn(extract)
}

/// See [`extension`].
pub struct Extension<T>(PhantomData<fn() -> T>);

impl<T: ToPartitionKey + Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        request.extensions.get::<T>().map(ToPartitionKey::to_partition_key)
    }
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self(PhantomData)
    }
}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Extension")
    }
}

/// See [`header`].
#[derive(Clone, Debug)]
pub struct Header(Result<HeaderName, String>);

impl KeyExtractor for Header {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        let name = self.0.as_ref().ok()?;
        let mut values = request.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => Some(PartitionKey::new(name, value)),
            _ => None,
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.0.as_ref().map(drop).map_err(|name| {
            ConfigError::new(
                ConfigErrorKind::Key,
                format!("key: {name:?} is not the name of a header"),
            )
        })
    }
}

/// See [`from_fn`].
#[derive(Clone)]
pub struct FromFn<F>(F);

impl<F> KeyExtractor for FromFn<F>
where
    F: Fn(&Parts) -> Option<PartitionKey> + Send + Sync + 'static,
{
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        (self.0)(request)
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

/// See [`KeyExtractor::or_else`].
#[derive(Clone, Debug)]
pub struct OrElse<A, B> {
    first: A,
    second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for OrElse<A, B> {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        self.first.extract(request).or_else(|| self.second.extract(request))
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.first.check().and_then(|()| self.second.check())
    }
}

/// See [`KeyExtractor::and`].
#[derive(Clone, Debug)]
pub struct And<A, B> {
    first: A,
    second: B,
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for And<A, B> {
    fn extract(&self, request: &Parts) -> Option<PartitionKey> {
        Some(self.first.extract(request)?.and(self.second.extract(request)?))
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.first.check().and_then(|()| self.second.check())
    }
}
