use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::{
    on_unknown_tier::OnUnknownTier,
    shard::{Shard, Times},
};
use crate::{clock::Clock, partition::Scope, sync::sharded::Sharded, telemetry::TierTelemetry};

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) times: Times,
    pub(super) renewal_deadline: Duration,
    pub(super) on_unknown_tier: OnUnknownTier,
    pub(super) look_up_timeout: Duration,
    pub(super) max_look_ups: usize,
    pub(super) max_users: usize,
    pub(super) max_waiting: usize,
}

/// Shared by the clones of a cache and the lookups in progress.
pub(super) struct Shared {
    pub(super) shards: Sharded<Shard>,
    pub(super) scope: Scope,
    pub(super) settings: Settings,
    /// Limits concurrent lookups.
    pub(super) places: Arc<Semaphore>,
    /// Limits lookups that are queued because of `places`.
    pub(super) queue: Arc<Semaphore>,
    /// Limits requests that wait for a lookup.
    pub(super) waiting: Arc<Semaphore>,
    pub(super) clock: Clock,
    pub(super) log: TierTelemetry,
}
