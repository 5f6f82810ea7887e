use std::iter;

use super::{
    super::{keyspace::Key, scripts::Script},
    algorithms::{self, CHARGE, Numbers},
    calendars::Calendars,
    reply::{ExpectedReply, HALF},
};
use crate::{
    algorithm::EXACT,
    decision::{Mode, PartPlan, Plan, settlement::Adjustment},
    policy::Policy,
};

/// Includes lockouts and first levels. Layers have at most 16 policies, and no other plan needs more than 255 charges.
pub(super) fn size_of(part: PartPlan<'_>) -> u8 {
    let charges = part.policies().iter().map(algorithms::size);
    u8::try_from(charges.sum::<usize>()).unwrap_or(u8::MAX)
}

pub(super) struct Charges {
    bytes: Vec<u8>,
    calendars: Calendars,
    /// All buckets are in the narrow layout, and no plan contains a partition twice.
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

    /// The fast script does not let the second charge to a partition read what the first one wrote.
    pub(super) fn have_keys(&mut self, keys: &[Key]) {
        let mut others = keys.iter().enumerate();
        self.are_usual &= others.all(|(number, key)| !keys[..number].contains(key));
    }

    fn push(&mut self, mut numbers: Numbers, policy: &Policy, charge: f64) {
        if let Some(place) = self.calendars.place(policy) {
            numbers.weight = place as f64;
        }
        self.are_usual &= numbers.is_narrow_bucket() && algorithms::size(policy) == 1;
        if let Some(newcomer) = policy.newcomer() {
            Numbers::of_newcomer(newcomer).write(&mut self.bytes, policy.newcomer_id(), 0.0);
        }
        numbers.write(&mut self.bytes, policy.id(), charge);
        if let Some(lockout) = policy.lockout() {
            Numbers::of_lockout(policy, lockout).write(&mut self.bytes, policy.lockout_id(), charge);
        }
    }

    /// The limit of an adjustment is the age from which its charge is not refunded.
    pub(super) fn push_adjustment(&mut self, adjustment: &Adjustment<'_>) {
        let mut numbers = Numbers::of(adjustment.policy, 0);
        numbers.limit = adjustment.receipt.refundable_micros as f64;
        self.push(numbers, adjustment.policy, adjustment.delta as f64);
    }

    pub(super) fn push_plan(&mut self, plan: &Plan, lease_micros: u64) {
        for charge in plan.charges() {
            let mut numbers = Numbers::of(charge.checked(), lease_micros);
            let peeked = if plan.is_read_only() { charge.weight() } else { 0 };
            numbers.bound = numbers.limit - charge.policy().overage_units() as f64 + peeked as f64;
            if charge.is_shadow() {
                numbers.limit = -numbers.limit;
            }
            let weight = match charge.policy().is_closed() {
                // At least one unit, so that the policy also rejects requests of cost 0.
                true => u64::from(!charge.is_shadow()),
                false => charge.weight(),
            };
            self.push(numbers, charge.checked(), weight as f64);
        }
    }

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

pub(super) fn question(plan: &Plan) -> Option<Vec<u8>> {
    match plan.mode() {
        Mode::Whole => None,
        Mode::Question => Some(b"?".to_vec()),
        Mode::UpTo => {
            let wanted = plan.costs().requests.min(EXACT);
            let units = plan.charges().flat_map(|charge| {
                let policy = charge.checked();
                let unit = match charge.is_divisible() && !policy.policy().is_closed() {
                    true => policy.counter().weigh(1),
                    false => 0,
                };
                let first = policy.newcomer().map(|_| 0);
                first.into_iter().chain([unit]).chain(policy.lockout().map(|_| unit))
            });
            let numbers = iter::once(wanted).chain(units);
            Some(numbers.flat_map(|number| (number as f64).to_le_bytes()).collect())
        }
    }
}
