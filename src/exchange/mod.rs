//! What is exchanged with a store: a plan goes down, a decision comes back up, and a settlement may follow.

mod decision;
mod plan;
pub(crate) mod settlement;

pub use self::{
    decision::{Allowance, Decision, Outcome},
    plan::{Charge, Plan},
    settlement::Settlement,
};
pub(crate) use self::{
    decision::{ChargeDenials, Measured, Remembered},
    plan::{Charges, Costs, PartNumbers, PartPlan},
    settlement::PartSettlement,
};
