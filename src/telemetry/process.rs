use super::{
    facade::{Counter, Gauge},
    throttle::EventThrottle,
};

metrics! {
    fn start {
        connection_failures: Counter = "tower_quota_connection_failures_total",
            "Connections to Redis that could not be opened";
        evictions: Counter = "tower_quota_evictions_total", "Partitions evicted by a full memory store";
        lost_nodes: Gauge = "tower_quota_lost_nodes",
            "Redis cluster nodes that are not called because they do not respond";
        tier_waits: Counter = "tower_quota_tier_waits_total", "Requests that waited for the tier of their user";
        unread_bodies: Counter = "tower_quota_unread_bodies_total",
            "Request bodies dropped before their end after a rejection";
        unsettled: Counter = "tower_quota_unsettled_total", "Settlements dropped by a store";
    }
}

#[cfg(feature = "redis")]
pub(crate) fn connection_failed(error: &dyn std::fmt::Display) {
    connection_failures().increment(1);
    event!(DEBUG, error = %error, "connection to Redis failed");
}

/// The node counts as lost until the returned guard is dropped.
#[cfg(feature = "redis")]
pub(crate) fn node_lost(address: &str, error: &dyn std::fmt::Display) -> super::OneMore {
    event!(ERROR, node = %address, error = %error, "circuit opened: cluster node not responding");
    super::OneMore::on(&lost_nodes())
}

#[cfg(feature = "redis")]
pub(crate) fn node_back(address: &str, unsent: u64) {
    event!(WARN, node = %address, unsent = %unsent, "circuit closed: cluster node responding again");
}

#[cold]
pub(crate) fn body_unread() {
    static UNREAD: EventThrottle = EventThrottle::new();
    unread_bodies().increment(1);
    throttled!(
        UNREAD, at super::now(), WARN,
        "request body dropped after a rejection: the client may not receive the response"
    );
}

#[cfg(feature = "redis")]
#[derive(Debug, Default)]
pub(crate) struct UnsettledTelemetry(EventThrottle);

#[cfg(feature = "redis")]
impl UnsettledTelemetry {
    pub(crate) fn record(&self, now: crate::clock::Timestamp, error: &crate::error::StoreError) {
        unsettled().increment(1);
        throttled!(
            self.0, at now, WARN,
            error = %error,
            "settlement failed: a refund, late charge or slot release was lost"
        );
    }
}
