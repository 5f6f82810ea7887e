use indexmap::IndexMap;

use super::{Arithmetic, Form, Late, Reader, Receipt, Sent, Times, Writer};
use crate::lease::{Lease, LeaseId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Concurrency {
    pub(crate) limit: u64,
}

impl Arithmetic for Concurrency {
    type State = Box<Slots>;
    type Reading = u64;

    const FORM: Form = Form::Slots;

    const CODE: u64 = 6;

    #[inline]
    fn weigh(&self, cost: u64) -> u64 {
        cost.min(1)
    }

    fn units(&self) -> u64 {
        self.limit
    }

    fn fill_micros(&self) -> u64 {
        0
    }

    fn read(&self, slots: &Box<Slots>, times: Times, _charge: u64, _first: u64) -> u64 {
        let held = if slots.first_end.is_none_or(|end| times.now < end) {
            slots.leases.len()
        } else {
            slots.leases.values().filter(|until| **until > times.now).count()
        };
        held as u64
    }

    fn charge(&self, slots: &mut Box<Slots>, now: u64, _held: u64, charge: u64, lease: Option<Lease>) {
        if let Some(lease) = lease.filter(|_| charge > 0) {
            slots.hold(now, lease);
        }
    }

    fn believed(&self, _held: u64, _late: Late<'_, Self>) -> u64 {
        0
    }

    fn refund(&self, slots: &mut Box<Slots>, _now: u64, _refund: u64, _settling: &Self, receipt: Receipt) {
        if let Some(lease) = receipt.lease {
            slots.leases.swap_remove(&lease);
        }
    }

    fn empty_at(&self, slots: &Box<Slots>, last: u64) -> u64 {
        let last_end = match slots.first_end {
            None | Some(u64::MAX) => slots.leases.values().next(),
            Some(_) => slots.leases.values().max(),
        };
        last_end.copied().unwrap_or(last)
    }

    fn write(&self, slots: &Box<Slots>, bytes: &mut Writer) {
        bytes.write(self.limit);
        bytes.write(slots.leases.len() as u64);
        for (lease, until) in &slots.leases {
            bytes.write_all(lease.to_numbers());
            bytes.write(*until);
        }
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, Box<Slots>)> {
        let own = Self { limit: bytes.amount()? };
        let mut slots = Slots::default();
        for _ in 0..bytes.any()? {
            let id = LeaseId::from_numbers([bytes.any()?, bytes.any()?])?;
            let until = bytes.any()?;
            slots.hold(0, Lease { id, until });
        }
        Some((own, Box::new(slots)))
    }

    fn sent(&self, lease_micros: u64) -> Sent {
        (lease_micros, -3, self.limit, self.limit)
    }

    fn received(mut next: impl FnMut() -> Option<u64>) -> Option<Self::Reading> {
        next()
    }

    fn admits(&self, held: u64, _now: u64, charge: u64) -> bool {
        held + charge <= self.limit
    }

    fn charged(&self, held: u64, charge: u64) -> u64 {
        held + charge
    }

    fn remaining(&self, held: u64, _now: u64) -> u64 {
        self.limit.saturating_sub(held)
    }

    fn reset(&self, _held: u64, _now: u64) -> Option<u64> {
        None
    }

    fn full_after(&self, _held: u64, _now: u64) -> Option<u64> {
        None
    }

    /// An estimate of one second, because slots can be released at any time.
    fn wait(&self, _held: u64, _now: u64, _charge: u64) -> Option<u64> {
        Some(1_000_000)
    }

    fn predict(&self, held: u64, _now: u64, _elapsed: u64, charge: u64, _hold: u64) -> Option<u64> {
        Some(self.charged(held, charge))
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    leases: IndexMap<LeaseId, u64, foldhash::fast::RandomState>,
    first_end: Option<u64>,
}

impl Slots {
    fn hold(&mut self, now: u64, lease: Lease) {
        if self.first_end.is_some_and(|end| now >= end) {
            self.leases.retain(|_, until| *until > now);
            self.first_end = self.leases.values().copied().min();
        }
        self.leases.insert(lease.id, lease.until);
        self.first_end = Some(self.first_end.map_or(lease.until, |end| end.min(lease.until)));
    }
}
