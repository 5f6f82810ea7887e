//! The content of a decision, in numbers that can be compared.

use super::{
    State, first_time,
    lockout::Lockout,
    numbers::{is_slots, overage, window},
};
use std::time::Duration;
use tower_quota::{Algorithm, Allowance, Availability, Decision, Outcome, QuotaPolicy};

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub is_allowed: bool,
    pub retry_after: Option<i128>,
    pub delay: i128,
    pub policies: Vec<Told>,
}

/// The numbers of one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub name: String,
    pub cost: i128,
    pub is_violated: bool,
    pub remaining: i128,
    pub over_quota: i128,
    pub reset: Option<i128>,
    pub retry_after: Option<i128>,
    pub full_after: Option<i128>,
}

/// A policy's state and its lockout.
pub(super) type Known<'a> = (&'a State, &'a Lockout);

/// The time until the units are available and the lockout has ended.
fn wait((state, lockout): Known<'_>, now: i128, cost: i128) -> Option<i128> {
    let units = match state.get().fits(now, cost) {
        true => 0,
        false => state.get().wait(now, cost)?,
    };
    Some(units.max(lockout.rest(now)))
}

/// The time until one unit of the quota is available and the lockout has ended.
fn next_unit((state, lockout): Known<'_>, now: i128) -> Option<i128> {
    first_time(|late| lockout.rest(now + late) == 0 && state.get().left(now + late) > 0)
}

/// The time until all units are available and the lockout has ended.
fn full_after((state, lockout): Known<'_>, now: i128) -> Option<i128> {
    let rest = lockout.rest(now);
    state.get().full_after(now).max((rest > 0).then_some(rest))
}

/// The units that are left, and a time in which they may be used.
pub(super) fn left(policy: &QuotaPolicy, known: Known<'_>, now: i128) -> (i128, Option<i128>) {
    let left = if known.1.rest(now) > 0 {
        0
    } else {
        known.0.get().left(now)
    };
    let window = || match left {
        0 => next_unit(known, now),
        left => Some(known.0.get().time_for(now, left)),
    };
    (left, if is_slots(policy) { None } else { window() })
}

fn micros(duration: Duration) -> i128 {
    duration.as_micros() as i128
}

impl Verdict {
    pub fn of(decision: &Decision) -> Self {
        Self {
            is_allowed: decision.outcome() == Outcome::Allowed,
            retry_after: decision.retry_after().map(micros),
            delay: micros(decision.delay()),
            policies: decision.allowances().map(Told::of).collect(),
        }
    }

    /// The verdict of a decision that charged nothing, in which no request waits for its turn.
    pub fn peeked(peeked: &Decision) -> Self {
        Self {
            is_allowed: peeked.availability() == Availability::Now,
            retry_after: match peeked.availability() {
                Availability::After(wait) => Some(micros(wait)),
                _ => None,
            },
            delay: 0,
            policies: peeked.allowances().map(Told::of).collect(),
        }
    }

    /// The verdict about a charge that was not made. If nothing is left of the quota of a log with an overage, the effective
    /// window that is told may be too long, by less than the log's window.
    pub fn with_room(mut self, told: &Self, policies: &[QuotaPolicy]) -> Self {
        for ((own, told), policy) in self.policies.iter_mut().zip(&told.policies).zip(policies) {
            let is_log = policy.algorithm() == Algorithm::SlidingWindowLog && overage(policy).is_some();
            let too_long = told.reset.zip(own.reset).map(|(told, own)| told - own);
            if is_log && own.remaining == 0 && too_long.is_some_and(|time| (0..window(policy)).contains(&time)) {
                own.reset = told.reset;
            }
        }
        self
    }

    /// The same, without a charge. The time at which a slot is released is unknown.
    pub(super) fn of_forecast(mut self, policies: &[QuotaPolicy]) -> Self {
        let mut told = self.policies.iter().zip(policies);
        let waits_for_slot = told.any(|(told, policy)| told.is_violated && is_slots(policy) && !policy.is_shadow());
        if waits_for_slot {
            self.retry_after = None;
        }
        Self { delay: 0, ..self }
    }

    /// Takes for each policy its time, the units to charge, and the states before and after the charge.
    pub(super) fn expected<'a>(
        clock: i128,
        policies: impl Iterator<Item = (&'a QuotaPolicy, i128, i128, Known<'a>, Known<'a>)>,
    ) -> Self {
        let mut verdict = Self {
            is_allowed: true,
            retry_after: None,
            delay: 0,
            policies: vec![],
        };
        let (mut delay, mut is_never) = (0, false);
        for (policy, now, cost, before, after) in policies {
            let told = Told::expected(policy, cost, before, after, (clock, now));
            if !policy.is_shadow() {
                if cost > 0 {
                    delay = before.0.get().delay(now).max(delay);
                }
                verdict.is_allowed &= !told.is_violated;
                is_never |= told.is_violated && told.retry_after.is_none();
                verdict.retry_after = verdict.retry_after.max(told.retry_after);
            }
            verdict.policies.push(told);
        }
        if is_never {
            verdict.retry_after = None;
        }
        if verdict.is_allowed {
            verdict.delay = delay;
        }
        verdict
    }
}

impl Told {
    fn of(allowance: Allowance<'_>) -> Self {
        Self {
            name: allowance.policy().name().to_owned(),
            cost: allowance.cost().into(),
            is_violated: allowance.is_violated(),
            remaining: allowance.remaining().into(),
            over_quota: allowance.over_quota().into(),
            reset: allowance.effective_window().map(micros),
            retry_after: allowance.retry_after().map(micros),
            full_after: allowance.full_after().map(micros),
        }
    }

    /// Waits are measured by the clock, which may have to catch up first.
    fn expected(
        policy: &QuotaPolicy,
        cost: i128,
        before: Known<'_>,
        after: Known<'_>,
        (clock, now): (i128, i128),
    ) -> Self {
        let is_violated = before.1.rest(now) > 0 || !before.0.get().fits(now, cost);
        let (remaining, window) = left(policy, after, now);
        let retry_after = if is_violated {
            wait(before, now, cost).map(|wait| wait + now - clock)
        } else {
            None
        };
        Self {
            name: policy.name().to_owned(),
            cost,
            is_violated,
            remaining,
            over_quota: after.0.get().over(now),
            reset: if is_slots(policy) {
                None
            } else {
                retry_after.or(window.map(|window| window + now - clock))
            },
            retry_after,
            full_after: full_after(after, now).map(|time| time + now - clock),
        }
    }
}
