//! The same as `meters` without the feature `metrics`: nothing.

use std::time::Duration;

use crate::{
    clock::Clock,
    error::StoreErrorKind,
    exchange::{Decision, Outcome},
};

#[cfg(feature = "redis")]
pub(super) fn connection_failed() {}

#[cfg(feature = "redis")]
pub(super) fn node_lost() -> LostNode {
    LostNode
}

pub(super) fn evicted() {}

#[cfg(feature = "redis")]
pub(super) fn unsettled() {}

#[derive(Debug, Default)]
pub(super) struct LayerMeters;

impl LayerMeters {
    pub(super) fn decided(&self, _: &str, _: &str, _: &Decision) {}

    pub(super) fn never_fits(&self, _: &str) {}

    pub(super) fn queue_wait(&self, _: &str, _: Duration) {}

    pub(super) fn would_reject(&self, _: &str, _: &str, _: &str) {}

    pub(super) fn unattributed(&self, _: &str) {}

    pub(super) fn uncounted_content(&self, _: &str) {}

    pub(super) fn unknown_tier(&self, _: &str) {}
}

#[cfg(feature = "privacy-pass")]
#[derive(Debug, Default)]
pub(super) struct TokenMeters;

#[cfg(feature = "privacy-pass")]
impl TokenMeters {
    pub(super) fn judged(&self, _: &str, _: &str) {}
}

#[cfg(feature = "privacy-pass")]
#[derive(Debug, Default)]
pub(super) struct CredentialMeters;

#[cfg(feature = "privacy-pass")]
impl CredentialMeters {
    pub(super) fn answered(&self, _: &str) {}
}

#[derive(Debug, Default)]
pub(super) struct StoreMeters;

impl StoreMeters {
    pub(super) fn circuit_opened(&self, _: &str) {}

    pub(super) fn circuit_closed(&self, _: &str) {}

    pub(super) fn remembered(&self, _: &str) {}

    pub(super) fn undecided(&self, _: &str, _: StoreErrorKind) {}

    pub(super) fn failed_while_closed(&self, _: &str, _: Outcome) {}

    pub(super) fn answered(&self, _: &str, _: Stopwatch, _: &Clock) {}

    pub(super) fn slots_held(&self, _: &str) -> HeldSlots {
        HeldSlots
    }
}

/// Reads no clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch;

impl Stopwatch {
    pub(crate) fn start(_: &Clock) -> Self {
        Self
    }
}

#[derive(Debug)]
pub(crate) struct HeldSlots;

#[cfg(feature = "redis")]
#[derive(Debug)]
pub(crate) struct LostNode;
