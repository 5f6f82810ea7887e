//! The servers of a store, with all that its calls need.

use std::{sync::atomic::AtomicU64, time::Duration};

use tokio::sync::watch;

use super::{keyspace::Keyspace, leases::Leases, net::Topology, order::Order, script::ServerTime, scripts::Texts};
use crate::{
    clock::{Clock, Timestamp},
    telemetry::UnsettledTelemetry,
};

/// The servers, and the state that all calls to them share.
pub(super) struct Server {
    pub(super) topology: Topology,
    /// The same for all stores with these servers and this prefix.
    pub(super) identity: u64,
    pub(super) keyspace: Keyspace,
    pub(super) clock: Option<Clock>,
    pub(super) time: ServerTime,
    /// The texts of the scripts.
    pub(super) texts: Texts,
    pub(super) lease_time: Duration,
    pub(super) leases: Leases,
    /// Settlements that are not acknowledged.
    pub(super) order: Order,
    /// True while leases are renewed.
    pub(super) renewing: watch::Sender<bool>,
    /// Has a receiver for each settlement that has not ended, and counts those that were lost since a flush.
    pub(super) settling: watch::Sender<u64>,
    pub(super) unsettled: UnsettledTelemetry,
    /// Until then, in microseconds, decisions do not share calls.
    pub(super) paused_until: AtomicU64,
}

impl Server {
    /// Returns the time of a test; otherwise the server's own clock counts.
    pub(super) fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(Clock::now)
    }
}
