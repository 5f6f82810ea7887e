//! Rejections that are cached for a short time, so that a key under attack costs the store next to nothing.
//!
//! A reading of the store says exactly until when a charge is rejected, as long as others only add to what is used. So
//! the cache keeps readings, and decides later charges by them:
//!
//! - A charge that the reading rejects is rejected. Time is counted from before the call, so a charge is never rejected for
//!   longer than the store would reject it.
//! - After a rejection, no request asks for as much or more for a short *hold*, so that instances do not race for the next
//!   unit.
//! - A charge of which the readings do not tell all policies that reject it goes to the store, so that a client is told the
//!   longest wait.
//! - Where the reading has room again, as many requests go to the store as there is room for. A request that was sent
//!   counts as charged until its answer is there, or for another hold.
//!
//! A refund by another instance is seen after a second at most.
//!
//! The charge that exhausted a partition is known for longer. An answer that shows the partition as new before its time means
//! that the store has lost the state, and is counted for operators.

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

/// A store whose rejections are cached.
pub(super) struct RejectionCache {
    pub(super) store: GuardedStore,
    shards: Sharded<Shard>,
    hot: HotPartitions,
    /// False for a cache that keeps nothing.
    is_on: bool,
    /// Number of cached partitions: while it is 0, requests take no lock.
    len: AtomicUsize,
    /// True once a request has waited for the store.
    is_used: AtomicBool,
    /// Partitions that are being reset.
    resets: Mutex<Vec<PartitionId>>,
    clock: Clock,
    log: Arc<StoreTelemetry>,
}

/// A call that the store has not answered yet.
pub(super) struct CachedCall {
    call: StoreCall,
    /// The partitions whose records may count it as sent.
    partitions: SmallVec<[PartitionId; 1]>,
}

impl RejectionCache {
    /// A cache of at most so many partitions.
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

    /// The rejection of a plan, if it is known that the store would reject it.
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

    /// Looks up a plan about one partition: without a lock, if a request was rejected before and nothing has changed since.
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

    /// A request goes to the store about something that is cached.
    fn ask(&self, shard: &mut Shard, hash: u64, part: PartPlan<'_>, now: Timestamp, found: &Found) {
        shard.asks(part, now, found.only_asks());
        self.hot.hide(hash, part.partition());
    }

    /// Asks the store. Returns the answer if it is there at once, else the call to wait for.
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

    /// Waits for the answer, whose rejections are cached.
    pub(super) async fn finish(&self, call: CachedCall, deadline: Instant) -> Result<Decision, StoreError> {
        let asked_at = self.asked();
        let answer = self.store.finish(call.call, deadline).await;
        self.note_unsent(&call.partitions, answer.as_ref().err());
        Ok(self.learned(answer?, asked_at))
    }

    /// A call that an open circuit has kept from the store, or for which the store has no memory, charges nothing: no request
    /// is rejected because of it.
    fn note_unsent(&self, partitions: &[PartitionId], error: Option<&StoreError>) {
        let charges_nothing = |kind| matches!(kind, StoreErrorKind::CircuitOpen | StoreErrorKind::OutOfMemory);
        if error.is_some_and(|error| charges_nothing(error.kind())) {
            for partition in partitions {
                self.change(*partition, |shard, _| shard.unsent(*partition));
            }
        }
    }

    /// The same. If there is no answer by the deadline, `give_up` is called with the error, and the answer is waited for
    /// until it is too `late`.
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

    /// Decides a plan by the cache, else by the store.
    pub(super) async fn decide(&self, plan: Plan, deadline: Instant) -> Result<Decision, StoreError> {
        let plan = match self.reject(plan) {
            Ok(rejection) => return Ok(rejection),
            Err(plan) => plan,
        };
        let time = deadline.saturating_duration_since(Instant::now());
        if time.is_zero() {
            let message = "the deadline was over before the store was asked";
            return Err(StoreError::new(StoreErrorKind::TimedOut, message));
        }
        match self.begin(plan, time) {
            Ok(answer) => answer,
            Err(call) => self.finish(call, deadline).await,
        }
    }

    /// Settles what the store has charged, whether or not the future is polled. A refund ends the rejections of its
    /// partitions.
    pub(super) fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        let refunded = settlement.refunded();
        // Before, because an answer that has seen the refund may be learned while this thread waits for its turn.
        refunded.iter().for_each(|partition| self.forget(*partition));
        let settled = self.store.bare.settle(settlement);
        refunded.iter().for_each(|partition| self.forget(*partition));
        settled
    }

    pub(super) async fn reset(&self, plan: Plan) -> Result<(), StoreError> {
        let _resetting = Resetting::new(self, &plan);
        self.store.bare.reset(plan).await
    }

    /// A call is about to be waited for. Returns the moment for [`learn`](Self::learn).
    fn asked(&self) -> Timestamp {
        if !self.is_on {
            return Timestamp::default();
        }
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::SeqCst);
        }
        self.clock.now()
    }

    /// Caches what an answer says about later charges.
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

    /// Returns `true` if all policies have room for another such charge, as most answers say, and nothing is cached that could
    /// be wrong by now.
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
            let is_outdated = shard.was_refunded(hash, asked_at);
            is_lost = !is_outdated && shard.has_lost(partition, findings) && !self.is_resetting(partition);
            let new = if is_outdated { Records::default() } else { records };
            shard.replace(partition, findings, new, asked_at, self.clock.now());
        });
        if is_lost {
            self.log.state_lost(self.clock.now());
        }
    }

    fn is_resetting(&self, partition: PartitionId) -> bool {
        self.resets.lock().contains(&partition)
    }

    /// Drops what is cached of a partition, which has had a refund.
    pub(super) fn forget(&self, partition: PartitionId) {
        if self.is_used.load(Ordering::SeqCst) {
            self.change(partition, |shard, hash| shard.forget(partition, hash, self.clock.now()));
        }
    }

    /// Returns `true` if a partition may have had a refund since a moment. An older reading then says nothing about later
    /// requests.
    pub(super) fn may_have_refunded(&self, partition: PartitionId, since: Timestamp) -> bool {
        let hash = self.shards.hash(partition);
        !self.is_on || self.shards.lock(partition).was_refunded(hash, since)
    }

    /// Changes the shard of a partition, and keeps the number of partitions right.
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

/// A reset, until it is over or its request is cancelled.
struct Resetting<'a> {
    cache: &'a RejectionCache,
    partitions: SmallVec<[PartitionId; 1]>,
}

impl<'a> Resetting<'a> {
    fn new(cache: &'a RejectionCache, plan: &Plan) -> Self {
        let partitions: SmallVec<[_; 1]> = plan.parts().map(|part| part.partition()).collect();
        cache.resets.lock().extend(partitions.iter().copied());
        Self { cache, partitions }
    }
}

impl Drop for Resetting<'_> {
    /// A store that fails may have forgotten a part of it.
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

/// The findings about the next part of a plan, as far as they are worth a place.
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
