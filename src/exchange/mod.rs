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
    forecast::{Availability, Forecast},
    measurement::{MeasuredCharge, Measurement},
    partial::PartialPlan,
    plan::{Charge, Plan},
    refund::ChargeTime,
    settlement::Settlement,
};
pub(crate) use self::{
    costs::{Costs, UnitCosts},
    decision::{Cached, ChargeRejections},
    measurement::{Read, Reads},
    plan::{Mode, PartPlan},
    settlement::PartSettlement,
};
