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
    /// If the plan was allowed and has slots.
    pub(super) lease: Option<LeaseId>,
    pub(super) is_allowed: bool,
    /// True while the charge can be settled.
    pub(super) receipt: AtomicBool,
    /// After changes to the charge.
    pub(super) charged: Costs,
    /// Units used after the store responded.
    pub(super) used_since: u64,
    /// Empty if a store was called.
    pub(super) rejections: ChargeRejections,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) reading: PolicyReading,
    pub(crate) fits: bool,
}

/// One per charge, in plan order.
pub(crate) type Reads = SmallVec<[Read; 3]>;

/// One per charge, in plan order; `None` if the charge may pass.
pub(crate) type ChargeRejections = SmallVec<[Option<ChargeRejection>; 2]>;
