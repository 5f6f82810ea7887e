use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    Inner, Question,
    error::LimiterError,
    keys::{Attributed, Holder},
    permit::Permit,
};
use crate::{
    access::Access,
    decision::{Decision, Outcome, Plan},
    partition::{PartitionId, PartitionKey, ToPartitionKey},
    policy::{CallerQuotas, MAX_UNITS, Policy, QuotaUnit, UnitName},
    rules::{Active, NoTier, QuotaSet, Selection},
    sync::{random, sleep::sleep},
};

/// A caller of a [`Limiter`](crate::Limiter): its keys, tier and cost.
///
/// Each method call uses the current rules, so a `Caller` can be kept in a connection or a job.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("chat")
///     .policy(QuotaPolicy::per_minute("messages", 60))
///     .policy(QuotaPolicy::per_day("characters", 10_000).with_unit("characters"))
///     .policy(QuotaPolicy::per_hour("room", 1_000).keyed_by("room"))
///     .named_key("room")
///     .build()?;
/// let alice = limiter.caller("alice").keyed_by("room", "rust");
///
/// // A message of 120 characters to 20 recipients.
/// let decision = alice.clone().cost(20).units("characters", 120).check().await;
/// let remaining: Vec<_> = decision.allowances().map(|policy| policy.remaining()).collect();
/// assert_eq!(remaining, [40, 9_880, 980]);
///
/// // A message to 41 recipients must wait up to a second.
/// let rejected = alice.cost(41).check().await;
/// assert!(!rejected.outcome().is_admitted());
/// assert!(rejected.retry_after() <= Some(Duration::from_secs(1)));
/// # Ok(()) });
/// ```
#[derive(Clone)]
#[must_use = "a caller does nothing until it is used"]
pub struct Caller {
    pub(super) limiter: Arc<Inner>,
    key: Option<PartitionKey>,
    main: Option<Holder>,
    named: SmallVec<[(usize, Holder); 1]>,
    unknown_key: Option<String>,
    tier: Option<String>,
    quotas: Option<CallerQuotas>,
    cost: u64,
    is_partial: bool,
    units: SmallVec<[(String, u64); 1]>,
}

impl Caller {
    pub(super) fn new(limiter: Arc<Inner>, key: Option<PartitionKey>) -> Self {
        Self {
            main: key.as_ref().map(|key| limiter.keys.given(key, &limiter.log)),
            key,
            limiter,
            named: SmallVec::new(),
            unknown_key: None,
            tier: None,
            quotas: None,
            cost: 1,
            is_partial: false,
            units: SmallVec::new(),
        }
    }

    /// Adds a [named key](crate::LimiterBuilder::named_key), for policies that are [keyed
    /// by](crate::QuotaPolicy::keyed_by) it.
    pub fn keyed_by<K: ToPartitionKey + ?Sized>(mut self, name: &str, key: &K) -> Self {
        match self.limiter.policies.keys().iter().position(|known| known == name) {
            Some(index) => {
                let holder = self.limiter.keys.holder(Some(index), &key.to_partition_key());
                self.named.retain(|(other, _)| *other != index);
                self.named.push((index, holder));
            }
            None => self.unknown_key = Some(name.to_owned()),
        }
        self
    }

