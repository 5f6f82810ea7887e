//! Servers that a test starts, and that end with it.

mod cluster;
mod redis_server;
mod sentinel;

pub use cluster::{RedisCluster, eventually, shared_cluster};
pub use redis_server::{RedisServer, Setup, free_port, shared_server};
pub use sentinel::Sentinels;
