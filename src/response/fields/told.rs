use std::{cmp::Reverse, time::Duration};

use smallvec::SmallVec;

use super::{EmitWhen, Form, RateCap, ResponseFields};
use crate::{
    decision::{Allowance, Decision, retry_seconds},
    fields::{LimitNumbers, Prepared},
    policy::{QuotaPolicy, QuotaUnit},
    sync::random,
};

#[derive(Debug)]
pub(crate) struct Told {
    pub(super) limits: SmallVec<[LimitNumbers; 4]>,
    /// Exact, and in seconds for `Retry-After`.
    pub(super) wait: Option<(Duration, u64)>,
    pub(super) is_due: bool,
    pub(super) is_low: bool,
}

impl Told {
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.map(|(wait, _)| wait)
    }
}

type Shown<'a> = (&'a QuotaPolicy, LimitNumbers);

impl ResponseFields {
    pub(crate) fn told(&self, decision: &Decision, prepared: Option<&Prepared>) -> Told {
        let jitter = match self.jitter.as_secs() {
            0 => 0,
            most => u64::from(random::number()) % (most + 1),
        };
        let visible = decision
            .allowances()
            .filter(|allowance| !allowance.policy().is_hidden());
        let all: SmallVec<[Shown<'_>; 4]> = visible.map(|allowance| self.shown(&allowance, jitter)).collect();
        let wait = decision.retry_after();
        let is_at_most = |percent| all.iter().any(|shown| is_at_most(shown, percent));
        let listed = all
            .iter()
            .filter(|shown| !self.tightest_only || is_tightest(shown, &all));
        let limits = listed.filter_map(|(policy, limit)| {
            let policy = prepared?.position(policy.name())?;
            Some(LimitNumbers { policy, ..*limit })
        });
        Told {
            limits: limits.collect(),
            wait: wait.map(|exact| wait_shown(exact, jitter, &all)),
            is_due: match (self.form, self.emit_when) {
                (Form::None, _) => false,
                (_, EmitWhen::Always) => true,
                (_, EmitWhen::NearExhaustion(percent)) => !decision.outcome().is_admitted() || is_at_most(percent),
                (_, EmitWhen::Rejected) => !decision.outcome().is_admitted(),
            },
            is_low: is_at_most(10),
        }
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
        let numbers = LimitNumbers {
            policy: 0,
            remaining,
            reset: reset.map(|seconds| seconds.saturating_add(jitter)),
            is_violated,
        };
        (policy, numbers)
    }

    /// So that a client that spreads the units over the time keeps to the rate cap.
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
}

fn is_at_most((policy, limit): &Shown<'_>, percent: u8) -> bool {
    u128::from(limit.remaining) * 100 <= u128::from(policy.quota()) * u128::from(percent)
}

fn is_tightest((policy, _): &Shown<'_>, all: &[Shown<'_>]) -> bool {
    let rivals = all.iter().filter(|(other, _)| have_same_unit(policy, other));
    let tightest = rivals.min_by_key(|(_, limit)| (limit.remaining, Reverse(limit.reset)));
    tightest.is_some_and(|(tightest, _)| std::ptr::eq(*tightest, *policy))
}

fn have_same_unit(policy: &QuotaPolicy, other: &QuotaPolicy) -> bool {
    let content = |unit| matches!(unit, QuotaUnit::ContentBytes(_));
    let (own, other) = (policy.unit(), other.unit());
    own == other || (content(own) && content(other))
}

fn wait_shown(exact: Duration, jitter: u64, all: &[Shown<'_>]) -> (Duration, u64) {
    let wait = retry_seconds(exact).saturating_add(jitter);
    let violated = all.iter().filter(|(_, limit)| limit.is_violated);
    let told = violated.filter_map(|(_, limit)| limit.reset).fold(wait, u64::max);
    let is_exact = retry_seconds(exact) == told;
    (if is_exact { exact } else { Duration::from_secs(told) }, told)
}
