//! Types of the `redis` crate that are part of this crate's API.
//!
//! Used by [`RedisStore::from_pool`](crate::RedisStore::from_pool),
//! [`RedisStoreBuilder::connect_with`](crate::RedisStoreBuilder::connect_with),
//! [`RedisStoreBuilder::connection_info_with`](crate::RedisStoreBuilder::connection_info_with) and
//! [`RedisStore::command`](crate::RedisStore::command). Import them from here, because your own dependency on `redis`
//! or `bb8-redis` may have another version.
//!
//! ```
//! use tower_quota::redis::{Client, ConnectionAddr, ConnectionInfo};
//!
//! /// Connects through a local tunnel; user, password and database stay unchanged.
//! fn through_tunnel(to: ConnectionInfo) -> ConnectionInfo {
//!     to.set_addr(ConnectionAddr::Tcp("127.0.0.1".to_owned(), 6380))
//! }
//!
//! let client = Client::open("redis://limiter:password@limits.example/2")?;
//! let to = through_tunnel(client.get_connection_info().clone());
//! assert_eq!(to.addr().to_string(), "127.0.0.1:6380");
//! assert_eq!(to.redis_settings().username(), Some("limiter"));
//! assert_eq!(to.redis_settings().db(), 2);
//! # Ok::<_, tower_quota::redis::RedisError>(())
//! ```
pub use ::bb8_redis::{RedisConnectionManager, bb8};
pub use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, RedisConnectionInfo,
    RedisError, Value, aio::MultiplexedConnection, cmd, from_redis_value,
};
