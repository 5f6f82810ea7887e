use std::{fmt, time::Duration};

use super::{availability::Availability, measurement::MeasuredCharge, plan::Charge};
use crate::{
    algorithm::{ChargeRejection, Limit},
    partition::PartitionId,
    policy::QuotaPolicy,
};

/// The remaining quota of one policy after a [`Decision`](crate::Decision).
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = MemoryStore::new();
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// let policies = PolicySet::new([QuotaPolicy::per_hour("hour", 10), QuotaPolicy::per_day("day", 200)])?;
/// let mails = |count| Plan::new(policies.clone(), alice, count);
///
/// let allowed = store.decide(mails(8)).await?;
/// let hour = allowed.allowances().next().expect("there is one of each policy");
/// assert_eq!((hour.policy().name(), hour.partition(), hour.cost()), ("hour", alice, 8));
/// // 2 units remain, and refill in 12 minutes. All units are restored after 48 minutes.
/// assert_eq!((hour.remaining(), hour.effective_window()), (2, Some(Duration::from_secs(12 * 60))));
/// assert_eq!(hour.full_after(), Some(Duration::from_secs(48 * 60)));
/// assert_eq!((hour.is_violated(), hour.retry_after()), (false, None));
///
/// let rejected = store.decide(mails(5)).await?;
/// let hour = rejected.violated().next().expect("it has rejected the request");
/// assert_eq!((hour.policy().name(), hour.remaining()), ("hour", 2));
/// assert!(hour.retry_after() <= Some(Duration::from_secs(18 * 60)));
/// # assert_eq!(rejected.violated().count(), 1);
/// // A bucket of 10 never admits 11.
/// assert_eq!(store.decide(mails(11)).await?.retry_after(), None);
/// # let unused = Plan::new(policies, Scope::new("mails").partition(&PartitionKey::new("user", "bob")), 0);
/// # assert_eq!(store.decide(unused).await?.allowances().next().and_then(|hour| hour.full_after()), None);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy)]
pub struct Allowance<'a> {
    pub(super) charge: Charge<'a>,
    pub(super) known: Known<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Known<'a> {
    Rejection(ChargeRejection),
    Measured { measured: MeasuredCharge<'a>, charged: u64 },
}

