use super::{Reader, Sent, Writer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) micros: u64,
    pub(crate) limit: u64,
    pub(crate) bound: u64,
}

/// Products with this number are exact in the script.
pub(super) const MAX_COUNT: u64 = 1 << 51;

impl Window {
    pub(super) fn new(quota: u64, window_secs: u64) -> Self {
        Self {
            micros: window_secs * 1_000_000,
            limit: quota,
            bound: quota * 2,
        }
    }

    #[inline]
    pub(super) fn start(&self, moment: u64) -> u64 {
        moment - moment % self.micros
    }

    #[inline]
    pub(super) fn left(&self, moment: u64) -> u64 {
        self.micros - moment % self.micros
    }

    #[inline]
    pub(super) fn charged(&self, used: u64, charge: u64) -> u64 {
        used.saturating_add(charge).min(self.bound.max(used))
    }

    pub(super) fn sent(&self, drain: i64) -> Sent {
        (self.micros, drain, self.limit, self.bound)
    }

    pub(super) fn believed(&self, used: u64, charge: u64) -> u64 {
        charge.min(self.bound.saturating_sub(used))
    }

    #[inline]
    pub(super) fn least_time_for(&self, units: u64) -> u64 {
        // Divisions of `u128` are slow.
        if let Some(product) = units.checked_mul(self.micros) {
            return product.div_ceil(2 * self.limit);
        }
        let micros = (u128::from(units) * u128::from(self.micros)).div_ceil(2 * u128::from(self.limit));
        u64::try_from(micros).unwrap_or(u64::MAX)
    }

    pub(super) fn write(&self, bytes: &mut Writer) {
        bytes.write_all([self.micros, self.limit, self.bound]);
    }

    pub(super) fn parse(bytes: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            micros: bytes.divisor()?,
            limit: bytes.amount()?,
            bound: bytes.amount()?,
        })
    }
}
