//! The change of a charge after the decision: more, less, or nothing of it.

use smallvec::SmallVec;

use super::{
    costs::Costs,
    measurement::Measurement,
    outcome::Decision,
    plan::{PartPlan, Plan},
};
use crate::{
    algorithm::{Form, Moment, Moments, Receipt},
    lease::LeaseId,
    partition::PartitionId,
    policy::{Policy, UnitId},
};

/// A change of the charges of a [`Decision`], for [`Store::settle`](crate::Store::settle).
///
/// The layer makes them by itself. You want them when you use a store alone: each decision that was allowed can be
/// settled, and has to be settled if it holds a slot of a limit of
/// [concurrent requests](crate::QuotaPolicy::concurrent).
///
/// A decision is settled once. The first settlement takes its receipt; further ones are [empty](Self::is_empty), and
/// change nothing. Clones have no receipt, nor do the decisions that a layer puts into extensions: the layer settles them.
/// A settlement that is dropped, or that the store does not carry out, is lost: charges then stand as they are.
///
/// A late charge is never rejected: it may overdraw a policy up to twice its quota. If the policy has changed since the
/// decision, the settlement changes what was used by its own difference and nothing else: units that were charged under
/// a larger quota stay charged, and a late charge may overdraw up to twice the larger quota. Where a store does not keep
/// the larger quota (logs, and buckets of one rate and different capacity), the limit is twice the quota that was charged
/// first. However large a wrong report is, it costs no more. A late charge to a [calendar](crate::QuotaPolicy::per_calendar)
/// window that has ended is dropped.
///
/// After a [reset](crate::Store::reset), or where a store has lost what it knew, a charge that was made before is not given back
/// any more: that would be quota of later requests. A late charge counts there as anywhere: it was used.
///
/// A refund never lifts a policy above full. It adds the units that have not come back by themselves, and comes no
/// later than a window after the charge. A token bucket counts that as if nothing had been charged or refunded since the
/// charge: of 10 units, charged to a full bucket that restores one a second, all but those of the seconds since then can
/// still be refunded. If another charge was refunded meanwhile, time may have restored more of them than that; the refund
/// then adds too much, at most what the rate has restored since the charge.
///
/// ```
/// use tower_quota::{PolicySet, MemoryStore, PartitionKey, Plan, QuotaPolicy, Scope, Settlement, Store};
///
/// # tokio_test::block_on(async {
/// let store = MemoryStore::new();
/// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5), QuotaPolicy::concurrent("at once", 1)])?;
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
///
/// // Five recipients were announced, two were there.
/// let decision = store.decide(Plan::new(policies.clone(), alice, 5)).await?;
/// store.settle(Settlement::new(&decision, 2)).await?;
///
/// let left: Vec<u64> = store.peek(Plan::new(policies, alice, 1)).await?.allowances().map(|a| a.remaining()).collect();
/// assert_eq!(left, [3, 1]);
/// assert!(Settlement::refund_all(&decision).is_empty(), "it was settled");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Settlement(Option<Change>);

#[derive(Debug)]
pub(super) struct Change {
    pub(super) plan: Plan,
    pub(super) moments: Moments,
    /// True if the charge is known, and not only its moment.
    pub(super) is_known: bool,
    pub(super) lease: Option<LeaseId>,
    /// One for each charge, in the plan's order.
    pub(super) deltas: SmallVec<[Delta; 4]>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Delta {
    /// The amount that is added to the charge, or taken from it.
    pub(super) weight: i64,
    /// The mark of the charge, for a refund.
    pub(super) mark: u64,
}

/// A change of the charge of one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adjustment<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) delta: i64,
    pub(crate) receipt: Receipt,
}

impl Adjustment<'_> {
    /// Returns `true` for a slot of a limit of concurrent requests.
    pub(super) fn is_slot(&self) -> bool {
        self.policy.counter().form() == Form::Slots
    }
}

impl Settlement {
    /// The request is over and has cost `actual_cost`: the difference is charged or given back, and its slots are free.
    pub fn new(decision: &Decision, actual_cost: u64) -> Self {
        let actual = Costs {
            requests: actual_cost,
            ..decision.charged()
        };
        Self::finish(decision, actual)
    }

