use std::{sync::atomic::AtomicU64, time::Duration};

use tokio::sync::watch;

use super::{keyspace::Keyspace, leases::Leases, net::Topology, order::Order, script::ServerTime, scripts::Texts};
use crate::{
    clock::{Clock, Timestamp},
    telemetry::UnsettledTelemetry,
};

pub(super) struct Server {
    pub(super) topology: Topology,
    pub(super) identity: u64,
    pub(super) keyspace: Keyspace,
    pub(super) clock: Option<Clock>,
    pub(super) time: ServerTime,
    pub(super) texts: Texts,
    pub(super) lease_time: Duration,
    pub(super) leases: Leases,
    pub(super) order: Order,
    /// Held while leases are renewed.
    pub(super) renewing: tokio::sync::Mutex<()>,
    /// Has a receiver for each pending settlement. The value counts those lost since the last complete flush.
    pub(super) settling: watch::Sender<u64>,
    pub(super) unsettled: UnsettledTelemetry,
    /// Decisions do not share calls until then, in microseconds.
    pub(super) paused_until: AtomicU64,
}

impl Server {
    pub(super) fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(Clock::now)
    }
}
