use smallvec::{SmallVec, smallvec};

use super::{
    costs::Costs,
    excess::Excess,
    plan::{Charge, Plan},
    settlement::{Change, Delta, Settlement},
};
use crate::{
    algorithm::{EXACT, Form, Moment},
    clock::Timestamp,
};

/// The time at which refunded units were charged; see [`Settlement::refund`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChargeTime {
    /// At this time by the store's clock: see [`Decision::decided_at`](crate::Decision::decided_at). Units of past
    /// windows are not refunded.
    At(Timestamp),
    /// Now. Units that were charged in an earlier window are credited to the current one.
    Now,
}

impl Settlement {
    /// Refunds the cost of a plan without the decision that charged it.
    ///
    /// Use this for a job that was charged by another process and not carried out. With the decision, use
    /// [`Settlement::new`] or [`Settlement::refund_all`], which are exact. The plan specifies the partitions, policies
    /// and units. No policy is raised above its capacity.
    ///
    /// ```
    /// use tower_quota::{ChargeTime, MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Settlement, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let store = MemoryStore::new();
    /// let alice = Scope::new("jobs").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("jobs", 10)])?;
    /// let jobs = |count| Plan::new(policies.clone(), alice, count);
    /// let decision = store.decide(jobs(8)).await?;
    /// let charged_at = decision.decided_at().expect("a store has decided");
    ///
    /// // In another process, which knows the caller, the amount and the time:
    /// store.settle(Settlement::refund(jobs(5), ChargeTime::At(charged_at))).await?;
    /// let left = store.peek(jobs(1)).await?.allowances().next().map(|hour| hour.remaining());
    /// assert_eq!(left, Some(7));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # What is refunded
    ///
    /// With [`ChargeTime::At`], charges that are at least one window old are not refunded. Younger charges are refunded
    /// as follows:
    ///
    /// | algorithm | refund |
    /// |---|---|
    /// | fixed window | charges of the current window |
    /// | sliding window counter | charges of the current and the previous window, each to its window |
    /// | token bucket | at most its capacity minus the units refilled since the charge |
    /// | sliding window log | units of its entries up to that time, the newest first, except entries followed by a thousand or more newer entries |
    /// | leaky bucket | nothing, because other requests have queued behind the charge |
    /// | concurrency limit | nothing, because only its holder can release a slot |
    ///
    /// A policy that counts bytes is refunded at least one byte, the minimum charge.
    ///
    /// # Duplicates
    ///
    /// A store cannot verify that the units were charged: a refund after a [reset](crate::Store::reset), or a second
    /// refund of the same units, adds quota. An [id](crate::Refund::with_id) detects duplicates.
    pub fn refund(plan: Plan, charged: ChargeTime) -> Self {
        let costs = plan.costs();
        Self::refund_of(plan, &costs, charged)
    }

    pub(crate) fn refund_of_units(plan: Plan, charged: ChargeTime) -> Self {
        let costs = Costs {
            counted: 0,
            slots: 0,
            ..plan.costs()
        };
        Self::refund_of(plan, &costs, charged)
    }

    fn refund_of(plan: Plan, costs: &Costs, charged: ChargeTime) -> Self {
        let weight = |charge: Charge<'_>| {
            let counter = charge.checked().counter();
            // Slots are only released by their holders.
            match counter.form() != Form::Slots && counter.is_refundable(false) {
                // Weights are at most 2⁵³.
                true => -(charge.weight() as i64),
                false => 0,
            }
        };
        let deltas = plan.charges_for(costs).map(|charge| Delta {
            weight: weight(charge),
            mark: charge.checked().counter().any_mark(),
        });
        let deltas = deltas.collect();
        Self::undecided(plan, charged, deltas, None)
    }

    pub(super) fn undecided(
        plan: Plan,
        charged: ChargeTime,
        deltas: SmallVec<[Delta; 4]>,
        excess: Option<Excess>,
    ) -> Self {
        let now = match charged {
            ChargeTime::At(moment) => moment,
            // Later than the time of any store.
            ChargeTime::Now => Timestamp::from_micros(EXACT - 1),
        };
        let moment = Moment {
            now,
            ..Moment::default()
        };
        let moments = smallvec![moment; plan.parts().len()];
        Self::of_change(deltas.iter().any(|delta| delta.weight != 0).then_some(Change {
            plan,
            moments,
            is_known: false,
            lease: None,
            deltas,
            excess,
        }))
    }
}
