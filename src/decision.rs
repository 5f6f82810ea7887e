//! The second waist: what was decided, and what is known about each policy.

use std::{fmt, time::Duration};

use smallvec::SmallVec;

use crate::{
    plan::{Charge, Plan},
    quota::QuotaPolicy,
};

/// The weight that each policy of a plan had been charged before this decision, in the plan's order.
pub(crate) type Used = SmallVec<[u64; 4]>;

/// What was decided about a request, with one [`Allowance`] per policy.
///
/// The layer puts it into the extensions of every response it has decided on, so that outer layers, logs and tests need
/// not parse header fields:
///
/// ```
/// use tower_quota::{Decision, Outcome};
///
/// fn log(response: &http::Response<()>) {
///     if let Some(decision) = response.extensions().get::<Decision>() {
///         if decision.outcome() == Outcome::Refused {
///             println!("refused, retry after {:?}", decision.retry_after());
///         }
///     }
/// }
/// # log(&http::Response::new(()));
/// ```
#[derive(Clone)]
pub struct Decision {
    outcome: Outcome,
    /// The plan and what a store knew about it; nothing where no store was asked or none answered.
    measured: Option<(Plan, Used)>,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// All policies had quota left; the request was charged and passed on.
    Allowed,
    /// The store gave no decision; the request was passed on without being counted.
    FailedOpen,
    /// The store gave no decision; the request was refused with status 503.
    FailedClosed,
    /// At least one policy had too little quota left; nothing was charged, and the request was refused.
    Refused,
    /// The request could not be attributed to a caller, and the layer refuses such requests.
    Unattributed,
    /// No limit applies to this request.
    Unlimited,
}

impl Outcome {
    /// Whether the request is passed on to the inner service.
    #[inline]
    pub fn is_pass(self) -> bool {
        match self {
            Self::Allowed | Self::FailedOpen | Self::Unlimited => true,
            Self::FailedClosed | Self::Refused | Self::Unattributed => false,
        }
    }
}

impl Decision {
    /// The outcome follows from what had been used: every charge has to fit.
    #[inline]
    pub(crate) fn measured(plan: Plan, used: Used) -> Self {
        debug_assert_eq!(plan.charges().len(), used.len());
        let admitted = plan
            .charges()
            .zip(&used)
            .all(|(charge, used)| charge.is_admitted(*used));
        let outcome = if admitted { Outcome::Allowed } else { Outcome::Refused };
        Self {
            outcome,
            measured: Some((plan, used)),
        }
    }

    pub(crate) const fn unmeasured(outcome: Outcome) -> Self {
        Self {
            outcome,
            measured: None,
        }
    }

    /// What happens to the request.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// One allowance per policy, in the order in which the policies were configured; none if no store gave a decision.
    pub fn allowances(&self) -> impl Iterator<Item = Allowance<'_>> {
        let charged = self.outcome == Outcome::Allowed;
        self.measured
            .iter()
            .flat_map(|(plan, used)| plan.charges().zip(used))
            .map(move |(charge, used)| Allowance {
                charge,
                used: *used,
                charged,
            })
    }

    /// The allowances of the policies that refuse the request.
    pub fn violated(&self) -> impl Iterator<Item = Allowance<'_>> {
        self.allowances().filter(Allowance::is_violated)
    }

    /// How long until the same request passes if nobody else asks: the longest wait of all violated policies.
    ///
    /// `None` if the request was not refused by a policy, or if it never passes because it costs more than a full
    /// bucket.
    pub fn retry_after(&self) -> Option<Duration> {
        self.violated()
            .map(|allowance| allowance.retry_after())
            .reduce(|a, b| Some(a?.max(b?)))?
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome)
            .field("allowances", &self.allowances().collect::<Vec<_>>())
            .finish()
    }
}

/// What one policy leaves to a caller after a [`Decision`].
#[derive(Clone, Copy)]
pub struct Allowance<'a> {
    charge: Charge<'a>,
    used: u64,
    charged: bool,
}

impl<'a> Allowance<'a> {
    /// The policy.
    pub fn policy(&self) -> &'a QuotaPolicy {
        self.charge.policy().policy()
    }

    /// Whole units left, this request's charge taken off if it passed.
    pub fn remaining(&self) -> u64 {
        self.bucket().remaining(self.used_now())
    }

    /// The effective window: a time in which the caller may spread the remaining units.
    ///
    /// For a violated policy it is the wait until this request passes; with nothing left, the wait for the next unit;
    /// otherwise the time in which the bucket gives as many units as are left, so that a client that spends `remaining`
    /// units in `reset` never asks for more than the rate.
    pub fn reset(&self) -> Duration {
        self.retry_after().unwrap_or_else(|| {
            let bucket = self.bucket();
            let micros = match self.remaining() {
                0 => bucket.wait(self.used_now(), bucket.weight).unwrap_or(0),
                remaining => bucket.time_for(remaining),
            };
            Duration::from_micros(micros)
        })
    }

    /// Whether this policy refuses the request.
    pub fn is_violated(&self) -> bool {
        !self.charge.is_admitted(self.used)
    }

    /// How long until this policy lets the same request pass if nobody else asks, exact to the microsecond.
    ///
    /// `None` if it does not refuse the request, or never lets it pass because it costs more than a full bucket.
    pub fn retry_after(&self) -> Option<Duration> {
        if !self.is_violated() {
            return None;
        }
        self.bucket()
            .wait(self.used, self.charge.weight())
            .map(Duration::from_micros)
    }

    fn used_now(&self) -> u64 {
        self.used + if self.charged { self.charge.weight() } else { 0 }
    }

    fn bucket(&self) -> &'a crate::quota::Bucket {
        self.charge.policy().bucket()
    }
}

impl fmt::Debug for Allowance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allowance")
            .field("policy", &self.policy().name())
            .field("remaining", &self.remaining())
            .field("reset", &self.reset())
            .field("retry_after", &self.retry_after())
            .finish()
    }
}
