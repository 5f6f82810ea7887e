//! Units that are given back without the decision that has charged them.

use smallvec::{SmallVec, smallvec};

use super::{
    costs::Costs,
    plan::Plan,
    settlement::{Change, Delta, Settlement},
};
use crate::{
    algorithm::{EXACT, Form, Moment},
    clock::Timestamp,
};

/// The moment at which units were charged that are given back from elsewhere: see [`Settlement::refund`].
///
/// ```
/// use tower_quota::{ChargeTime, clock::Timestamp};
///
/// // As a job carries it: the microseconds of `Decision::decided_at`.
/// let micros = 1_767_225_600_000_000;
/// assert_ne!(ChargeTime::At(Timestamp::from_micros(micros)), ChargeTime::Now);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChargeTime {
    /// At this moment of the store: [`Decision::decided_at`](crate::Decision::decided_at). Units of a window that is over
    /// are not given back.
    At(Timestamp),
    /// As if it were now: also what was charged in an earlier window is credited to this one.
    Now,
}

impl Settlement {
    /// Gives back what a plan costs, without the decision that has charged it.
    ///
    /// You want it where another process knows that a job was not carried out, and has nothing but the caller and the
    /// amount. Where the decision is at hand, [`Settlement::new`] and [`Settlement::refund_all`] are exact.
    ///
    /// The plan specifies the partitions, the policies and the units; a policy that counts bytes gets back at least the one
    /// byte that a plan charges. No policy is lifted above its quota. With
    /// [`ChargeTime::At`]:
    ///
    /// - a fixed window gets back what was charged in the window of now, a sliding window counter what was charged in this
    ///   window or the last one, and to that window;
    /// - a token bucket gets back no more than its capacity less what the rate has brought since the charge;
    /// - a sliding window log takes the units from its entries up to that moment, the newest first. Entries before which a
    ///   thousand others have come stay;
    /// - what was charged a whole window ago or earlier is not given back.
    ///
    /// Nothing is given back to leaky buckets, whose places others have come behind, nor to limits of concurrent requests,
    /// whose slots only their holders release. A store cannot know whether the units were charged at all: after a
    /// [reset](crate::Store::reset), or when they are given back twice, later requests of the caller have that much more.
    /// Repeated messages are found out by [`Caller::refund`](crate::Caller::refund) with an
    /// [id](crate::Refund::with_id).
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::ChargeTime;
    /// # run(async {
    /// # let store = MemoryStore::new();
    /// # let alice = Scope::new("jobs").partition(&PartitionKey::new("user", "alice"));
    /// let policies = PolicySet::new([QuotaPolicy::per_hour("jobs", 10)])?;
    /// let jobs = |count| Plan::new(policies.clone(), alice, count);
    /// let decision = store.decide(jobs(8)).await?;
    /// let charged_at = decision.decided_at().expect("a store has decided");
    ///
    /// // In another process, which knows the caller, the amount and the moment:
    /// store.settle(Settlement::refund(jobs(5), ChargeTime::At(charged_at))).await?;
    /// let left = store.peek(jobs(1)).await?.allowances().next().map(|hour| hour.remaining());
    /// assert_eq!(left, Some(7));
    /// # Ok(()) });
    /// ```
    pub fn refund(plan: Plan, charged: ChargeTime) -> Self {
        let costs = plan.costs();
        Self::refund_of(plan, &costs, charged)
    }

    /// The same without the byte that a plan charges at least.
    pub(crate) fn refund_of_units(plan: Plan, charged: ChargeTime) -> Self {
        let costs = Costs {
            counted: 0,
            slots: 0,
            ..plan.costs()
        };
        Self::refund_of(plan, &costs, charged)
    }

    fn refund_of(plan: Plan, costs: &Costs, charged: ChargeTime) -> Self {
        let deltas = plan.charges_for(costs).map(|charge| {
            let counter = charge.policy().counter();
            Delta {
                // Only its holder releases a slot.
                weight: match counter.form() != Form::Slots && counter.is_refundable(false) {
                    // Weights are at most 2⁵³.
                    true => -(charge.weight() as i64),
                    false => 0,
                },
                mark: counter.any_mark(),
            }
        });
        let deltas: SmallVec<[Delta; 4]> = deltas.collect();
        let now = match charged {
            ChargeTime::At(moment) => moment,
            // No store is there yet.
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
        }))
    }
}
