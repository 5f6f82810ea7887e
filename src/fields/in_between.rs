//! The dialect of the editors' copy of the draft between -07 and -08, written as RFC 8941 says.
//!
//! Names are Tokens, and so are quota units and, where they fit, partition keys. You want it only for clients or
//! servers that were built from that copy. The text and the examples of the document differ, so it is read generously:
//! `l` for `q`, `bytes` for `content-bytes`, and partition keys as a Token, a String or a Byte Sequence.
//!
//! ```
//! use tower_quota::fields::in_between::{RateLimit, RateLimitPolicy};
//!
//! let limits = RateLimit::parse(["default;r=999;pk=trial-121323"])?;
//! assert_eq!(limits.items()[0].partition_key(), Some(b"trial-121323".as_slice()));
//!
//! let policies = RateLimitPolicy::parse(["default;l=100;w=10"])?;
//! assert_eq!(policies.to_string(), "default;q=100;w=10");
//!
//! // Names of draft-11 are Strings.
//! assert!(RateLimit::parse([r#""default";r=999"#]).is_err());
//! # Ok::<_, tower_quota::fields::FieldError>(())
//! ```

mod limit;
mod names;
mod policy;

pub use self::{
    limit::{LimitItem, RateLimit},
    policy::{PolicyItem, RateLimitPolicy},
};
