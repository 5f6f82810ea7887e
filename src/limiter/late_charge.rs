use super::{caller::Caller, error::LimiterError, message::Message};
use crate::decision::Settlement;

/// Units to charge with [`Caller::charge`], for work that is already done.
///
/// ```
/// use tower_quota::{LateCharge, LateChargeOutcome, Limiter, MemoryStore, Outcome, QuotaPolicy};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("models")
///     .policy(QuotaPolicy::per_day("tokens", 1_000).with_unit("tokens"))
///     .build()?;
/// let alice = limiter.caller("alice");
/// // Before the work: rejected unless a token remains.
/// let one_token = alice.clone().units("tokens", 1);
/// assert!(one_token.check().await.outcome().is_admitted());
///
/// // Another process has done the work, and its queue delivers the message twice.
/// let usage = LateCharge::new(0).with_units("tokens", 1_400).with_id("answer 4711");
/// assert_eq!(alice.charge(&usage).await?, LateChargeOutcome::Charged);
/// assert_eq!(alice.charge(&usage).await?, LateChargeOutcome::Duplicate);
/// assert_eq!(one_token.check().await.outcome(), Outcome::Rejected);
///
/// // The policy is never charged more than 2,000 tokens, twice its capacity.
/// let usage = LateCharge::new(0).with_units("tokens", 700);
/// assert_eq!(alice.charge(&usage).await?, LateChargeOutcome::Capped { excess: 101 });
/// # Ok(()) });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateCharge(Message);

impl LateCharge {
    /// Creates a charge of `units` to the policies that count requests.
    pub fn new(units: u64) -> Self {
        Self(Message::new(units))
    }

    /// Adds an amount of a custom unit, like [`Caller::units`].
    #[must_use]
    pub fn with_units(mut self, unit: impl Into<String>, amount: u64) -> Self {
        self.0.add(unit.into(), amount);
        self
    }

    /// Sets the ID of the message that causes the charge, to detect duplicates, as
    /// [`Refund::with_id`](crate::Refund::with_id) does. Default: none, so a repeated charge is applied again.
    ///
    /// IDs of charges and refunds are independent. If the process exits or the store fails after the ID was recorded,
    /// the units are not charged, and the redelivered message returns [`LateChargeOutcome::Duplicate`].
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.0.set_id(id.into());
        self
    }
}

/// The result of [`Caller::charge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LateChargeOutcome {
    /// All policies have counted all units.
    Charged,
    /// At least one policy has reached [its bound](Settlement#late-charges) and counted fewer units.
    Capped {
        /// The units that were not counted, rounded up, by the policy that counted the fewest.
        /// [Shadow](crate::QuotaPolicy::shadow) policies are not included.
        excess: u64,
    },
    /// A charge with this ID was already applied. Nothing has changed.
    Duplicate,
    /// The limits are disabled, the caller is exempt or has an unlimited tier, or no policy counts these units for this
    /// caller, key and tier.
    NotApplicable,
}

impl LateChargeOutcome {
    fn name(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::Capped { .. } => "capped",
            Self::Duplicate => "duplicate",
            Self::NotApplicable => "not_applicable",
        }
    }

    fn excess(self) -> u64 {
        match self {
            Self::Capped { excess } => excess,
            Self::Charged | Self::Duplicate | Self::NotApplicable => 0,
        }
    }
}

impl Caller {
    /// Charges units for work that is done, even if fewer remain.
    ///
    /// Use this in a process that learns the cost of work which another has checked, such as a job or a proxy that
    /// reports usage. With a [`Permit`](crate::Permit), report the cost to it instead, which is exact. [`LateCharge`]
    /// has an example.
    ///
    /// The charge is never rejected: used units rise to [at most twice the capacity](Settlement#late-charges). It may
    /// begin a [lockout](crate::QuotaPolicy::with_lockout), but never extends one.
    ///
    /// Charges apply to the policies that [`peek`](Self::peek) reads, shadow policies included, but not to concurrency
    /// limits, policies that count bytes, limits that are [disabled](crate::RulesHandle::disable), or a main key that
    /// the [access list](crate::AccessList) allows. Keys that it blocks are charged.
    ///
    /// Instances with [prefetched](crate::QuotaPolicy::with_prefetch) units admit up to instances × `units` more after
    /// the charge, within at most 5 s. With several keys on a Redis Cluster, the charge is one step per key: if the
    /// store fails, only some keys may be charged.
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter has no such key or tier, or if the store fails, without a failure mode or
    /// fallback. After a store failure, it is unknown whether the units were charged.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped during the store call, the charge may or may not be applied.
    pub async fn charge(&self, charge: &LateCharge) -> Result<LateChargeOutcome, LimiterError> {
        let outcome = self.charge_once(&charge.0).await?;
        let metrics = self.limiter.log.metrics();
        metrics.late_charges.get([outcome.name()]).increment(1);
        metrics.excess_units.get([]).increment(outcome.excess());
        Ok(outcome)
    }

    async fn charge_once(&self, message: &Message) -> Result<LateChargeOutcome, LimiterError> {
        let Some(plan) = self.plan_of(message)?.filter(|_| !self.is_exempt()) else {
            return Ok(LateChargeOutcome::NotApplicable);
        };
        let (settlement, excess) = Settlement::late_charge(plan.clone());
        if settlement.is_empty() {
            return Ok(LateChargeOutcome::NotApplicable);
        }
        if self.is_duplicate(message, &plan, "charged").await? {
            return Ok(LateChargeOutcome::Duplicate);
        }
        self.limiter.guard.settle_plan(&plan, settlement).await?;
        Ok(match excess.units() {
            0 => LateChargeOutcome::Charged,
            excess => LateChargeOutcome::Capped { excess },
        })
    }
}
