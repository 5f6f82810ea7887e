//! The arithmetic of all algorithms, for custom stores.
//!
//! Use a [`Ledger`] to keep counts in a database for which this crate has no store. A ledger performs no I/O: pass the
//! time and the stored bytes of each partition of a plan; it returns a [`Measurement`] and the new bytes.
//!
//! Read and write the bytes in one transaction; otherwise, writers overwrite each other's bytes, and charges are lost.
//! A ledger ignores bytes from a newer version and bytes that no ledger has written.
//!
//! The following store uses a key-value map with compare-and-set, and passes
//! [`check_store`](crate::test_util::check_store):
//!
//! ```
#![doc = include_str!("../../examples/own_store.rs")]
//! ```

mod entries;
mod others;
mod partition;
mod settle;

use std::time::Duration;

pub(crate) use self::partition::{Found, PartitionState, Step};
use crate::{
    algorithm::{Moments, Reader, Writer},
    clock::Timestamp,
    decision::{Measurement, Mode, PartPlan, Plan, Reads, Settlement},
    lease::{Lease, LeaseId},
    partition::PartitionId,
    sync::random,
};

/// The state of some partitions at one time. See [the module](self) for an example.
///
/// Create a new ledger for each attempt of a transaction.
#[derive(Debug)]
pub struct Ledger {
    now: Timestamp,
    lease_time: Duration,
    call: u32,
    pages: Vec<Page>,
}

#[derive(Debug)]
struct Page {
    partition: PartitionId,
    before: Option<Vec<u8>>,
    state: Option<PartitionState>,
}

/// A partition that a [`Ledger`] has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The partition.
    pub partition: PartitionId,
    /// The bytes to store, or `None` to remove the stored bytes.
    pub bytes: Option<Vec<u8>>,
    /// From this time on, the bytes are equivalent to none and may be removed.
    pub expires_at: Timestamp,
}

impl Ledger {
    const VERSION: u64 = 1;

    /// Creates a ledger at the time `now`.
    ///
    /// The clocks of all instances must agree within a few milliseconds: preferably, use the clock of the database.
    pub fn at(now: Timestamp) -> Self {
        Self {
            now,
            lease_time: Duration::from_secs(60),
            // 31 bits, so that the numbers of log entries, which start at `call << 32`, cannot overflow.
            call: (random::number() >> 1).max(1),
            pages: Vec::new(),
        }
    }

    /// Sets how long a slot of a [concurrency limit](crate::QuotaPolicy::concurrent) is held if its process never
    /// releases it. Default: one minute. A ledger does not renew slots.
    #[must_use]
    pub fn lease_time(mut self, lease_time: Duration) -> Self {
        self.lease_time = lease_time;
        self
    }

    /// Adds a partition with its stored bytes. Partitions that were not opened count as unused.
    pub fn open(&mut self, partition: PartitionId, bytes: Option<&[u8]>) {
        self.pages.retain(|page| page.partition != partition);
        self.pages.push(Page {
            partition,
            before: bytes.map(<[u8]>::to_vec),
            state: bytes.and_then(PartitionState::parse),
        });
    }

    /// Decides a plan: charges all of it if it fits, and nothing otherwise.
    pub fn acquire(&mut self, plan: Plan) -> Measurement {
        let lease = plan.takes_slots().then(|| Lease {
            id: LeaseId::unique(),
            until: self.now.saturating_add(self.lease_time).as_micros(),
        });
        acquire_all_parts(plan, lease, |part, step, reads| {
            self.with(part, |state, now, call| state.acquire(now, part, step, call, reads))
        })
    }

    /// Settles an earlier charge.
    pub fn settle(&mut self, settlement: &Settlement) {
        for part in settlement.parts().filter(|part| !part.is_empty()) {
            self.with(part.part, |state, now, call| state.settle(now, part, call));
        }
    }

    /// Resets the plan's partitions, as described in [`Store::reset`](crate::Store::reset).
    pub fn reset(&mut self, plan: &Plan) {
        for part in plan.parts() {
            self.with(part, |state, _, _| state.reset(part.policies()));
        }
    }

    /// Returns the partitions whose bytes have changed.
    pub fn changes(self) -> impl Iterator<Item = Change> {
        let now = self.now;
        self.pages.into_iter().filter_map(move |page| {
            let state = page.state?;
            let expires_at = state.empty_at();
            let bytes = (expires_at > now).then(|| state.to_bytes());
            (bytes != page.before).then_some(Change {
                partition: page.partition,
                bytes,
                expires_at,
            })
        })
    }

    fn with<T>(&mut self, part: PartPlan<'_>, step: impl FnOnce(&mut PartitionState, Timestamp, u32) -> T) -> T {
        let opened = self.pages.iter().position(|page| page.partition == part.partition());
        let opened = opened.unwrap_or_else(|| {
            self.open(part.partition(), None);
            self.pages.len() - 1
        });
        let new = || PartitionState::new(self.now, part.policies());
        let state = self.pages[opened].state.get_or_insert_with(new);
        step(state, self.now, self.call)
    }
}

