use std::time::Duration;

use ipnet::IpNet;

use tower_quota::{
    ConfigError, Decision, MemoryStore, Outcome, Plan, PolicySet, QuotaPolicy, Scope, Settlement, Store,
    ToPartitionKey, clock::Clock,
};

/// Failed proofs take as long as valid ones. Counted per process, because they consume its CPU time.
pub(super) struct Forgeries {
    store: MemoryStore,
    policies: PolicySet,
    scope: Scope,
}

pub(super) struct Charge(Decision);

impl Forgeries {
    pub(super) fn new(policy: QuotaPolicy, clock: &Clock) -> Result<Self, ConfigError> {
        Ok(Self {
            store: MemoryStore::builder().clock(clock.clone()).build()?,
            policies: PolicySet::new([policy])?,
            scope: Scope::new("tower-quota privacy-pass failed proofs"),
        })
    }

    /// Fails with the wait for the network.
    pub(super) async fn charge(&self, network: &IpNet) -> Result<Option<Charge>, Option<Duration>> {
        match self.store.decide(self.plan(network)).await {
            Ok(decision) if decision.outcome() == Outcome::Rejected => Err(decision.retry_after()),
            // Unreachable: this store always decides.
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

    /// For proofs that were not verified, or whose token was valid.
    pub(super) fn give_back(&self, charges: impl IntoIterator<Item = Charge>) {
        for Charge(decision) in charges {
            drop(self.store.settle(Settlement::refund_all(&decision)));
        }
    }
}