    /// Sets the tier. Default: the first tier. No effect if the rules have no tiers.
    pub fn tier<'a>(mut self, name: impl Into<Option<&'a str>>) -> Self {
        self.tier = name.into().map(str::to_owned);
        self
    }

    /// Sets individual quotas for policies that [allow them](crate::QuotaPolicy::with_caller_quotas). Default: those of
    /// the tier.
    pub fn quotas(mut self, quotas: CallerQuotas) -> Self {
        self.quotas = Some(quotas);
        self
    }

    /// Sets the cost for policies that count requests. Default: 1. A cost of 0 reads the quota without charging it.
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// Sets the cost in a [custom unit](crate::QuotaPolicy::with_unit), up to three units. Default: 0. Units that no
    /// policy counts are ignored.
    pub fn units(mut self, unit: impl Into<String>, amount: u64) -> Self {
        self.units.push((unit.into(), amount));
        self
    }

    /// Allows a decision to grant only a part of the cost, at least 1, for example as many jobs as the quota allows.
    ///
    /// [`Decision::granted`] returns the charged amount. A caller with several keys, or without a policy that counts
    /// requests, is granted the whole cost or nothing. [Prefetched](crate::QuotaPolicy::with_prefetch) units are not
    /// used.
    ///
    /// ```
    /// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("mails")
    ///     .policy(QuotaPolicy::per_day("day", 30))
    ///     .build()?;
    /// let provider = limiter.caller("smtp.example").cost(20).partial();
    /// for granted in [20, 10, 0] {
    ///     assert_eq!(provider.check().await.granted(), granted);
    /// }
    /// # Ok(()) });
    /// ```
    pub fn partial(mut self) -> Self {
        self.is_partial = true;
        self
    }

    /// Charges the cost if all policies of the caller admit it.
    ///
    /// Always returns a decision. If the store does not respond by the [deadline](crate::LimiterBuilder::deadline), the
    /// failure mode applies. The kill switch and the rules of the [access list](crate::AccessList) for the main key
    /// apply, too, but not exemptions and hooks, which inspect requests.
    ///
    /// If the caller lacks the key of a policy, [`MissingKey`](crate::MissingKey) applies. An unknown tier counts as
    /// the first tier, and is logged. Policies that count content charge one byte. Concurrency limits are only read:
    /// they reject a check only while more slots are held than the limit allows.
    ///
    /// # Cancellation
    ///
    /// The charge remains even if the future is dropped during the store call; [`refund`](Self::refund) reverses it.
    pub async fn check(&self) -> Decision {
        self.decide(Plan::without_slots).await
    }

    /// Charges the cost like [`check`](Self::check), and acquires a slot of each concurrency limit.
    ///
    /// A caller that a [leaky bucket](crate::Algorithm::LeakyBucketQueue) queues waits for its delay. If the future is
    /// dropped while waiting, the charge remains, and the slots are released.
    ///
    /// # Errors
    ///
    /// Returns the decision if the caller is rejected.
    pub async fn hold(&self) -> Result<Permit, Decision> {
        self.limiter.permit(self.decide(|plan| plan).await).await
    }

    /// Waits up to `at_most` until the caller is admitted, retrying after the wait of each rejection, plus a random
    /// part of up to a tenth.
    ///
    /// Returns at once if the rejection has no retry time, or one that is too late. Retries once a second while all
    /// slots are occupied, or while the store is unavailable and the limiter [fails
    /// closed](crate::FailureMode::Closed): then `Duration::MAX` waits indefinitely. If the future is dropped between
    /// two attempts, nothing remains charged. A caller that a [leaky bucket](crate::Algorithm::LeakyBucketQueue) has
    /// queued is admitted, even if its delay exceeds `at_most`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("mails")
    ///     .policy(QuotaPolicy::per_second("second", 100))
    ///     .build()?;
    /// let provider = limiter.caller("smtp.example").cost(60);
    ///
    /// # let begin = std::time::Instant::now();
    /// for _ in 0..2 {
    ///     match provider.wait(Duration::from_secs(5)).await {
    ///         Ok(permit) => permit.settle(60), // the number of mails that were sent
    ///         Err(rejected) => eprintln!("retry after {:?}", rejected.retry_after()),
    ///     }
    /// }
    /// # assert!(begin.elapsed() >= Duration::from_millis(190), "the second batch waits for 20 units");
    /// # let rejected = provider.cost(101).wait(Duration::MAX).await.unwrap_err();
    /// # assert_eq!(rejected.retry_after(), None, "it is never admitted");
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the last decision if the caller is not admitted in time.
    pub async fn wait(&self, at_most: Duration) -> Result<Permit, Decision> {
        let begun = Instant::now();
        loop {
            let rejected = match self.hold().await {
                Ok(permit) => return Ok(permit),
                Err(rejected) => rejected,
            };
            let left = at_most.saturating_sub(begun.elapsed());
            match rejected.retry_after() {
                Some(wait) if wait <= left => sleep(lengthened(wait).min(left)).await,
                _ => return Err(rejected),
            }
        }
    }

    async fn decide(&self, with: impl FnOnce(Plan) -> Plan) -> Decision {
        let (decision, selection) = match self.question() {
            Question::Charged(charge) => {
                let (decision, set) = charge.decide();
                (decision, Selection::of(set))
            }
            Question::Plan(plan, selection) => (self.limiter.guard.decide(with(plan)).made().await, selection),
            Question::Decided(decision, selection) => (decision, selection),
        };
        self.limiter.log_decision(&self.limiter.log, &decision, &selection);
        decision
    }

    /// Reads the remaining units, and whether and [when](Decision::availability) the cost would be admitted.
    ///
    /// Nothing is charged or reserved. Reads the policies of the caller's tier for which the caller has the key; `None`
    /// if there are none. During a [rollout](crate::RulesHandle::roll_out), the main key determines which rules apply;
    /// without one, the current rules.
    ///
    /// ```
    /// use tower_quota::{Availability, Limiter, MemoryStore, QuotaPolicy, Rules};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let tiers = Rules::new()
    ///     .tier("free", [QuotaPolicy::per_hour("hour", 10)])
    ///     .tier("premium", [QuotaPolicy::per_hour("hour", 100)])
    ///     .unlimited("admin");
    /// let limiter = Limiter::builder(MemoryStore::new()).scope("api").rules(tiers).build()?;
    /// let alice = limiter.caller("alice").tier("premium");
    /// alice.check().await;
    ///
    /// let hour = alice.peek().await?.expect("premium callers are limited");
    /// assert!(hour.allowances().map(|hour| hour.remaining()).eq([99]));
    /// let batch = alice.clone().cost(101).peek().await?.expect("premium callers are limited");
    /// assert_eq!(batch.availability(), Availability::Never);
    /// assert!(alice.clone().tier("admin").peek().await?.is_none());
    /// # let free = alice.tier(None).peek().await?.expect("the first tier is the default");
    /// # assert!(free.allowances().map(|hour| hour.remaining()).eq([9]));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter has no such key or tier, or if the store fails.
    pub async fn peek(&self) -> Result<Option<Decision>, LimiterError> {
        let Some(plan) = self.plan()? else { return Ok(None) };
        Ok(Some(self.limiter.guard.store().peek(plan).await?))
    }

    /// Returns the plan that charges the caller's cost, to [join](Plan::join) several callers in one decision of
    /// [`Limiter::hold_plan`](crate::Limiter::hold_plan).
    ///
    /// The plan contains the policies that [`peek`](Self::peek) reads, or is `None` if there are none. Create it for
    /// each decision, because it has the current rules. The kill switch, the access list and [`partial`](Self::partial)
    /// do not apply.
    ///
    /// ```
    /// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
    ///
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
    /// # set_up::run(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("transfers")
    ///     .policy(QuotaPolicy::per_day("day", 10))
    ///     .build()?;
    /// let plans = [limiter.caller("alice").cost(1).plan()?, limiter.caller("bob").cost(8).plan()?];
    /// let both = plans.into_iter().flatten().reduce(|plan, other| plan.join(other)).expect("both are limited");
    ///
    /// let permit = limiter.hold_plan(both.clone()).await.expect("both have units");
    /// assert!(permit.decision().allowances().map(|day| day.remaining()).eq([9, 2]));
    /// let rejected = limiter.hold_plan(both).await.unwrap_err();
    /// assert!(rejected.allowances().map(|day| day.remaining()).eq([9, 2]));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter has no such key or tier.
    pub fn plan(&self) -> Result<Option<Plan>, LimiterError> {
        let plan = self.plan_of_requests()?;
        Ok(plan.map(|plan| with_units(plan, &self.units)))
    }

    /// Resets the caller's counts under each of its keys, in all tiers, for all instances that share the store.
    /// Requests in progress keep their slots.
    ///
    /// # Errors
    ///
    /// Returns an error if the limiter has no such key, or if the store fails. Some counts may then already be reset.
    pub async fn reset(&self) -> Result<(), LimiterError> {
        self.check_names()?;
        for set in self.limiter.policies.all_sets() {
            for part in &set.parts {
                if let Some(holder) = self.holder(part.key) {
                    let plan = holder.extend(None, &part.policies, self.cost);
                    self.limiter.guard.reset(plan).await?;
                }
            }
        }
        Ok(())
    }

    fn question(&self) -> Question {
        let limiter = &*self.limiter;
        let active = limiter.policies.active();
        let at_once = match self.access() {
            Access::Block => Some(Outcome::Blocked),
            Access::Allow => Some(Outcome::Unlimited),
            _ => (!active.is_on()).then_some(Outcome::Unlimited),
        };
        let set = match at_once {
            Some(_) => None,
            None => self.select(&active).map(Cow::into_owned),
        };
        if set.as_ref().is_some_and(|set| set.replaces(self.tier.as_deref())) {
            limiter.log.unknown_tier();
        }
        match set {
            Some(set) => self.charge_or_plan(set),
            None => {
                let decision = Decision::without_policies(at_once.unwrap_or(Outcome::Unlimited), None);
                Question::Decided(decision, Selection::default())
            }
        }
    }

    fn select<'a>(&self, active: &'a Active) -> Option<Cow<'a, Arc<QuotaSet>>> {
        let tier = || self.tier.as_deref().ok_or(NoTier::First);
        let now = || self.limiter.guard.now();
        active.select(100, || self.partition(), tier, || self.quotas.as_ref(), now)
    }

    fn access(&self) -> Access {
        let list = self.limiter.access_list.as_ref().zip(self.key.as_ref());
        list.map_or(Access::default(), |(list, key)| list.access_of_key(key))
    }

    pub(super) fn is_exempt(&self) -> bool {
        self.access() == Access::Allow || !self.limiter.policies.active().is_on()
    }

    fn partition(&self) -> Option<PartitionId> {
        self.main.as_ref().map(|main| main.partition)
    }

    fn charge_or_plan(&self, set: Arc<QuotaSet>) -> Question {
        let limiter = &*self.limiter;
        let mut holder = |key| -> Attributed {
            match self.holder(key) {
                Some(holder) => Ok(Some(holder.clone())),
                None => limiter.keys.missing(key, &limiter.log),
            }
        };
        let has_units = set.has_units;
        let question = match self.is_partial {
            true => Question::planned(limiter.plan(&set, self.cost, &mut holder), set),
            false => limiter.charge(set, self.cost, holder),
        };
        let Question::Plan(plan, selection) = question else {
            return question;
        };
        let plan = match has_units {
            true => with_units(plan, &self.units),
            false => plan,
        };
        let plan = match self.is_partial {
            true => plan.clone().allow_partial().unwrap_or(plan),
            false => plan,
        };
        Question::Plan(plan, selection)
    }

    /// Without policies whose keys the caller lacks, and without custom units.
    pub(super) fn plan_of_requests(&self) -> Result<Option<Plan>, LimiterError> {
        self.check_names()?;
        let limiter = &*self.limiter;
        let active = limiter.policies.active();
        if let Some(name) = &self.tier
            && let Some(known) = active.unknown_tier(name)
        {
            let name = name.clone();
            return Err(LimiterError::UnknownTier { name, known });
        }
        let Some(set) = self.select(&active) else {
            return Ok(None);
        };
        let mut holder = |key| Ok(self.holder(key).cloned());
        Ok(limiter.plan(&set, self.cost, &mut holder).ok())
    }

    fn holder(&self, key: Option<usize>) -> Option<&Holder> {
        let Some(index) = key else {
            return self.main.as_ref();
        };
        let named = self.named.iter().find(|(known, _)| *known == index);
        named.map(|(_, holder)| holder)
    }

    /// Includes keys that no policy uses.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.main.iter().chain(self.named.iter().map(|(_, holder)| holder))
    }

    fn check_names(&self) -> Result<(), LimiterError> {
        match &self.unknown_key {
            None => Ok(()),
            Some(name) => Err(LimiterError::UnknownKey {
                name: name.clone(),
                known: self.limiter.policies.keys().to_vec(),
            }),
        }
    }
}

/// Only units that a policy counts, because a plan has room for three.
pub(super) fn with_units(plan: Plan, units: &[(String, u64)]) -> Plan {
    let counted: SmallVec<[UnitName; MAX_UNITS]> = plan.policies().filter_map(custom_unit).collect();
    counted.into_iter().fold(plan, |plan, unit| {
        let given = units.iter().rev().find(|(name, _)| name == unit.as_str());
        plan.with_unit_costs(unit.id(), given.map_or(0, |(_, amount)| *amount))
    })
}

fn custom_unit(policy: &Policy) -> Option<UnitName> {
    match policy.policy().unit() {
        QuotaUnit::Custom(unit) => Some(unit),
        _ => None,
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("scope", &self.limiter.scope())
            .field("tier", &self.tier)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

/// Adds up to a tenth.
fn lengthened(wait: Duration) -> Duration {
    wait.saturating_add((wait / 10).mul_f64(f64::from(random::number()) / f64::from(u32::MAX)))
}
