use std::{fmt, slice, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{answer::Answer, costs::Costs};
use crate::{
    algorithm::{Form, Moment, PolicyReading},
    partition::PartitionId,
    policy::{BatchTerms, Policy, PolicySet, PolicyTraits, QuotaPolicy, UnitId},
};

/// The input of a store, which charges all policies of a plan or none: the policies, their partitions, and the costs.
///
/// ```
/// use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = MemoryStore::new();
/// let policies = PolicySet::new([QuotaPolicy::per_minute("minute", 3), QuotaPolicy::per_day("day", 100)])?;
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// let mails = |count| Plan::new(policies.clone(), alice, count);
///
/// assert_eq!(store.decide(mails(2)).await?.outcome(), Outcome::Allowed);
/// // Two more exceed the minute, so the day is not charged either.
/// let rejected = store.decide(mails(2)).await?;
/// assert_eq!(rejected.outcome(), Outcome::Rejected);
/// let left: Vec<u64> = rejected.allowances().map(|allowance| allowance.remaining()).collect();
/// assert_eq!(left, [1, 98]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct Plan(pub(super) Box<Exchange>);

/// Boxed in `Plan`, because moving it is slow.
pub(super) struct Exchange {
    pub(super) question: Question,
    pub(super) answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) parts: SmallVec<[Part; 1]>,
    pub(super) traits: PolicyTraits,
    pub(super) costs: Costs,
    pub(super) mode: Mode,
    pub(super) deadline: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Whole,
    UpTo,
    Question,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) policies: PolicySet,
    partition: PartitionId,
    pub(super) label: Option<Arc<str>>,
    /// The costs of a [joined](Plan::join) plan, if they differ.
    costs: Option<Box<Costs>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PartPlan<'a> {
    pub(super) part: &'a Part,
    question: &'a Question,
    is_charged: bool,
}

impl Plan {
    pub(crate) const LONGEST_DEADLINE: Duration = Duration::from_secs(60);

    /// Creates a plan for one partition, with a cost of `cost` units.
    ///
    /// The plan charges `cost` units to policies that count requests, one slot to concurrency limits, one byte to
    /// policies that count bytes, and nothing to policies with [custom units](Self::with_units). With cost 0, it
    /// charges nothing in any unit, and is admitted unless a policy is overdrawn or locked out. A cost above a policy's
    /// capacity is never admitted, and neither is any plan with a policy of quota 0.
    ///
    /// ```
    /// use tower_quota::{MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let store = MemoryStore::new();
    /// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5), QuotaPolicy::concurrent("at once", 1)])?;
    /// for (cost, outcome, left) in [
    ///     (0, Outcome::Allowed, [5, 1]),
    ///     (6, Outcome::Rejected, [5, 1]),
    ///     (2, Outcome::Allowed, [3, 0]),
    ///     (1, Outcome::Rejected, [3, 0]), // the slot is held
    ///     (0, Outcome::Allowed, [3, 0]),
    /// ] {
    ///     let decision = store.decide(Plan::new(policies.clone(), alice, cost)).await?;
    ///     assert_eq!(decision.outcome(), outcome);
    ///     assert!(decision.allowances().map(|allowance| allowance.remaining()).eq(left));
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[inline]
    pub fn new(policies: PolicySet, partition: PartitionId, cost: u64) -> Self {
        Self::of(Question {
            traits: *policies.traits(),
            parts: SmallVec::from_buf([Part {
                policies,
                partition,
                label: None,
                costs: None,
            }]),
            costs: Costs {
                requests: cost,
                counted: (cost > 0).into(),
                slots: (cost > 0).into(),
                ..Costs::NOTHING
            },
            mode: Mode::Whole,
            deadline: None,
        })
    }

    #[inline]
    pub(super) fn of(question: Question) -> Self {
        // Written in place, because a box of a complete value is copied from the stack.
        let exchange = Box::new_uninit();
        let answer = Answer::default();
        Self(Box::write(exchange, Exchange { question, answer }))
    }

    #[inline]
    pub(super) fn question(&self) -> &Question {
        &self.0.question
    }

