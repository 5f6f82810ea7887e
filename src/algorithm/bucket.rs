//! Token bucket and leaky bucket: one bucket, from which the used weight drains evenly.
//!
//! A *token bucket* fills up to a capacity, and a request takes from it. A store keeps not the tokens that are left but the
//! weight that was used: zero means "never seen" whatever the capacity is, and a changed quota can carry the used units
//! over.
//!
//! In a *leaky bucket* the used weight is the requests that have not left yet: they leave at a constant rate, one after the
//! other. A request that finds others in it waits until they have left; a *meter* has no places to wait in.

use super::{Arithmetic, EXACT, Late, Reader, Receipt, Times, Writer};
use crate::lease::Lease;

/// Where the numbers of a bucket have changed, the debt of a late charge may take at least twice this time, in
/// microseconds: a day.
const SHORTEST_DEBT: u64 = 86_400_000_000;

/// A bucket in exact integers.
///
/// With g = gcd(quota, window in µs), one unit *weighs* window / g and each microsecond *drains* quota / g from what
/// was used. A bucket's state is the weight used so far, an integer: no rate is ever rounded, and no arrival time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// The weight of one unit.
    pub(crate) weight: u64,
    /// The used weight that drains each microsecond.
    pub(crate) drain: u64,
    /// The weight of a full burst: a charge that would lift the used weight above it is rejected.
    pub(crate) limit: u64,
    /// The highest level that a late charge leads to: twice the limit, as far as doubles reach.
    pub(crate) bound: u64,
    /// True if requests leave it one after the other.
    pub(crate) is_leaky: bool,
}

