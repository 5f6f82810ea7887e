//! Caches readings of the store for up to a second, and rejects charges that a reading is known to reject.
//!
//! A reading determines how long a charge is rejected, if other instances only add to the usage, and no other rules for
//! the same state drain it faster. Time is measured from before the call, so no charge is rejected for longer than the
//! store would reject it. After a rejection, charges of the same or a higher weight are not sent for a short time, the
//! *hold*, so that instances do not race for the next unit. A settlement removes the readings of its partitions, and
//! answers to earlier calls are not cached.

mod answer;
mod exhaustion;
mod hot;
mod record;
mod shard;
#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::Instant;

use self::{
    answer::{Answer, Found, Known},
    hot::HotPartitions,
    record::Record,
    shard::Shard,
};
use super::guarded::{GuardedStore, LateCall, StoreCall};
use crate::{
    clock::{Clock, Timestamp},
    decision::{Cached, Decision, Measurement, PartPlan, Plan, Settlement},
    error::{StoreError, StoreErrorKind},
    partition::PartitionId,
    store::StoreFuture,
    sync::{mutex::Mutex, sharded::Sharded},
    telemetry::{LateBatch, StoreTelemetry},
};

pub(super) struct RejectionCache {
    pub(super) store: GuardedStore,
    shards: Sharded<Shard>,
    hot: HotPartitions,
    is_on: bool,
    /// While no partition is cached, requests take no lock.
    len: AtomicUsize,
    /// Until a request has waited for the store, settlements have nothing to invalidate.
    is_used: AtomicBool,
    resets: Mutex<Vec<PartitionId>>,
    clock: Clock,
    log: Arc<StoreTelemetry>,
}

pub(super) struct CachedCall {
    call: StoreCall,
    /// Their records may count the call as sent.
    partitions: SmallVec<[PartitionId; 1]>,
}

impl RejectionCache {
    pub(super) fn new(store: GuardedStore, capacity: usize, clock: Clock, log: Arc<StoreTelemetry>) -> Self {
        Self {
            store,
            shards: Sharded::new(capacity, |part| Shard::new(part, capacity)),
            hot: HotPartitions::new(),
            is_on: capacity > 0,
            len: AtomicUsize::new(0),
            is_used: AtomicBool::new(false),
            resets: Mutex::default(),
            clock,
            log,
        }
    }

    #[inline]
    pub(super) fn reject(&self, plan: Plan) -> Result<Decision, Plan> {
        if self.len.load(Ordering::Relaxed) == 0 || !plan.is_charged() {
            return Err(plan);
        }
        let found = match plan.is_partial() {
            true => self.look_up(&plan.costing(1), self.clock.now()),
            false => self.look_up(&plan, self.clock.now()),
        };
        if !found.is_rejected() {
            return Err(plan);
        }
        self.log.metrics().rejection_cache_hits.increment(1);
        Ok(Decision::of_cache(Cached::new(plan, found.rejections, found.now)))
    }

    fn look_up(&self, plan: &Plan, now: Timestamp) -> Found {
        let mut found = Found::default();
        if let Some(part) = plan.only_part() {
            return self.look_up_only(part, now);
        }
        for part in plan.parts() {
            self.shards.lock(part.partition()).judge(part, now, &mut found);
        }
        for part in plan.parts().filter(|_| found.goes_to_store()) {
            let hash = self.shards.hash(part.partition());
            self.ask(&mut self.shards.lock(part.partition()), hash, part, now, &found);
        }
        found
    }

    /// Takes no lock if a request was already rejected and nothing has changed since.
    fn look_up_only(&self, part: PartPlan<'_>, now: Timestamp) -> Found {
        let (partition, hash) = (part.partition(), self.shards.hash(part.partition()));
        if let Some(found) = self.hot.rejection(hash, part, now) {
            return found;
        }
        let (mut found, mut shard) = (Found::default(), self.shards.lock(partition));
        let record = shard.judge(part, now, &mut found);
        if let Some(record) = record.filter(|_| found.is_rejected()) {
            self.hot.show(hash, partition, record, now);
        }
        if found.goes_to_store() {
            self.ask(&mut shard, hash, part, now, &found);
        }
        found
    }

