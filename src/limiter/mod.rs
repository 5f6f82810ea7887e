mod builder;
mod caller;
mod charge;
mod error;
mod guard;
mod handle;
mod inner;
mod keys;
mod late_charge;
mod message;
mod permit;
mod recent;
mod refund;
mod usage;

use self::inner::Inner;
pub(crate) use self::inner::{MemoryCharge, Question};
pub use self::{
    builder::LimiterBuilder,
    caller::Caller,
    error::LimiterError,
    guard::FailureMode,
    handle::Limiter,
    keys::MissingKey,
    late_charge::{LateCharge, LateChargeOutcome},
    permit::{Permit, WeakPermit, WithPermit},
    refund::{Refund, RefundOutcome},
};
pub(crate) use self::{
    charge::OpenCharge,
    guard::{DecisionState, Guard, PendingDecision},
    keys::{Attributed, Keys},
};
