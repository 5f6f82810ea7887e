//! Replies of a script, from bytes to measurements.

use ::redis::Value;
use smallvec::SmallVec;

use super::{algorithms, calendars::Calendars};
use crate::{
    algorithm::{EXACT, Moment, Moments, PolicyReading},
    clock::Timestamp,
    decision::{Measurement, Mode, PartPlan, Plan},
    error::{StoreError, StoreErrorKind},
    lease::LeaseId,
    policy::Policy,
    sync::random,
};

/// The number of numbers in a reply that belong to a partition and to none of its policies.
const MOMENT: usize = 2;

/// In place of a birth.
const NEWER: f64 = -1.0;

/// The bytes of half a call's number. A reply begins with the first half and ends with the second one.
pub(super) const HALF: usize = 4;

/// The reply that a call of a script has to get.
pub(super) struct ExpectedReply {
    /// No other call has this number.
    number: [u8; 2 * HALF],
    /// The number of numbers between its halves.
    width: usize,
    /// Those whose borders the call brings.
    pub(super) calendars: Calendars,
}

impl ExpectedReply {
    /// Writes the call's number behind the other bytes for the script.
    pub(super) fn new(arguments: &mut Vec<u8>, width: usize) -> Self {
        let number = random::long_number().to_le_bytes();
        arguments.extend_from_slice(&number);
        Self {
            number,
            width,
            calendars: Calendars::default(),
        }
    }

    /// Returns `None` if bytes are missing or the reply is another call's. A reply with the time only is one to a call whose
    /// borders do not fit.
    pub(super) fn read(&self, reply: Value) -> Option<Reply> {
        let Value::BulkString(bytes) = reply else {
            return None;
        };
        let (first, rest) = bytes.split_first_chunk::<HALF>()?;
        let (numbers, last) = rest.split_last_chunk::<HALF>()?;
        let is_its_own = first == &self.number[..HALF] && last == &self.number[HALF..];
        let width = numbers.len() / 8;
        let is_whole = width == self.width || (width == 1 && !self.calendars.is_empty());
        (is_its_own && is_whole && numbers.len() % 8 == 0).then_some(Reply(bytes))
    }
}

/// The reply to a call: the time, and what each policy had used before. Empty for a command.
#[derive(Default)]
pub(crate) struct Reply(Vec<u8>);

/// Returns the number of numbers that the script returns for a plan.
pub(super) fn width(plan: &Plan) -> usize {
    plan.parts().map(part_width).sum()
}

pub(super) fn part_width(part: PartPlan<'_>) -> usize {
    let widths = part
        .policies()
        .iter()
        .map(|policy| algorithms::width(policy.counter()) + usize::from(policy.lockout().is_some()));
    MOMENT + widths.sum::<usize>()
}

/// Reads the measurement of a plan. A reply of another form is an error, never a panic.
pub(crate) fn decode(plan: Plan, lease: Option<LeaseId>, reply: &Reply) -> Result<Measurement, StoreError> {
    reply.numbers()?.measure(plan, lease)
}

/// Reads the measurements of the plans of one call.
pub(crate) fn decode_each(plans: Vec<Plan>, reply: &Reply) -> impl Iterator<Item = Result<Measurement, StoreError>> {
    let mut numbers = reply.numbers();
    plans.into_iter().map(move |plan| match &mut numbers {
        Ok(numbers) => numbers.measure(plan, None),
        Err(error) => Err(error.clone()),
    })
}

impl Reply {
    /// The time of the server, if the reply has nothing else: the borders of the call do not fit.
    pub(super) fn only_time(&self) -> Option<Timestamp> {
        let numbers = self.numbers().ok()?;
        numbers.rest.is_empty().then_some(numbers.now)
    }

    fn numbers(&self) -> Result<Numbers<'_>, StoreError> {
        let numbers = self.0.get(HALF..self.0.len().saturating_sub(HALF)).unwrap_or_default();
        match numbers.as_chunks::<8>() {
            ([now, rest @ ..], []) => Ok(Numbers {
                now: Timestamp::from_micros(exact_integer(now).ok_or_else(unreadable)?),
                rest,
            }),
            _ => Err(unreadable()),
        }
    }
}

/// The numbers of a reply that are not read yet.
struct Numbers<'a> {
    now: Timestamp,
    rest: &'a [[u8; 8]],
}

impl Numbers<'_> {
    fn measure(&mut self, plan: Plan, lease: Option<LeaseId>) -> Result<Measurement, StoreError> {
        // An error about one plan must not shift the numbers of the next one.
        let (own, rest) = self.rest.split_at_checked(width(&plan)).ok_or_else(unreadable)?;
        self.rest = rest;
        let mut own = Numbers {
            now: self.now,
            rest: own,
        };
        let (mut moments, mut readings) = (Moments::new(), SmallVec::<[PolicyReading; 4]>::new());
        for part in plan.parts() {
            own.check_release()?;
            moments.push(own.moment().ok_or_else(unreadable)?);
            for policy in part.policies() {
                readings.push(own.policy_reading(policy).ok_or_else(unreadable)?);
            }
        }
        let plan = match (plan.mode(), &*moments) {
            (Mode::UpTo, [moment, ..]) => plan.granting(readings.iter().copied(), *moment),
            _ => plan,
        };
        // The script has found the same: it computes in the same way.
        Ok(Measurement::of_readings(plan, moments, readings, lease))
    }

    /// The script has left the value of a newer release as it is, and has charged nothing.
    fn check_release(&self) -> Result<(), StoreError> {
        match self.rest {
            [_, birth, ..] if f64::from_le_bytes(*birth) == NEWER => Err(StoreError::new(
                StoreErrorKind::Failed,
                "the counts of a partition were written by a newer release; update this instance",
            )),
            _ => Ok(()),
        }
    }

    fn moment(&mut self) -> Option<Moment> {
        let (ahead, birth) = (self.next()?, self.next()?);
        Some(Moment {
            now: Timestamp::from_micros(self.now.as_micros() + ahead),
            ahead: u32::try_from(ahead).ok()?,
            birth: u32::try_from(birth).ok()?,
        })
    }

    fn policy_reading(&mut self, policy: &Policy) -> Option<PolicyReading> {
        let counted = algorithms::reading(policy.counter(), || self.next())?;
        let locked = match policy.lockout() {
            Some(_) => self.next()?,
            None => 0,
        };
        Some(PolicyReading { counted, locked })
    }

    fn next(&mut self) -> Option<u64> {
        let (number, rest) = self.rest.split_first()?;
        self.rest = rest;
        exact_integer(number)
    }
}

/// The error for a reply of this call whose numbers mean nothing, because of a partition's value. The connection is not at
/// fault, and neither are other partitions.
fn unreadable() -> StoreError {
    StoreError::new(StoreErrorKind::Failed, "the reply of the script is unreadable")
}

fn exact_integer(bytes: &[u8; 8]) -> Option<u64> {
    let number = f64::from_le_bytes(*bytes);
    ((0.0..EXACT as f64).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}
