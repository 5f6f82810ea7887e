#[cfg(feature = "metrics")]
use super::facade::Unit;
use super::facade::{counter, describe_counter, describe_gauge, describe_histogram, gauge};

/// Defines a constant for each metric, and a function that passes all descriptions to the recorder.
macro_rules! catalog {
    ($($describe:ident in $unit:ident { $($constant:ident $name:literal $description:literal;)* })*) => {
        $($(pub(super) const $constant: &str = $name;)*)*

        fn describe() {
            $($($describe!($constant, Unit::$unit, $description);)*)*
        }
    };
}

catalog! {
    describe_counter in Count {
        CONNECTION_FAILURES "tower_quota_connection_failures_total" "Connections to Redis that could not be opened";
        DECISIONS "tower_quota_decisions_total" "Decisions, by outcome";
        EXCESS_UNITS "tower_quota_excess_units_total" "Units of late charges above the bound, which were not charged";
        REJECTION_CACHE_HITS "tower_quota_rejection_cache_hits_total" "Requests rejected without a store call";
        EVICTIONS "tower_quota_evictions_total" "Partitions evicted by a full memory store";
        FAILED "tower_quota_failed_total" "Requests undecided by any store, by failure mode";
        FAILED_WHILE_CLOSED "tower_quota_failed_while_closed_total"
            "Requests undecided while the circuit was closed, by failure mode";
        LATE_CHARGES "tower_quota_late_charges_total" "Charges of completed work, by result";
        LATE_BATCHES "tower_quota_late_batches_total"
            "Prefetched batches whose call missed the deadline or failed, by result";
        NEW_PARTITIONS "tower_quota_new_partitions_total" "Charges to partitions without state in a remote store";
        NEVER_FITS "tower_quota_never_fits_total" "Requests whose cost exceeds the capacity of a policy";
        REFUNDS "tower_quota_refunds_total" "Refunds of callers that did not fail, by result";
        OVER_QUOTA "tower_quota_over_quota_total" "Requests admitted above a quota, within its overage";
        SHADOW_REJECTIONS "tower_quota_shadow_rejections_total" "Requests that a shadow policy would have rejected";
        STATE_LOST "tower_quota_state_lost_total" "Exhausted partitions whose state the store lost";
        TIER_UNRESOLVED "tower_quota_tier_unresolved_total"
            "Requests that proceeded while the tier of their user was unknown";
        TIER_WAITS "tower_quota_tier_waits_total" "Requests that waited for the tier of their user";
        UNATTRIBUTED "tower_quota_unattributed_total" "Requests without a key";
        UNCOUNTED_CONTENT "tower_quota_uncounted_content_total"
            "Requests with content of unknown length, which is not counted";
        UNDECIDED "tower_quota_undecided_total" "Requests undecided by the store, by reason";
        UNKNOWN_TIER "tower_quota_unknown_tier_total" "Requests with an unknown tier";
        UNITS "tower_quota_units_total" "Custom units, estimated and actual";
        UNREAD_BODIES "tower_quota_unread_bodies_total" "Request bodies dropped before their end after a rejection";
        UNSETTLED "tower_quota_unsettled_total" "Settlements dropped by a store";
    }
    describe_gauge in Count {
        CIRCUIT_OPEN "tower_quota_circuit_open" "Open circuit breakers";
        LIMITS_OFF "tower_quota_limits_off" "Layers whose limits are switched off";
        LOST_NODES "tower_quota_lost_nodes" "Redis cluster nodes that are not called because they do not respond";
        SLOTS_HELD "tower_quota_slots_held" "Requests that hold a slot of a concurrency limit";
    }
    describe_histogram in Seconds {
        QUEUE_WAIT "tower_quota_queue_wait_seconds" "Time that requests are queued in a leaky bucket";
        STORE "tower_quota_store_seconds" "Time until the store responded or the deadline passed";
    }
}

/// Metrics without labels start at 0, because Prometheus rates ignore the first value of a series.
pub(super) fn register() {
    describe();
    for name in [CONNECTION_FAILURES, EVICTIONS, TIER_WAITS, UNREAD_BODIES, UNSETTLED] {
        counter!(name).increment(0);
    }
    gauge!(LOST_NODES).increment(0.0);
}
