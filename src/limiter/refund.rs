//! Refunds from elsewhere, for job queues and support staff.

use std::time::Duration;

use super::{
    caller::{Caller, with_units},
    error::LimiterError,
};
use crate::{
    decision::{ChargeTime, Outcome, Plan, Settlement},
    policy::{PolicySet, QuotaPolicy},
};

/// Units that [`Caller::refund`] refunds.
///
/// ```
/// use tower_quota::{ChargeTime, Refund, clock::Timestamp};
///
/// let charged_at = Timestamp::from_micros(1_767_225_600_000_000);
/// let refund = Refund::new(40, ChargeTime::At(charged_at)).with_id("job 4711");
/// # let _ = refund;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refund {
    units: u64,
    /// Amounts in units of the program's own.
    own_units: Vec<(String, u64)>,
    charged: ChargeTime,
    id: Option<String>,
}

impl Refund {
    /// So many units of the policies that count requests, which were charged at this moment. [`Settlement::refund`] says what
    /// becomes of windows that have ended since.
    pub fn new(units: u64, charged: ChargeTime) -> Self {
        Self {
            units,
            own_units: Vec::new(),
            charged,
            id: None,
        }
    }

    /// The same with an amount of a unit of the [program's own](crate::QuotaPolicy::with_unit), of at most three. A unit that no
    /// policy of the caller counts is left out.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::{ChargeTime, Refund, RefundOutcome};
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("models")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("tokens", 1_000).with_unit("tokens"))
    ///     .unit_cost("tokens", |_| 800)
    ///     .build()?;
    /// let request = || Request::post("/answers").header("x-user-id", "alice");
    /// assert_eq!(send(&layer, request()).await.status(), 200);
    /// assert_eq!(send(&layer, request()).await.status(), 429);
    ///
    /// // The model has answered nothing.
    /// let refund = Refund::new(0, ChargeTime::Now).with_units("tokens", 800);
    /// let alice = PartitionKey::new("x-user-id", "alice");
    /// assert_eq!(layer.limiter().caller(&alice).refund(&refund).await?, RefundOutcome::Refunded);
    /// assert_eq!(send(&layer, request()).await.status(), 200);
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn with_units(mut self, unit: impl Into<String>, amount: u64) -> Self {
        self.own_units.push((unit.into(), amount));
        self
    }

    /// The plan of what is given back. A plan without a request would have no place for units of the program's own.
    fn of(&self, plan: Plan) -> Plan {
        with_units(plan, &self.own_units).costing(self.units)
    }

    /// The same with the id of the message that gives back, so that a message that is delivered twice gives back once. It
    /// is any text; ids of different callers, or by different keys, are different.
    ///
    /// The store keeps it for as long as the longest window of the policies, as one more partition. Units that were
    /// charged before are not given back, unless as [`ChargeTime::Now`]. A full [`MemoryStore`](crate::MemoryStore) may evict
    /// it earlier.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }
}

/// The fate of a [`Refund`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefundOutcome {
    /// The store has given back what was still missing of the units.
    Refunded,
    /// A refund with this id came before; nothing has changed.
    Duplicate,
    /// There is nothing to give back, or nothing to give it back to: no policy counts the units of this caller by this key in
    /// this tier, or only leaky buckets do.
    NotApplicable,
}

impl RefundOutcome {
    fn name(self) -> &'static str {
        match self {
            Self::Refunded => "refunded",
            Self::Duplicate => "duplicate",
            Self::NotApplicable => "not_applicable",
        }
    }
}

impl Caller {
    /// Refunds units that another process has charged, or a request of this process for a job: to the policies that
    /// [`peek`](Self::peek) reads.
    ///
    /// You want it where a queue learns minutes later that a job was not carried out. While the request is in progress,
    /// [`ActualCost`](crate::ActualCost) is simpler and exact. No policy is lifted above its quota, and windows that have
    /// ended stay as they are: see [`Settlement::refund`].
    ///
    /// The rejections that this instance has cached about the caller end at once; other instances see the units after
    /// [a second at most](crate::LimiterBuilder::rejection_cache). Units that were charged by the
    /// [fallback](crate::LimiterBuilder::fallback) are not given back to it.
    ///
    /// # Messages that come twice
    ///
    /// Without an id, a refund that is made twice gives back twice: later requests of the caller have that much more, up
    /// to a full quota. With [`Refund::with_id`] the store keeps the id and gives back once at most. The id and the units
    /// are two steps: if the process ends, or the store fails, between them, the units are not given back, and the
    /// message that comes again is [`RefundOutcome::Duplicate`].
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("renderings")
    ///     .key(key::header("x-user-id"))
    ///     .cost(5)
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .decision_in_response()
    ///     .build()?;
    /// let request = || Request::post("/renderings").header("x-user-id", "alice");
    /// let response = send(&layer, request()).await;
    /// // This goes into the job.
    /// let charged_at = response.extensions().get().and_then(Decision::decided_at).expect("a store has decided");
    /// send(&layer, request()).await;
    /// assert_eq!(send(&layer, request()).await.status(), 429);
    ///
    /// // The job could not be carried out, and the queue says so twice.
    /// let alice = layer.limiter().caller(&PartitionKey::new("x-user-id", "alice"));
    /// let refund = Refund::new(5, ChargeTime::At(charged_at)).with_id("job 4711");
    /// assert_eq!(alice.refund(&refund).await?, RefundOutcome::Refunded);
    /// assert_eq!(alice.refund(&refund).await?, RefundOutcome::Duplicate);
    ///
    /// assert_eq!(send(&layer, request()).await.status(), 200);
    /// assert_eq!(send(&layer, request()).await.status(), 429);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// If the limiter has no such key or tier, or the store does not answer. It is not known then if the units were refunded.
    pub async fn refund(&self, refund: &Refund) -> Result<RefundOutcome, LimiterError> {
        let outcome = self.refund_once(refund).await?;
        self.limiter.log.refunded(self.limiter.scope(), outcome.name());
        Ok(outcome)
    }

    async fn refund_once(&self, refund: &Refund) -> Result<RefundOutcome, LimiterError> {
        // A cost of 0 would charge nothing, and so have nothing to refund.
        let Some(plan) = self.clone().cost(1).plan()? else {
            return Ok(RefundOutcome::NotApplicable);
        };
        let plan = refund.of(plan);
        let message = refund.id.as_ref().map(|id| self.message(&plan, id));
        let settlement = Settlement::refund_of_units(plan, refund.charged);
        if settlement.is_empty() {
            return Ok(RefundOutcome::NotApplicable);
        }
        let guard = &self.limiter.guard;
        if let Some(message) = message
            && guard.store().decide(message).await?.outcome() == Outcome::Rejected
        {
            return Ok(RefundOutcome::Duplicate);
        }
        guard.give_back(settlement).await?;
        Ok(RefundOutcome::Refunded)
    }

    /// A plan that is admitted once in the longest window of another one.
    fn message(&self, plan: &Plan, id: &str) -> Plan {
        let windows = plan
            .charges()
            .filter_map(|charge| charge.policy().policy().usual_window());
        let window = windows.max().unwrap_or(Duration::from_secs(1));
        let once = PolicySet::new([QuotaPolicy::new("once", 1, window)]);
        let once = once.expect("a window of a policy is valid for another one");
        Plan::new(once, self.limiter.keys.message(self.holders(), id), 1)
    }
}
