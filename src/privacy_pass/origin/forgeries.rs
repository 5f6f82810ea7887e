//! A limit on failing proofs: each takes as much time to verify as a valid one.

use std::time::Duration;

use http::request::Parts;

use crate::{
    clock::Clock,
    error::ConfigError,
    exchange::{Decision, Outcome, Plan, Settlement},
    key::KeyExtractor,
    partition::{PartitionId, Scope},
    policy::{PolicySet, QuotaPolicy},
    store::{Store, memory::MemoryStore},
};

/// The limit by address of proofs that fail. It is this process whose time they take, so this process counts them.
pub(super) struct Forgeries {
    store: MemoryStore,
    policies: PolicySet,
    scope: Scope,
    address: Box<dyn KeyExtractor>,
}

/// A proof that is about to be verified and is charged as if it had failed.
pub(super) struct Charge(Decision);

impl Forgeries {
    pub(super) fn new(policy: QuotaPolicy, address: Box<dyn KeyExtractor>, clock: &Clock) -> Result<Self, ConfigError> {
        address.check()?;
        Ok(Self {
            store: MemoryStore::on(clock.clone()),
            policies: PolicySet::new([policy])?,
            scope: Scope::new("tower-quota privacy-pass failed proofs"),
            address,
        })
    }

    /// The address of a request, if it is known.
    pub(super) fn address(&self, request: &Parts) -> Option<PartitionId> {
        self.address.extract(request).map(|key| self.scope.partition(&key))
    }

    /// Charges a proof, or says how long the client has to wait. If the address is unknown, the queue is the only bound.
    pub(super) async fn charge(&self, address: Option<PartitionId>) -> Result<Option<Charge>, Option<Duration>> {
        let Some(address) = address else {
            return Ok(None);
        };
        match self.store.decide(Plan::new(self.policies.clone(), address, 1)).await {
            Ok(decision) if decision.outcome() == Outcome::Rejected => Err(decision.retry_after()),
            // This store always decides.
            decision => Ok(decision.ok().map(Charge)),
        }
    }

    /// The proofs of a token were verified, and one of them is right: none of them is charged.
    pub(super) fn give_back(&self, charges: Vec<Charge>) {
        for Charge(decision) in charges {
            drop(self.store.settle(Settlement::unused(&decision)));
        }
    }
}
