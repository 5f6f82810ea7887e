use smallvec::SmallVec;

use super::{
    costs::Costs,
    excess::Excess,
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

/// A change to the charge of a [`Decision`], for [`Store::settle`](crate::Store::settle).
///
/// The layer settles its decisions itself. Programs that use a store directly must settle decisions that hold a slot of
/// a [concurrency limit](crate::QuotaPolicy::concurrent), and can settle every allowed decision, once. Further
/// settlements, and those of clones or of decisions in extensions, are [empty](Self::is_empty). If a settlement is
/// dropped or the store fails to apply it, the charge stays.
///
/// ```
/// use tower_quota::{MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Settlement, Store};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = MemoryStore::new();
/// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5), QuotaPolicy::concurrent("at once", 1)])?;
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
///
/// // The estimate was five recipients, but there were only two.
/// let decision = store.decide(Plan::new(policies.clone(), alice, 5)).await?;
/// store.settle(Settlement::new(&decision, 2)).await?;
///
/// let left: Vec<u64> = store.peek(Plan::new(policies, alice, 1)).await?.allowances().map(|a| a.remaining()).collect();
/// assert_eq!(left, [3, 1]);
/// assert!(Settlement::refund_all(&decision).is_empty(), "it was settled");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Late charges
///
/// A late charge is never rejected, but raises the used units of a policy to at most twice the capacity, or twice the
/// overage ceiling, that the policy had at the decision, whatever the policy is now: after a decision at capacity 10,
/// from 3 to 20 units, even if the capacity is now 100. Units charged under a larger quota stay charged: 20 used units
/// remain 20 after a decision at capacity 5. Later requests are rejected until the debt is repaid. A late charge to a
/// [calendar](crate::QuotaPolicy::per_calendar) window that has ended is dropped.
///
/// # Refunds
///
/// A refund never raises a policy above its capacity, and is possible within one window after the charge. After a
/// [reset](crate::Store::reset) or a loss of data, earlier charges are not refunded. Late charges still apply. A leaky
/// bucket refunds nothing once the request has left the queue.
///
/// A token bucket refunds only units that it has not refilled since: of 10 units charged to a full bucket that refills
/// one per second, 7 can be refunded after 3 s. If another charge was refunded in between, the refund can be too large,
/// by at most the units refilled since the charge.
#[derive(Debug)]
pub struct Settlement(Option<Change>);

#[derive(Debug)]
pub(super) struct Change {
    pub(super) plan: Plan,
    pub(super) moments: Moments,
    pub(super) is_known: bool,
    pub(super) lease: Option<LeaseId>,
    pub(super) deltas: SmallVec<[Delta; 4]>,
    pub(super) excess: Option<Excess>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Delta {
    pub(super) weight: i64,
    pub(super) mark: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Adjustment<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) delta: i64,
    pub(crate) receipt: Receipt,
}

impl Adjustment<'_> {
    pub(super) fn is_slot(&self) -> bool {
        self.policy.counter().form() == Form::Slots
    }
}

impl Settlement {
    /// Settles a completed request: charges or refunds the difference to `actual_cost`, and releases its slots. The
    /// costs of a [joined](Plan::join) plan do not change.
    pub fn new(decision: &Decision, actual_cost: u64) -> Self {
        let actual = Costs {
            requests: actual_cost,
            ..decision.charged()
        };
        Self::finish(decision, actual)
    }

    /// Like [`new`](Self::new), with actual amounts in [custom units](crate::QuotaPolicy::with_unit); the others are
    /// unchanged.
    ///
    /// ```
    /// use tower_quota::{MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Settlement, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let store = MemoryStore::new();
    /// let alice = Scope::new("models").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("tokens", 1_000).with_unit("tokens")])?;
    /// let decision = store.decide(Plan::new(policies.clone(), alice, 1).with_units("tokens", 900)).await?;
    /// // The answer was shorter than estimated.
    /// store.settle(Settlement::with_units(&decision, 1, [("tokens", 250)])).await?;
    ///
    /// let decision = store.peek(Plan::new(policies, alice, 1)).await?;
    /// assert_eq!(decision.allowances().next().map(|tokens| tokens.remaining()), Some(750));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
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

