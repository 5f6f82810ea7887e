//! The kit of the tests and benchmarks: private servers, a proxy that injects faults, stores and requests.

#![allow(missing_docs, reason = "nothing here is published")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(
    clippy::disallowed_methods,
    reason = "servers start in real time, not in that of a test"
)]

mod client;
pub mod load;
mod log;
pub mod partition_steps;
mod proxy;
mod remote_store;
mod resp;
mod scripted;
#[cfg(unix)]
mod servers;
mod store;
mod table;

pub use client::{Answered, Hello, call, cost, costing, hello, limits, limits_by, limits_of, request, send};
pub use log::Log;
pub use proxy::{Mode, Proxy, ReplyFault};
pub use remote_store::RemoteStore;
pub use resp::{encode, read_reply};
pub use scripted::{ScriptCall, ScriptedServer, bulk};
#[cfg(unix)]
pub use servers::{RedisCluster, RedisServer, Sentinels, Setup, eventually, free_port, shared_cluster, shared_server};
pub use store::{TestStore, Timing, clock, memory};
pub use table::rows;
