//! Decisions: each in one call, or in one for each slot of a cluster.

use std::sync::Arc;

use super::{
    Server,
    keyspace::{Key, Keys},
    net::{Lane, Route},
    script::{self, Call, SentOn},
    settlements::{Job, Settlements},
    shared_calls::{SharedCalls, Way, overloaded, together},
};
use crate::{
    error::StoreError,
    exchange::{MeasuredCharge, Measurement, PartNumbers, Plan, Settlement},
    lease::LeaseId,
    store::StoreFuture,
};

/// All that the clones of a store share.
pub(super) struct Engine {
    pub(super) server: Arc<Server>,
    pub(super) settlements: Settlements,
    pub(super) shared_calls: SharedCalls,
}

impl Engine {
    pub(super) async fn acquire(&self, plan: Plan) -> Result<Measurement, StoreError> {
        if self.settlements.are_before(&plan) {
            return self.acquire_alone(plan).await;
        }
        match self.shared_calls.way(&self.server, plan) {
            Way::Alone(plan, _under_way) => self.acquire_alone(plan).await,
            Way::Together(answered, _under_way) => together(answered).await,
            Way::Overloaded => Err(overloaded()),
        }
    }

    async fn acquire_alone(&self, plan: Plan) -> Result<Measurement, StoreError> {
        let lease = plan.takes_slots().then(LeaseId::unique);
        if plan.only_part().is_some() {
            return self.acquire_at_once(plan, lease).await;
        }
        let groups = self.server.topology.groups(&self.server.keyspace, &plan);
        if groups.len() == 1 {
            return self.acquire_at_once(plan, lease).await;
        }
        self.acquire_in_turn(&plan, groups, lease).await
    }

    async fn acquire_at_once(&self, plan: Plan, lease: Option<LeaseId>) -> Result<Measurement, StoreError> {
        let server = &*self.server;
        let call = {
            let lease = lease.map(|lease| (lease, server.lease_time));
            Call::acquire(&server.keyspace, &plan, lease, server.now())
        };
        let connection = self.route(&plan, call.key()).await?;
        let taking = lease.zip(call.sent_on());
        let pending = taking.map(|(lease, sent_on)| PendingSlots::new(self, &plan, lease, sent_on));
        let reply = connection.send(&call).await?;
        let measurement = script::decode(plan, lease, &reply)?;
        if let Some(pending) = pending {
            pending.answered(&measurement);
        }
        Ok(measurement)
    }

    /// A connection on which a call about the plan comes behind the settlements of its partitions.
    async fn route(&self, plan: &Plan, key: &Key) -> Result<Route<'_>, StoreError> {
        let is_behind = self.settlements.are_before(plan);
        if is_behind {
            self.settlements.send_before(&self.server, plan, key).await;
        }
        let lane = if is_behind { Lane::Ordered } else { Lane::Any };
        self.server.topology.route(key, lane).await
    }

    /// Sends one call after the other. When one rejects, fails or is cancelled, the charges before it are given back.
    async fn acquire_in_turn(
        &self,
        plan: &Plan,
        groups: impl IntoIterator<Item = PartNumbers>,
        lease: Option<LeaseId>,
    ) -> Result<Measurement, StoreError> {
        let mut granted = Granted {
            store: self,
            lease,
            answers: Vec::new(),
        };
        for parts in groups {
            let group = plan.only(&parts);
            let lease = lease.filter(|_| group.takes_slots());
            let measurement = self.acquire_at_once(group, lease).await?;
            let is_allowed = measurement.is_allowed();
            granted.answers.push((parts, measurement));
            // A plan that charges nothing asks for all readings.
            if !is_allowed && plan.is_charged() {
                break;
            }
        }
        let measurement = Measurement::joined(plan, &granted.answers, lease);
        if measurement.is_allowed() {
            granted.answers.clear();
        }
        Ok(measurement)
    }

    pub(super) fn settle(&self, settlement: &Settlement) -> StoreFuture<()> {
        if let Some(lease) = settlement.released() {
            self.server.leases.release(lease);
        }
        self.settlements.settle(&self.server, settlement)
    }

    pub(super) async fn reset(&self, plan: Plan) -> Result<(), StoreError> {
        let server = &*self.server;
        let mut done = Ok(());
        for parts in server.topology.groups(&server.keyspace, &plan) {
            let group = plan.only(&parts);
            let call = Call::reset(&server.keyspace, &group);
            let reset = async { self.route(&group, call.key()).await?.send(&call).await };
            done = done.and(reset.await.map(drop));
        }
        done
    }
}

/// The charges of a plan that is not decided yet. They are given back unless the whole plan is granted.
struct Granted<'a> {
    store: &'a Engine,
    lease: Option<LeaseId>,
    answers: Vec<(PartNumbers, Measurement)>,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        let Engine {
            server, settlements, ..
        } = self.store;
        if let Some(lease) = self.lease.filter(|_| !self.answers.is_empty()) {
            server.leases.release(lease);
        }
        for (_, measurement) in self.answers.drain(..) {
            // It runs without being waited for.
            drop(settlements.settle(server, &Settlement::unused(&measurement.decide())));
        }
    }
}

/// The slots of a call that has no reply yet. A cancelled call may have taken them, so they are released by name.
struct PendingSlots<'a> {
    store: &'a Engine,
    slots: Option<(LeaseId, Keys)>,
    sent_on: Arc<SentOn>,
}

impl<'a> PendingSlots<'a> {
    fn new(store: &'a Engine, plan: &Plan, lease: LeaseId, sent_on: Arc<SentOn>) -> Self {
        let keys = store.server.keyspace.slots(plan);
        Self {
            store,
            slots: Some((lease, keys)),
            sent_on,
        }
    }

    fn answered(mut self, measurement: &Measurement) {
        if let Some((lease, keys)) = self.slots.take()
            && measurement.is_allowed()
        {
            let slots = measurement.charges().filter(MeasuredCharge::is_slot);
            let keys: Keys = keys
                .into_iter()
                .zip(slots)
                .filter_map(|(key, slot)| slot.is_charged().then_some(key))
                .collect();
            self.store.server.leases.hold(lease, keys);
            self.store.settlements.start(&self.store.server);
        }
    }
}

impl Drop for PendingSlots<'_> {
    fn drop(&mut self) {
        if let Some((lease, keys)) = self.slots.take()
            && let Some(connection) = self.sent_on.take()
        {
            let job = Job::Abandon {
                lease,
                keys,
                connection,
            };
            self.store.settlements.send(&self.store.server, job);
        }
    }
}