    fn ask(&self, shard: &mut Shard, hash: u64, part: PartPlan<'_>, now: Timestamp, found: &Found) {
        let only_asks = found.only_asks();
        shard.change(part.partition(), |record| record.asks(part, now, only_asks));
        self.hot.hide(hash, part.partition());
    }

    #[inline]
    pub(super) fn begin(&self, plan: Plan, time: Duration) -> Result<Result<Decision, StoreError>, CachedCall> {
        let partitions = match self.len.load(Ordering::Relaxed) {
            0 => SmallVec::new(),
            _ => plan.partitions().collect(),
        };
        match self.store.begin(plan, time) {
            Ok(answer) => {
                self.note_unsent(&partitions, answer.as_ref().err());
                Ok(answer.map(Measurement::decide))
            }
            Err(call) => Err(CachedCall { call, partitions }),
        }
    }

    pub(super) async fn finish(&self, call: CachedCall, deadline: Instant) -> Result<Decision, StoreError> {
        let asked_at = self.asked();
        let answer = self.store.finish(call.call, deadline).await;
        self.note_unsent(&call.partitions, answer.as_ref().err());
        Ok(self.learned(answer?, asked_at))
    }

    /// Calls that fail because of an open circuit or a store without memory charge nothing.
    #[inline]
    fn note_unsent(&self, partitions: &[PartitionId], error: Option<&StoreError>) {
        let Some(error) = error else { return };
        if let StoreErrorKind::CircuitOpen | StoreErrorKind::OutOfMemory = error.kind() {
            for partition in partitions {
                self.change(*partition, |shard, _| shard.change(*partition, Record::unsent));
            }
        }
    }

    /// Calls `give_up` at the deadline, and keeps waiting for the answer for `late`.
    pub(super) async fn finish_late(
        &self,
        CachedCall { call, partitions }: CachedCall,
        deadline: Instant,
        late: Duration,
        give_up: impl FnOnce(&StoreError),
    ) -> Result<Decision, StoreError> {
        let asked_at = self.asked();
        let measurement = match self.store.finish_or_keep(call, deadline).await {
            Ok(answer) => {
                self.note_unsent(&partitions, answer.as_ref().err());
                answer?
            }
            Err(LateCall { error, answer }) => {
                give_up(&error);
                let answer = self.store.within(Instant::now() + late, answer).await;
                answer.unwrap_or(Err(error))?
            }
        };
        Ok(self.learned(measurement, asked_at))
    }

    pub(super) fn late_batch(&self, fate: LateBatch) {
        self.log.metrics().late_batches.increment(fate);
    }

    fn learned(&self, measurement: Measurement, asked_at: Timestamp) -> Decision {
        for _ in 0..measurement.new_partitions() {
            self.log.created();
        }
        self.learn(&measurement, asked_at);
        measurement.decide()
    }

    pub(super) async fn decide(&self, plan: Plan, deadline: Instant) -> Result<Decision, StoreError> {
        let plan = match self.reject(plan) {
            Ok(rejection) => return Ok(rejection),
            Err(plan) => plan,
        };
        let time = deadline.saturating_duration_since(Instant::now());
        if time.is_zero() {
            let message = "deadline expired before the store was called";
            return Err(StoreError::new(StoreErrorKind::TimedOut, message));
        }
        match self.begin(plan, time) {
            Ok(answer) => answer,
            Err(call) => self.finish(call, deadline).await,
        }
    }

