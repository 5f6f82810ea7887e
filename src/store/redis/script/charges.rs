//! Charges as the bytes that a script reads.

use std::iter;

use super::{
    super::keyspace::Key,
    Script,
    calendars::Calendars,
    reply::{ExpectedReply, HALF},
};
use crate::{
    algorithm::{Closed, Concurrency, Counter, EXACT, Window},
    decision::{Mode, PartPlan, Plan, settlement::Adjustment},
    policy::Policy,
};
/// The bytes of one charge, as the script unpacks them.
const CHARGE: usize = 47;

/// The numbers in the place of a drain, for algorithms that have none.
const FIXED_WINDOW: f64 = -1.0;
const SLIDING_LOG: f64 = -2.0;
const CONCURRENCY: f64 = -3.0;
const SLIDING_COUNTER: f64 = -4.0;
const CALENDAR: f64 = -5.0;
const LOCKOUT: f64 = -6.0;

/// The number of charges of one partition, those of lockouts included. A layer has at most 16 policies, and no other plan
/// needs more than 255 charges.
pub(super) fn size_of(part: PartPlan<'_>) -> u8 {
    let charges = part
        .policies()
        .iter()
        .map(|policy| 1 + usize::from(policy.lockout().is_some()));
    u8::try_from(charges.sum::<usize>()).unwrap_or(u8::MAX)
}

/// The charges of a call.
pub(super) struct Charges {
    bytes: Vec<u8>,
    calendars: Calendars,
    /// True if all are about buckets whose levels are narrow, and no plan has a partition twice.
    are_usual: bool,
}

impl Charges {
    pub(super) fn with_capacity(charges: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(CHARGE * charges + 2 * HALF),
            calendars: Calendars::default(),
            are_usual: true,
        }
    }

    /// A plan that has a partition twice is for the script that reads a partition again before it writes.
    pub(super) fn have_keys(&mut self, keys: &[Key]) {
        let mut others = keys.iter().enumerate();
        self.are_usual &= others.all(|(number, key)| !keys[..number].contains(key));
    }

    /// A policy with a lockout is followed by that, with what the policy may use at most.
    fn push(&mut self, mut numbers: Numbers, policy: &Policy, charge: f64) {
        if let Some(place) = self.calendars.place(policy) {
            numbers.weight = place as f64;
        }
        self.are_usual &= numbers.is_narrow_bucket() && policy.lockout().is_none();
        numbers.write(&mut self.bytes, policy.id(), charge);
        if let Some(lockout) = policy.lockout() {
            let numbers = Numbers {
                short: short(1),
                weight: lockout.micros as f64,
                drain: LOCKOUT,
                ..Numbers::of(policy, 0)
            };
            numbers.write(&mut self.bytes, policy.lockout_id(), charge);
        }
    }

    /// The limit is the age from which the charge is not taken back.
    pub(super) fn push_adjustment(&mut self, adjustment: &Adjustment<'_>) {
        let numbers = Numbers {
            limit: adjustment.receipt.refundable_micros as f64,
            ..Numbers::of(adjustment.policy, 0)
        };
        self.push(numbers, adjustment.policy, adjustment.delta as f64);
    }

    pub(super) fn push_plan(&mut self, plan: &Plan, lease_micros: u64) {
        for charge in plan.charges() {
            let mut numbers = Numbers::of(charge.policy(), lease_micros);
            if charge.is_shadow() {
                numbers.limit = -numbers.limit;
            }
            let weight = match charge.policy().policy().is_closed() {
                // More than nothing, also where the request costs nothing; a shadow is never charged.
                true => u64::from(!charge.is_shadow()),
                false => charge.weight(),
            };
            self.push(numbers, charge.policy(), weight as f64);
        }
    }

    /// Returns the smallest script that has what all charges need, their bytes, and the reply of so many numbers to them.
    pub(super) fn finish(mut self, width: usize) -> (Script, Vec<u8>, ExpectedReply) {
        let script = if self.are_usual {
            Script::Buckets
        } else {
            Script::EveryAlgorithm
        };
        let mut expected = ExpectedReply::new(&mut self.bytes, width);
        expected.calendars = self.calendars;
        (script, self.bytes, expected)
    }
}

/// The sixth argument for a plan of which a part or nothing is charged.
pub(super) fn question(plan: &Plan) -> Option<Vec<u8>> {
    match plan.mode() {
        Mode::Whole => None,
        Mode::Question => Some(b"?".to_vec()),
        Mode::UpTo => {
            let wanted = plan.costs().requests.min(EXACT);
            let units = plan.charges().flat_map(|charge| {
                let policy = charge.policy();
                let unit = match charge.is_divisible() && !policy.policy().is_closed() {
                    true => policy.counter().weigh(1),
                    false => 0,
                };
                iter::once(unit).chain(policy.lockout().map(|_| unit))
            });
            let numbers = iter::once(wanted).chain(units);
            Some(numbers.flat_map(|number| (number as f64).to_le_bytes()).collect())
        }
    }
}

/// A policy in the form of the script. Doubles hold these numbers exactly: all are integers of at most 2⁵³.
struct Numbers {
    /// The weight in a narrow value, or the length of a window in seconds, in three bytes.
    short: u32,
    weight: f64,
    drain: f64,
    limit: f64,
    bound: f64,
}

impl Numbers {
    fn of(policy: &Policy, lease_micros: u64) -> Self {
        let windowed = |window: Window, drain| (window.micros, drain, window.limit, window.bound);
        let (weight, drain, limit, bound) = match *policy.counter() {
            Counter::Bucket(bucket) => (bucket.weight, bucket.drain as f64, bucket.limit, bucket.bound),
            Counter::FixedWindow(counter) => windowed(counter.0, FIXED_WINDOW),
            Counter::SlidingCounter(counter) => windowed(counter.0, SLIDING_COUNTER),
            Counter::SlidingLog(counter) => windowed(counter.0, SLIDING_LOG),
            Counter::Calendar(calendar) => (0, CALENDAR, calendar.limit, calendar.bound),
            Counter::Concurrency(Concurrency { limit }) => (lease_micros, CONCURRENCY, limit, limit),
            // A bucket without a place for anything.
            Counter::Closed(Closed) => (1, 1.0, 0, 0),
        };
        let is_bucket = drain > 0.0;
        Self {
            short: short(if is_bucket { weight } else { weight / 1_000_000 }),
            weight: weight as f64,
            drain,
            limit: limit as f64,
            bound: bound as f64,
        }
    }

    /// Returns `true` if the narrow layout has room for all of it.
    fn is_narrow_bucket(&self) -> bool {
        self.drain == 1.0 && self.short != 0
    }

    fn write(&self, bytes: &mut Vec<u8>, id: u32, charge: f64) {
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes.extend_from_slice(&self.short.to_le_bytes()[..3]);
        for number in [self.limit, self.bound, charge, self.weight, self.drain] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// A number in three bytes, `m * 16 + e` for `m * 5^e`; 0 if it does not fit. Windows are of whole seconds, and a second has
/// 5⁶ × 2⁶ microseconds: what is left of them without their fives is small.
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
