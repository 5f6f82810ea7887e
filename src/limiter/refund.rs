use super::{caller::Caller, error::LimiterError, message::Message};
use crate::decision::{ChargeTime, Settlement};

/// Units to refund with [`Caller::refund`].
///
/// ```
/// use tower_quota::{ChargeTime, Limiter, MemoryStore, QuotaPolicy, Refund, RefundOutcome};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("renderings")
///     .policy(QuotaPolicy::per_hour("hour", 10))
///     .policy(QuotaPolicy::per_day("pixels", 1_000_000).with_unit("pixels"))
///     .build()?;
/// let alice = limiter.caller("alice");
/// let charge = alice.clone().cost(5).units("pixels", 480_000).check().await;
/// // Store this time with the job.
/// let charged_at = charge.decided_at().expect("the store has decided");
///
/// // The job has failed, and the queue delivers the message twice.
/// let refund = Refund::new(5, ChargeTime::At(charged_at)).with_units("pixels", 480_000).with_id("job 4711");
/// assert_eq!(alice.refund(&refund).await?, RefundOutcome::Refunded);
/// assert_eq!(alice.refund(&refund).await?, RefundOutcome::Duplicate);
/// # let decision = alice.peek().await?.unwrap();
/// # assert!(decision.allowances().map(|policy| policy.remaining()).eq([10, 1_000_000]));
/// # Ok(()) });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refund {
    message: Message,
    charged: ChargeTime,
}

impl Refund {
    /// Creates a refund of `units` to the policies that count requests.
    pub fn new(units: u64, charged: ChargeTime) -> Self {
        Self {
            message: Message::new(units),
            charged,
        }
    }

    /// Adds an amount of a custom unit, like [`Caller::units`]. To refund only this, create the refund with 0 units.
    #[must_use]
    pub fn with_units(mut self, unit: impl Into<String>, amount: u64) -> Self {
        self.message.add(unit.into(), amount);
        self
    }

    /// Sets the ID of the message that causes the refund, to detect duplicates. Default: none, so a repeated refund is
    /// applied again, up to a full quota.
    ///
    /// Any text is valid. IDs of different callers or keys are independent. The store keeps the ID for the longest
    /// window of the policies. Units that were charged longer ago are not refunded, except with [`ChargeTime::Now`]. A
    /// full [`MemoryStore`](crate::MemoryStore) may evict the ID earlier.
    ///
    /// The ID is recorded before the units are refunded. If the process exits or the store fails in between, the units
    /// are lost, and the redelivered message returns [`RefundOutcome::Duplicate`].
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.message.set_id(id.into());
        self
    }
}

/// The result of [`Caller::refund`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefundOutcome {
    /// The store has refunded the units, unless they had been restored already.
    Refunded,
    /// A refund with this ID was already applied. Nothing has changed.
    Duplicate,
    /// No policy counts these units for this caller, key and tier, except leaky buckets, to which refunds do not apply.
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
    /// Refunds units that another process or an earlier request has charged; [`Refund`] has an example.
    ///
    /// During the request, [`ActualCost`](crate::ActualCost) is simpler and exact. Refunds apply to the policies that
    /// [`peek`](Self::peek) reads, as described at [`Settlement::refund`]. Charges to the
    /// [fallback](crate::LimiterBuilder::fallback) store are not refunded.
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter has no such key or tier, or if the store fails: it is then unknown whether the
    /// units were refunded.
    pub async fn refund(&self, refund: &Refund) -> Result<RefundOutcome, LimiterError> {
        let outcome = self.refund_once(refund).await?;
        self.limiter.log.metrics().refunds.get([outcome.name()]).increment(1);
        Ok(outcome)
    }

    async fn refund_once(&self, refund: &Refund) -> Result<RefundOutcome, LimiterError> {
        let Some(plan) = self.plan_of(&refund.message)? else {
            return Ok(RefundOutcome::NotApplicable);
        };
        let settlement = Settlement::refund_of_units(plan.clone(), refund.charged);
        if settlement.is_empty() {
            return Ok(RefundOutcome::NotApplicable);
        }
        if self.is_duplicate(&refund.message, &plan, "given back").await? {
            return Ok(RefundOutcome::Duplicate);
        }
        self.limiter.guard.settle_plan(&plan, settlement).await?;
        Ok(RefundOutcome::Refunded)
    }
}
