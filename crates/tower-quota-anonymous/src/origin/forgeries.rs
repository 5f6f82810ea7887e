//! A limit on failing proofs: each takes as much time to verify as a valid one.

use std::time::Duration;

use ipnet::IpNet;

use tower_quota::{
    ConfigError, Decision, MemoryStore, Outcome, Plan, PolicySet, QuotaPolicy, Scope, Settlement, Store,
    ToPartitionKey, clock::Clock,
};

/// The limit by address of proofs that fail. It is this process whose time they take, so this process counts them.
pub(super) struct Forgeries {
    store: MemoryStore,
    policies: PolicySet,
    scope: Scope,
}

/// A proof that is about to be verified and is charged as if it had failed.
pub(super) struct Charge(Decision);

impl Forgeries {
    pub(super) fn new(policy: QuotaPolicy, clock: &Clock) -> Result<Self, ConfigError> {
        Ok(Self {
            store: MemoryStore::builder().clock(clock.clone()).build()?,
            policies: PolicySet::new([policy])?,
            scope: Scope::new("tower-quota privacy-pass failed proofs"),
        })
    }

    /// Charges a proof, or returns how long the network has to wait.
    pub(super) async fn charge(&self, network: &IpNet) -> Result<Option<Charge>, Option<Duration>> {
        match self.store.decide(self.plan(network)).await {
            Ok(decision) if decision.outcome() == Outcome::Rejected => Err(decision.retry_after()),
            // This store always decides.
            decision => Ok(decision.ok().map(Charge)),
        }
    }

    fn plan(&self, network: &IpNet) -> Plan {
        Plan::new(
            self.policies.clone(),
            self.scope.partition(&network.addr().to_partition_key()),
            1,
        )
    }

    /// Refunds proofs that were not verified, or that belong to a token with a right one.
    pub(super) fn give_back(&self, charges: impl IntoIterator<Item = Charge>) {
        for Charge(decision) in charges {
            drop(self.store.settle(Settlement::refund_all(&decision)));
        }
    }
}
