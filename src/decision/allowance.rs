//! The rest that each policy leaves to a caller.

use std::{fmt, time::Duration};

use super::{availability::Availability, measurement::MeasuredCharge, plan::Charge};
use crate::{
    algorithm::{ChargeRejection, Limit},
    partition::PartitionId,
    policy::QuotaPolicy,
};

/// The rest of one policy that a caller has after a [`Decision`](crate::Decision).
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use std::time::Duration;
/// # run(async {
/// # let store = MemoryStore::new();
/// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// let policies = PolicySet::new([QuotaPolicy::per_hour("hour", 10), QuotaPolicy::per_day("day", 200)])?;
/// let mails = |count| Plan::new(policies.clone(), alice, count);
///
/// let allowed = store.decide(mails(8)).await?;
/// let hour = allowed.allowances().next().expect("there is one of each policy");
/// assert_eq!((hour.policy().name(), hour.partition(), hour.cost()), ("hour", alice, 8));
/// // 2 are left, and that many come back in 12 minutes.
/// assert_eq!((hour.remaining(), hour.effective_window()), (2, Some(Duration::from_secs(12 * 60))));
/// assert_eq!((hour.is_violated(), hour.retry_after()), (false, None));
///
/// let rejected = store.decide(mails(5)).await?;
/// let violated: Vec<_> = rejected.violated().map(|allowance| allowance.policy().name()).collect();
/// assert_eq!(violated, ["hour"]);
/// let hour = rejected.violated().next().expect("it has rejected the request");
/// assert!(hour.retry_after() <= Some(Duration::from_secs(18 * 60)));
/// assert_eq!(hour.remaining(), 2);
/// // A bucket of 10 never lets 11 pass.
/// assert_eq!(store.decide(mails(11)).await?.retry_after(), None);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy)]
pub struct Allowance<'a> {
    pub(super) charge: Charge<'a>,
    pub(super) known: Known<'a>,
}

/// The facts about a charge.
#[derive(Clone, Copy)]
pub(super) enum Known<'a> {
    /// It is still rejected.
    Rejection(ChargeRejection),
    /// The measurement of the store, and the weight that is charged by now: the charge, and units that were used since.
    Measured { measured: MeasuredCharge<'a>, charged: u64 },
}

