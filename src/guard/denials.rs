//! Rejections that are remembered for a short time, so that a key under attack costs the store next to nothing.
//!
//! A reading of the store says exactly until when a charge is rejected, as long as others only add to what is used. So
//! it is remembered, and later charges are held against it:
//!
//! - What the reading rejects is rejected. Time is counted from before the call, so it never rejects for longer than the
//!   store would.
//! - After a rejection, nobody asks for as much or more for a short *hold*, because the next unit is what all instances are
//!   after.
//! - Where the reading has room again, as many go to the store as there is room for, and not all that come: what was
//!   sent is taken for charged until the answer is there, or for another hold.
//!
//! What others give back is seen after a second at most.

mod record;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use self::record::{Answer, Record, Standing};
use crate::{
    bounded_map::BoundedMap,
    clock::{Clock, Timestamp},
    exchange::{Cached, ChargeDenials, Decision, Measurement, PartPlan, Plan, Settlement},
    partition::PartitionId,
    policy::MAX_POLICIES,
    store::{Store, StoreFuture},
};

/// Settles what a store has charged, and forgets what is known of those to whom something is given back.
#[derive(Clone, Debug)]
pub(super) struct Settling {
    store: Arc<dyn Store>,
    denials: Arc<Denials>,
    clock: Clock,
}

impl Settling {
    pub(super) fn new(store: Arc<dyn Store>, denials: Arc<Denials>, clock: Clock) -> Self {
        Self { store, denials, clock }
    }

    /// It goes on whether or not the future is polled.
    pub(super) fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        let refunded = settlement.refunded();
        let settled = self.store.settle(settlement);
        for partition in refunded {
            self.denials.forget(partition, &self.clock);
        }
        settled
    }

    /// Whether something may have been given back to a partition since a moment. What was read before says nothing about
    /// those who ask after it.
    pub(super) fn may_have_given_back(&self, partition: PartitionId, since: Timestamp) -> bool {
        self.denials.may_have_forgotten(partition, since)
    }
}

/// What one layer remembers of rejections.
pub(super) struct Denials {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// How many partitions something is remembered of: while it is none, requests pass by.
    len: AtomicUsize,
    /// Whether the store was ever waited for.
    is_used: AtomicBool,
}

struct Shard {
    partitions: BoundedMap<Records>,
    /// When something was given back to a partition. Answers to what was asked before are not remembered. Partitions
    /// share these moments by chance, and few of them: what others give back must not keep a key under attack from
    /// being remembered.
    forgotten_at: Box<[Option<Timestamp>]>,
}

/// What is remembered of one partition.
type Records = SmallVec<[Record; 1]>;

/// What is found out about a plan.
#[derive(Default)]
struct Found {
    denials: ChargeDenials,
    now: Timestamp,
    /// Whether it is rejected, and nobody need ask.
    is_rejected: bool,
    /// Whether it is rejected, and one request may ask whether that is still so.
    is_stale: bool,
    /// Whether anything is remembered of it at all.
    is_known: bool,
}

impl Denials {
    /// How many moments are kept at which something was given back, a power of two: many more than there are
    /// partitions to which something is given back while one answer is on its way.
    const MOMENTS: usize = 1 << 12;

    /// A capacity of 0 remembers nothing.
    pub(super) fn new(capacity: usize) -> Self {
        // Few shards for a small cap: each shard has its part of the cap, and keys do not fall evenly into small parts.
        let shards = match capacity {
            0 => 0,
            _ => (capacity / 1024).clamp(1, 64).next_power_of_two(),
        };
        let shard = |_| {
            Mutex::new(Shard {
                partitions: BoundedMap::new(capacity / shards, || {}),
                forgotten_at: vec![None; Self::MOMENTS / shards].into(),
            })
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            hasher: RandomState::default(),
            len: AtomicUsize::new(0),
            is_used: AtomicBool::new(false),
        }
    }

