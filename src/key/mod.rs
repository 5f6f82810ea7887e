//! Extractors of [partition keys](crate::PartitionKey) from requests.
//!
//! Combine extractors with [`or_else`](KeyExtractor::or_else) and [`and`](KeyExtractor::and). For example, use the
//! authenticated user if there is one, otherwise the address:
//!
//! ```
//! use tower_quota::{PartitionKey, ToPartitionKey, key::{self, KeyExtractor}};
//!
//! /// Inserted into the request by authentication.
//! #[derive(Clone)]
//! struct UserId(u64);
//!
//! impl ToPartitionKey for UserId {
//!     fn to_partition_key(&self) -> PartitionKey {
//!         PartitionKey::new("user", self.0.to_be_bytes())
//!     }
//! }
//!
//! let by_caller = key::extension::<UserId>().or_else(key::client_ip());
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
//! # let authenticated = set_up::parts(http::Request::get("/").extension(UserId(7)));
//! # assert_eq!(by_caller.extract(&authenticated), Some(UserId(7).to_partition_key()));
//! # let anonymous = set_up::from("203.0.113.9");
//! # let address: std::net::IpAddr = "203.0.113.9".parse().unwrap();
//! # assert_eq!(by_caller.extract(&anonymous), Some(address.to_partition_key()));
//! # assert_eq!(by_caller.extract(&http::Request::new(String::new()).into_parts().0), None);
//! ```
//!
//! [`MissingKey`](crate::MissingKey) determines how the layer handles a request without a key.

mod client_ip;
mod extractor;
mod header;
mod host;
#[cfg(feature = "axum")]
mod matched_path;

pub(crate) use self::client_ip::{canonical, network};
#[cfg(feature = "axum")]
pub use self::matched_path::MatchedPath;
pub use self::{
    client_ip::{ClientIp, ForwardingField, PeerAddress, client_ip},
    extractor::{KeyExtractor, extension, from_fn},
    header::{Header, header},
    host::Host,
};
