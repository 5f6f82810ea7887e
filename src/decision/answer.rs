use std::sync::atomic::AtomicBool;

use smallvec::SmallVec;

use super::costs::Costs;
use crate::{
    algorithm::{ChargeRejection, Moments, PolicyReading},
    lease::LeaseId,
};

#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) read: Reads,
    pub(super) moments: Moments,
    pub(super) lease: Option<LeaseId>,
    pub(super) is_allowed: bool,
    pub(super) receipt: AtomicBool,
    pub(super) charged: Costs,
    pub(super) used_since: u64,
    /// Empty if a store was called.
    pub(super) rejections: ChargeRejections,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) reading: PolicyReading,
    pub(crate) fits: bool,
}

pub(crate) type Reads = SmallVec<[Read; 3]>;

/// One per charge; `None` if it may pass.
pub(crate) type ChargeRejections = SmallVec<[Option<ChargeRejection>; 2]>;