    /// The same with actual amounts in units of [your own](crate::QuotaPolicy::with_unit). Units that are not named keep their
    /// charge.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// # let store = MemoryStore::new();
    /// # let alice = Scope::new("models").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("tokens", 1_000).with_unit("tokens")])?;
    /// let decision = store.decide(Plan::new(policies.clone(), alice, 1).with_units("tokens", 900)).await?;
    /// // The answer was shorter than expected.
    /// store.settle(Settlement::with_units(&decision, 1, [("tokens", 250)])).await?;
    ///
    /// let decision = store.peek(Plan::new(policies, alice, 1)).await?;
    /// assert_eq!(decision.allowances().next().map(|tokens| tokens.remaining()), Some(750));
    /// # Ok(()) });
    /// ```
    pub fn with_units<'a>(
        decision: &Decision,
        actual_cost: u64,
        units: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Self {
        let mut actual = Costs {
            requests: actual_cost,
            ..decision.charged()
        };
        for (unit, amount) in units {
            actual.units.set(UnitId::of(unit), amount);
        }
        Self::finish(decision, actual)
    }

    /// The request was not carried out: all of its charge is given back, and its slots are free.
    ///
    /// Unlike a cost of 0, this also gives back bytes and the place in a
    /// [leaky bucket](crate::Algorithm::LeakyBucketQueue), if no other request has come behind it.
    ///
    /// ```
    /// # use tower_quota::{PolicySet, MemoryStore, PartitionKey, Plan, QuotaPolicy, Scope, Settlement, Store};
    /// # tokio_test::block_on(async {
    /// # let store = MemoryStore::new();
    /// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
    /// let decision = store.decide(Plan::new(policies.clone(), alice, 5)).await?;
    /// // The mail server was unavailable.
    /// let settlement = Settlement::refund_all(&decision);
    /// assert_eq!((settlement.is_empty(), settlement.partition()), (false, Some(alice)));
    /// store.settle(settlement).await?;
    ///
    /// let decision = store.decide(Plan::new(policies, alice, 6)).await?;
    /// assert_eq!(decision.allowances().next().map(|mails| mails.remaining()), Some(5));
    /// // That was rejected: there is nothing to give back.
    /// assert!(Settlement::refund_all(&decision).is_empty());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn refund_all(decision: &Decision) -> Self {
        Self::of(decision, Costs::NOTHING, Free::All)
    }

    /// The request was not carried out, apart from what `actual` says.
    pub(crate) fn unserved(decision: &Decision, actual: Costs) -> Self {
        Self::of(decision, actual, Free::All)
    }

    /// The request was cancelled before it was passed on: it stays charged, and its slots are free. Bytes that it had
    /// announced were never sent.
    pub(crate) fn cancelled(decision: &Decision) -> Self {
        let asked_for = Costs {
            request_bytes: 0,
            ..decision.charged()
        };
        Self::finish(decision, asked_for)
    }

    /// The request goes on, but what it has cost so far is another sum than what is charged.
    pub(crate) fn change(decision: &Decision, actual: Costs) -> Self {
        Self::of(decision, actual, Free::Nothing)
    }

    /// The request is over.
    pub(crate) fn finish(decision: &Decision, actual: Costs) -> Self {
        Self::of(decision, actual, Free::Slots)
    }

    pub(super) fn of_change(change: Option<Change>) -> Self {
        Self(change)
    }

    /// Nothing, where nothing was charged or nothing changes, and after the end of the request was settled.
    fn of(decision: &Decision, actual: Costs, free: Free) -> Self {
        let measurement = match free {
            Free::Nothing => decision.receipt(),
            Free::All | Free::Slots => decision.take_receipt(),
        };
        Self(measurement.and_then(|measurement| Change::of(measurement, decision.charged(), actual, free)))
    }

    /// Returns `true` if there is nothing to do: nothing was charged, the decision was settled before or is a clone, or the
    /// cost is the one that was charged and no slot is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The partition that it is about, if there is anything to do; the first one where there are several.
    pub fn partition(&self) -> Option<PartitionId> {
        Some(self.0.as_ref()?.plan.partition())
    }

    /// The partitions that it is about, each of them once.
    pub fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        self.0.iter().flat_map(|change| change.plan.partitions())
    }

    /// The partitions to which units are given back; slots are none.
    pub(crate) fn refunded(&self) -> SmallVec<[PartitionId; 1]> {
        let parts = self.parts().filter(PartSettlement::gives_back);
        parts.map(|part| part.part.partition()).collect()
    }

    /// The change of each partition. Unlike the charge, these need not be one step.
    pub(crate) fn parts(&self) -> impl Iterator<Item = PartSettlement<'_>> {
        self.0.iter().flat_map(|change| {
            let mut deltas = &*change.deltas;
            change.plan.parts().enumerate().map(move |(number, part)| {
                let (own, others) = deltas.split_at(part.charges().len());
                deltas = others;
                PartSettlement {
                    part,
                    charged_at: change.moments.get(number).copied().unwrap_or_default(),
                    is_known: change.is_known,
                    lease: change.lease,
                    deltas: own,
                }
            })
        })
    }
}

