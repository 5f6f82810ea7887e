use ::redis::Value;
use smallvec::SmallVec;

use super::calendars::Calendars;
use crate::{
    algorithm::{BucketReading, Counter, EXACT, Moment, Moments, PolicyReading, Reading, bucket::OtherRate},
    clock::Timestamp,
    decision::{Measurement, Mode, PartPlan, PartSettlement, Plan},
    error::{StoreError, StoreErrorKind},
    lease::LeaseId,
    policy::Policy,
    sync::random,
};

/// Numbers before the readings of a partition's policies.
const MOMENT: usize = 2;

/// Instead of the birth, if a newer release wrote the value.
const NEWER: f64 = -1.0;

/// From this number down, minus one minus the used weight of a bucket that was written with other numbers: its level,
/// weight and drain end the reply. A negative drain is kept after a rejection.
const CHANGED: f64 = -2.0;

const OTHER_RATE: usize = 3;

pub(super) const HALF: usize = 4;

pub(super) struct ExpectedReply {
    number: [u8; 2 * HALF],
    /// The count of numbers, without those of changed buckets.
    width: usize,
    pub(super) calendars: Calendars,
}

impl ExpectedReply {
    pub(super) fn new(arguments: &mut Vec<u8>, width: usize) -> Self {
        let number = random::long_number().to_le_bytes();
        arguments.extend_from_slice(&number);
        Self {
            number,
            width,
            calendars: Calendars::default(),
        }
    }

    /// `None` if bytes are missing or the reply belongs to another call.
    pub(super) fn read(&self, reply: Value) -> Option<Reply> {
        let Value::BulkString(bytes) = reply else {
            return None;
        };
        let (first, rest) = bytes.split_first_chunk::<HALF>()?;
        let (numbers, last) = rest.split_last_chunk::<HALF>()?;
        let is_its_own = first == &self.number[..HALF] && last == &self.number[HALF..];
        let width = numbers.len() / 8;
        let more = width.checked_sub(self.width);
        let is_whole = more.is_some_and(|more| more % OTHER_RATE == 0) || (width == 1 && !self.calendars.is_empty());
        (is_its_own && is_whole && numbers.len() % 8 == 0).then_some(Reply(bytes))
    }
}

/// The time, and the previous usage of each policy; empty for a command.
#[derive(Default)]
pub(crate) struct Reply(Vec<u8>);

pub(super) fn width(plan: &Plan) -> usize {
    plan.parts().map(part_width).sum()
}

pub(super) fn part_width(part: PartPlan<'_>) -> usize {
    let widths = part
        .policies()
        .iter()
        .map(|policy| policy.counter().width() + usize::from(policy.lockout().is_some()));
    MOMENT + widths.sum::<usize>()
}

pub(crate) fn decode(plan: Plan, lease: Option<LeaseId>, reply: &Reply) -> Result<Measurement, StoreError> {
    let width = width(&plan);
    reply.numbers(width)?.measure(plan, width, lease)
}

pub(crate) fn decode_each(plans: Vec<Plan>, reply: &Reply) -> impl Iterator<Item = Result<Measurement, StoreError>> {
    let mut numbers = reply.numbers(plans.iter().map(width).sum());
    plans.into_iter().map(move |plan| match &mut numbers {
        Ok(numbers) => {
            let width = width(&plan);
            numbers.measure(plan, width, None)
        }
        Err(error) => Err(error.clone()),
    })
}

pub(crate) fn note_readings(settlement: PartSettlement<'_>, reply: &Reply) -> Result<(), StoreError> {
    let mut numbers = reply.numbers(part_width(settlement.part))?;
    let mut readings = SmallVec::<[PolicyReading; 4]>::new();
    let moment = numbers.part(settlement.part, &mut readings)?;
    let counted = readings.into_iter().map(|reading| reading.counted);
    settlement.note_readings(moment.now.as_micros(), counted);
    Ok(())
}

impl Reply {
    pub(super) fn only_time(&self) -> Option<Timestamp> {
        match self.chunks().ok()? {
            [now] => Some(Timestamp::from_micros(exact_integer(now)?)),
            _ => None,
        }
    }

    fn chunks(&self) -> Result<&[[u8; 8]], StoreError> {
        let numbers = self.0.get(HALF..self.0.len().saturating_sub(HALF)).unwrap_or_default();
        match numbers.as_chunks() {
            (chunks, []) => Ok(chunks),
            _ => Err(unreadable()),
        }
    }

