//! Counts per window, by the window's number since 1970.

use std::collections::BTreeMap;

use super::{Late, numbers::Quota, windows::Windows};

#[derive(Clone, Debug)]
pub(super) struct Counts {
    windows: Windows,
    counts: BTreeMap<i128, i128>,
    at: i128,
}

impl Counts {
    pub(super) fn new(windows: Windows, now: i128) -> Self {
        Self {
            windows,
            counts: BTreeMap::new(),
            at: now,
        }
    }

    pub(super) fn number(&self, moment: i128) -> i128 {
        self.windows.number(moment)
    }

    /// The count of the window that contains `moment`, or of the one `before` windows earlier.
    pub(super) fn count(&self, moment: i128, before: i128) -> i128 {
        let number = self.number(moment) - before;
        self.counts.get(&number).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, moment: i128, before: i128, count: i128) {
        let number = self.number(moment) - before;
        self.counts.insert(number, count.max(0));
    }

    /// Drops all windows except the current one and `before` windows before it.
    pub(super) fn pass_to(&mut self, now: i128, before: i128) {
        let oldest = self.number(now) - before;
        self.counts.retain(|number, _| *number >= oldest);
        self.at = now;
    }

    /// The window that was the last is this one, and the ones before it follow.
    pub(super) fn step_back(&mut self, now: i128) {
        if now < self.at {
            let shift = self.number(now) - self.number(self.at);
            let shifted = self.counts.iter().map(|(number, count)| (number + shift, *count));
            self.counts = shifted.collect();
            self.at = now;
        }
    }

    /// The room for a late charge: up to twice the ceiling of its policy.
    pub(super) fn room(&self, now: i128, late: &Late<'_>) -> i128 {
        (2 * Quota::of(late.policy).ceiling - self.count(now, 0)).max(0)
    }

    pub(super) fn until_end(&self, now: i128) -> i128 {
        self.windows.end(now) - now
    }
}