    /// The rejection of a plan, if it is known that the store would reject it.
    #[inline]
    pub(super) fn reject(&self, plan: &Plan, clock: &Clock) -> Option<Decision> {
        if self.len.load(Ordering::Relaxed) == 0 || !plan.is_charged() {
            return None;
        }
        self.look_up(plan, clock.now())
    }

    fn look_up(&self, plan: &Plan, now: Timestamp) -> Option<Decision> {
        let mut found = Found::default();
        if let Some(part) = plan.only_part() {
            let mut shard = self.shard(part.partition());
            shard.look_up(part, now, &mut found);
            if found.is_known && !found.is_rejected {
                shard.asks(part, now, found.is_stale);
            }
        } else {
            for part in plan.parts() {
                self.shard(part.partition()).look_up(part, now, &mut found);
            }
            if found.is_known && !found.is_rejected {
                for part in plan.parts() {
                    self.shard(part.partition()).asks(part, now, found.is_stale);
                }
            }
        }
        found.is_rejected.then(|| {
            Decision::cached(Cached {
                plan: plan.clone(),
                denials: found.denials,
                now: found.now,
            })
        })
    }

    /// The store is about to be asked, and its answer to be waited for.
    pub(super) fn asked(&self, clock: &Clock) -> Timestamp {
        if self.shards.is_empty() {
            return Timestamp::default();
        }
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::SeqCst);
        }
        clock.now()
    }

    /// Remembers what the answer to a question says about later ones.
    pub(super) fn learn(&self, measurement: &Measurement, asked_at: Timestamp, clock: &Clock) {
        if self.shards.is_empty() || !measurement.plan().is_charged() {
            return;
        }
        let mut charges = measurement.charges();
        for (number, part) in measurement.plan().parts().enumerate() {
            let at = measurement.moment(number);
            let answers = charges.by_ref().take(part.charges().len()).enumerate();
            let answers = answers.map(|(index, measured)| Answer {
                policies: part.policies(),
                index,
                charge: measured.charge(),
                reading: measured.reading,
                charged: if measurement.is_allowed() {
                    measured.charge().weight()
                } else {
                    0
                },
                at,
                asked_at,
                clock,
            });
            let answers: SmallVec<[Answer<'_>; 4]> = answers
                .filter(|answer| record::is_cached(answer.charge.policy()))
                .collect();
            self.learn_part(part.partition(), &answers, asked_at, clock);
        }
    }

    fn learn_part(&self, partition: PartitionId, answers: &[Answer<'_>], asked_at: Timestamp, clock: &Clock) {
        let records: Records = answers.iter().filter_map(Record::of).collect();
        if records.is_empty() && self.len.load(Ordering::Relaxed) == 0 {
            return;
        }
        let hash = self.hash(partition);
        let mut shard = self.shard_of(hash);
        let before = shard.partitions.len();
        let is_forgotten = shard
            .forgotten_at(hash)
            .is_some_and(|forgotten_at| asked_at <= forgotten_at);
        let new = if is_forgotten { Records::new() } else { records };
        shard.replace(partition, answers, new, asked_at, clock.now());
        self.count(before, &shard);
    }

    /// Something was given back to a partition: what was known of it holds no more.
    pub(super) fn forget(&self, partition: PartitionId, clock: &Clock) {
        if !self.is_used.load(Ordering::SeqCst) {
            return;
        }
        let hash = self.hash(partition);
        let mut shard = self.shard_of(hash);
        let before = shard.partitions.len();
        let forgotten_at = shard.forgotten_at(hash);
        *forgotten_at = (*forgotten_at).max(Some(clock.now()));
        shard.partitions.remove(partition);
        self.count(before, &shard);
    }

    /// Whether something may have been given back to a partition at this moment or later.
    fn may_have_forgotten(&self, partition: PartitionId, since: Timestamp) -> bool {
        if self.shards.is_empty() {
            return true;
        }
        let hash = self.hash(partition);
        let mut shard = self.shard_of(hash);
        shard
            .forgotten_at(hash)
            .is_some_and(|forgotten_at| since <= forgotten_at)
    }

    /// Keeps the number of partitions right after a shard has changed.
    fn count(&self, before: usize, shard: &Shard) {
        let change = shard.partitions.len().wrapping_sub(before);
        if change != 0 {
            self.len.fetch_add(change, Ordering::Relaxed);
        }
    }

    fn shard(&self, partition: PartitionId) -> MutexGuard<'_, Shard> {
        self.shard_of(self.hash(partition))
    }

    /// With a random key, so that nobody can choose keys that meet in one shard.
    fn hash(&self, partition: PartitionId) -> u64 {
        self.hasher.hash_one(partition)
    }

    fn shard_of(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    /// When something was given back to the partition of this hash, or to another one that shares the moment.
    fn forgotten_at(&mut self, hash: u64) -> &mut Option<Timestamp> {
        let moment = hash as usize & (self.forgotten_at.len() - 1);
        &mut self.forgotten_at[moment]
    }

    #[inline]
    fn look_up(&mut self, part: PartPlan<'_>, now: Timestamp, found: &mut Found) {
        let Some(records) = self.partitions.visit(part.partition()) else {
            found.denials.extend(part.charges().map(|_| None));
            return;
        };
        found.is_known = true;
        for (index, charge) in part.charges().enumerate() {
            let mut about = records.iter();
            let record = about.find(|record| record.is_about(part.policies(), index, charge.policy()));
            let standing = record.map_or(Standing::Open, |record| {
                found.now = found.now.max(record.store_time(now));
                record.standing(charge.weight(), now)
            });
            found.denials.push(match standing {
                Standing::Rejected(denial) => {
                    found.is_rejected = true;
                    Some(denial)
                }
                Standing::Stale(denial) => {
                    found.is_stale = true;
                    Some(denial)
                }
                Standing::Open => None,
            });
        }
    }

    /// A request goes to the store.
    fn asks(&mut self, part: PartPlan<'_>, now: Timestamp, is_stale: bool) {
        let Some(records) = self.partitions.get_mut(part.partition()) else {
            return;
        };
        for (index, charge) in part.charges().enumerate() {
            let mut about = records.iter_mut();
            if let Some(record) = about.find(|record| record.is_about(part.policies(), index, charge.policy())) {
                record.asks(charge.weight(), now, is_stale);
            }
        }
    }

    /// Puts new records in the place of older ones about the same policies.
    fn replace(
        &mut self,
        partition: PartitionId,
        answers: &[Answer<'_>],
        new: Records,
        asked_at: Timestamp,
        now: Timestamp,
    ) {
        let is_answered = |record: &Record| {
            let mut answers = answers.iter();
            let is_about = |answer: &Answer<'_>| record.is_about(answer.policies, answer.index, answer.charge.policy());
            !record.is_newer_than(asked_at) && answers.any(is_about)
        };
        let mut is_empty = true;
        if let Some(records) = self.partitions.get_mut(partition) {
            records.retain(|record| !is_answered(record) && !record.is_over(now));
            is_empty = records.is_empty();
        }
        if new.is_empty() {
            if is_empty {
                self.partitions.remove(partition);
            }
            return;
        }
        let Some(records) = self.partitions.get_mut(partition) else {
            let is_over = |records: &Records| records.iter().all(|record| record.is_over(now));
            // A caller who has gone on after a rejection will go on again.
            let worth = |records: &Records, goes_on: bool| (goes_on, records.iter().map(Record::asked_at).max());
            self.partitions.get_or_insert_with(partition, is_over, worth, || new);
            return;
        };
        for record in new {
            let is_known = |known: &Record| known.policy() == record.policy();
            if !records.iter().any(is_known) && records.len() < MAX_POLICIES {
                records.push(record);
            }
        }
    }
}

impl fmt::Debug for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denials")
            .field("partitions", &self.len)
            .finish_non_exhaustive()
    }
}
