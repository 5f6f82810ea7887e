//! The first waist: what a store is asked.

use crate::{
    partition::PartitionId,
    quota::{CheckedPolicies, CheckedPolicy, Content, QuotaUnit},
};

/// What a request costs, in each of the units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) requests: u64,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    /// 1 for a request that is counted at all, which takes a slot and at least a byte.
    pub(crate) slots: u64,
}

impl Costs {
    /// Nothing in any unit.
    pub(crate) const NOTHING: Self = Self {
        requests: 0,
        request_bytes: 0,
        response_bytes: 0,
        slots: 0,
    };

    #[inline]
    fn of(self, unit: QuotaUnit) -> u64 {
        let content = match unit {
            QuotaUnit::Requests => return self.requests,
            QuotaUnit::ConcurrentRequests => return self.slots,
            QuotaUnit::ContentBytes(content) => content,
        };
        let bytes = match content {
            Content::Request => self.request_bytes,
            Content::Response => self.response_bytes,
            Content::Both => self.request_bytes.saturating_add(self.response_bytes),
        };
        bytes.max(self.slots)
    }
}

/// What a store is asked to decide: all policies that apply to a request, whose quota it uses, and what it costs.
///
/// A plan is all or nothing: either every policy is charged or none is. It knows nothing of HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    policies: CheckedPolicies,
    partition: PartitionId,
    costs: Costs,
}

impl Plan {
    /// A plan that charges `cost` units to each of the policies that count requests, a slot to those that count
    /// concurrent requests, and a byte to those that count bytes.
    ///
    /// A cost of 0 charges nothing, in no unit, and passes while no policy is overdrawn; a cost above a capacity never
    /// passes.
    #[inline]
    pub fn new(policies: CheckedPolicies, partition: PartitionId, cost: u64) -> Self {
        Self {
            policies,
            partition,
            costs: Costs {
                requests: cost,
                slots: cost.min(1),
                ..Costs::NOTHING
            },
        }
    }

    /// The same plan with as many bytes of content, as far as they are known in advance. A cost of 0 charges no bytes
    /// either.
    #[inline]
    #[must_use]
    pub fn with_content_bytes(mut self, request: u64, response: u64) -> Self {
        if self.is_charged() {
            self.costs.request_bytes = request;
            self.costs.response_bytes = response;
        }
        self
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

    #[inline]
    pub(crate) fn costs(&self) -> Costs {
        self.costs
    }

    /// Whether it takes anything; a plan that does not only asks.
    #[inline]
    pub(crate) fn is_charged(&self) -> bool {
        self.costs.slots > 0
    }

    /// Whether it takes a slot of a limit of concurrent requests.
    #[inline]
    pub(crate) fn takes_slots(&self) -> bool {
        self.policies.has_slots() && self.is_charged()
    }

    /// The same question without a charge.
    pub(crate) fn uncharged(mut self) -> Self {
        self.costs = Costs::NOTHING;
        self
    }

    /// The charges, in the order in which the policies were configured.
    #[inline]
    pub fn charges(&self) -> impl ExactSizeIterator<Item = Charge<'_>> {
        self.charges_for(self.costs)
    }

    /// The charges if the request had cost something else.
    #[inline]
    pub(crate) fn charges_for(&self, costs: Costs) -> impl ExactSizeIterator<Item = Charge<'_>> {
        self.policies.iter().map(move |policy| Charge {
            policy,
            cost: costs.of(policy.policy().unit()),
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

    /// The cost in the numbers of the policy's algorithm.
    #[inline]
    pub(crate) fn weight(&self) -> u64 {
        self.policy.rule().weigh(self.cost)
    }

    /// Whether the charge fits.
    #[inline]
    pub(crate) fn is_admitted(&self, reading: &[u64], now: u64) -> bool {
        self.policy.rule().admits(reading, now, self.weight())
    }

    /// Whether the policy refuses nothing.
    #[inline]
    pub(crate) fn is_shadow(&self) -> bool {
        self.policy.policy().is_shadow()
    }

    /// Whether the policy is charged if the request passes: a shadow that would have refused it is not.
    #[inline]
    pub(crate) fn is_taken(&self, reading: &[u64], now: u64) -> bool {
        !self.is_shadow() || self.is_admitted(reading, now)
    }
}
