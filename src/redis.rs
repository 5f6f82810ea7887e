//! The types of the `redis` crate that are part of this crate's interface, for
//! [`RedisStoreBuilder::connect_with`](crate::RedisStoreBuilder::connect_with),
//! [`RedisStoreBuilder::connection_info_with`](crate::RedisStoreBuilder::connection_info_with) and
//! [`RedisStore::command`](crate::RedisStore::command).
//!
//! They belong to one version of that crate, and nothing else here shows any of its types. Use them from here rather than
//! from a `redis` of your own, which may be another version. What a [`ConnectionInfo`] or [`Client`] can do, the crate's
//! own documentation says. Nothing here connects by itself: what a function of yours does with these types is up to it.
//!
//! ```
//! use tower_quota::redis::{Client, ConnectionAddr, ConnectionInfo, RedisError};
//!
//! /// The way through a tunnel on this computer; user, password and database stay as they are.
//! fn through_tunnel(to: ConnectionInfo) -> ConnectionInfo {
//!     to.set_addr(ConnectionAddr::Tcp("127.0.0.1".to_owned(), 6380))
//! }
//!
//! let client = Client::open("redis://limiter:password@limits.example/2")?;
//! let to = through_tunnel(client.get_connection_info().clone());
//! assert_eq!(to.addr().to_string(), "127.0.0.1:6380");
//! assert_eq!(to.redis_settings().username(), Some("limiter"));
//! assert_eq!(to.redis_settings().db(), 2);
//! # Ok::<_, RedisError>(())
//! ```
pub use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, RedisConnectionInfo,
    RedisError, Value, aio::MultiplexedConnection, cmd, from_redis_value,
};
