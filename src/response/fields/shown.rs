//! The content of the fields. Remaining units are never overstated, and times never understated.

use std::{cmp::Reverse, time::Duration};

use super::{EmitWhen, Form, RateCap, ResponseFields};
use crate::{
    decision::{Allowance, Decision, retry_seconds, whole_seconds},
    fields::ReportedLimit,
    policy::{QuotaPolicy, QuotaUnit},
};

#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    policy: &'a QuotaPolicy,
    /// The quota, or the capacity if that is reported as the limit.
    limit: u64,
    remaining: u64,
    reset: Option<u64>,
    is_violated: bool,
}

impl<'a> Shown<'a> {
    #[inline]
    pub(super) fn report(self) -> ReportedLimit<'a> {
        let policy = self.policy;
        let mut limit = ReportedLimit::new(policy.name(), self.limit, self.remaining);
        if let Some(reset) = self.reset {
            limit = limit.with_reset(reset);
        } else if let Some(window) = policy.usual_window() {
            limit = limit.with_window(whole_seconds(window));
        }
        if self.is_violated {
            limit = limit.violated();
        }
        if policy.unit() != QuotaUnit::Requests {
            limit = limit.with_custom_unit();
        }
        if policy.shows_partition_key {
            limit = limit.with_partition_key();
        }
        limit
    }

    fn is_at_most(&self, percent: u8) -> bool {
        u128::from(self.remaining) * 100 <= u128::from(self.policy.quota()) * u128::from(percent)
    }

    /// Orders limits: the tightest limit has the smallest value.
    fn distance(&self) -> (u64, Reverse<Option<u64>>) {
        (self.remaining, Reverse(self.reset))
    }

    /// Limits on content bytes are comparable with each other, but not with limits on other units.
    fn has_unit_of(&self, other: &Self) -> bool {
        let content = |unit| matches!(unit, QuotaUnit::ContentBytes(_));
        let (own, other) = (self.policy.unit(), other.policy.unit());
        own == other || (content(own) && content(other))
    }
}

impl ResponseFields {
    /// Returns all policies that are not hidden. `jitter` is added to each time.
    pub(super) fn all_shown<'a>(&'a self, decision: &'a Decision, jitter: u64) -> impl Iterator<Item = Shown<'a>> {
        let allowances = decision.allowances();
        allowances.filter_map(move |allowance| {
            let is_visible = !allowance.policy().is_hidden();
            is_visible.then(|| self.shown(&allowance, jitter))
        })
    }

    #[inline]
    fn shown<'a>(&self, allowance: &Allowance<'a>, jitter: u64) -> Shown<'a> {
        let (policy, (mut remaining, window)) = (allowance.policy(), allowance.left());
        if let Some(lower) = &self.map_remaining {
            remaining = lower(allowance).min(remaining);
        }
        let mut reset = window.map(|micros| micros.div_ceil(1_000_000));
        // A shadow policy rejects nothing, so no client has to wait because of it.
        let is_violated = allowance.is_violated() && !policy.is_shadow();
        // The effective windows of the algorithms suggest at most twice the rate, except for the wait of a rejected
        // request.
        let is_unbounded = self.rate_cap == RateCap::Nominal || allowance.is_violated();
        if is_unbounded && let Some(seconds) = &mut reset {
            self.cap_rate(allowance, is_violated, &mut remaining, seconds);
        }
        Shown {
            policy,
            limit: match self.shows_capacity_as_limit {
                true => policy.burst_capacity(),
                false => policy.quota(),
            },
            remaining,
            reset: reset.map(|seconds| seconds.saturating_add(jitter)),
            is_violated,
        }
    }

    /// Lowers the units or extends the time, so that a client that spreads the units over the time keeps to the rate
    /// cap.
    fn cap_rate(&self, allowance: &Allowance<'_>, is_violated: bool, remaining: &mut u64, seconds: &mut u64) {
        let Some(window) = allowance.window() else { return };
        let rate = u128::from(allowance.policy().quota()) * self.rate_cap.factor();
        let window = u128::from(window.as_secs());
        if is_violated && allowance.retry_after().is_some() {
            // The time must match `Retry-After`, so the units are lowered instead.
            let most = u128::from(*seconds) * rate / window;
            *remaining = (*remaining).min(u64::try_from(most).unwrap_or(u64::MAX));
        } else {
            let least = (u128::from(*remaining) * window).div_ceil(rate);
            *seconds = (*seconds).max(u64::try_from(least).unwrap_or(u64::MAX));
        }
    }

    /// Returns the members of the `RateLimit` list.
    pub(super) fn listed<'a>(&'a self, decision: &'a Decision, jitter: u64) -> impl Iterator<Item = Shown<'a>> {
        self.all_shown(decision, jitter)
            .filter(move |shown| !self.tightest_only || self.is_tightest(shown, decision, jitter))
    }

    fn is_tightest(&self, shown: &Shown<'_>, decision: &Decision, jitter: u64) -> bool {
        let rivals = self
            .all_shown(decision, jitter)
            .filter(|rival| shown.has_unit_of(rival));
        rivals
            .min_by_key(Shown::distance)
            .is_some_and(|closest| std::ptr::eq(closest.policy, shown.policy))
    }

    /// Returns the seconds for `Retry-After`: at least the time of each violated policy.
    pub(super) fn rejection_seconds(&self, decision: &Decision, wait: Duration, jitter: u64) -> u64 {
        let wait = retry_seconds(wait).saturating_add(jitter);
        let violated = self.all_shown(decision, jitter).filter(|shown| shown.is_violated);
        violated.filter_map(|shown| shown.reset).fold(wait, u64::max)
    }

    #[inline]
    pub(super) fn is_due(&self, decision: &Decision) -> bool {
        match (self.form, self.emit_when) {
            (Form::None, _) => false,
            (_, EmitWhen::Always) => true,
            (_, EmitWhen::NearExhaustion(percent)) => {
                !decision.outcome().is_admitted() || self.all_shown(decision, 0).any(|shown| shown.is_at_most(percent))
            }
            (_, EmitWhen::Rejected) => !decision.outcome().is_admitted(),
        }
    }

    pub(super) fn is_low(&self, decision: &Decision) -> bool {
        self.all_shown(decision, 0).any(|shown| shown.is_at_most(10))
    }
}