/// The part of a [`Settlement`] that is about one partition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartSettlement<'a> {
    pub(crate) part: PartPlan<'a>,
    /// The moment of the charge.
    pub(crate) charged_at: Moment,
    is_known: bool,
    pub(crate) lease: Option<LeaseId>,
    deltas: &'a [Delta],
}

impl<'a> PartSettlement<'a> {
    /// Returns `true` if there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.deltas.iter().all(|delta| delta.weight == 0)
    }

    /// Returns `true` if units are given back.
    fn gives_back(&self) -> bool {
        self.adjustments().any(|change| !change.is_slot() && change.delta < 0)
    }

    /// The birth of what was charged, if it is known; see [`Moment::birth`].
    pub(crate) fn birth(&self) -> Option<u32> {
        self.is_known.then_some(self.charged_at.birth)
    }

    /// The change of each policy, in the plan's order.
    pub(crate) fn adjustments(self) -> impl Iterator<Item = Adjustment<'a>> {
        let changes = self.part.policies().iter().zip(self.deltas);
        changes.map(move |(policy, delta)| Adjustment {
            policy,
            delta: delta.weight,
            receipt: Receipt {
                at: self.charged_at.now.as_micros(),
                birth: self.birth(),
                mark: delta.mark,
                refundable_micros: policy.policy().refundable_micros(),
                lease: self.lease,
            },
        })
    }
}

/// The slots and places that become free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Free {
    All,
    Nothing,
    Slots,
}

impl Change {
    /// `None` if nothing changes.
    fn of(measurement: &Measurement, from: Costs, to: Costs, free: Free) -> Option<Self> {
        let plan = measurement.plan();
        let charges = plan.charges_for(&from).zip(plan.charges_for(&to));
        let deltas = charges.zip(measurement.charges()).map(|((from, to), measured)| {
            let counter = from.policy().counter();
            // Costs are subtracted before they are weighed, because a weight stops at 2⁵³.
            let difference = counter.weigh(to.cost().abs_diff(from.cost())) as i64;
            let weight = if to.cost() < from.cost() {
                -difference
            } else {
                difference
            };
            Delta {
                weight: match free {
                    _ if !measured.is_charged() => 0,
                    Free::Nothing if measured.is_slot() => 0,
                    Free::All | Free::Slots if measured.is_slot() => -i64::from(plan.costs().slots),
                    _ if counter.is_refundable(free == Free::All) => weight,
                    _ => weight.max(0),
                },
                mark: counter.mark(measured.reading.counted, from.weight()),
            }
        });
        let deltas: SmallVec<[Delta; 4]> = deltas.collect();
        deltas.iter().any(|delta| delta.weight != 0).then(|| Self {
            plan: plan.clone(),
            moments: measurement.moments().clone(),
            is_known: true,
            lease: measurement.lease(),
            deltas,
        })
    }
}