impl<'a> Allowance<'a> {
    /// Returns the policy.
    pub fn policy(&self) -> &'a QuotaPolicy {
        self.charge.policy()
    }

    /// Returns the charged partition.
    pub fn partition(&self) -> PartitionId {
        self.charge.partition()
    }

    /// Returns the cost of the request, in the policy's unit.
    pub fn cost(&self) -> u64 {
        self.charge.cost()
    }

    /// Returns the remaining whole units, after this request's charge if it was admitted.
    ///
    /// 0 above the quota of a policy with an [overage](QuotaPolicy::with_overage), during a
    /// [lockout](QuotaPolicy::with_lockout), and in a [cached](crate::Decision::is_cached) rejection with a
    /// [wait](Self::retry_after).
    pub fn remaining(&self) -> u64 {
        self.left().0
    }

    /// Returns the effective window: a time over which the caller can spread the remaining units.
    ///
    /// - For a violated policy, the wait until the request passes.
    /// - If no unit remains, the time until the next unit of the quota (not of an [overage](QuotaPolicy::with_overage))
    ///   is available and a [lockout](QuotaPolicy::with_lockout) has ended. For a sliding window log with an overage,
    ///   up to a window too long if the charge was not made or has changed since.
    /// - Otherwise, for a bucket, the time in which the remaining units refill.
    /// - Otherwise, for a window, the time until it ends or its oldest unit expires, or longer, so that a client that
    ///   spreads its requests does not exceed twice the rate.
    ///
    /// `None` for a concurrency limit and for a policy with quota 0.
    pub fn effective_window(&self) -> Option<Duration> {
        self.left().1.map(Duration::from_micros)
    }

    #[inline]
    pub(crate) fn left(&self) -> (u64, Option<u64>) {
        let wait = self.wait().filter(|_| self.policy().is_timed());
        match self.known {
            Known::Measured { measured, charged } => {
                let now = measured.moment.now.as_micros();
                let limit = self.limit();
                let (remaining, reset) = limit.left_after(measured.reading, now, self.cost(), charged);
                (remaining, wait.or(reset.map(|micros| measured.moment.until(micros))))
            }
            Known::Rejection(ChargeRejection::For(_)) => (0, wait),
            Known::Rejection(ChargeRejection::Never { remaining, reset }) => (remaining, reset),
        }
    }

    /// Returns the units used above the quota, including this request's charge, rounded up to whole units.
    ///
    /// At most the policy's [overage](QuotaPolicy::with_overage). 0 for a [cached](crate::Decision::is_cached)
    /// rejection.
    pub fn over_quota(&self) -> u64 {
        let Known::Measured { measured, charged } = self.known else {
            return 0;
        };
        let (limit, now) = (self.limit(), measured.moment.now.as_micros());
        let after = limit.charged(*measured.reading, now, charged);
        let overage = self.policy().overage_units();
        overage.saturating_sub(limit.remaining(after, now))
    }

    /// Returns whether this policy rejects the request, or would if it were not a [shadow](QuotaPolicy::shadow).
    pub fn is_violated(&self) -> bool {
        match self.known {
            Known::Rejection(_) => true,
            Known::Measured { measured, .. } => !measured.is_within_limit(),
        }
    }

    /// Returns the time until this policy admits an identical request, if no other request comes first.
    ///
    /// Exact to the microsecond; for a concurrency limit, an estimate of 1 s. `None` if the policy does not reject the
    /// request, or can never admit it. Up to a window too long in a [cached](crate::Decision::is_cached) rejection by a
    /// [sliding window log](crate::Algorithm::SlidingWindowLog), if the request costs more than the one that the store
    /// rejected.
    pub fn retry_after(&self) -> Option<Duration> {
        self.wait().map(Duration::from_micros)
    }

    /// Returns when this policy admits an identical request.
    pub fn availability(&self) -> Availability {
        match self.retry_after() {
            _ if !self.is_violated() => Availability::Now,
            Some(_) if !self.policy().is_timed() => Availability::OnRelease,
            Some(wait) => Availability::After(wait),
            None => Availability::Never,
        }
    }

    /// Returns the time until the policy has all of its units and no [lockout](QuotaPolicy::with_lockout), if no other
    /// request comes first, for display: clients need not [wait that long](Self::effective_window).
    ///
    /// Exact to the microsecond. `None` if nothing is used, for concurrency limits, and in a
    /// [cached](crate::Decision::is_cached) rejection.
    pub fn full_after(&self) -> Option<Duration> {
        let Known::Measured { measured, charged } = self.known else {
            return None;
        };
        let (limit, now) = (self.limit(), measured.moment.now.as_micros());
        let micros = limit.full_after(limit.charged(*measured.reading, now, charged), now)?;
        Some(Duration::from_micros(measured.moment.until(micros)))
    }

    #[inline]
    fn wait(&self) -> Option<u64> {
        match self.known {
            Known::Rejection(ChargeRejection::For(micros)) => Some(micros),
            Known::Rejection(ChargeRejection::Never { .. }) => None,
            Known::Measured { measured, .. } if !measured.is_within_limit() => {
                let moment = measured.moment;
                let wait = self
                    .limit()
                    .wait(*measured.reading, moment.now.as_micros(), self.charge.weight());
                // A slot can be released at any time.
                let is_timed = self.policy().is_timed();
                wait.map(|micros| if is_timed { moment.until(micros) } else { micros })
            }
            Known::Measured { .. } => None,
        }
    }

    /// For a calendar policy, the length of the current window.
    pub(crate) fn window(&self) -> Option<Duration> {
        let Known::Measured { measured, .. } = self.known else {
            return self.policy().usual_window();
        };
        let own = self.limit().counter.window_micros(measured.moment.now.as_micros());
        own.map(Duration::from_micros).or(self.policy().window())
    }

    fn limit(&self) -> &'a Limit {
        self.charge.checked().limit()
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
