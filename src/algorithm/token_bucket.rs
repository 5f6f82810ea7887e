//! Token bucket: fills evenly up to a capacity, and a request takes from it.
//!
//! What is kept is not the tokens that are left but the weight that was used: zero means "never seen" whatever the
//! capacity is, and a changed quota can carry the used units over.

use crate::quota::{Bucket, CheckedPolicy, EXACT};

/// What is still used of a weight `elapsed` microseconds later.
#[inline]
pub(super) fn drained(used: u64, drain: u64, elapsed: u64) -> u64 {
    used.saturating_sub(elapsed.saturating_mul(drain))
}

/// How much of one bucket is used, in a form that explains itself: whoever has it can drain it and convert it, also
/// without the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    id: u32,
    weight: u64,
    drain: u64,
    used: u64,
}

impl Level {
    pub(super) fn new(policy: &CheckedPolicy, used: u64) -> Self {
        let &Bucket { weight, drain, .. } = policy.bucket();
        Self {
            id: policy.id(),
            weight,
            drain,
            used,
        }
    }

    pub(super) fn is_of(&self, policy: &CheckedPolicy) -> bool {
        self.id == policy.id()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The level `elapsed` microseconds later.
    pub(super) fn after(self, elapsed: u64) -> Self {
        Self {
            used: drained(self.used, self.drain, elapsed),
            ..self
        }
    }

    /// What is used in the weight of `bucket`, and never more than it believes.
    pub(super) fn used_by(&self, bucket: &Bucket) -> u64 {
        let used = if self.weight == bucket.weight {
            self.used
        } else {
            convert(self.used, self.weight, bucket.weight)
        };
        used.min(bucket.bound)
    }

    pub(super) fn micros_to_drain(&self) -> u64 {
        self.used.div_ceil(self.drain)
    }
}

/// The same number of units in another weight, rounded up by less than the weight of a microsecond.
fn convert(used: u64, from: u64, to: u64) -> u64 {
    let (units, part) = (used / from, used % from);
    let product = u128::from(part) * u128::from(to);
    let part = if product < u128::from(EXACT) {
        (product as u64).div_ceil(from)
    } else {
        // Beyond exact integers Lua can only divide first; so that both agree to the bit, this does the same.
        (part as f64 / from as f64 * to as f64).ceil() as u64
    };
    units.saturating_mul(to).saturating_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversion_keeps_the_units_and_rounds_up() {
        assert_eq!(convert(0, 10, 3), 0);
        assert_eq!(convert(25, 10, 4), 10);
        assert_eq!(convert(26, 10, 4), 11);
        assert_eq!(convert(u64::MAX, 1, 2), u64::MAX);
    }

    #[test]
    fn draining_stops_at_empty_however_long_it_takes() {
        let level = Level {
            id: 1,
            weight: 5,
            drain: 3,
            used: 10,
        };
        assert_eq!(level.after(0).used, 10);
        assert_eq!(level.after(3).used, 1);
        assert!(level.after(4).is_empty());
        assert!(level.after(u64::MAX).is_empty());
        assert_eq!(level.micros_to_drain(), 4);
    }
}
