//! Extractors of [partition keys](crate::PartitionKey) from requests.
//!
//! Use the authenticated user if there is one, otherwise the address:
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
//! Requests without a key are not errors: the layer's [`MissingKey`](crate::MissingKey) determines how they are
//! treated.

mod client_ip;
mod extractor;
mod header;
mod host;
#[cfg(feature = "axum")]
mod matched_path;

pub(crate) use self::client_ip::{canonical, network};
#[cfg(feature = "axum")]
pub use self::matched_path::{MatchedPath, matched_path};
pub use self::{
    client_ip::{ClientIp, ForwardingField, PeerAddress, client_ip},
    extractor::{KeyExtractor, extension, from_fn},
    header::{Header, header},
    host::{Host, host},
};
