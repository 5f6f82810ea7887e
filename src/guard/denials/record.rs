//! What is remembered of one policy of one partition.

use std::time::Duration;

use crate::{
    algorithm::{Denial, Moment, Readings, Rule},
    breaker::jittered,
    clock::{Clock, Timestamp},
    plan::Charge,
    quota::{Algorithm, Policy, PolicySet},
};

/// Nothing is remembered for longer: so late, at most, is seen what other instances have given back.
pub(super) const LIFE: Duration = Duration::from_secs(1);

/// For so long a charge that was rejected is rejected without a question, and for so long one that was sent is taken for
/// made.
const HOLD: Duration = Duration::from_millis(20);

/// From this age on, one request at a time asks what is new, so that not all of them do at the end.
const STALE: Duration = Duration::from_millis(850);

/// A policy that has rejected a charge, or would reject the next one.
#[derive(Debug)]
pub(super) struct Record {
    policies: PolicySet,
    /// Which of them.
    index: usize,
    /// What the store has read, the charge that it has made included.
    known: Reading,
    /// The weight of the charge for which it was read.
    asked: u64,
    /// When the store was asked, by the local clock: at this moment or later it has read.
    asked_at: Timestamp,
    /// When the partition's time went on from there, by the local clock: it may have stood still.
    goes_on_at: Timestamp,
    /// Until then nobody asks for as much or more.
    held_until: Timestamp,
    /// What is known and what was sent since then, if all of that is charged.
    expected: Option<Expected>,
    /// Before this moment nobody asks what is new.
    asks_at: Timestamp,
}

#[derive(Clone, Debug)]
struct Reading {
    numbers: Readings,
    /// The partition's time.
    at: Timestamp,
}

#[derive(Debug)]
struct Expected {
    reading: Reading,
    /// When the partition's time goes on from there, by the local clock.
    at: Timestamp,
    until: Timestamp,
}

/// What a record says about a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is rejected.
    Rejected(Denial),
    /// It is rejected, and one request may ask whether that is still so.
    Stale(Denial),
    /// It may pass.
    Open,
}

/// A policy whose rejections are worth remembering: it rejects, its units come back with time, and nobody waits in it.
pub(super) fn is_cached(policy: &Policy) -> bool {
    let (policy, rule) = (policy.policy(), policy.rule());
    let is_queue = matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. });
    !policy.is_shadow() && !is_queue && !matches!(rule, Rule::Concurrency(_))
}

/// The hold after a rejection: never longer than half of the time in which the quota comes back, of which nothing may be
/// lost.
fn hold(rule: &Rule) -> Duration {
    jittered(HOLD.min(Duration::from_micros(rule.fill_micros() / 2)))
}

impl Record {
    /// What an answer says about the next charge of the same weight, if that would be rejected.
    pub(super) fn of(answer: &Answer<'_>) -> Option<Self> {
        let rule = answer.rule();
        let asked = answer.charge.weight();
        let numbers = rule.charged(answer.reading, answer.charged);
        let at = answer.at.now.as_micros();
        rule.denial(&numbers, at, asked, asked, 0)?;
        if answer.charged > 0 && matches!(rule, Rule::SlidingLog(log) if numbers[0] + asked != log.limit + 1) {
            // It is not known when enough units leave the log.
            return None;
        }
        let held_until = match answer.charged {
            0 => answer.clock.now().saturating_add(hold(rule)),
            _ => Timestamp::default(),
        };
        Some(Self {
            policies: answer.policies.clone(),
            index: answer.index,
            known: Reading {
                numbers,
                at: answer.at.now,
            },
            asked,
            asked_at: answer.asked_at,
            goes_on_at: answer
                .asked_at
                .saturating_add(Duration::from_micros(answer.at.ahead.into())),
            held_until,
            expected: None,
            asks_at: answer.asked_at.saturating_add(STALE),
        })
    }

    /// Whether it is about this policy, one of these. Every number counts, and all else that makes up a policy: with
    /// other rules, nothing of it holds.
    #[inline]
    pub(super) fn is_about(&self, policies: &PolicySet, index: usize, policy: &Policy) -> bool {
        if self.policies.is_same(policies) {
            return self.index == index;
        }
        self.policy() == policy
    }

    #[inline]
    pub(super) fn policy(&self) -> &Policy {
        &self.policies.iter().as_slice()[self.index]
    }

    /// Whether the store was asked later than at this moment.
    pub(super) fn is_newer_than(&self, asked_at: Timestamp) -> bool {
        self.asked_at > asked_at
    }

    pub(super) fn asked_at(&self) -> Timestamp {
        self.asked_at
    }

