use std::{sync::atomic::AtomicU64, time::Duration};

use tokio::sync::watch;

use super::{keyspace::Keyspace, leases::Leases, net::Topology, order::Order, script::ServerTime, scripts::Texts};
use crate::{
    clock::{Clock, Timestamp},
    telemetry::UnsettledTelemetry,
};

/// The servers, and the state shared by all calls to them.
pub(super) struct Server {
    pub(super) topology: Topology,
    /// The same for all stores with these servers and this key prefix.
    pub(super) identity: u64,
    pub(super) keyspace: Keyspace,
    pub(super) clock: Option<Clock>,
    pub(super) time: ServerTime,
    pub(super) texts: Texts,
    pub(super) lease_time: Duration,
    pub(super) leases: Leases,
    pub(super) order: Order,
    /// True while leases are renewed.
    pub(super) renewing: watch::Sender<bool>,
    /// Has a receiver for each pending settlement. The value is the number of settlements that were lost since the last
    /// flush that completed.
    pub(super) settling: watch::Sender<u64>,
    pub(super) unsettled: UnsettledTelemetry,
    /// The time in microseconds until which decisions do not share calls.
    pub(super) paused_until: AtomicU64,
}

impl Server {
    /// Returns the time of a test clock, or `None` if the server's clock is used.
    pub(super) fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(Clock::now)
    }
}
