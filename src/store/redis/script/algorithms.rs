use crate::{
    algorithm::{Counter, Form, Lockout, Newcomer},
    decision::settlement::Adjustment,
    policy::Policy,
};

/// In bytes.
pub(super) const CHARGE: usize = 47;

/// Values of the field `drain` that belong to no algorithm.
const LOCKOUT: f64 = -6.0;
const NEWCOMER: f64 = -7.0;

/// All numbers are integers of at most 2⁵³, which doubles represent exactly.
pub(super) struct Numbers {
    /// The weight in narrow format, or the window in seconds. Three bytes.
    short: u32,
    pub(super) weight: f64,
    drain: f64,
    pub(super) limit: f64,
    pub(super) bound: f64,
}

impl Numbers {
    pub(super) fn of(policy: &Policy, lease_micros: u64) -> Self {
        let (weight, drain, limit, bound) = policy.counter().sent(lease_micros);
        let is_bucket = drain > 0;
        Self {
            short: short(if is_bucket { weight } else { weight / 1_000_000 }),
            weight: weight as f64,
            drain: drain as f64,
            limit: limit as f64,
            bound: bound as f64,
        }
    }

    pub(super) fn of_lockout(policy: &Policy, lockout: &Lockout) -> Self {
        Self {
            short: short(1),
            weight: lockout.micros as f64,
            drain: LOCKOUT,
            ..Self::of(policy, 0)
        }
    }

    pub(super) fn of_newcomer(newcomer: &Newcomer) -> Self {
        Self {
            short: short(1),
            weight: newcomer.known.micros as f64,
            drain: NEWCOMER,
            limit: 0.0,
            bound: newcomer.level as f64,
        }
    }

    pub(super) fn is_narrow_bucket(&self) -> bool {
        self.drain == 1.0 && self.short != 0
    }

    pub(super) fn write(&self, bytes: &mut Vec<u8>, id: u32, charge: f64) {
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&self.short.to_le_bytes()[..3]);
        for number in [self.limit, self.bound, charge, self.weight, self.drain] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
}

pub(super) fn size(policy: &Policy) -> usize {
    1 + usize::from(policy.lockout().is_some()) + usize::from(policy.newcomer().is_some())
}

/// A log is expensive, because a rejection searches its entries.
pub(super) fn work(policy: &Policy) -> usize {
    match policy.counter().form() {
        Form::Log => 8,
        _ => size(policy),
    }
}

pub(super) fn gives_back_to_log(adjustment: &Adjustment<'_>) -> bool {
    adjustment.delta < 0 && adjustment.policy.counter().form() == Form::Log
}

/// Identifies a charge for a refund: the used weight afterwards (negative for a leaky bucket), or the number of a log
/// entry.
pub(super) fn mark(adjustment: &Adjustment<'_>) -> f64 {
    let mark = adjustment.receipt.mark as f64;
    match adjustment.policy.counter() {
        Counter::Bucket(bucket) if bucket.is_leaky => -mark,
        _ => mark,
    }
}

/// Encodes `m * 5^e` as `m * 16 + e` in three bytes, or 0 if it does not fit. Windows are multiples of 5⁶ × 2⁶
/// microseconds.
fn short(number: u64) -> u32 {
    let (mut rest, mut fives) = (number, 0);
    for (power, exponent) in [(390_625, 8), (625, 4), (25, 2), (5, 1)] {
        if rest > 0 && rest.is_multiple_of(power) {
            rest /= power;
            fives += exponent;
        }
    }
    u32::try_from(rest)
        .ok()
        .filter(|rest| *rest < 1 << 20)
        .map_or(0, |rest| rest * 16 + fives)
}
