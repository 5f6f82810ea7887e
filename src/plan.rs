//! The first waist: what a store is asked.

use crate::{
    partition::PartitionId,
    quota::{CheckedPolicies, CheckedPolicy},
};

/// What a store is asked to decide: all policies that apply to a request, whose quota it uses, and what it costs.
///
/// A plan is all or nothing: either every policy is charged or none is. It knows nothing of HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    policies: CheckedPolicies,
    partition: PartitionId,
    cost: u64,
}

impl Plan {
    /// A plan that charges `cost` units to each of the policies.
    ///
    /// A cost of 0 charges nothing and passes while no policy is overdrawn; a cost above a burst capacity never passes.
    #[inline]
    pub fn new(policies: CheckedPolicies, partition: PartitionId, cost: u64) -> Self {
        Self {
            policies,
            partition,
            cost,
        }
    }

    /// Whose quota is charged.
    #[inline]
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    #[inline]
    pub(crate) fn policies(&self) -> &CheckedPolicies {
        &self.policies
    }

    /// Whether it takes anything; a plan that does not only asks.
    #[inline]
    pub(crate) fn is_charged(&self) -> bool {
        self.cost > 0
    }

    /// The charges, in the order in which the policies were configured.
    #[inline]
    pub fn charges(&self) -> impl ExactSizeIterator<Item = Charge<'_>> {
        self.policies.iter().map(|policy| Charge {
            policy,
            cost: self.cost,
        })
    }
}

/// One charge of a [`Plan`].
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    policy: &'a CheckedPolicy,
    cost: u64,
}

impl<'a> Charge<'a> {
    /// The policy that is charged.
    #[inline]
    pub fn policy(&self) -> &'a CheckedPolicy {
        self.policy
    }

    /// How many units.
    #[inline]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The cost in the weight of the policy's bucket.
    #[inline]
    pub(crate) fn weight(&self) -> u64 {
        self.policy.bucket().charge(self.cost)
    }

    #[inline]
    pub(crate) fn is_admitted(&self, used: u64) -> bool {
        self.policy.bucket().admits(used, self.weight())
    }
}
