//! The state of a bucket is the used weight, not the remaining tokens: a change of the quota keeps it.

use std::num::NonZeroU64;

use super::{Arithmetic, EXACT, Late, Reader, Receipt, Sent, Times, Writer};
use crate::lease::Lease;

/// With g = gcd(quota, window in µs), one unit has a *weight* of window / g, and each microsecond *drains* quota / g of
/// the used weight, so neither rates nor times are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) weight: u64,
    /// Per microsecond.
    pub(crate) drain: u64,
    pub(crate) limit: u64,
    /// After a late charge.
    pub(crate) bound: u64,
    pub(crate) is_leaky: bool,
    /// In stored levels; see [`OtherRate::is_kept`].
    pub(crate) keeps_rate: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketReading {
    pub(crate) used: u64,
    pub(crate) other: Option<OtherRate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OtherRate {
    level: u64,
    weight: NonZeroU64,
    drain: NonZeroU64,
    /// Until a charge is admitted. Decided by the first decision under the changed policy, because a reported wait must
    /// not change later.
    pub(crate) is_kept: bool,
}

impl From<u64> for BucketReading {
    #[inline]
    fn from(used: u64) -> Self {
        Self { used, other: None }
    }
}

impl From<BucketReading> for u64 {
    #[inline]
    fn from(reading: BucketReading) -> Self {
        reading.used
    }
}

impl OtherRate {
    pub(crate) fn new(level: u64, weight: u64, drain: u64, is_kept: bool) -> Option<Self> {
        Some(Self {
            level,
            weight: NonZeroU64::new(weight)?,
            drain: NonZeroU64::new(drain)?,
            is_kept,
        })
    }
}

impl Bucket {
    pub(crate) fn token(quota: u64, window_secs: u64, capacity: u64) -> Result<Self, String> {
        let window = window_secs * 1_000_000;
        let divisor = greatest_common_divisor(quota, window);
        let (mut weight, mut drain) = (window / divisor, quota / divisor);
        let most = (EXACT - 1) / capacity;
        if weight > most {
            (drain, weight) = slower_rate(drain, weight, most);
            // Computer clocks deviate by more than a millionth.
            let slowed =
                (u128::from(drain) * u128::from(window) * 1_000_000) < u128::from(quota) * u128::from(weight) * 999_999;
            if slowed {
                return Err(format!(
                    "burst capacity {capacity} with {quota} units per {window_secs} s cannot be counted exactly; \
                     reduce the capacity or the window, or round the quota"
                ));
            }
        }
        let limit = capacity * weight;
        let bound = limit.saturating_mul(2).min(EXACT - 1);
        Ok(Self {
            weight,
            drain,
            limit,
            bound,
            is_leaky: false,
            keeps_rate: false,
        })
    }

    /// Of `places` queued units, plus the unit that is leaving.
    pub(crate) fn leaky(quota: u64, window_secs: u64, places: u64) -> Result<Self, String> {
        let mut bucket = Self::token(quota, window_secs, places.saturating_add(1))?;
        bucket.is_leaky = true;
        Ok(bucket)
    }

    /// The capacity plus the units refilled in one window is the quota.
    pub(crate) fn strict(quota: u64, window_secs: u64, capacity: u64) -> Result<Self, String> {
        if capacity > quota {
            return Err(format!(
                "burst capacity {capacity} exceeds quota {quota}, the maximum for a strict token bucket"
            ));
        }
        // Plus one, because the last unit is refilled exactly when the window has passed.
        Self::token(quota - capacity + 1, window_secs, capacity)
    }

    pub(crate) fn has_numbers_of(&self, other: &Self) -> bool {
        (self.weight, self.drain) == (other.weight, other.drain)
    }

    /// A level above the capacity keeps a faster rate until the next charge: after a quota per day is reduced to a
    /// thirtieth, an exhausted day would otherwise take a month to refill. So does a level that this bucket cannot
    /// represent.
    pub(crate) fn reading_of(&self, level: u64, by: &Self) -> BucketReading {
        let used = self.converted(level, by.weight);
        if level == 0 || self.has_numbers_of(by) {
            return BucketReading::from(used);
        }
        let rate = |bucket: &Self| bucket.drain as f64 / bucket.weight as f64;
        let is_owed = rate(by) > rate(self) && (by.keeps_rate || used > self.limit);
        let other = OtherRate::new(level, by.weight, by.drain, is_owed || used == EXACT - 1);
        BucketReading { used, other }
    }

    fn converted(&self, level: u64, weight: u64) -> u64 {
        convert(level, weight, self.weight, f64::ceil).min(EXACT - 1)
    }

    fn micros_until(&self, reading: BucketReading, most: u64) -> u64 {
        let Some(other) = reading.other else {
            return self.micros_to_drain(reading.used.saturating_sub(most));
        };
        let most = u128::from(most) * u128::from(other.weight.get()) / u128::from(self.weight);
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        other.level.saturating_sub(most).div_ceil(other.drain.get())
    }

    #[inline]
    pub(crate) fn drained(&self, used: u64, elapsed: u64) -> u64 {
        used.saturating_sub(elapsed.saturating_mul(self.drain))
    }

    pub(crate) fn micros_to_drain(&self, used: u64) -> u64 {
        used.div_ceil(self.drain)
    }

    /// The used weight after refunding `refund` of a charge made `age` microseconds ago, which filled the bucket to
    /// `filled_to`.
    ///
    /// Assumes that there were no other charges in between, which a state of constant size cannot store: with two open
    /// charges, the second refund may include refilled units. A leaky bucket refunds only the last place, because the
    /// waits behind other places are already reported.
    pub(crate) fn refunded(&self, used: u64, refund: u64, filled_to: u64, age: u64) -> u64 {
        let left = self.drained(filled_to, age);
        match self.is_leaky {
            true if used == left => used.saturating_sub(refund),
            true => used,
            false => used.saturating_sub(refund.min(left)),
        }
    }
}

impl Arithmetic for Bucket {
    type State = u64;
    type Reading = BucketReading;

    // 1 and 2 were buckets without the last number.
    const CODE: u64 = 7;

    #[inline]
    fn weigh(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.weight).min(EXACT)
    }

    fn units(&self) -> u64 {
        self.limit / self.weight
    }

    fn fill_micros(&self) -> u64 {
        self.micros_to_drain(self.limit)
    }

    #[inline]
    fn read(&self, used: &u64, times: Times, _charge: u64, _first: u64) -> BucketReading {
        BucketReading::from(self.drained(*used, times.elapsed()))
    }

    #[inline]
    fn charge(&self, state: &mut u64, _now: u64, reading: BucketReading, charge: u64, _lease: Option<Lease>) {
        *state = reading.used + charge;
    }

    fn believed(&self, reading: BucketReading, late: Late<'_, Self>) -> u64 {
        let settling = late.settling;
        let convert = |amount| convert(amount, settling.weight, self.weight, f64::ceil);
        let bound = convert(settling.bound).min(EXACT - 1);
        convert(late.charge).min(bound.saturating_sub(reading.used))
    }

    fn refund(&self, used: &mut u64, now: u64, refund: u64, settling: &Self, receipt: Receipt) {
        let age = now.saturating_sub(receipt.at);
        if self.has_numbers_of(settling) {
            *used = self.refunded(*used, refund, receipt.mark, age);
        } else if !settling.is_leaky {
            // Units may have been restored at either rate since the charge, so the faster rate is assumed. Levels are
            // capped at the largest exact amount, above which the script and this code would round differently.
            let convert = |amount| convert(amount, settling.weight, self.weight, f64::floor).min(EXACT - 1);
            let refund = convert(refund.min(settling.drained(receipt.mark, age)));
            let left = self.drained(convert(receipt.mark), age);
            *used = used.saturating_sub(refund.min(left));
        }
    }

    fn is_refundable(&self, is_unused: bool) -> bool {
        is_unused || !self.is_leaky
    }

    fn advance(&self, used: &mut u64, times: Times) {
        *used = self.drained(*used, times.elapsed());
    }

    fn convert(&self, used: &u64, from: &Self) -> u64 {
        self.converted(*used, from.weight)
    }

    fn empty_at(&self, used: &u64, last: u64) -> u64 {
        last.saturating_add(self.micros_to_drain(*used))
    }

    fn write(&self, used: &u64, bytes: &mut Writer) {
        bytes.write_all([self.weight, self.drain, self.limit, self.bound]);
        bytes.write_all([u64::from(self.is_leaky) + 2 * u64::from(self.keeps_rate), *used]);
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, u64)> {
        let mut own = Self {
            weight: bytes.divisor()?,
            drain: bytes.divisor()?,
            limit: bytes.amount()?,
            bound: bytes.amount()?,
            is_leaky: false,
            keeps_rate: false,
        };
        let flags = bytes.amount()?;
        (own.is_leaky, own.keeps_rate) = (flags & 1 != 0, flags & 2 != 0);
        Some((own, bytes.amount()?))
    }

    fn sent(&self, _lease_micros: u64) -> Sent {
        (self.weight, self.drain as i64, self.limit, self.bound)
    }

    fn received(mut next: impl FnMut() -> Option<u64>) -> Option<Self::Reading> {
        next().map(BucketReading::from)
    }

    #[inline]
    fn admits(&self, reading: BucketReading, _now: u64, charge: u64) -> bool {
        reading.used + charge <= self.limit
    }

    #[inline]
    fn charged(&self, reading: BucketReading, charge: u64) -> BucketReading {
        BucketReading {
            used: reading.used.saturating_add(charge).min(self.bound.max(reading.used)),
            other: reading.other.filter(|_| charge == 0),
        }
    }

    fn mark(reading: BucketReading, charge: u64) -> u64 {
        reading.used.saturating_add(charge)
    }

    fn any_mark(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn remaining(&self, reading: BucketReading, _now: u64) -> u64 {
        self.limit.saturating_sub(reading.used) / self.weight
    }

    /// Until the next unit if none remains.
    #[inline]
    fn reset(&self, reading: BucketReading, now: u64) -> Option<u64> {
        Some(match self.remaining(reading, now) {
            0 => self.wait(reading, now, self.weight).unwrap_or(0),
            remaining => (remaining * self.weight).div_ceil(self.drain),
        })
    }

    fn full_after(&self, reading: BucketReading, _now: u64) -> Option<u64> {
        (reading.used > 0).then(|| self.micros_until(reading, 0))
    }

    fn wait(&self, reading: BucketReading, _now: u64, charge: u64) -> Option<u64> {
        Some(self.micros_until(reading, self.limit.checked_sub(charge)?))
    }

    #[inline]
    fn delay(&self, reading: BucketReading, charge: u64) -> u64 {
        if self.is_leaky && charge > 0 {
            self.micros_to_drain(reading.used)
        } else {
            0
        }
    }

    fn predict(
        &self,
        reading: BucketReading,
        _now: u64,
        elapsed: u64,
        charge: u64,
        _hold: u64,
    ) -> Option<BucketReading> {
        let later = match reading.other {
            None => BucketReading::from(self.drained(reading.used, elapsed)),
            Some(mut other) => {
                other.level = other.level.saturating_sub(elapsed.saturating_mul(other.drain.get()));
                BucketReading {
                    used: self.converted(other.level, other.weight.get()),
                    other: Some(other).filter(|other| other.level > 0),
                }
            }
        };
        Some(self.charged(later, charge))
    }
}

/// Divides doubles like the script, so that both agree to the bit.
fn convert(amount: u64, from: u64, to: u64, round: fn(f64) -> f64) -> u64 {
    if from == to {
        return amount;
    }
    let (units, part) = (amount / from, amount % from);
    let product = u128::from(part) * u128::from(to);
    let part = if product < u128::from(EXACT) {
        round(product as f64 / from as f64)
    } else {
        round(part as f64 / from as f64 * to as f64)
    };
    units.saturating_mul(to).saturating_add(part as u64)
}

/// Searches the Stern-Brocot tree for the largest fraction that is at most `drain / weight` and has a weight of at most
/// `most`, many steps at a time.
fn slower_rate(drain: u64, weight: u64, most: u64) -> (u64, u64) {
    // The rate is in [low, high), each a numerator and a denominator.
    let (drain, weight, most) = (u128::from(drain), u128::from(weight), u128::from(most.max(1)));
    let (mut low, mut high) = ((drain / weight, 1), (drain / weight + 1, 1));
    loop {
        // The number of steps towards `high` that keep the lower end at or below the rate.
        let surplus = high.0 * weight - drain * high.1;
        let deficit = drain * low.1 - low.0 * weight;
        if deficit == 0 {
            break;
        }
        let up = (deficit / surplus).min((most.saturating_sub(low.1)) / high.1);
        low = (low.0 + up * high.0, low.1 + up * high.1);
        let deficit = drain * low.1 - low.0 * weight;
        if deficit == 0 || low.1 + high.1 > most {
            break;
        }
        // The number of steps towards `low` that keep the upper end above the rate.
        let down = ((surplus - 1) / deficit).min((most - high.1) / low.1);
        high = (high.0 + down * low.0, high.1 + down * low.1);
        if up == 0 && down == 0 {
            break;
        }
    }
    // At most `drain` and `weight`, which were `u64`.
    (low.0 as u64, low.1 as u64)
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyday_quotas_are_exact() {
        for (quota, window) in [
            (1, 1),
            (7, 1),
            (30_000, 1),
            (100, 60),
            (5_000, 86_400),
            (1_000_000, 2_678_400),
        ] {
            let bucket = Bucket::token(quota, window, quota).unwrap();
            let drained = bucket.drain * window * 1_000_000;
            assert_eq!(bucket.weight * quota, drained, "{quota} per {window} s");
        }
    }

    #[test]
    fn a_rate_is_replaced_by_the_nearest_one_below_that_fits() {
        for weight in 1..60_u64 {
            for drain in 1..80_u64 {
                for most in [1, 2, 3, 5, 8, 13, 21, 34, 59] {
                    let (slower_drain, slower_weight) = slower_rate(drain, weight, most);
                    let is_below = |d: u64, w: u64| d * weight <= drain * w;
                    assert!((1..=most).contains(&slower_weight) && is_below(slower_drain, slower_weight));
                    let rates = (1..=most).map(|w| (drain * w / weight, w));
                    let best = rates.max_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1))).unwrap();
                    let is_best = best.0 * slower_weight == slower_drain * best.1;
                    assert!(is_best, "{drain}/{weight} with {most}");
                }
            }
        }
    }

    #[test]
    fn a_quota_too_odd_for_doubles_is_slower_by_less_than_a_millionth_and_never_faster() {
        for (quota, window) in [
            (5_003, 2_678_400),
            (104_729, 86_400),
            (999_999_999_999_989, 1),
            (999_999_937, 31_536_000),
        ] {
            let bucket = Bucket::token(quota, window, quota).unwrap();
            let case = format!("{quota} per {window} s: {bucket:?}");
            assert!(bucket.limit < EXACT && bucket.bound < EXACT, "{case}");
            let exact = u128::from(quota) * u128::from(bucket.weight);
            let kept = u128::from(bucket.drain) * u128::from(window) * 1_000_000;
            assert!(kept < exact && exact - kept < exact / 1_000_000, "{case}");
        }
    }

    #[test]
    fn a_conversion_keeps_the_units_and_rounds_up_or_down() {
        assert_eq!(convert(0, 10, 3, f64::ceil), 0);
        assert_eq!(convert(25, 10, 4, f64::ceil), 10);
        assert_eq!(convert(26, 10, 4, f64::ceil), 11);
        assert_eq!(convert(26, 10, 4, f64::floor), 10);
        assert_eq!(convert(u64::MAX, 1, 2, f64::ceil), u64::MAX);
        // A product that a double cannot represent exactly.
        assert_eq!(convert((1 << 30) - 1, 1 << 30, 1 << 29, f64::floor), (1 << 29) - 1);
        assert_eq!(convert((1 << 30) - 1, 1 << 30, 1 << 29, f64::ceil), 1 << 29);
    }

    #[test]
    fn draining_stops_at_empty_however_long_it_takes() {
        // Three units in five microseconds.
        let bucket = Bucket {
            weight: 5,
            drain: 3,
            limit: 50,
            bound: 100,
            is_leaky: false,
            keeps_rate: false,
        };
        assert_eq!(bucket.drained(10, 0), 10);
        assert_eq!(bucket.drained(10, 3), 1);
        assert_eq!(bucket.drained(10, 4), 0);
        assert_eq!(bucket.drained(10, u64::MAX), 0);
        assert_eq!(bucket.micros_to_drain(10), 4);
    }

    #[test]
    fn a_strict_bucket_gives_its_capacity_and_the_rest_of_the_quota_in_a_window() {
        for (quota, capacity, rate) in [(60, 30, 31), (60, 1, 60), (60, 60, 1), (1, 1, 1)] {
            let strict = Bucket::strict(quota, 60, capacity).unwrap();
            assert_eq!(strict, Bucket::token(rate, 60, capacity).unwrap());
        }
        assert!(Bucket::strict(5, 60, 6).is_err());
    }

    #[test]
    fn only_the_last_place_can_be_refunded() {
        let leaky = Bucket::leaky(2, 1, 3).unwrap();
        let (unit, second) = (leaky.weight, 500_000);
        assert_eq!(leaky.refunded(2 * unit, unit, 2 * unit, 0), unit);
        assert_eq!(leaky.refunded(unit, unit, 2 * unit, second), 0);
        assert_eq!(leaky.refunded(3 * unit, unit, 2 * unit, 0), 3 * unit);
    }
}
