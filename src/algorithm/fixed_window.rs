use super::{Arithmetic, Late, Reader, Receipt, Sent, Times, Window, Writer, window::MAX_COUNT};
use crate::lease::Lease;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedWindow(pub(crate) Window);

impl FixedWindow {
    pub(crate) fn new(quota: u64, window_secs: u64) -> Self {
        Self(Window::new(quota, window_secs))
    }

    #[inline]
    pub(crate) fn counted(&self, used: u64, times: Times) -> u64 {
        if times.last >= self.0.start(times.now) {
            used.min(MAX_COUNT)
        } else {
            0
        }
    }
}

impl Arithmetic for FixedWindow {
    type State = u64;
    type Reading = u64;

    const CODE: u64 = 3;

    fn units(&self) -> u64 {
        self.0.limit
    }

    fn fill_micros(&self) -> u64 {
        self.0.micros
    }

    fn lapse_micros(&self, now: u64) -> Option<u64> {
        Some(self.0.left(now))
    }

    #[inline]
    fn read(&self, used: &u64, times: Times, _charge: u64, _first: u64) -> u64 {
        self.counted(*used, times)
    }

    #[inline]
    fn charge(&self, state: &mut u64, _now: u64, used: u64, charge: u64, _lease: Option<Lease>) {
        *state = used + charge;
    }

    fn believed(&self, used: u64, late: Late<'_, Self>) -> u64 {
        late.settling.0.believed(used, late.charge)
    }

    fn refund(&self, used: &mut u64, now: u64, refund: u64, _settling: &Self, receipt: Receipt) {
        if receipt.at >= self.0.start(now) {
            *used = used.saturating_sub(refund);
        }
    }

    fn advance(&self, used: &mut u64, times: Times) {
        *used = self.counted(*used, times);
    }

    fn empty_at(&self, used: &u64, last: u64) -> u64 {
        match used {
            0 => last,
            1.. => last.saturating_add(self.0.left(last)),
        }
    }

    fn write(&self, used: &u64, bytes: &mut Writer) {
        self.0.write(bytes);
        bytes.write(*used);
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, u64)> {
        let own = Self(Window::parse(bytes)?);
        Some((own, bytes.amount()?))
    }

    fn sent(&self, _lease_micros: u64) -> Sent {
        self.0.sent(-1)
    }

    fn received(mut next: impl FnMut() -> Option<u64>) -> Option<Self::Reading> {
        next()
    }

    #[inline]
    fn admits(&self, used: u64, _now: u64, charge: u64) -> bool {
        used.saturating_add(charge) <= self.0.limit
    }

    #[inline]
    fn charged(&self, used: u64, charge: u64) -> u64 {
        self.0.charged(used, charge)
    }

    #[inline]
    fn remaining(&self, used: u64, _now: u64) -> u64 {
        self.0.limit.saturating_sub(used)
    }

    #[inline]
    fn reset(&self, used: u64, now: u64) -> Option<u64> {
        let least = self.0.least_time_for(self.remaining(used, now));
        Some(self.0.left(now).max(least))
    }

    fn full_after(&self, used: u64, now: u64) -> Option<u64> {
        (used > 0).then(|| self.0.left(now))
    }

    fn wait(&self, _used: u64, now: u64, charge: u64) -> Option<u64> {
        (charge <= self.0.limit).then(|| self.0.left(now))
    }

    fn predict(&self, used: u64, now: u64, elapsed: u64, charge: u64, _hold: u64) -> Option<u64> {
        Some(self.charged(self.counted(used, Times::since(now, elapsed)), charge))
    }
}