impl Bucket {
    /// A token bucket. The error names the numbers that cannot be kept exact.
    pub(crate) fn token(quota: u64, window_secs: u64, capacity: u64) -> Result<Self, String> {
        let window = window_secs * 1_000_000;
        let divisor = greatest_common_divisor(quota, window);
        let (mut weight, mut drain) = (window / divisor, quota / divisor);
        let most = (EXACT - 1) / capacity;
        if weight > most {
            (drain, weight) = slower_rate(drain, weight, most);
            // One part in a million is less than the clocks of two computers differ by.
            let slowed =
                (u128::from(drain) * u128::from(window) * 1_000_000) < u128::from(quota) * u128::from(weight) * 999_999;
            if slowed {
                return Err(format!(
                    "burst capacity {capacity} with {quota} per {window_secs} s cannot be counted exactly; \
                     make the capacity or the window smaller, or the quota a rounder number"
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
        })
    }

    /// A leaky bucket with the unit that is leaving and places for units that wait.
    pub(crate) fn leaky(quota: u64, window_secs: u64, places: u64) -> Result<Self, String> {
        let mut bucket = Self::token(quota, window_secs, places.saturating_add(1))?;
        bucket.is_leaky = true;
        Ok(bucket)
    }

    /// The form in which no window of the given length ever sees more than the quota: what a full bucket and the rate
    /// give in one window is the quota, so the rate is lower by what the bucket holds.
    pub(crate) fn strict(quota: u64, window_secs: u64, capacity: u64) -> Result<Self, String> {
        if capacity > quota {
            return Err(format!(
                "burst capacity {capacity} is above the quota {quota}, which a strict token bucket never exceeds"
            ));
        }
        // One more than what is left of the quota: at the moment when that unit is there, the window has passed.
        Self::token(quota - capacity + 1, window_secs, capacity)
    }

    /// Returns `true` if a level means the same to both.
    pub(crate) fn has_numbers_of(&self, other: &Self) -> bool {
        (self.weight, self.drain) == (other.weight, other.drain)
    }

    /// Returns `true` if a level, written with other numbers, is above the capacity and drains faster than this bucket.
    ///
    /// It keeps that rate until the next charge: at the rate of a quota that was lowered by a factor of thirty, a used up
    /// day would take a month to come back.
    pub(crate) fn is_owed(&self, written: u64, by: &Self) -> bool {
        let rate = |bucket: &Self| bucket.drain as f64 / bucket.weight as f64;
        rate(by) > rate(self) && written as f64 / by.weight as f64 > self.limit as f64 / self.weight as f64
    }

    /// The reading of such a level, so that this bucket's rate gives the wait for a charge that does not fit. One that
    /// never fits is read for one unit, because a cached rejection decides smaller charges by its reading.
    pub(crate) fn owed_reading(&self, used: u64, by: &Self, charge: u64) -> u64 {
        let charge = if charge > self.limit { self.weight } else { charge };
        let over = (used + charge).saturating_sub(self.limit);
        if over == 0 {
            return used;
        }
        let rate = |bucket: &Self| bucket.drain as f64 / bucket.weight as f64;
        // One more for what division has rounded.
        let slower = (over as f64 * rate(self) / rate(by)).ceil() as u64 + 1;
        (self.limit - charge + slower).min(used)
    }

    /// The rest of a used weight, `elapsed` microseconds later.
    #[inline]
    pub(crate) fn drained(&self, used: u64, elapsed: u64) -> u64 {
        used.saturating_sub(elapsed.saturating_mul(self.drain))
    }

    pub(crate) fn micros_to_drain(&self, used: u64) -> u64 {
        used.div_ceil(self.drain)
    }

    /// The used weight after a refund of `refund` of a charge that was made `age` microseconds ago and filled the bucket up
    /// to `filled_to`.
    ///
    /// Units that have come back by themselves since then are not given back a second time. How much of the charge is left
    /// depends on all that has happened in between, which no state of constant size holds. This counts as if no request had
    /// come since and no other charge had been refunded, so of two open charges the second refund may give back what
    /// drained while it was open. From the first request on, no more is admitted than the capacity and what drained.
    ///
    /// A leaky bucket gives back the last place only, because requests behind another one know when they leave. A place
    /// is the last if nothing has come in since.
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
    /// The used weight.
    type State = u64;
    type Reading = u64;

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
    fn read(&self, used: &u64, times: Times, _charge: u64, _first: u64) -> u64 {
        self.drained(*used, times.elapsed())
    }

    #[inline]
    fn charge(&self, state: &mut u64, _now: u64, used: u64, charge: u64, _lease: Option<Lease>) {
        *state = used + charge;
    }

    /// The state does not have the capacity of the policy that has written it. Its rate bounds the debt, and a level that is
    /// higher already shows a larger capacity.
    fn believed(&self, used: u64, late: Late<'_, Self>) -> u64 {
        let settling = late.settling;
        let convert = |amount| convert(amount, settling.weight, self.weight, f64::ceil);
        let twice = convert(settling.bound);
        let restored = match self.has_numbers_of(settling) {
            true => 0,
            false => (2 * late.receipt.refundable_micros.max(SHORTEST_DEBT)).saturating_mul(self.drain),
        };
        let most = match twice.max(restored) {
            most if used > most => used + twice,
            most => most,
        };
        convert(late.charge).min(most.min(EXACT - 1).saturating_sub(used))
    }

    fn refund(&self, used: &mut u64, now: u64, refund: u64, settling: &Self, receipt: Receipt) {
        let age = now.saturating_sub(receipt.at);
        if self.has_numbers_of(settling) {
            *used = self.refunded(*used, refund, receipt.mark, age);
        } else if !settling.is_leaky {
            // Both rates may have restored units since the charge, so the faster one counts. No level is above the largest
            // amount, which also keeps the script and this from rounding a larger one differently.
            let convert = |amount| convert(amount, settling.weight, self.weight, f64::floor).min(EXACT - 1);
            let refund = convert(refund.min(settling.drained(receipt.mark, age)));
            let left = self.drained(convert(receipt.mark), age);
            *used = used.saturating_sub(refund.min(left));
        }
    }

    /// A request that has left a leaky bucket has used its place.
    fn is_refundable(&self, is_unused: bool) -> bool {
        is_unused || !self.is_leaky
    }

    fn advance(&self, used: &mut u64, times: Times) {
        *used = self.drained(*used, times.elapsed());
    }

    /// The same number of units in another weight, rounded up by less than the weight of a microsecond.
    fn convert(&self, used: &u64, from: &Self) -> u64 {
        convert(*used, from.weight, self.weight, f64::ceil).min(EXACT - 1)
    }

    fn empty_at(&self, used: &u64, last: u64) -> u64 {
        last.saturating_add(self.micros_to_drain(*used))
    }

    fn write(&self, used: &u64, bytes: &mut Writer) {
        bytes.write_all([self.weight, self.drain, self.limit, self.bound]);
        bytes.write_all([self.is_leaky.into(), *used]);
    }

    fn parse(bytes: &mut Reader<'_>) -> Option<(Self, u64)> {
        let own = Self {
            weight: bytes.divisor()?,
            drain: bytes.divisor()?,
            limit: bytes.amount()?,
            bound: bytes.amount()?,
            is_leaky: bytes.amount()? == 1,
        };
        Some((own, bytes.amount()?))
    }

    #[inline]
    fn admits(&self, used: u64, _now: u64, charge: u64) -> bool {
        used + charge <= self.limit
    }

    #[inline]
    fn charged(&self, used: u64, charge: u64) -> u64 {
        used.saturating_add(charge).min(self.bound.max(used))
    }

    /// The level after the charge.
    fn mark(used: u64, charge: u64) -> u64 {
        used.saturating_add(charge)
    }

    /// It has filled the bucket at most.
    fn any_mark(&self) -> u64 {
        self.limit
    }

    /// Parts of a unit are rounded down.
    #[inline]
    fn remaining(&self, used: u64, _now: u64) -> u64 {
        self.limit.saturating_sub(used) / self.weight
    }

    /// The time in which the rate gives as many units as are left, or until the next one if there is none.
    #[inline]
    fn reset(&self, used: u64, now: u64) -> Option<u64> {
        Some(match self.remaining(used, now) {
            0 => self.wait(used, now, self.weight).unwrap_or(0),
            remaining => (remaining * self.weight).div_ceil(self.drain),
        })
    }

    /// Rounded up.
    fn full_after(&self, used: u64, _now: u64) -> Option<u64> {
        (used > 0).then(|| self.micros_to_drain(used))
    }

    fn wait(&self, used: u64, _now: u64, charge: u64) -> Option<u64> {
        (charge <= self.limit).then(|| (used + charge).saturating_sub(self.limit).div_ceil(self.drain))
    }

    /// Until the requests have left that came before.
    #[inline]
    fn delay(&self, used: u64, charge: u64) -> u64 {
        if self.is_leaky && charge > 0 {
            self.micros_to_drain(used)
        } else {
            0
        }
    }

    fn predict(&self, used: u64, _now: u64, elapsed: u64, charge: u64, _hold: u64) -> Option<u64> {
        Some(self.charged(self.drained(used, elapsed), charge))
    }
}

/// The same number of units in another weight. Divides doubles as the script does, so that both agree to the bit.
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

/// The fraction nearest below `drain / weight` whose weight is at most `most`: the rate is rounded down, never up.
///
/// A search in the Stern-Brocot tree, many steps at a time: two fractions close in on the rate from both sides, and what
/// lies between them has a larger weight than either.
fn slower_rate(drain: u64, weight: u64, most: u64) -> (u64, u64) {
    // The rate lies in [low, high), each as numerator and denominator.
    let (drain, weight, most) = (u128::from(drain), u128::from(weight), u128::from(most.max(1)));
    let (mut low, mut high) = ((drain / weight, 1), (drain / weight + 1, 1));
    loop {
        // The steps towards `high` that keep the lower end at or below the rate.
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
        // The steps towards `low` that keep the upper end above the rate.
        let down = ((surplus - 1) / deficit).min((most - high.1) / low.1);
        high = (high.0 + down * low.0, high.1 + down * low.1);
        if up == 0 && down == 0 {
            break;
        }
    }
    // Both ends came from `u64` numbers by steps that stay below them.
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
            assert_eq!(
                bucket.weight * quota,
                bucket.drain * window * 1_000_000,
                "{quota} per {window} s"
            );
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
                    let best = (1..=most)
                        .map(|w| (drain * w / weight, w))
                        .max_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)))
                        .unwrap();
                    assert_eq!(
                        best.0 * slower_weight,
                        slower_drain * best.1,
                        "{drain}/{weight} with {most}"
                    );
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
            assert!(
                bucket.limit < EXACT && bucket.bound < EXACT,
                "{quota} per {window} s: {bucket:?}"
            );
            let exact = u128::from(quota) * u128::from(bucket.weight);
            let kept = u128::from(bucket.drain) * u128::from(window) * 1_000_000;
            assert!(
                kept < exact && exact - kept < exact / 1_000_000,
                "{quota} per {window} s"
            );
        }
    }

    #[test]
    fn a_conversion_keeps_the_units_and_rounds_up_or_down() {
        assert_eq!(convert(0, 10, 3, f64::ceil), 0);
        assert_eq!(convert(25, 10, 4, f64::ceil), 10);
        assert_eq!(convert(26, 10, 4, f64::ceil), 11);
        assert_eq!(convert(26, 10, 4, f64::floor), 10);
        assert_eq!(convert(u64::MAX, 1, 2, f64::ceil), u64::MAX);
        // A product that doubles do not count.
        assert_eq!(convert((1 << 30) - 1, 1 << 30, 1 << 29, f64::floor), (1 << 29) - 1);
        assert_eq!(convert((1 << 30) - 1, 1 << 30, 1 << 29, f64::ceil), 1 << 29);
    }

    #[test]
    fn draining_stops_at_empty_however_long_it_takes() {
        // Three units in five microseconds, so to say.
        let bucket = Bucket {
            weight: 5,
            drain: 3,
            limit: 50,
            bound: 100,
            is_leaky: false,
        };
        assert_eq!(bucket.drained(10, 0), 10);
        assert_eq!(bucket.drained(10, 3), 1);
        assert_eq!(bucket.drained(10, 4), 0);
        assert_eq!(bucket.drained(10, u64::MAX), 0);
        assert_eq!(bucket.micros_to_drain(10), 4);
    }

    /// A second unit a second later, and the first one given back: two at one moment would be one too many.
    #[test]
    fn what_has_come_back_by_itself_is_not_given_back_again() {
        let bucket = Bucket::token(1, 1, 1).unwrap();
        let (second, unit) = (1_000_000, bucket.weight);
        assert_eq!(bucket.refunded(unit, unit, unit, 0), 0);
        assert_eq!(bucket.refunded(unit, unit, unit, second / 2), unit / 2);
        assert_eq!(bucket.refunded(unit, unit, unit, second), unit);
        assert_eq!(bucket.refunded(unit, unit, unit + unit / 2, second), unit / 2);
        assert_eq!(bucket.refunded(unit, u64::MAX, unit, u64::MAX), unit);
    }

    /// Five of ten units have come back by themselves; the five unused ones are all still taken.
    #[test]
    fn what_has_come_back_by_itself_is_the_used_part_of_a_charge_first() {
        let bucket = Bucket::token(1, 1, 10).unwrap();
        let unit = bucket.weight;
        assert_eq!(bucket.refunded(5 * unit, 5 * unit, 10 * unit, 5_000_000), 0);
        assert_eq!(bucket.refunded(4 * unit, 5 * unit, 10 * unit, 6_000_000), 0);
        assert_eq!(bucket.refunded(9 * unit, 5 * unit, 10 * unit, 6_000_000), 5 * unit);
    }

    #[test]
    fn a_strict_bucket_gives_its_capacity_and_the_rest_of_the_quota_in_a_window() {
        for (quota, capacity, rate) in [(60, 30, 31), (60, 1, 60), (60, 60, 1), (1, 1, 1)] {
            let strict = Bucket::strict(quota, 60, capacity).unwrap();
            assert_eq!(strict, Bucket::token(rate, 60, capacity).unwrap());
        }
        assert!(Bucket::strict(5, 60, 6).is_err());
    }

    /// L20
    #[test]
    fn requests_leave_half_a_second_apart_at_two_a_second() {
        let leaky = Bucket::leaky(2, 1, 3).unwrap();
        let unit = leaky.weight;
        let delays: Vec<u64> = (0..4).map(|ahead| leaky.delay(ahead * unit, unit)).collect();
        assert_eq!(delays, [0, 500_000, 1_000_000, 1_500_000]);
        assert!(leaky.admits(3 * unit, 0, unit) && !leaky.admits(3 * unit + 1, 0, unit));
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
