//! The stores, in memory and on a real Redis: that they agree with each other and with a model, and what Redis sees.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod calendar;
mod changes;
mod charges;
mod connections;
mod differential;
mod flush;
mod garbage;
mod late_charges;
mod ledger;
mod limiter;
mod lockouts;
mod longest_call;
mod maxima;
mod model;
mod named_keys;
mod newcomers;
mod overage;
mod partitions;
mod prefetch;
mod questions;
mod ready;
mod reloads;
mod rules_diff;
mod runtimes;
#[path = "../../src/store/redis/scripts/mod.rs"]
#[allow(dead_code, reason = "leases are not renewed by hand here")]
mod scripts;
mod shared_calls;
mod stores;
mod support;
mod support_works;
mod twin_scripts;

use std::time::Duration;

use test_kit::shared_server;
use tower_quota::{RedisStore, RedisStoreBuilder};

/// A store on the one server of this process. It waits for its connections also while the other tests keep the machine busy.
fn shared_store() -> RedisStoreBuilder {
    RedisStore::builder(shared_server().url()).connection_timeout(Duration::from_secs(60))
}
