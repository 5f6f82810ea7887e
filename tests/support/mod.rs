//! A Redis server of one's own and a proxy to disturb it with, for the tests, the unit tests and the benchmarks.
//!
//! Integration tests say `mod support;`. Elsewhere it is included by path, and once only in a crate, or two servers
//! would be called the shared one.

#![allow(
    dead_code,
    unused_imports,
    reason = "every program that includes this module uses a part of it"
)]
#![allow(
    missing_docs,
    unreachable_pub,
    reason = "nothing here is part of the crate's interface"
)]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(
    clippy::disallowed_methods,
    reason = "servers start in real time, not in that of a test"
)]

mod cluster;
mod proxy;
mod redis_server;
mod resp;
mod scripted;
mod sentinel;

pub use cluster::{RedisCluster, eventually, shared_cluster};
pub use proxy::{Mode, Proxy};
pub use redis_server::{RedisServer, Setup, free_port, shared_server};
pub use resp::{encode, read_reply};
pub use scripted::{ScriptCall, ScriptedServer, bulk};
pub use sentinel::Sentinels;