    /// Refunds the whole charge of a request that was not carried out, and releases its slots. Unlike a cost of 0, this
    /// also refunds bytes, and the place in a [leaky bucket](crate::Algorithm::LeakyBucketQueue) if no other request
    /// has queued behind it.
    ///
    /// ```
    /// use tower_quota::{MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Settlement, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let store = MemoryStore::new();
    /// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5)])?;
    /// let decision = store.decide(Plan::new(policies.clone(), alice, 5)).await?;
    /// // The mail server was unavailable.
    /// let settlement = Settlement::refund_all(&decision);
    /// assert_eq!((settlement.is_empty(), settlement.partition()), (false, Some(alice)));
    /// store.settle(settlement).await?;
    ///
    /// let decision = store.decide(Plan::new(policies, alice, 6)).await?;
    /// assert_eq!(decision.allowances().next().map(|mails| mails.remaining()), Some(5));
    /// // The second plan was rejected, so there is nothing to refund.
    /// assert!(Settlement::refund_all(&decision).is_empty());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn refund_all(decision: &Decision) -> Self {
        Self::of(decision, Costs::NOTHING, Free::All)
    }

    pub(crate) fn unserved(decision: &Decision, actual: Costs) -> Self {
        Self::of(decision, actual, Free::All)
    }

    /// Releases the slots of a request that was not forwarded, and refunds its announced bytes.
    pub(crate) fn cancelled(decision: &Decision) -> Self {
        let asked_for = Costs {
            request_bytes: 0,
            ..decision.charged()
        };
        Self::finish(decision, asked_for)
    }

    pub(crate) fn change(decision: &Decision, actual: Costs) -> Self {
        Self::of(decision, actual, Free::Nothing)
    }

    pub(crate) fn finish(decision: &Decision, actual: Costs) -> Self {
        Self::of(decision, actual, Free::Slots)
    }

    pub(super) fn of_change(change: Option<Change>) -> Self {
        Self(change)
    }

    fn of(decision: &Decision, actual: Costs, free: Free) -> Self {
        let measurement = match free {
            Free::Nothing => decision.receipt(),
            Free::All | Free::Slots => decision.take_receipt(),
        };
        Self(measurement.and_then(|measurement| Change::of(measurement, decision.charged(), actual, free)))
    }

    /// Returns whether nothing changes: nothing was charged, the decision was already settled or is a clone, or the
    /// cost equals the charge and no slot is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the partition to settle, the first if there are several. `None` if the settlement is empty.
    pub fn partition(&self) -> Option<PartitionId> {
        Some(self.0.as_ref()?.plan.partition())
    }

    /// Returns the partitions to settle, without duplicates.
    pub fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        self.0.iter().flat_map(|change| change.plan.partitions())
    }

    /// `true` for a refund. Without partitions that only release slots.
    pub(crate) fn changed(&self) -> SmallVec<[(PartitionId, bool); 1]> {
        let changes = self.parts().filter_map(|part| {
            let changes = part.adjustments().filter(|change| !change.is_slot());
            let least = changes.map(|change| change.delta).filter(|delta| *delta != 0).min()?;
            Some((part.part.partition(), least < 0))
        });
        changes.collect()
    }

    pub(crate) fn late_units(&self) -> u64 {
        let late = self.parts().flat_map(PartSettlement::adjustments);
        let late = late.filter(|change| change.delta > 0);
        let units = late.map(|change| change.delta.unsigned_abs() / change.policy.counter().weigh(1));
        units.max().unwrap_or(0)
    }

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
                    excess: change.excess.as_ref().map(|excess| (excess, number)),
                }
            })
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PartSettlement<'a> {
    pub(crate) part: PartPlan<'a>,
    pub(crate) charged_at: Moment,
    is_known: bool,
    pub(crate) lease: Option<LeaseId>,
    deltas: &'a [Delta],
    pub(super) excess: Option<(&'a Excess, usize)>,
}

impl<'a> PartSettlement<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.deltas.iter().all(|delta| delta.weight == 0)
    }

    /// See [`Moment::birth`].
    pub(crate) fn birth(&self) -> Option<u32> {
        self.is_known.then_some(self.charged_at.birth)
    }

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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Free {
    All,
    Nothing,
    Slots,
}

impl Change {
    fn of(measurement: &Measurement, from: Costs, to: Costs, free: Free) -> Option<Self> {
        let plan = measurement.plan();
        let charges = plan.charges_for(&from).zip(plan.charges_for(&to));
        let deltas = charges
            .zip(measurement.measured_charges())
            .map(|((from, to), measured)| {
                let counter = from.checked().counter();
                // Costs are subtracted before the conversion to weights, which are capped at 2⁵³.
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
                        Free::All | Free::Slots if measured.is_slot() => -(from.cost() as i64),
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
            excess: None,
        })
    }
}
