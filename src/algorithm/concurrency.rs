//! Requests in progress: a slot is held from admission to the end of the response.

use indexmap::IndexMap;

use super::{Arithmetic, Form, Reader, Receipt, Times, Writer};
use crate::lease::{Lease, LeaseId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Concurrency {
    /// The number of slots.
    pub(crate) limit: u64,
}

impl Concurrency {
    /// The wait for a client that found no slot: the moment at which one becomes free is unknown.
    pub(crate) const RETRY_MICROS: u64 = 1_000_000;
}

impl Arithmetic for Concurrency {
    type State = Box<Slots>;
    /// The number of held slots.
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
        slots.held(times.now)
    }

    fn charge(&self, slots: &mut Box<Slots>, now: u64, _held: u64, charge: u64, lease: Option<Lease>) {
        if let Some(lease) = lease.filter(|_| charge > 0) {
            slots.hold(now, lease);
        }
    }

    /// A slot without a lease cannot be taken.
    fn believed(&self, _held: u64, _charge: u64) -> u64 {
        0
    }

    fn refund(&self, slots: &mut Box<Slots>, _now: u64, _refund: u64, receipt: Receipt) {
        if let Some(lease) = receipt.lease {
            slots.release(lease);
        }
    }

    fn convert(&self, slots: &Box<Slots>, _from: &Self) -> Box<Slots> {
        slots.clone()
    }

    fn empty_at(&self, slots: &Box<Slots>, last: u64) -> u64 {
        slots.last_end().unwrap_or(last)
    }

    fn write(&self, slots: &Box<Slots>, bytes: &mut Writer) {
        bytes.write(self.limit);
        bytes.write(slots.leases.len() as u64);
        for (lease, until) in &slots.leases {
            let [process, number] = lease.to_numbers();
            for number in [process, number, *until] {
                bytes.write(number);
            }
        }
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, Box<Slots>)> {
        let own = Self { limit: bytes.amount()? };
        let mut slots = Slots::default();
        for _ in 0..bytes.any()? {
            let id = LeaseId::from_numbers([bytes.any()?, bytes.any()?])?;
            slots.hold(
                0,
                Lease {
                    id,
                    until: bytes.any()?,
                },
            );
        }
        Some((own, Box::new(slots)))
    }

    fn is_counted(_held: u64) -> bool {
        false
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

    fn wait(&self, _held: u64, _now: u64, _charge: u64) -> Option<u64> {
        Some(Self::RETRY_MICROS)
    }

    fn foreseen(&self, held: u64, _now: u64, _elapsed: u64, charge: u64, _hold: u64) -> Option<u64> {
        Some(self.charged(held, charge))
    }
}

/// The slots that are held, each by a lease until a moment.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    leases: IndexMap<LeaseId, u64, foldhash::fast::RandomState>,
    /// None becomes free by itself before.
    first_end: u64,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            leases: IndexMap::default(),
            first_end: u64::MAX,
        }
    }
}

impl Slots {
    fn held(&self, now: u64) -> u64 {
        let held = if now < self.first_end {
            self.leases.len()
        } else {
            self.leases.values().filter(|until| **until > now).count()
        };
        held as u64
    }

    fn hold(&mut self, now: u64, lease: Lease) {
        if now >= self.first_end {
            self.leases.retain(|_, until| *until > now);
            self.first_end = self.leases.values().copied().min().unwrap_or(u64::MAX);
        }
        self.leases.insert(lease.id, lease.until);
        self.first_end = self.first_end.min(lease.until);
    }

    fn release(&mut self, lease: LeaseId) {
        self.leases.swap_remove(&lease);
    }

    /// The moment at which the last one becomes free by itself.
    fn last_end(&self) -> Option<u64> {
        match self.first_end {
            u64::MAX => self.leases.values().next().copied(),
            _ => self.leases.values().copied().max(),
        }
    }
}
