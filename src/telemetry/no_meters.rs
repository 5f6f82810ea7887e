//! The items of `meters` without the feature `metrics`: they do nothing.

use std::time::Duration;

use super::labels::LayerCount;
use crate::{
    clock::Clock,
    decision::{Decision, Outcome},
    error::StoreErrorKind,
};

#[cfg(feature = "redis")]
pub(super) fn connection_failed() {}

#[cfg(feature = "redis")]
pub(super) fn node_lost() -> OneMore {
    OneMore
}

#[cfg(feature = "redis")]
pub(super) fn server(_: f64, _: u64) {}

pub(super) fn evicted() {}

#[cfg(feature = "redis")]
pub(super) fn unsettled() {}

#[derive(Debug, Default)]
pub(super) struct LayerMeters;

impl LayerMeters {
    pub(super) fn announce(_: &str) {}

    pub(super) fn decided(&self, _: &str, _: &str, _: &Decision) {}

    pub(super) fn count(&self, _: &str, _: LayerCount) {}

    pub(super) fn refunded(&self, _: &str, _: &str) {}

    pub(super) fn queue_wait(&self, _: &str, _: Duration) {}

    pub(super) fn would_reject(&self, _: &str, _: &str, _: &str) {}
}

#[derive(Debug)]
pub(crate) struct SwitchMeter;

impl SwitchMeter {
    pub(crate) fn new(_: &str) -> Self {
        Self
    }

    pub(crate) fn turned(&self, _: impl FnOnce() -> bool) {}
}

#[derive(Debug, Default)]
pub(super) struct TierMeters;

impl TierMeters {
    pub(super) fn waits(&self) {}

    pub(super) fn unresolved(&self, _: super::labels::Unresolved) {}
}

#[derive(Debug, Default)]
pub(super) struct StoreMeters;

impl StoreMeters {
    pub(super) fn new(_: &str) -> Self {
        Self
    }

    pub(super) fn circuit_opened(&self, _: &str) {}

    pub(super) fn circuit_closed(&self, _: &str) {}

    pub(super) fn remembered(&self, _: &str) {}

    pub(super) fn late_batch(&self, _: &str, _: super::LateBatch) {}

    pub(super) fn created(&self, _: &str) {}

    pub(super) fn state_lost(&self, _: &str) {}

    pub(super) fn undecided(&self, _: &str, _: StoreErrorKind) {}

    pub(super) fn failed_while_closed(&self, _: &str, _: Outcome) {}

    pub(super) fn answered(&self, _: &str, _: Duration) {}

    pub(super) fn units(&self, _: &str, _: &str, _: u64, _: u64) {}

    pub(super) fn slots_held(&self, _: &str) -> OneMore {
        OneMore
    }
}

/// Reads no clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch;

impl Stopwatch {
    pub(crate) fn start(_: &Clock) -> Self {
        Self
    }

    pub(super) fn elapsed(self, _: &Clock) -> Duration {
        Duration::ZERO
    }
}

#[derive(Debug)]
pub(crate) struct OneMore;