/// Charges all parts if all fit. Each step appends its readings.
pub(crate) fn acquire_all_parts(
    plan: Plan,
    lease: Option<Lease>,
    mut carry_out: impl FnMut(PartPlan<'_>, Step, &mut Reads) -> Found,
) -> Measurement {
    let plan = match (plan.mode(), plan.only_part()) {
        (Mode::UpTo, Some(_)) => {
            let (without_parts, mut reads) = (plan.without_parts(), Reads::new());
            let mut found = without_parts
                .parts()
                .map(|part| carry_out(part, Step::Read, &mut reads));
            let moment = found.next().map(|found| found.moment).unwrap_or_default();
            plan.granting(reads.into_iter().map(|read| read.reading), moment)
        }
        _ => plan,
    };
    let (mut moments, mut reads, mut fits) = (Moments::new(), Reads::new(), true);
    for part in plan.parts() {
        let found = carry_out(part, Step::Read, &mut reads);
        moments.push(found.moment);
        fits &= found.fits;
    }
    if plan.is_charged() {
        let step = if fits { Step::Charge(lease) } else { Step::Reject };
        for part in plan.parts() {
            carry_out(part, step, &mut Reads::new());
        }
    }
    Measurement::new(plan, moments, reads, lease.map(|lease| lease.id), fits)
}

impl PartitionState {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Writer::default();
        bytes.write(Ledger::VERSION);
        self.write(&mut bytes);
        bytes.into_bytes()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Reader::new(bytes);
        let is_known = bytes.any()? == Ledger::VERSION;
        is_known
            .then(|| Self::read_from(&mut bytes))?
            .filter(|_| bytes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Algorithm, Outcome, QuotaPolicy,
        partition::{PartitionKey, Scope},
        policy::PolicySet,
    };

    const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

    fn policies() -> PolicySet {
        let of = |name, algorithm| QuotaPolicy::new(name, 5, Duration::from_secs(10)).with_algorithm(algorithm);
        PolicySet::new([
            of("token", Algorithm::TokenBucket),
            of("queue", Algorithm::LeakyBucketQueue { max_waiting: 9 }),
            of("fixed", Algorithm::FixedWindow),
            of("counter", Algorithm::SlidingWindowCounter),
            of("log", Algorithm::SlidingWindowLog),
            QuotaPolicy::concurrent("slots", 5),
        ])
        .unwrap()
    }

    fn alice() -> PartitionId {
        Scope::new("ledger").partition(&PartitionKey::new("user", "alice"))
    }

    fn acquire(now: Timestamp, bytes: &mut Option<Vec<u8>>, policies: &PolicySet) -> Measurement {
        let mut ledger = Ledger::at(now);
        ledger.open(alice(), bytes.as_deref());
        let measurement = ledger.acquire(Plan::new(policies.clone(), alice(), 1));
        for change in ledger.changes() {
            *bytes = change.bytes;
        }
        measurement
    }

    #[test]
    fn what_is_rejected_or_only_read_changes_no_bytes() {
        let (policies, mut bytes) = (policies(), None);
        for _ in 0..5 {
            assert!(acquire(START, &mut bytes, &policies).is_allowed());
        }
        let before = bytes.clone();
        assert!(!acquire(START, &mut bytes, &policies).is_allowed());
        assert_eq!(bytes, before);
    }

    #[test]
    fn a_partition_that_equals_a_new_one_is_removed() {
        let policies = PolicySet::new([QuotaPolicy::per_second("second", 5)]).unwrap();
        let mut bytes = None;
        let decision = acquire(START, &mut bytes, &policies).decide();
        assert!(bytes.is_some());
        let mut ledger = Ledger::at(START);
        ledger.open(alice(), bytes.as_deref());
        ledger.settle(&Settlement::refund_all(&decision));
        let changes: Vec<Change> = ledger.changes().collect();
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].partition, &changes[0].bytes), (alice(), &None));
    }

    #[test]
    fn slots_that_nobody_gives_back_become_free_when_their_lease_ends() {
        let policies = PolicySet::new([QuotaPolicy::concurrent("slots", 1)]).unwrap();
        let mut bytes = None;
        let after = |seconds| START.saturating_add(Duration::from_secs(seconds));
        assert!(acquire(START, &mut bytes, &policies).is_allowed());
        assert!(!acquire(after(59), &mut bytes, &policies).is_allowed());
        assert!(acquire(after(60), &mut bytes, &policies).is_allowed());
    }

    #[test]
    fn bytes_of_somebody_else_count_as_none_or_as_something_and_never_panic() {
        let (policies, mut bytes) = (policies(), None);
        for second in 0..4 {
            let now = START.saturating_add(Duration::from_secs(second));
            assert!(acquire(now, &mut bytes, &policies).is_allowed());
        }
        let bytes = bytes.unwrap();
        let now = START.saturating_add(Duration::from_secs(5));
        for length in 0..bytes.len() {
            let mut cut = Some(bytes[..length].to_vec());
            assert_eq!(
                acquire(now, &mut cut, &policies).decide().outcome(),
                Outcome::Allowed,
                "{length}"
            );
        }
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let mut changed = Some(changed);
            for _ in 0..3 {
                let decision = acquire(now, &mut changed, &policies).decide();
                assert!(
                    decision.allowances().all(|allowance| allowance.remaining() <= 10),
                    "{bit}"
                );
            }
        }
    }
}