    /// Adds the policies of another partition, such as the caller's address in addition to the user.
    ///
    /// One Redis server needs a single script call, a [Redis Cluster](crate::RedisStore#cluster) one per hash slot. A
    /// policy that is already in the plan for the same partition is charged once. Names should be unique within a plan,
    /// because clients see only the name.
    ///
    /// ```
    /// use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let (store, mails) = (MemoryStore::new(), Scope::new("mails"));
    /// let per_user = PolicySet::new([QuotaPolicy::per_hour("user", 2)])?;
    /// let for_all = PolicySet::new([QuotaPolicy::per_hour("all", 3)])?;
    /// let everybody = mails.partition(&PartitionKey::new("everybody", ""));
    /// let plan = |user| {
    ///     let user = mails.partition(&PartitionKey::new("user", user));
    ///     Plan::new(per_user.clone(), user, 2).and(for_all.clone(), everybody)
    /// };
    ///
    /// assert_eq!(store.decide(plan("alice")).await?.outcome(), Outcome::Allowed);
    /// // Only one unit remains in `all`, so bob is not charged, either.
    /// assert_eq!(store.decide(plan("bob")).await?.outcome(), Outcome::Rejected);
    /// let left: Vec<u64> = store.peek(plan("bob")).await?.allowances().map(|a| a.remaining()).collect();
    /// assert_eq!(left, [2, 1]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn and(mut self, policies: PolicySet, partition: PartitionId) -> Self {
        self.0.question.add(Part {
            policies,
            partition,
            label: None,
            costs: None,
        });
        self
    }

    /// Adds another plan with its own costs, such as one unit of a user and 400 tokens of its team.
    ///
    /// The store charges both plans or neither. A policy that is in both for the same partition is charged once, at the
    /// cost in `self`. Set bytes and custom units before joining: later setters and settlements with an actual cost
    /// change only `self`. A refund of the whole charge covers both. The joined plan is not
    /// [partial](Self::allow_partial).
    ///
    /// ```
    /// use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let (store, mails) = (MemoryStore::new(), Scope::new("mails"));
    /// let sent = PolicySet::new([QuotaPolicy::per_hour("sent", 2)])?;
    /// let received = PolicySet::new([QuotaPolicy::per_hour("received", 5)])?;
    /// // Alice sends one mail, of which Bob receives three copies.
    /// let [alice, bob] = ["alice", "bob"].map(|name| mails.partition(&PartitionKey::new("user", name)));
    /// let plan = Plan::new(sent, alice, 1).join(Plan::new(received, bob, 3));
    ///
    /// for (outcome, left) in [(Outcome::Allowed, [1, 2]), (Outcome::Rejected, [1, 2])] {
    ///     let decision = store.decide(plan.clone()).await?;
    ///     assert_eq!(decision.outcome(), outcome);
    ///     assert!(decision.allowances().map(|allowance| allowance.remaining()).eq(left));
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        let (question, other) = (&mut self.0.question, other.0.question);
        let (mut ours, mut theirs) = (None, None);
        if question.costs != other.costs {
            // A question that charges nothing is read-only as a whole.
            if question.costs.counted == 0 {
                ours = Some(Box::new(std::mem::replace(&mut question.costs, other.costs)));
            } else {
                theirs = Some(Box::new(other.costs));
            }
        }
        question.mode = Mode::Whole;
        if ours.is_some() {
            let parts = question.parts.iter_mut();
            parts.for_each(|part| part.costs = part.costs.take().or_else(|| ours.clone()));
        }
        for part in other.parts {
            let costs = part.costs.or_else(|| theirs.clone());
            question.add(Part { costs, ..part });
        }
        self
    }

    pub(crate) fn labelled(mut self, partition: PartitionId, label: &Arc<str>) -> Self {
        let parts = self.0.question.parts.iter_mut();
        for part in parts.filter(|part| part.partition == partition) {
            part.label = Some(Arc::clone(label));
        }
        self
    }

    /// Sets the number of request and response content bytes, as far as known before the request is processed.
    ///
    /// Default: one byte. [`QuotaUnit`](crate::QuotaUnit) has an example.
    #[inline]
    #[must_use]
    pub fn with_content_bytes(mut self, request: u64, response: u64) -> Self {
        let costs = &mut self.0.question.costs;
        if costs.counted > 0 {
            (costs.request_bytes, costs.response_bytes) = (request, response);
        }
        self
    }

    /// Sets the amount of a [custom unit](crate::QuotaPolicy::with_unit), for all policies that count it.
    ///
    /// A later call for the same unit replaces the amount. Units after the third are ignored. Default: 0.
    /// [`QuotaUnit`](crate::QuotaUnit) has an example.
    #[inline]
    #[must_use]
    pub fn with_units(self, unit: &str, amount: u64) -> Self {
        self.with_unit_costs(UnitId::of(unit), amount)
    }

    #[inline]
    pub(crate) fn with_unit_costs(mut self, unit: UnitId, amount: u64) -> Self {
        let costs = &mut self.0.question.costs;
        if costs.counted > 0 {
            costs.units.set(unit, amount);
        }
        self
    }

    /// Returns the partition to charge, the first if there are several.
    #[inline]
    pub fn partition(&self) -> PartitionId {
        self.question().parts[0].partition
    }

    /// Returns the partitions to charge, without duplicates.
    pub fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        let parts = &self.question().parts;
        let first = parts.iter().enumerate().filter(|(number, part)| {
            let mut before = parts[..*number].iter();
            before.all(|other| other.partition != part.partition)
        });
        first.map(|(_, part)| part.partition)
    }

    #[inline]
    pub(crate) fn parts(&self) -> impl ExactSizeIterator<Item = PartPlan<'_>> {
        self.question().parts()
    }

    #[inline]
    pub(crate) fn within(mut self, deadline: Duration) -> Self {
        self.0.question.deadline = Some(deadline);
        self
    }

    /// Returns the time within which a decision is needed, if known. A store need not make calls that take longer.
    pub fn deadline(&self) -> Option<Duration> {
        self.question().deadline
    }

    /// Returns the [readable](crate::LimiterBuilder::readable_keys) name of a partition.
    pub fn label(&self, partition: PartitionId) -> Option<&str> {
        let mut parts = self.question().parts.iter();
        let part = parts.find(|part| part.partition == partition)?;
        part.label.as_deref()
    }

    #[inline]
    pub(crate) fn only_part(&self) -> Option<PartPlan<'_>> {
        self.question().only_part()
    }

    #[inline]
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.question().parts.iter().flat_map(|part| part.policies.iter())
    }

    #[inline]
    pub(crate) fn costs(&self) -> Costs {
        self.question().costs
    }

    /// Policies with quota 0 are never charged.
    #[inline]
    pub(crate) fn is_charged(&self) -> bool {
        self.question().is_charged()
    }

    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        self.question().is_read_only()
    }

    #[inline]
    pub(crate) fn mode(&self) -> Mode {
        self.question().mode
    }

    #[inline]
    pub(crate) fn is_partial(&self) -> bool {
        self.mode() == Mode::UpTo
    }

    #[inline]
    pub(crate) fn takes_slots(&self) -> bool {
        let question = self.question();
        let is_taken = |charge: Charge<'_>| charge.cost() > 0 && charge.checked().counter().form() == Form::Slots;
        question.traits.has_slots && question.costs.slots > 0 && self.is_charged() && self.charges().any(is_taken)
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.question().traits.is_closed
    }

    #[inline]
    pub(crate) fn batch_terms(&self) -> Option<BatchTerms> {
        match &*self.question().parts {
            [part] if self.question().traits.has_prefetch && !self.is_partial() => {
                part.policies.batch_terms().filter(|_| self.is_charged())
            }
            _ => None,
        }
    }

    pub(crate) fn costing(&self, requests: u64) -> Self {
        let mut plan = self.clone();
        plan.0.question.costs.requests = requests;
        plan
    }

    pub(crate) fn without_slots(mut self) -> Self {
        self.0.question.costs.slots = 0;
        self
    }

    pub(crate) fn asked(self) -> Self {
        self.in_mode(Mode::Question)
    }

    pub(super) fn in_mode(mut self, mode: Mode) -> Self {
        self.0.question.mode = mode;
        self
    }

    /// Returns the charges, grouped by partition, in the order of configuration.
    #[inline]
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.question().charges()
    }

    #[inline]
    pub(crate) fn charges_for<'a>(&'a self, costs: &'a Costs) -> Charges<'a> {
        self.question().charges_for(costs)
    }
}

