//! The exchange with a store: a plan goes down, a measurement comes back up, a decision is made of it, and a settlement may
//! follow.

mod allowance;
mod decision;
mod measurement;
mod plan;
#[cfg(feature = "redis")]
mod remote;
pub(crate) mod settlement;

#[cfg(feature = "redis")]
pub(crate) use self::remote::PartNumbers;
pub use self::{
    allowance::Allowance,
    decision::{Decision, Outcome},
    measurement::{MeasuredCharge, Measurement},
    plan::{Charge, Plan},
    settlement::Settlement,
};
pub(crate) use self::{
    decision::{Cached, ChargeDenials},
    measurement::{Read, Reads},
    plan::{Costs, PartPlan},
    settlement::PartSettlement,
};
