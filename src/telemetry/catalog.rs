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
        DECISIONS "tower_quota_decisions_total" "Requests by what was decided about them";
        REJECTION_CACHE_HITS "tower_quota_rejection_cache_hits_total" "Requests that were rejected without asking the store";
        EVICTIONS "tower_quota_evictions_total" "Partitions that a full memory store has evicted";
        FAILED "tower_quota_failed_total" "Requests that no store decided, by the failure mode";
        FAILED_WHILE_CLOSED "tower_quota_failed_while_closed_total"
            "Requests that no store decided although the circuit was closed, by the failure mode";
        LATE_BATCHES "tower_quota_late_batches_total"
            "Batches of prefetched units whose call missed the deadline or failed, by what became of them";
        NEW_PARTITIONS "tower_quota_new_partitions_total" "Charges to partitions of which a remote store had no state";
        NEVER_FITS "tower_quota_never_fits_total" "Requests that cost more than a policy ever lets pass";
        REFUNDS "tower_quota_refunds_total" "Refunds through the admin handle, by what became of them";
        SERVER_EVICTIONS "tower_quota_server_evictions_total" "Keys that Redis servers have evicted, those of other programs included";
        OVER_QUOTA "tower_quota_over_quota_total" "Requests that were admitted above a quota, within its overage";
        SHADOW_REJECTIONS "tower_quota_shadow_rejections_total" "Requests that a policy in shadow mode would have rejected";
        STATE_LOST "tower_quota_state_lost_total" "Exhausted partitions whose state the store has lost";
        TIER_UNRESOLVED "tower_quota_tier_unresolved_total" "Requests that went on while the tier of their user was unknown";
        TIER_WAITS "tower_quota_tier_waits_total" "Requests that waited for the tier of their user";
        UNATTRIBUTED "tower_quota_unattributed_total" "Requests without a key";
        UNCOUNTED_CONTENT "tower_quota_uncounted_content_total"
            "Requests whose content has no known length and is not counted";
        UNDECIDED "tower_quota_undecided_total" "Requests that the store gave no decision for, by the reason";
        UNKNOWN_TIER "tower_quota_unknown_tier_total" "Requests of a tier that is not configured";
        UNITS "tower_quota_units_total" "Units of the program's own, as they were expected and as they were used";
        UNSETTLED "tower_quota_unsettled_total" "Settlements that a store has dropped";
    }
    describe_gauge in Count {
        CIRCUIT_OPEN "tower_quota_circuit_open" "Circuit breakers that are open";
        LIMITS_OFF "tower_quota_limits_off" "Layers that apply no limits, because a switch is off";
        LOST_NODES "tower_quota_lost_nodes" "Nodes of Redis clusters that are not asked because they do not answer";
        SERVER_MEMORY "tower_quota_server_memory_ratio" "The highest share of its memory limit that a Redis server uses";
        SLOTS_HELD "tower_quota_slots_held" "Requests that hold a slot of a limit of concurrent requests";
    }
    describe_histogram in Seconds {
        QUEUE_WAIT "tower_quota_queue_wait_seconds" "Time that requests in a leaky bucket wait for their turn";
        STORE "tower_quota_store_seconds" "Time until the store answered or the deadline passed";
    }
}

/// Describes all metrics to the recorder. Also initializes metrics without labels with 0, because Prometheus rates
/// ignore the first value of a series.
pub(super) fn register() {
    describe();
    for name in [CONNECTION_FAILURES, EVICTIONS, SERVER_EVICTIONS, TIER_WAITS, UNSETTLED] {
        counter!(name).increment(0);
    }
    for name in [LOST_NODES, SERVER_MEMORY] {
        gauge!(name).increment(0.0);
    }
}
