//! The answer of a store to a plan.

use std::sync::atomic::AtomicBool;

use smallvec::SmallVec;

use super::costs::Costs;
use crate::{
    algorithm::{ChargeRejection, Moments, PolicyReading},
    lease::LeaseId,
};

/// The content of a measurement beside its plan.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// One for each charge, in the plan's order.
    pub(super) read: Reads,
    /// The moment at which each partition was read, in the plan's order.
    pub(super) moments: Moments,
    /// The holder of the slots that the plan has taken, if it was allowed.
    pub(super) lease: Option<LeaseId>,
    pub(super) is_allowed: bool,
    /// The right to settle what was charged, once.
    pub(super) receipt: AtomicBool,
    /// The costs that are charged by now.
    pub(super) charged: Costs,
    /// Units that are known to be used since the store has answered.
    pub(super) used_since: u64,
    /// Where no store was asked.
    pub(super) rejections: ChargeRejections,
}

/// The finding of a store about one charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// The state of the policy before the charge.
    pub(crate) reading: PolicyReading,
    /// True if the store has found that the charge fits.
    pub(crate) fits: bool,
}

/// One for each charge, in a plan's order. Three windows take no allocation.
pub(crate) type Reads = SmallVec<[Read; 3]>;

/// The rejection of each charge, in a plan's order; `None` where it is not known to be rejected.
pub(crate) type ChargeRejections = SmallVec<[Option<ChargeRejection>; 2]>;
