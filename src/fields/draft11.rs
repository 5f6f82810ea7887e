//! The dialect of draft-ietf-httpapi-ratelimit-headers-11, written as RFC 9651 says.
//!
//! Names are Strings, partition keys are Byte Sequences. It is what this crate writes, and what you want unless your
//! clients know something older.
//!
//! ```
//! use tower_quota::fields::draft11::RateLimit;
//!
//! let field = RateLimit::parse([r#""burst";r=9;t=1, "daily";r=4999;t=86383"#])?;
//! assert_eq!(field.items()[1].name(), "daily");
//! assert_eq!(field.items()[1].remaining(), 4999);
//! # Ok::<_, tower_quota::fields::FieldError>(())
//! ```

mod limit;
mod names;
mod policy;

pub use self::{
    limit::{LimitItem, RateLimit},
    policy::{PolicyItem, RateLimitPolicy},
};