    /// Proceeds even if the future is dropped.
    pub(super) fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        let changed = settlement.changed();
        let invalidate = || {
            for (partition, is_refund) in &changed {
                self.settled(*partition, *is_refund);
            }
        };
        // An answer that includes the settlement may be cached before this thread continues.
        invalidate();
        let settled = self.store.bare.settle(settlement);
        invalidate();
        settled
    }

    /// Until the returned value is dropped, the loss of the state is not reported.
    pub(super) fn resetting(&self, plan: &Plan) -> Resetting<'_> {
        let partitions: SmallVec<[_; 1]> = plan.partitions().collect();
        self.resets.lock().extend(partitions.iter().copied());
        Resetting {
            cache: self,
            partitions,
        }
    }

    /// The time before the call, for [`learn`](Self::learn).
    fn asked(&self) -> Timestamp {
        if !self.is_on {
            return Timestamp::default();
        }
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::SeqCst);
        }
        self.clock.now()
    }

    fn learn(&self, measurement: &Measurement, asked_at: Timestamp) {
        if !self.is_on || !measurement.plan().is_charged() {
            return;
        }
        let is_charged = measurement.is_allowed();
        let rejects = measurement
            .measured_charges()
            .any(|charge| Known::of(&charge, is_charged).rejects);
        if !rejects && self.len.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut charges = measurement.measured_charges();
        for part in measurement.plan().parts() {
            let charges: SmallVec<[_; 4]> = charges.by_ref().take(part.charges().len()).collect();
            let is_lost = self.change(part.partition(), |shard, hash| {
                if !rejects && !shard.knows(part.partition()) {
                    return false;
                }
                let now = self.clock.now();
                let answer = Answer::of(part, &charges, is_charged, asked_at, now);
                // An answer before a settlement is not cached, but still outdates older ones.
                let is_valid = !shard.was_settled(hash, asked_at);
                let learn =
                    |record: &mut Record| record.learn(answer, is_charged && is_valid, rejects && is_valid, now);
                let is_lost = shard.learn(part.partition(), now, learn);
                is_lost && is_valid && !self.is_resetting(part.partition())
            });
            if is_lost {
                self.log.state_lost(self.clock.now());
            }
        }
    }

    pub(super) fn is_resetting(&self, partition: PartitionId) -> bool {
        self.resets.lock().contains(&partition)
    }

    pub(super) fn forget(&self, partition: PartitionId) {
        self.settled(partition, true);
    }

    fn settled(&self, partition: PartitionId, is_refund: bool) {
        if self.is_used.load(Ordering::SeqCst) {
            let now = self.clock.now();
            self.change(partition, |shard, hash| shard.settled(partition, hash, is_refund, now));
        }
    }

    /// Readings before a settlement are outdated.
    pub(super) fn may_have_settled(&self, partition: PartitionId, since: Timestamp) -> bool {
        let hash = self.shards.hash(partition);
        !self.is_on || self.shards.lock(partition).was_settled(hash, since)
    }

    fn change<T>(&self, partition: PartitionId, change: impl FnOnce(&mut Shard, u64) -> T) -> T {
        let hash = self.shards.hash(partition);
        let mut shard = self.shards.lock(partition);
        let before = shard.partitions.len();
        let changed = change(&mut shard, hash);
        self.hot.hide(hash, partition);
        let added = shard.partitions.len().wrapping_sub(before);
        if added != 0 {
            self.len.fetch_add(added, Ordering::Relaxed);
        }
        changed
    }
}

pub(super) struct Resetting<'a> {
    cache: &'a RejectionCache,
    partitions: SmallVec<[PartitionId; 1]>,
}

impl Drop for Resetting<'_> {
    /// Invalidates even if the store fails, because it may have reset some of the state.
    fn drop(&mut self) {
        for partition in &self.partitions {
            self.cache.forget(*partition);
            let mut resets = self.cache.resets.lock();
            if let Some(own) = resets.iter().position(|other| other == partition) {
                resets.swap_remove(own);
            }
        }
    }
}
