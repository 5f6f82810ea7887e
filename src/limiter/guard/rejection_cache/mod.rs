//! Caches readings of the store for up to a second, and rejects charges that a reading is known to reject.
//!
//! A reading determines how long a charge is rejected, if other instances only add to the usage. Time is measured from
//! before the call, so no charge is rejected for longer than the store would reject it. After a rejection, charges of
//! the same or a higher weight are not sent for a short time, the *hold*, so that instances do not race for the next
//! unit. A settlement removes the readings of its partitions, and answers to earlier calls are not cached.

mod exhaustion;
mod hot;
mod record;
mod records;
mod shard;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::Instant;

use self::{
    exhaustion::Exhaustion,
    hot::HotPartitions,
    record::{Finding, Record, is_cached},
    records::Records,
    shard::{Found, Shard},
};
use super::guarded::{GuardedStore, LateCall, StoreCall};
use crate::{
    clock::{Clock, Timestamp},
    decision::{Cached, Decision, MeasuredCharge, Measurement, PartPlan, Plan, Settlement},
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

    /// Returns `Err` with the plan if it needs a call.
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
        self.log.remembered();
        Ok(Decision::of_cache(Cached::new(plan, found.rejections, found.now)))
    }

    fn look_up(&self, plan: &Plan, now: Timestamp) -> Found {
        let mut found = Found::default();
        if let Some(part) = plan.only_part() {
            return self.look_up_only(part, now);
        }
        for part in plan.parts() {
            self.shards.lock(part.partition()).look_up(part, now, &mut found);
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
        let records = shard.look_up(part, now, &mut found);
        if let Some(records) = records.filter(|_| found.is_rejected()) {
            self.hot.show(hash, partition, records, now);
        }
        if found.goes_to_store() {
            self.ask(&mut shard, hash, part, now, &found);
        }
        found
    }

    fn ask(&self, shard: &mut Shard, hash: u64, part: PartPlan<'_>, now: Timestamp, found: &Found) {
        shard.asks(part, now, found.only_asks());
        self.hot.hide(hash, part.partition());
    }

    /// Returns the pending call if there is no immediate result.
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
                self.change(*partition, |shard, _| shard.unsent(*partition));
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
        self.log.late_batch(fate);
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
        if !self.is_on || !measurement.plan().is_charged() || self.is_no_news(measurement, asked_at) {
            return;
        }
        let mut answers: SmallVec<[_; 1]> = SmallVec::new();
        let mut charges = measurement.charges();
        for part in measurement.plan().parts() {
            let findings = findings(measurement, &mut charges, part, asked_at);
            let findings: SmallVec<[Finding<'_>; 4]> = findings.collect();
            let records = findings.iter().filter_map(|finding| Record::of(finding, &self.clock));
            let records = Records::of(records).with_exhaustion(Exhaustion::of(&findings, self.clock.now()));
            answers.push((part.partition(), records, findings));
        }
        let rejects = answers.iter().any(|(_, records, _)| records.reject());
        for (partition, records, findings) in answers {
            let records = match rejects {
                true => records.with_rooms(&findings),
                false => records,
            };
            self.learn_part(partition, records, &findings, asked_at);
        }
    }

    /// All policies have room for another such charge, and the cache is empty.
    fn is_no_news(&self, measurement: &Measurement, asked_at: Timestamp) -> bool {
        let mut charges = measurement.charges();
        let mut parts = measurement.plan().parts();
        self.len.load(Ordering::Relaxed) == 0
            && parts.all(|part| findings(measurement, &mut charges, part, asked_at).all(|finding| finding.has_room()))
    }

    fn learn_part(&self, partition: PartitionId, records: Records, findings: &[Finding<'_>], asked_at: Timestamp) {
        if records.is_empty() && self.len.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut is_lost = false;
        self.change(partition, |shard, hash| {
            let is_outdated = shard.was_settled(hash, asked_at);
            is_lost = !is_outdated && shard.has_lost(partition, findings) && !self.is_resetting(partition);
            let new = if is_outdated { Records::default() } else { records };
            shard.replace(partition, findings, new, asked_at, self.clock.now());
        });
        if is_lost {
            self.log.state_lost(self.clock.now());
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

    fn change(&self, partition: PartitionId, change: impl FnOnce(&mut Shard, u64)) {
        let hash = self.shards.hash(partition);
        let mut shard = self.shards.lock(partition);
        let before = shard.partitions.len();
        change(&mut shard, hash);
        self.hot.hide(hash, partition);
        let added = shard.partitions.len().wrapping_sub(before);
        if added != 0 {
            self.len.fetch_add(added, Ordering::Relaxed);
        }
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

fn findings<'a>(
    measurement: &'a Measurement,
    charges: &mut impl Iterator<Item = MeasuredCharge<'a>>,
    part: PartPlan<'a>,
    asked_at: Timestamp,
) -> impl Iterator<Item = Finding<'a>> {
    let findings = charges.take(part.charges().len()).enumerate();
    let findings = findings.map(move |(index, measured)| Finding {
        policies: part.policies(),
        index,
        weight: measured.charge().weight(),
        reading: *measured.reading,
        is_charged: measurement.is_allowed(),
        at: measured.moment,
        asked_at,
    });
    findings.filter(|finding| is_cached(finding.policy()))
}

impl fmt::Debug for RejectionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectionCache")
            .field("store", &self.store)
            .field("partitions", &self.len)
            .finish_non_exhaustive()
    }
}
