//! A calendar quota: one count, with the moment at which it began. It ends when a window of the policy that began it
//! ends, or when a policy with other windows asks after a window of its own has begun.

use super::{
    Counter, Late,
    numbers::{DivCeil, Quota},
    windows::Calendar,
};
use tower_quota::QuotaPolicy;

const SECOND: i128 = 1_000_000;

/// Ends that are nearer to each other are the same end.
const HALF_A_DAY: i128 = 43_200 * SECOND;

/// A clock that was ahead knew another end.
const UNKNOWN: i128 = 62 * 86_400 * SECOND;

#[derive(Clone, Debug)]
pub(super) struct Dated {
    quota: Quota,
    calendar: Calendar,
    used: i128,
    began: i128,
    ends: Option<i128>,
    at: i128,
}

impl Dated {
    pub(super) fn new(policy: &QuotaPolicy, now: i128) -> Self {
        Self {
            quota: Quota::of(policy),
            calendar: Calendar::of(policy),
            used: 0,
            began: now,
            ends: None,
            at: now,
        }
    }

    fn is_of_the_window(&self, moment: i128) -> bool {
        let is_same = |ends: i128| (ends - self.calendar.end(moment)).abs() < HALF_A_DAY;
        self.ends.is_some_and(is_same)
    }

    /// Beginnings are known to 25 seconds before the end.
    fn begin(&mut self, began: i128, now: i128) {
        let (ends, grain) = (self.calendar.end(now), 25 * SECOND);
        self.began = (ends - (ends - began).div_ceil_to(grain) * grain).max(0);
        self.ends = Some(ends);
    }

    /// Nothing comes back of a window that is over, or to a count that began later.
    pub(super) fn give_back(&mut self, now: i128, units: i128, charged_at: i128) {
        let is_of_this_count = charged_at >= self.began || self.is_of_the_window(now);
        let is_of_this_window = self.calendar.number(charged_at) >= self.calendar.number(now);
        if self.used(now) > 0 && is_of_this_count && is_of_this_window {
            self.used = (self.used - units).max(0);
        }
    }
}

impl Counter for Dated {
    fn left(&self, moment: i128) -> i128 {
        (self.quota.units - self.used(moment)).max(0)
    }

    fn over(&self, moment: i128) -> i128 {
        self.quota.over(self.used(moment))
    }

    fn fits(&self, moment: i128, cost: i128) -> bool {
        self.used(moment) + cost <= self.quota.ceiling
    }

    fn time_for(&self, now: i128, left: i128) -> i128 {
        let at_twice_the_rate = (left * self.calendar.length(now)).div_ceil_to(2 * self.quota.units);
        let until_end = || self.calendar.end(now) - now;
        self.full_after(now).unwrap_or_else(until_end).max(at_twice_the_rate)
    }

    fn used(&self, moment: i128) -> i128 {
        let began_before = self.calendar.number(self.began) < self.calendar.number(moment);
        if !self.is_counted(moment) || (began_before && !self.is_of_the_window(moment)) {
            return 0;
        }
        self.used
    }

    /// Policies with other windows may still continue a count that this one does not.
    fn is_counted(&self, moment: i128) -> bool {
        self.used > 0 && moment < self.ends.unwrap_or(self.began + UNKNOWN)
    }

    fn take(&mut self, now: i128, cost: i128, _lease: u64) {
        match self.used(now) {
            0 => {
                self.used = 0;
                self.begin(now, now);
            }
            _ if self.ends.is_none() => self.begin(self.began, now),
            _ => {}
        }
        self.used += cost;
    }

    /// Up to twice the ceiling of its policy. A charge of a window that has ended counts nowhere.
    fn take_late(&mut self, now: i128, late: &Late<'_>) {
        let [charged_in, window, by_clock] = [late.charged_at, now, late.clock].map(|at| self.calendar.number(at));
        if charged_in < window && window <= by_clock {
            return;
        }
        let units = late.units.min(2 * Quota::of(late.policy).ceiling - self.used(now));
        if units > 0 {
            self.take(now, units, 0);
        }
    }

    fn pass_to(&mut self, now: i128) {
        if !self.is_counted(now) {
            self.used = 0;
        }
        self.at = now;
    }

    fn step_back(&mut self, now: i128) {
        if self.began > now {
            self.began = now.div_euclid(SECOND) * SECOND;
            self.ends = None;
        }
        self.at = self.at.min(now);
    }

    fn adopt(&mut self, policy: &QuotaPolicy) {
        self.quota = Quota::of(policy);
        self.adopt_windows(policy);
    }

    fn adopt_windows(&mut self, policy: &QuotaPolicy) {
        self.calendar = Calendar::of(policy);
    }
}