impl Question {
    fn add(&mut self, part: Part) {
        let same = self.parts.iter().filter(|other| other.partition == part.partition);
        let known: SmallVec<[u32; 4]> = same.flat_map(|part| part.policies.iter().map(Policy::id)).collect();
        if let Some(policies) = part.policies.without(&known) {
            self.traits.add(policies.traits());
            self.parts.push(Part { policies, ..part });
        }
    }

    #[inline]
    pub(super) fn parts(&self) -> impl ExactSizeIterator<Item = PartPlan<'_>> {
        let is_charged = self.is_charged();
        self.parts.iter().map(move |part| PartPlan {
            part,
            question: self,
            is_charged,
        })
    }

    #[inline]
    pub(super) fn only_part(&self) -> Option<PartPlan<'_>> {
        match &*self.parts {
            [part] => Some(PartPlan {
                part,
                question: self,
                is_charged: self.is_charged(),
            }),
            _ => None,
        }
    }

    #[inline]
    fn is_charged(&self) -> bool {
        // The first condition is cheaper, and true for nearly every plan.
        let is_counted = || self.parts.iter().all(|part| part.costs.is_none());
        !self.is_read_only()
            && (self.costs.requests > 0 && self.traits.counts_requests && is_counted() || self.charges_a_unit())
    }

    #[inline(never)]
    fn charges_a_unit(&self) -> bool {
        self.charges().any(|charge| charge.weight() > 0)
    }

    #[inline]
    pub(super) fn is_read_only(&self) -> bool {
        self.costs.counted == 0 || self.mode == Mode::Question
    }

    #[inline]
    pub(super) fn charges(&self) -> Charges<'_> {
        self.charges_for(&self.costs)
    }

    #[inline]
    fn charges_for<'a>(&'a self, costs: &'a Costs) -> Charges<'a> {
        Charges {
            parts: &self.parts,
            number: 0,
            policies: self.parts[0].policies.iter(),
            costs,
        }
    }
}

