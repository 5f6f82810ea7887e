use super::{Arithmetic, Late, Reader, Receipt, Sent, Times, Writer};
use crate::lease::Lease;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nothing;

impl Arithmetic for Closed {
    type State = Nothing;
    type Reading = Nothing;

    const CODE: u64 = 9;

    fn weigh(&self, _cost: u64) -> u64 {
        0
    }

    fn units(&self) -> u64 {
        0
    }

    fn fill_micros(&self) -> u64 {
        0
    }

    fn read(&self, _state: &Nothing, _times: Times, _charge: u64, _first: u64) -> Nothing {
        Nothing
    }

    fn charge(&self, _state: &mut Nothing, _now: u64, _reading: Nothing, _charge: u64, _lease: Option<Lease>) {}

    fn believed(&self, _reading: Nothing, _late: Late<'_, Self>) -> u64 {
        0
    }

    fn refund(&self, _state: &mut Nothing, _now: u64, _refund: u64, _settling: &Self, _receipt: Receipt) {}

    fn is_refundable(&self, _is_unused: bool) -> bool {
        false
    }

    fn empty_at(&self, _state: &Nothing, last: u64) -> u64 {
        last
    }

    fn write(&self, _state: &Nothing, _bytes: &mut Writer) {}

    fn parse(_bytes: &mut Reader<'_>) -> Option<(Self, Nothing)> {
        Some((Self, Nothing))
    }

    /// A bucket without capacity.
    fn sent(&self, _lease_micros: u64) -> Sent {
        (1, 1, 0, 0)
    }

    fn received(mut next: impl FnMut() -> Option<u64>) -> Option<Self::Reading> {
        next().map(|_| Nothing)
    }

    fn admits(&self, _reading: Nothing, _now: u64, _charge: u64) -> bool {
        false
    }

    fn charged(&self, _reading: Nothing, _charge: u64) -> Nothing {
        Nothing
    }

    fn remaining(&self, _reading: Nothing, _now: u64) -> u64 {
        0
    }

    fn reset(&self, _reading: Nothing, _now: u64) -> Option<u64> {
        None
    }

    fn full_after(&self, _reading: Nothing, _now: u64) -> Option<u64> {
        None
    }

    fn wait(&self, _reading: Nothing, _now: u64, _charge: u64) -> Option<u64> {
        None
    }

    fn predict(&self, _reading: Nothing, _now: u64, _elapsed: u64, _charge: u64, _hold: u64) -> Option<Nothing> {
        Some(Nothing)
    }
}
