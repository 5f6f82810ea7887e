//! The exact amounts that a store computes with.

/// Amounts stay below 2⁵³, where a double still holds every integer: Lua has no other numbers.
pub(crate) const EXACT: u64 = 1 << 53;

/// A token bucket in exact integers.
///
/// With g = gcd(quota, window in µs), one unit *weighs* window / g and each microsecond *drains* quota / g from what
/// was used. A bucket's state is the weight used so far, an integer: no rate is ever rounded, and no arrival time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// What one unit weighs.
    pub(crate) weight: u64,
    /// How much of the used weight goes away each microsecond.
    pub(crate) drain: u64,
    /// The weight of a full burst: a charge that would lift the used weight above it is refused.
    pub(crate) limit: u64,
    /// The most used weight that is ever believed: the limit and, as far as doubles reach, as much again, which a
    /// lowered quota may leave behind.
    pub(crate) bound: u64,
}

impl Bucket {
    /// An error says what about the numbers cannot be kept exact.
    pub(crate) fn new(quota: u64, window_secs: u64, capacity: u64) -> Result<Self, String> {
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
        })
    }

    /// The weight of `cost` units; more than any limit when it cannot be told apart from that.
    #[inline]
    pub(crate) fn charge(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.weight).min(EXACT)
    }

    #[inline]
    pub(crate) fn admits(&self, used: u64, charge: u64) -> bool {
        used + charge <= self.limit
    }

    /// Whole units that are left; parts are rounded down.
    pub(crate) fn remaining(&self, used: u64) -> u64 {
        self.limit.saturating_sub(used) / self.weight
    }

    /// Microseconds until a charge passes if nothing else is used, rounded up; `None` if it never does.
    pub(crate) fn wait(&self, used: u64, charge: u64) -> Option<u64> {
        (charge <= self.limit).then(|| (used + charge).saturating_sub(self.limit).div_ceil(self.drain))
    }

    /// Microseconds in which the rate gives `units` units, at most a full bucket of them, rounded up.
    pub(crate) fn time_for(&self, units: u64) -> u64 {
        units.saturating_mul(self.weight).min(self.limit).div_ceil(self.drain)
    }
}

/// The fraction nearest below `drain / weight` whose weight is at most `most`: the rate is rounded down, never up.
///
/// A search in the Stern-Brocot tree, many steps at a time: two fractions close in on the rate from both sides, and what
/// lies between them has a larger weight than either.
fn slower_rate(drain: u64, weight: u64, most: u64) -> (u64, u64) {
    // The rate lies in [low, high), each as numerator and denominator.
    let (mut low, mut high) = (
        (u128::from(drain / weight), 1_u128),
        (u128::from(drain / weight) + 1, 1_u128),
    );
    let (drain, weight, most) = (u128::from(drain), u128::from(weight), u128::from(most.max(1)));
    loop {
        // How many steps towards `high` keep the lower end at or below the rate.
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
        // How many steps towards `low` keep the upper end above the rate.
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
            let bucket = Bucket::new(quota, window, quota).unwrap();
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
            let bucket = Bucket::new(quota, window, quota).unwrap();
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
}
