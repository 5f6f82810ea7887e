//! The exchange with a store: a plan goes down, a measurement comes back up, a decision is made of it, and a settlement may
//! follow.

mod allowance;
mod costs;
mod decision;
mod forecast;
mod measurement;
mod partial;
mod plan;
mod refund;
#[cfg(feature = "redis")]
mod remote;
pub(crate) mod settlement;

#[cfg(feature = "redis")]
pub(crate) use self::remote::PartNumbers;
pub use self::{
    allowance::Allowance,
    decision::{Decision, Outcome},
    forecast::{Forecast, Passes},
    measurement::{MeasuredCharge, Measurement},
    partial::PartialPlan,
    plan::{Charge, Plan},
    refund::Charged,
    settlement::Settlement,
};
pub(crate) use self::{
    costs::{Costs, UnitCosts},
    decision::{Cached, ChargeDenials},
    measurement::{Read, Reads},
    plan::{Mode, PartPlan},
    settlement::PartSettlement,
};
