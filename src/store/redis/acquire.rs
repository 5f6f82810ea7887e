use std::sync::Arc;

use super::{
    engine::{Engine, Job},
    keyspace::{Key, Keys},
    net::{Lane, PROCESS_TIME, Route},
    script::{self, Call, SentOn},
    shared_calls::{RunningDecision, shared_answer},
};
use crate::{
    decision::{MeasuredCharge, Measurement, PartNumbers, Plan, Settlement},
    error::StoreError,
    lease::LeaseId,
    store::StoreFuture,
    sync::join::all_of,
};

impl Engine {
    /// A separate call's future is much larger than a wait for a shared call, hence the boxes.
    pub(super) fn acquire(self: Arc<Self>, plan: Plan) -> StoreFuture<Measurement> {
        let running = self.shared_calls.begin();
        match running.may_share() {
            true => StoreFuture::boxed(self.acquire_shared(plan, running)),
            false => StoreFuture::boxed(async move {
                PROCESS_TIME.keep();
                let _running = running;
                self.acquire_unshared(plan).await
            }),
        }
    }

    async fn acquire_shared(self: Arc<Self>, plan: Plan, _running: RunningDecision) -> Result<Measurement, StoreError> {
        PROCESS_TIME.keep();
        let queued = match self.server.order.is_before(&plan) {
            true => Err(plan),
            false => self.shared_calls.queue(&self.server, plan),
        };
        match queued {
            Ok(answered) => shared_answer(answered.await),
            Err(plan) => Box::pin(self.acquire_unshared(plan)).await,
        }
    }

    pub(super) async fn acquire_unshared(&self, plan: Plan) -> Result<Measurement, StoreError> {
        let lease = plan.takes_slots().then(LeaseId::unique);
        if plan.only_part().is_none() {
            let groups = self.server.topology.groups(&self.server.keyspace, &plan);
            if groups.len() > 1 {
                return Box::pin(self.acquire_by_group(plan, groups, lease)).await;
            }
        }
        self.acquire_in_one_call(plan, lease).await
    }

    async fn acquire_by_group(
        &self,
        plan: Plan,
        groups: impl IntoIterator<Item = PartNumbers>,
        lease: Option<LeaseId>,
    ) -> Result<Measurement, StoreError> {
        match plan.is_charged() {
            true => self.acquire_group_by_group(&plan, groups, lease).await,
            false => self.read_groups(&plan, groups).await,
        }
    }

    async fn read_groups(
        &self,
        plan: &Plan,
        groups: impl IntoIterator<Item = PartNumbers>,
    ) -> Result<Measurement, StoreError> {
        let calls = groups.into_iter().map(|parts| async {
            let measurement = self.acquire_in_one_call(plan.only(&parts), None).await?;
            Ok((parts, measurement))
        });
        let answers: Result<Vec<_>, StoreError> = all_of(calls).await.into_iter().collect();
        Ok(Measurement::joined(plan, &answers?, None))
    }

    async fn acquire_in_one_call(&self, plan: Plan, lease: Option<LeaseId>) -> Result<Measurement, StoreError> {
        let call = Call::acquire(&self.server, &plan, lease);
        let connection = self.route(&plan, call.key()).await?;
        let pending = lease.zip(call.sent_on.clone()).map(|(lease, sent_on)| PendingSlots {
            store: self,
            slots: Some((lease, self.server.keyspace.slots(&plan))),
            sent_on,
        });
        let reply = connection.send(&call).await?;
        let measurement = script::decode(plan, lease, &reply)?;
        if let Some(pending) = pending {
            pending.answered(&measurement);
        }
        Ok(measurement)
    }

    /// Sends unsent settlements first, so that later calls on the connection arrive after them.
    async fn route(&self, plan: &Plan, key: &Key) -> Result<Route<'_>, StoreError> {
        let mut lane = Lane::Any;
        if self.server.order.is_before(plan) {
            Box::pin(self.send_before(plan, key)).await;
            lane = Lane::Ordered;
        }
        self.server.topology.route(key, lane).await
    }

    async fn acquire_group_by_group(
        &self,
        plan: &Plan,
        groups: impl IntoIterator<Item = PartNumbers>,
        lease: Option<LeaseId>,
    ) -> Result<Measurement, StoreError> {
        let mut granted = Granted {
            store: self,
            answers: Vec::new(),
        };
        for parts in groups {
            let group = plan.only(&parts);
            let lease = lease.filter(|_| group.takes_slots());
            let measurement = self.acquire_in_one_call(group, lease).await?;
            let is_allowed = measurement.is_allowed();
            granted.answers.push((parts, measurement));
            if !is_allowed {
                break;
            }
        }
        let measurement = Measurement::joined(plan, &granted.answers, lease);
        if measurement.is_allowed() {
            granted.answers.clear();
        }
        Ok(measurement)
    }

    pub(super) async fn reset(&self, plan: Plan) -> Result<(), StoreError> {
        let server = &*self.server;
        let groups = server.topology.groups(&server.keyspace, &plan);
        let calls = groups.into_iter().map(|parts| {
            let group = plan.only(&parts);
            async move {
                let call = Call::reset(server, &group);
                self.route(&group, call.key()).await?.send(&call).await
            }
        });
        all_of(calls).await.into_iter().try_for_each(|reset| reset.map(drop))
    }
}

struct Granted<'a> {
    store: &'a Engine,
    answers: Vec<(PartNumbers, Measurement)>,
}

impl Drop for Granted<'_> {
    fn drop(&mut self) {
        for (_, measurement) in self.answers.drain(..) {
            // The settlement makes progress without being polled.
            drop(self.store.settle(Settlement::refund_all(&measurement.decide())));
        }
    }
}

/// A cancelled call may have acquired its slots.
struct PendingSlots<'a> {
    store: &'a Engine,
    slots: Option<(LeaseId, Keys)>,
    sent_on: Arc<SentOn>,
}

impl PendingSlots<'_> {
    fn answered(mut self, measurement: &Measurement) {
        if let Some((lease, keys)) = self.slots.take()
            && measurement.is_allowed()
        {
            let slots = measurement.measured_charges().filter(MeasuredCharge::is_slot);
            // A part of a joined plan with cost 0 acquires no slot, and a renewal would add one.
            let is_held = |slot: &MeasuredCharge<'_>| slot.is_charged() && slot.charge().cost() > 0;
            let held = keys.into_iter().zip(slots).filter(|(_, slot)| is_held(slot));
            self.store.server.leases.hold(lease, held.map(|(key, _)| key).collect());
            self.store.start();
        }
    }
}

impl Drop for PendingSlots<'_> {
    fn drop(&mut self) {
        if let Some((lease, keys)) = self.slots.take()
            && let Some(connection) = self.sent_on.lock().take()
        {
            let settling = self.store.server.settling.subscribe();
            self.store.send(Job::Abandon(lease, keys, connection, settling));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        RedisStore,
        decision::Plan,
        partition::{PartitionKey, Scope},
        policy::{PolicySet, QuotaPolicy},
    };

    #[tokio::test]
    async fn a_decision_that_may_share_a_call_waits_in_less_than_a_kibibyte() {
        let store = RedisStore::new("redis://127.0.0.1:1/").unwrap();
        let policies = PolicySet::new([QuotaPolicy::per_day("daily", 3)]).unwrap();
        let alice = Scope::new("sizes").partition(&PartitionKey::new("user", "alice"));
        let waiting = store.0.acquire(Plan::new(policies, alice, 1));
        assert!(size_of_val(&waiting) <= 1_000, "{}", size_of_val(&waiting));
    }
}