impl Clone for Plan {
    fn clone(&self) -> Self {
        Self::of(self.question().clone())
    }
}

impl PartialEq for Plan {
    fn eq(&self, other: &Self) -> bool {
        self.question() == other.question()
    }
}

impl Eq for Plan {}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.question().fmt(f)
    }
}

pub(crate) struct Charges<'a> {
    parts: &'a [Part],
    number: usize,
    policies: slice::Iter<'a, Policy>,
    costs: &'a Costs,
}

impl Charges<'_> {
    #[inline]
    pub(crate) fn part_number(&self) -> usize {
        self.number
    }
}

impl<'a> Iterator for Charges<'a> {
    type Item = Charge<'a>;

    #[inline]
    fn next(&mut self) -> Option<Charge<'a>> {
        loop {
            let part = self.parts.get(self.number)?;
            if let Some(policy) = self.policies.next() {
                return Some(part.charge(policy, self.costs));
            }
            self.number += 1;
            self.policies = self.parts.get(self.number)?.policies.iter();
        }
    }
}

impl Part {
    #[inline]
    fn charge<'a>(&self, policy: &'a Policy, costs: &Costs) -> Charge<'a> {
        Charge {
            policy,
            partition: self.partition,
            cost: self.cost(policy, costs),
        }
    }

    #[inline]
    pub(super) fn cost(&self, policy: &Policy, costs: &Costs) -> u64 {
        match &self.costs {
            None => costs.of(policy.policy().unit()),
            Some(own) => own.joined_to(costs).of(policy.policy().unit()),
        }
    }
}

impl<'a> PartPlan<'a> {
    #[inline]
    pub(crate) fn partition(self) -> PartitionId {
        self.part.partition
    }

    #[inline]
    pub(crate) fn policies(self) -> &'a PolicySet {
        &self.part.policies
    }

    #[inline]
    pub(crate) fn is_charged(self) -> bool {
        self.is_charged
    }

    #[inline]
    pub(crate) fn charges(self) -> impl ExactSizeIterator<Item = Charge<'a>> {
        let Self { part, question, .. } = self;
        let charge = move |policy| part.charge(policy, &question.costs);
        part.policies.iter().map(charge)
    }
}

/// A charge of a [`Plan`], for stores that [wrap](crate::Store) another store to route or count by charge.
///
/// ```
/// use tower_quota::{PolicySet, PartitionKey, Plan, QuotaPolicy, Scope};
///
/// let mails = Scope::new("mails");
/// let (alice, all) = (PartitionKey::new("user", "alice"), PartitionKey::new("everybody", ""));
/// let (alice, all) = (mails.partition(&alice), mails.partition(&all));
/// let plan = Plan::new(PolicySet::new([QuotaPolicy::per_hour("user", 10)])?, alice, 3)
///     .and(PolicySet::new([QuotaPolicy::per_hour("all", 500)])?, all);
///
/// let charges: Vec<_> = plan
///     .charges()
///     .map(|charge| (charge.policy().name(), charge.partition(), charge.cost()))
///     .collect();
/// assert_eq!(charges, [("user", alice, 3), ("all", all, 3)]);
/// assert_eq!(plan.partition(), alice);
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    policy: &'a Policy,
    partition: PartitionId,
    cost: u64,
}

impl<'a> Charge<'a> {
    /// Returns the policy to charge.
    #[inline]
    pub fn policy(&self) -> &'a QuotaPolicy {
        self.policy.policy()
    }

    #[inline]
    pub(crate) fn checked(&self) -> &'a Policy {
        self.policy
    }

    /// Returns the partition to charge.
    #[inline]
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// Returns the cost in the policy's unit.
    #[inline]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    #[inline]
    pub(crate) fn weight(&self) -> u64 {
        self.policy.counter().weigh(self.cost)
    }

    #[inline]
    pub(crate) fn is_admitted(&self, reading: PolicyReading, moment: Moment) -> bool {
        let now = moment.now.as_micros();
        self.policy.limit().admits(reading, now, self.weight())
    }

    #[inline]
    pub(crate) fn is_shadow(&self) -> bool {
        self.policy().is_shadow()
    }
}