impl<'a> Allowance<'a> {
    /// The policy that it is about.
    pub fn policy(&self) -> &'a QuotaPolicy {
        self.charge.policy().policy()
    }

    /// The partition whose quota it is about.
    pub fn partition(&self) -> PartitionId {
        self.charge.partition()
    }

    /// The cost of the request, in the policy's unit.
    pub fn cost(&self) -> u64 {
        self.charge.cost()
    }

    /// Whole units left, this request's charge taken off if it passed.
    ///
    /// 0 above the quota of a policy with an [overage](QuotaPolicy::with_overage), during a
    /// [lockout](QuotaPolicy::with_lockout), and in a [cached](crate::Decision::is_cached) rejection with a
    /// [wait](Self::retry_after): fewer than the request costs are left, and others may have used those since.
    pub fn remaining(&self) -> u64 {
        self.left().0
    }

    /// The effective window: a time in which the caller may spread the remaining units. A limit of concurrent requests
    /// has none, and neither has a policy with quota 0.
    ///
    /// For a violated policy it is the wait until this request passes; with nothing left, the wait for the next unit, which
    /// comes after the end of a [lockout](QuotaPolicy::with_lockout).
    /// Otherwise, for a bucket, the time in which it gives as many units as are left, so that a client that spends
    /// `remaining` units in this time never asks for more than the rate; and for a window, the time until it ends or its
    /// oldest unit leaves it, but never so short that such a client would ask for more than twice the rate.
    pub fn effective_window(&self) -> Option<Duration> {
        self.left().1
    }

    /// The units that [remain](Self::remaining), and their [effective window](Self::effective_window).
    #[inline]
    pub(crate) fn left(&self) -> (u64, Option<Duration>) {
        let wait = self.wait().filter(|_| self.policy().is_timed());
        let (remaining, micros) = match self.known {
            Known::Measured { measured, charged } => {
                let now = measured.moment.now.as_micros();
                let (remaining, reset) = self.limit().left_after(measured.reading, now, charged);
                (remaining, wait.or(reset.map(|micros| measured.moment.until(micros))))
            }
            Known::Rejection(ChargeRejection::For(_)) => (0, wait),
            Known::Rejection(ChargeRejection::Never { remaining, reset }) => (remaining, reset),
        };
        let remaining = remaining.saturating_sub(self.policy().overage_units());
        (remaining, micros.map(Duration::from_micros))
    }

    /// Returns the units used above the quota, including this request's charge: at most the policy's
    /// [overage](QuotaPolicy::with_overage). Returns 0 for a policy without an overage, and for a
    /// [cached](crate::Decision::is_cached) rejection.
    pub fn over_quota(&self) -> u64 {
        match (self.policy().overage_units(), self.known) {
            (1.., Known::Measured { measured, charged }) => {
                let now = measured.moment.now.as_micros();
                let (remaining, _) = self.limit().left_after(measured.reading, now, charged);
                self.policy().overage_units().saturating_sub(remaining)
            }
            _ => 0,
        }
    }

    /// Returns `true` if this policy rejects the request, or would if it were not a [shadow](QuotaPolicy::shadow).
    pub fn is_violated(&self) -> bool {
        match self.known {
            Known::Rejection(_) => true,
            Known::Measured { measured, .. } => !measured.is_within_limit(),
        }
    }

    /// The time until this policy lets the same request pass if no other request comes, exact to the microsecond. For a limit
    /// of concurrent requests it is a guess of one second.
    ///
    /// `None` if the policy does not reject the request, or never lets it pass because it costs more than the policy ever
    /// lets pass, or because the quota is 0. In a [cached](crate::Decision::is_cached) rejection, a
    /// [log](crate::Algorithm::SlidingWindowLog) may tell up to a whole window to a request that costs more than the one that
    /// the store has rejected.
    pub fn retry_after(&self) -> Option<Duration> {
        self.wait().map(Duration::from_micros)
    }

    /// The answer whether the same request passes this policy, and if not now, when.
    ///
    /// It says what [`retry_after`](Self::retry_after) says, and tells apart a request that never passes from one that is
    /// not rejected.
    pub fn availability(&self) -> Availability {
        match self.retry_after() {
            _ if !self.is_violated() => Availability::Now,
            Some(_) if !self.policy().is_timed() => Availability::OnRelease,
            Some(wait) => Availability::After(wait),
            None => Availability::Never,
        }
    }

    /// The time until the policy is full again if no other request comes: then all of its units are there and no
    /// [lockout](QuotaPolicy::with_lockout) is left, and a microsecond earlier that is not so.
    ///
    /// You want it to say when a whole quota is back, or to keep a record for as long as it differs from a new one. A
    /// client need not wait for it: see [`effective_window`](Self::effective_window).
    ///
    /// `None` if nothing is used, if it is not known when the units come back (slots of a limit of concurrent requests
    /// do when their requests end), and in a [cached](crate::Decision::is_cached) rejection.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// # let store = MemoryStore::new();
    /// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("hour", 60)])?;
    ///
    /// let decision = store.decide(Plan::new(policies.clone(), alice, 0)).await?;
    /// assert_eq!(decision.allowances().next().and_then(|hour| hour.full_after()), None);
    /// // Ten units come back in ten minutes.
    /// let decision = store.decide(Plan::new(policies, alice, 10)).await?;
    /// let full_after = decision.allowances().next().and_then(|hour| hour.full_after());
    /// assert_eq!(full_after, Some(Duration::from_secs(600)));
    /// # Ok(()) });
    /// ```
    pub fn full_after(&self) -> Option<Duration> {
        let Known::Measured { measured, charged } = self.known else {
            return None;
        };
        let (limit, now) = (self.limit(), measured.moment.now.as_micros());
        let micros = limit.full_after(limit.charged(*measured.reading, now, charged), now)?;
        Some(Duration::from_micros(measured.moment.until(micros)))
    }

    fn wait(&self) -> Option<u64> {
        match self.known {
            Known::Rejection(ChargeRejection::For(micros)) => Some(micros),
            Known::Rejection(ChargeRejection::Never { .. }) => None,
            Known::Measured { measured, .. } if !measured.is_within_limit() => {
                let moment = measured.moment;
                let wait = self
                    .limit()
                    .wait(*measured.reading, moment.now.as_micros(), self.charge.weight());
                // A slot becomes free at any time.
                let is_timed = self.policy().is_timed();
                wait.map(|micros| if is_timed { moment.until(micros) } else { micros })
            }
            Known::Measured { .. } => None,
        }
    }

    /// The window, or the current one of a calendar.
    pub(crate) fn window(&self) -> Option<Duration> {
        let Known::Measured { measured, .. } = self.known else {
            return self.policy().usual_window();
        };
        let own = self.limit().counter.window_micros(measured.moment.now.as_micros());
        own.map(Duration::from_micros).or(self.policy().window())
    }

    fn limit(&self) -> &'a Limit {
        self.charge.policy().limit()
    }
}

impl fmt::Debug for Allowance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allowance")
            .field("policy", &self.policy().name())
            .field("remaining", &self.remaining())
            .field("effective_window", &self.effective_window())
            .field("retry_after", &self.retry_after())
            .finish()
    }
}
