use super::plan::{Charge, Mode, Plan};
use crate::{
    algorithm::{Moment, PolicyReading},
    error::{ConfigError, ConfigErrorKind},
    policy::QuotaUnit,
};

impl Plan {
    /// Makes the cost an upper limit: the store charges as many units as remain in all policies.
    ///
    /// The store grants at least one unit and at most the cost, in one atomic step;
    /// [`Decision::granted`](crate::Decision::granted) returns the amount, which is settled as the estimated cost. Each
    /// [concurrency limit](crate::QuotaPolicy::concurrent) is charged one slot, and content bytes are charged as
    /// planned.
    ///
    /// If less than one unit remains in any enforced policy, the plan is rejected, and
    /// [`retry_after`](crate::Decision::retry_after) is the time until one unit is admitted.
    /// [Shadow](crate::QuotaPolicy::shadow) policies do not reduce a grant.
    ///
    /// ```
    /// use tower_quota::{MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let store = MemoryStore::new();
    /// let worker = Scope::new("jobs").partition(&PartitionKey::new("worker", "7"));
    /// let policies = PolicySet::new([QuotaPolicy::per_minute("minute", 30), QuotaPolicy::per_day("day", 40)])?;
    /// let up_to = |jobs| Plan::new(policies.clone(), worker, jobs).allow_partial();
    ///
    /// assert_eq!(store.decide(up_to(25)?).await?.granted(), 25);
    /// assert_eq!(store.decide(up_to(25)?).await?.granted(), 5);
    /// let rejected = store.decide(up_to(25)?).await?;
    /// assert_eq!(rejected.granted(), 0);
    /// # assert_eq!(rejected.outcome(), tower_quota::Outcome::Rejected);
    /// // One job passes after two seconds.
    /// assert!(rejected.retry_after() <= Some(std::time::Duration::from_secs(2)));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the plan has several partitions, or if none of its policies counts requests.
    pub fn allow_partial(self) -> Result<Self, ConfigError> {
        let error = |message: &str| Err(ConfigError::new(ConfigErrorKind::Policies, message));
        if self.only_part().is_none() {
            return error("partial plan: only a plan with one partition can be granted partially");
        }
        if !self.charges().any(|charge| charge.is_divisible()) {
            return error("partial plan: at least one policy must count requests");
        }
        let has_parts = !self.is_read_only() && self.charges().any(|charge| charge.cost() > 0);
        let mode = if has_parts { Mode::UpTo } else { Mode::Whole };
        Ok(self.in_mode(mode))
    }

    pub(crate) fn without_parts(&self) -> Self {
        self.costing(0)
    }

    pub(crate) fn granting(self, readings: impl IntoIterator<Item = PolicyReading>, moment: Moment) -> Self {
        let asked_for = self.costs().requests;
        let (mut granted, mut fits) = (asked_for, true);
        let without_parts = self.without_parts();
        let enforced = without_parts
            .charges()
            .zip(readings)
            .filter(|(charge, _)| !charge.is_shadow());
        for (charge, reading) in enforced {
            fits &= charge.is_admitted(reading, moment);
            if charge.is_divisible() {
                let limit = charge.checked().limit();
                granted = granted.min(limit.remaining(reading, moment.now.as_micros()));
            }
        }
        let units = if fits { granted.max(1) } else { 1 };
        self.costing(units.min(asked_for)).in_mode(Mode::Whole)
    }
}

impl Charge<'_> {
    pub(crate) fn is_divisible(&self) -> bool {
        self.policy().unit() == QuotaUnit::Requests
    }
}
