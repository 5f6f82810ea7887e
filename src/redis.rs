//! The types of the `redis` crate that are part of this crate's interface, for
//! [`RedisStoreBuilder::connect_with`](crate::RedisStoreBuilder::connect_with).
//!
//! They belong to one version of that crate, and nothing else here shows any of its types. Use them from here rather than
//! from a `redis` of your own, which may be another version. What a [`ConnectionInfo`] or [`Client`] can do, the crate's
//! own documentation says.

pub use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError,
    aio::MultiplexedConnection,
};
