//! A sliding window log: a list of requests.

use super::{
    Counter, Late,
    numbers::{DivCeil, Quota, window},
};
use tower_quota::QuotaPolicy;

#[derive(Clone, Debug)]
pub(super) struct SlidingLog {
    quota: Quota,
    window: i128,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: i128,
    /// Distinguishes entries with the same time.
    request: u64,
    units: i128,
}

impl SlidingLog {
    pub(super) fn new(policy: &QuotaPolicy) -> Self {
        Self {
            quota: Quota::of(policy),
            window: window(policy),
            entries: vec![],
        }
    }

    fn counted(&self, moment: i128) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.at + self.window > moment)
    }

    /// When the newest entry was made.
    pub(super) fn newest(&self) -> Option<i128> {
        self.entries.iter().map(|entry| entry.at).max()
    }

    pub(super) fn is_over(&self, now: i128) -> bool {
        self.counted(now).next().is_none()
    }

    /// Takes units off the entry of the charge, if it is still there and at its moment.
    pub(super) fn give_back(&mut self, units: i128, charged_at: i128, after: &Self) {
        let request = after.entries.last().unwrap().request;
        let is_it = |entry: &&mut Entry| (entry.at, entry.request) == (charged_at, request);
        if let Some(entry) = self.entries.iter_mut().find(is_it) {
            entry.units -= units;
        }
        self.entries.retain(|entry| entry.units > 0);
    }

    /// Takes units off the entries up to a moment, the newest first.
    pub(super) fn give_back_any(&mut self, mut units: i128, charged_at: i128) {
        for entry in self.entries.iter_mut().rev().filter(|entry| entry.at <= charged_at) {
            let part = units.min(entry.units);
            entry.units -= part;
            units -= part;
        }
        self.entries.retain(|entry| entry.units > 0);
    }
}

impl Counter for SlidingLog {
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
        let oldest_leaves = self
            .counted(now)
            .next()
            .map_or(self.window, |oldest| oldest.at + self.window - now);
        oldest_leaves.max((left * self.window).div_ceil_to(2 * self.quota.units))
    }

    fn used(&self, moment: i128) -> i128 {
        self.counted(moment).map(|entry| entry.units).sum()
    }

    fn take(&mut self, now: i128, cost: i128, request: u64) {
        self.entries = self.counted(now).copied().collect();
        self.entries.push(Entry {
            at: now,
            request,
            units: cost,
        });
    }

    fn take_late(&mut self, now: i128, late: &Late<'_>) {
        let (used, bound) = (self.used(now), 2 * Quota::of(late.policy).ceiling);
        if used < bound {
            self.take(now, late.units.min(bound - used), 0);
        }
    }

    fn step_back(&mut self, now: i128) {
        for entry in &mut self.entries {
            entry.at = entry.at.min(now);
        }
    }

    fn adopt(&mut self, policy: &QuotaPolicy) {
        self.quota = Quota::of(policy);
    }
}