    /// Whether it says nothing any more. A clock that was set back makes nothing last longer.
    #[inline]
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        now < self.asked_at || self.asked_at.saturating_add(LIFE) <= now
    }

    /// The store's time.
    #[inline]
    pub(super) fn store_time(&self, now: Timestamp) -> Timestamp {
        let ahead = self.goes_on_at.micros_since(self.asked_at);
        let at = self
            .known
            .at
            .as_micros()
            .saturating_add(now.micros_since(self.asked_at));
        Timestamp::from_micros(at.saturating_sub(ahead))
    }

    #[inline]
    pub(super) fn standing(&self, weight: u64, now: Timestamp) -> Standing {
        if self.is_over(now) {
            return Standing::Open;
        }
        if let Some(denial) = self.known_denial(weight, now) {
            return if now < self.asks_at {
                Standing::Rejected(denial)
            } else {
                Standing::Stale(denial)
            };
        }
        let held = if weight >= self.asked {
            self.held_until.micros_since(now)
        } else {
            0
        };
        let expected = self
            .expected(now)
            .and_then(|expected| self.denial(&expected.reading, expected.at, weight, now));
        match (held, expected) {
            (0, None) => Standing::Open,
            (held, None) => Standing::Rejected(Denial::For(held)),
            (held, Some(Denial::For(wait))) => Standing::Rejected(Denial::For(wait.max(held))),
            (_, Some(Denial::Never)) => Standing::Rejected(Denial::Never),
        }
    }

    /// A request with such a charge goes to the store; if it is stale, only to learn what is new.
    pub(super) fn asks(&mut self, weight: u64, now: Timestamp, is_stale: bool) {
        if self.is_over(now) {
            return;
        }
        let hold = hold(self.rule());
        if is_stale {
            if self.known_denial(weight, now).is_some() {
                self.asks_at = now.saturating_add(hold);
            }
            return;
        }
        let (known, known_at, until) = match self.expected.take().filter(|expected| now < expected.until) {
            Some(expected) => (expected.reading, expected.at, expected.until),
            None => (self.known.clone(), self.goes_on_at, now.saturating_add(hold)),
        };
        let elapsed = now.micros_since(known_at);
        let Some(numbers) = self.after(&known, weight, elapsed) else {
            return;
        };
        self.expected = Some(Expected {
            reading: Reading {
                numbers,
                at: known.at.saturating_add(Duration::from_micros(elapsed)),
            },
            at: now.max(known_at),
            until,
        });
    }

    /// What there is once a charge is made, if that can be told.
    fn after(&self, known: &Reading, weight: u64, elapsed: u64) -> Option<Readings> {
        let rule = self.rule();
        let Rule::SlidingLog(log) = rule else {
            let later = rule.later(&known.numbers, known.at.as_micros(), elapsed);
            return Some(rule.charged(&later, weight));
        };
        // Nobody knows how many units have left the log. Soon after the first of them only one request asks.
        let [_, wait, oldest_leaves, sequence] = *self.known.numbers else {
            return None;
        };
        let hold = HOLD.as_micros() as u64;
        let is_soon = elapsed < wait.max(oldest_leaves).saturating_add(hold);
        is_soon.then(|| Readings::from_slice(&[log.limit, 0, hold, sequence]))
    }

    /// How long the charge is rejected for certain.
    #[inline]
    fn known_denial(&self, weight: u64, now: Timestamp) -> Option<Denial> {
        self.denial(&self.known, self.goes_on_at, weight, now)
    }

    /// The same by a reading from which the partition's time went on at a moment by the local clock.
    #[inline]
    fn denial(&self, reading: &Reading, goes_on_at: Timestamp, weight: u64, now: Timestamp) -> Option<Denial> {
        let elapsed = now.micros_since(goes_on_at);
        let at = reading.at.as_micros();
        let denial = self.rule().denial(&reading.numbers, at, self.asked, weight, elapsed)?;
        Some(match denial {
            Denial::For(wait) => Denial::For(wait.saturating_add(goes_on_at.micros_since(now))),
            Denial::Never => Denial::Never,
        })
    }

    #[inline]
    fn expected(&self, now: Timestamp) -> Option<&Expected> {
        self.expected.as_ref().filter(|expected| now < expected.until)
    }

    #[inline]
    fn rule(&self) -> &Rule {
        self.policy().rule()
    }
}

/// What a store has said about one charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer<'a> {
    pub(super) policies: &'a PolicySet,
    pub(super) index: usize,
    pub(super) charge: Charge<'a>,
    /// Before the charge.
    pub(super) reading: &'a [u64],
    /// The weight that was charged.
    pub(super) charged: u64,
    /// When it was read.
    pub(super) at: Moment,
    /// Before the call, by the local clock.
    pub(super) asked_at: Timestamp,
    /// Now, by the local clock, is when it was answered.
    pub(super) clock: &'a Clock,
}

impl Answer<'_> {
    fn rule(&self) -> &Rule {
        self.charge.policy().rule()
    }
}