    fn numbers(&self, width: usize) -> Result<Numbers<'_>, StoreError> {
        let (now, rest) = self.chunks()?.split_first().ok_or_else(unreadable)?;
        let (rest, rates) = rest.split_at_checked(width).ok_or_else(unreadable)?;
        let now = Timestamp::from_micros(exact_integer(now).ok_or_else(unreadable)?);
        Ok(Numbers { now, rest, rates })
    }
}

struct Numbers<'a> {
    now: Timestamp,
    rest: &'a [[u8; 8]],
    rates: &'a [[u8; 8]],
}

impl Numbers<'_> {
    fn measure(&mut self, plan: Plan, width: usize, lease: Option<LeaseId>) -> Result<Measurement, StoreError> {
        // An error about one plan must not shift the numbers of the next one.
        let (own, rest) = self.rest.split_at_checked(width).ok_or_else(unreadable)?;
        let changed = own.iter().filter(|number| is_changed(number)).count();
        let (own_rates, rates) = self
            .rates
            .split_at_checked(OTHER_RATE * changed)
            .ok_or_else(unreadable)?;
        (self.rest, self.rates) = (rest, rates);
        let mut own = Numbers {
            now: self.now,
            rest: own,
            rates: own_rates,
        };
        let (mut moments, mut readings) = (Moments::new(), SmallVec::<[PolicyReading; 4]>::new());
        for part in plan.parts() {
            moments.push(own.part(part, &mut readings)?);
        }
        let plan = match (plan.mode(), &*moments) {
            (Mode::UpTo, [moment, ..]) => plan.granting(readings.iter().copied(), *moment),
            _ => plan,
        };
        // The script uses the same arithmetic.
        Ok(Measurement::of_readings(plan, moments, readings, lease))
    }

    fn part(&mut self, part: PartPlan<'_>, readings: &mut SmallVec<[PolicyReading; 4]>) -> Result<Moment, StoreError> {
        self.check_release()?;
        let moment = self.moment().ok_or_else(unreadable)?;
        for policy in part.policies().iter() {
            readings.push(self.policy_reading(policy).ok_or_else(unreadable)?);
        }
        Ok(moment)
    }

    fn check_release(&self) -> Result<(), StoreError> {
        match self.rest {
            [_, birth, ..] if f64::from_le_bytes(*birth) == NEWER => Err(StoreError::new(
                StoreErrorKind::Failed,
                "counts of a partition were written by a newer release; update this instance",
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
        let counted = match (policy.counter(), self.rest.first()) {
            (Counter::Bucket(_), Some(number)) if is_changed(number) => Reading::Bucket(self.changed_bucket()?),
            (counter, _) => counter.received(|| self.next())?,
        };
        let locked = match policy.lockout() {
            Some(_) => self.next()?,
            None => 0,
        };
        Some(PolicyReading { counted, locked })
    }

    fn changed_bucket(&mut self) -> Option<BucketReading> {
        let (used, rest) = self.rest.split_first()?;
        let ([level, weight, drain], rates) = self.rates.split_first_chunk::<OTHER_RATE>()?;
        (self.rest, self.rates) = (rest, rates);
        let drain = f64::from_le_bytes(*drain);
        let [level, weight] = [exact_integer(level)?, exact_integer(weight)?];
        Some(BucketReading {
            used: exact(-f64::from_le_bytes(*used) - 1.0)?,
            other: Some(OtherRate::new(level, weight, exact(drain.abs())?, drain < 0.0)?),
        })
    }

    fn next(&mut self) -> Option<u64> {
        let (number, rest) = self.rest.split_first()?;
        self.rest = rest;
        exact_integer(number)
    }
}

/// One partition is the cause, so the connection stays open.
fn unreadable() -> StoreError {
    StoreError::new(StoreErrorKind::Failed, "the script's reply cannot be parsed")
}

fn is_changed(number: &[u8; 8]) -> bool {
    f64::from_le_bytes(*number) <= CHANGED
}

fn exact_integer(bytes: &[u8; 8]) -> Option<u64> {
    exact(f64::from_le_bytes(*bytes))
}

fn exact(number: f64) -> Option<u64> {
    ((0.0..EXACT as f64).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}
