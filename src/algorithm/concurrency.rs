//! Requests in progress: a slot is held from admission to the end of the response.

use indexmap::IndexSet;

use super::{Arithmetic, Form, Receipt, Times};
use crate::lease::LeaseId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Concurrency {
    /// How many slots there are.
    pub(crate) limit: u64,
}

impl Concurrency {
    /// How long a client should wait that found no slot: nobody knows when one becomes free.
    pub(crate) const RETRY_MICROS: u64 = 1_000_000;
}

impl Arithmetic for Concurrency {
    type State = Box<Slots>;
    /// How many are held.
    type Reading = u64;

    const FORM: Form = Form::Slots;

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

    fn read(&self, slots: &Box<Slots>, _times: Times, _charge: u64, _first: u64) -> u64 {
        slots.held()
    }

    fn charge(&self, slots: &mut Box<Slots>, _now: u64, _held: u64, charge: u64, lease: Option<LeaseId>) {
        if let Some(lease) = lease.filter(|_| charge > 0) {
            slots.hold(lease);
        }
    }

    /// A slot that nobody holds cannot be taken.
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
        if slots.held() > 0 { u64::MAX } else { last }
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

/// The slots that are held, each by a lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots(IndexSet<LeaseId, foldhash::fast::RandomState>);

impl Slots {
    pub(crate) fn held(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn hold(&mut self, lease: LeaseId) {
        self.0.insert(lease);
    }

    pub(crate) fn release(&mut self, lease: LeaseId) {
        self.0.swap_remove(&lease);
    }
}
