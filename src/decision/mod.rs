mod allowance;
mod answer;
mod availability;
mod charged;
mod costs;
mod excess;
mod late_charge;
mod measurement;
mod outcome;
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
    availability::Availability,
    measurement::Measurement,
    outcome::{Decision, Outcome},
    plan::{Charge, Plan},
    refund::ChargeTime,
    settlement::Settlement,
};
pub(crate) use self::{
    answer::{ChargeRejections, Read, Reads},
    charged::{Charged, PlanRef},
    costs::{Costs, UnitCosts},
    measurement::MeasuredCharge,
    outcome::{Cached, retry_seconds, whole_seconds},
    plan::{Mode, PartPlan},
    settlement::PartSettlement,
};
