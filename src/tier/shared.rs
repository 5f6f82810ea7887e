//! The state that look-ups share with the cache.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::{
    on_unknown_tier::OnUnknownTier,
    shard::{Shard, Times},
};
use crate::{clock::Clock, partition::Scope, sync::sharded::Sharded, telemetry::TierTelemetry};

/// The sizes and times of a cache.
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

/// The state that clones of a cache share with the look-ups in progress.
pub(super) struct Shared {
    pub(super) shards: Sharded<Shard>,
    pub(super) scope: Scope,
    pub(super) settings: Settings,
    /// For the look-ups that may ask the source at the same time.
    pub(super) places: Arc<Semaphore>,
    /// For the look-ups that wait for a place.
    pub(super) queue: Arc<Semaphore>,
    /// For the requests that wait for a look-up.
    pub(super) waiting: Arc<Semaphore>,
    pub(super) clock: Clock,
    pub(super) log: TierTelemetry,
}
