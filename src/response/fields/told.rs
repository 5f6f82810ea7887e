use std::{cmp::Reverse, time::Duration};

use http::HeaderValue;
use smallvec::SmallVec;

use super::{EmitWhen, Form, ResponseFields};
use crate::{
    algorithm::PlainRejection,
    decision::{Allowance, Charged, Decision, Outcome, retry_seconds},
    fields::{LimitNumbers, MAX_INTEGER, Prepared, RetryAfter},
    policy::{PolicySet, QuotaPolicy, QuotaUnit},
    sync::random,
};

#[derive(Debug)]
pub(crate) struct Told {
    pub(super) limits: SmallVec<[LimitNumbers; 4]>,
    /// A bit for each violated policy, by its position in the prepared fields. `None` if one of them has no position.
    pub(crate) violated: Option<u32>,
    /// Exact, and in seconds for `Retry-After`.
    pub(super) wait: Option<(Duration, u64)>,
    pub(super) is_due: bool,
    pub(super) is_low: bool,
}

impl Told {
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.map(|(wait, _)| wait)
    }

    pub(crate) fn list(&self, prepared: &Prepared) -> Option<HeaderValue> {
        prepared.list(&self.limits)
    }

    pub(crate) fn retry_after(&self) -> Option<HeaderValue> {
        self.wait.map(|(_, seconds)| retry_after(seconds).to_header_value())
    }
}

type Shown<'a> = (&'a QuotaPolicy, LimitNumbers);

struct ShownAllowances<'a> {
    /// Hidden policies are omitted.
    all: SmallVec<[Shown<'a>; 4]>,
    violated: Option<u32>,
    /// The longest wait of the violated policies, of which the inner `None` is forever.
    longest: Option<Option<Duration>>,
}

impl ResponseFields {
    pub(crate) fn told(&self, decision: &Decision, prepared: Option<&Prepared>) -> Told {
        let jitter = match self.jitter.as_secs() {
            0 => 0,
            most => u64::from(random::number()) % (most + 1),
        };
        let ShownAllowances { all, violated, longest } = self.shown_allowances(decision, prepared, jitter);
        let wait = match decision.outcome() {
            Outcome::Rejected => longest.flatten(),
            _ => decision.retry_after(),
        };
        let is_at_most = |percent| all.iter().any(|shown| is_at_most(shown, percent));
        let listed = all
            .iter()
            .filter(|shown| !self.tightest_only || is_tightest(shown, &all));
        let limits = listed.map(|(_, limit)| *limit);
        Told {
            limits: limits.filter(|limit| limit.policy != usize::MAX).collect(),
            violated,
            wait: wait.map(|exact| wait_shown(exact, jitter)),
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
    fn shown_allowances<'a>(
        &self,
        decision: &'a Decision,
        prepared: Option<&Prepared>,
        jitter: u64,
    ) -> ShownAllowances<'a> {
        let mut all = SmallVec::new();
        let (mut violated, mut longest) = (Some(0), None);
        for allowance in decision.allowances() {
            let wait = allowance.retry_after();
            // A shadow policy rejects nothing, so no client has to wait because of it.
            let is_violated = allowance.is_violated() && !allowance.policy().is_shadow();
            if is_violated {
                longest = Some(longest.map_or(wait, |longest| longer(longest, wait)));
            }
            if allowance.policy().is_hidden() {
                continue;
            }
            let position = prepared.and_then(|prepared| prepared.position(allowance.policy().name()));
            let (policy, numbers) = self.shown(&allowance, is_violated, wait, jitter);
            if is_violated {
                violated = violated
                    .zip(position)
                    .and_then(|(violated, position)| with_bit(violated, position));
            }
            let numbers = LimitNumbers {
                policy: position.unwrap_or(usize::MAX),
                ..numbers
            };
            all.push((policy, numbers));
        }
        ShownAllowances { all, violated, longest }
    }

    /// Like [`told`](Self::told), for a rejected charge and fields that [are numbers](Self::are_numbers) of all
    /// policies.
    pub(crate) fn told_of_charge(&self, charged: &Charged, policies: &PolicySet) -> Told {
        let mut told = Told {
            limits: SmallVec::new(),
            violated: Some(0),
            wait: None,
            is_due: self.form != Form::None,
            is_low: false,
        };
        let mut longest = Some(Duration::ZERO);
        for (position, (policy, rejection)) in charged.rejections(policies).enumerate() {
            let PlainRejection { is_violated, wait, .. } = rejection;
            let (mut remaining, mut seconds) = (rejection.remaining, rejection.window.div_ceil(1_000_000));
            if is_violated {
                longest = longer(longest, wait.map(Duration::from_micros));
                told.violated = told.violated.and_then(|violated| with_bit(violated, position));
                let window = policy.window();
                self.cap_rate((policy, window), wait.is_some(), &mut remaining, &mut seconds);
            }
            let numbers = LimitNumbers {
                policy: position,
                remaining,
                reset: Some(seconds),
                is_violated,
            };
            told.is_low |= is_at_most(&(policy, numbers), 10);
            told.limits.push(numbers);
        }
        told.wait = longest.map(|wait| (wait, retry_seconds(wait)));
        told
    }

    #[inline]
    fn shown<'a>(
        &self,
        allowance: &Allowance<'a>,
        is_violated: bool,
        wait: Option<Duration>,
        jitter: u64,
    ) -> Shown<'a> {
        let (policy, (mut remaining, window)) = (allowance.policy(), allowance.left());
        if let Some(lower) = &self.map_remaining {
            remaining = lower(allowance).min(remaining);
        }
        let mut reset = window.map(|micros| micros.div_ceil(1_000_000));
        // The effective windows of the algorithms suggest at most twice the rate, except for the wait of a rejected
        // request.
        let is_unbounded = self.within_rate || allowance.is_violated();
        if is_unbounded && let Some(seconds) = &mut reset {
            let window = allowance.window();
            self.cap_rate((policy, window), is_violated && wait.is_some(), &mut remaining, seconds);
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
    fn cap_rate(
        &self,
        (policy, window): (&QuotaPolicy, Option<Duration>),
        has_wait: bool,
        remaining: &mut u64,
        seconds: &mut u64,
    ) {
        let Some(window) = window.filter(|_| *remaining > 0) else {
            return;
        };
        let rate = u128::from(policy.quota()) * if self.within_rate { 1 } else { 2 };
        let window = u128::from(window.as_secs());
        if has_wait {
            // The time must match `Retry-After`, so the units are lowered instead.
            let most = u128::from(*seconds) * rate / window;
            *remaining = (*remaining).min(u64::try_from(most).unwrap_or(u64::MAX));
        } else {
            let least = (u128::from(*remaining) * window).div_ceil(rate);
            *seconds = (*seconds).max(u64::try_from(least).unwrap_or(u64::MAX));
        }
    }
}

pub(super) fn retry_after(seconds: u64) -> RetryAfter {
    RetryAfter::after(Duration::from_secs(seconds.min(MAX_INTEGER)))
}

/// `None` is forever.
fn longer(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    Some(one?.max(other?))
}

fn with_bit(bits: u32, position: usize) -> Option<u32> {
    Some(bits | 1_u32.checked_shl(u32::try_from(position).ok()?)?)
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

fn wait_shown(exact: Duration, jitter: u64) -> (Duration, u64) {
    let told = retry_seconds(exact).saturating_add(jitter);
    (if jitter == 0 { exact } else { Duration::from_secs(told) }, told)
}
