//! What is remembered of one policy of one partition.

use std::time::Duration;

use crate::{
    algorithm::{Counter, Denial, Form, Moment, Reading},
    breaker::jittered,
    clock::{Clock, Timestamp},
    exchange::Charge,
    policy::{Algorithm, Policy, PolicySet},
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
    known: Known,
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

#[derive(Clone, Copy, Debug)]
struct Known {
    reading: Reading,
    /// The partition's time.
    at: Timestamp,
}

#[derive(Debug)]
struct Expected {
    known: Known,
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
    let (policy, form) = (policy.policy(), policy.counter().form());
    let is_queue = matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. });
    !policy.is_shadow() && !is_queue && form != Form::Slots
}

/// The hold after a rejection: never longer than half of the time in which the quota comes back, of which nothing may be
/// lost.
fn hold(counter: &Counter) -> Duration {
    jittered(HOLD.min(Duration::from_micros(counter.fill_micros() / 2)))
}

impl Record {
    /// What an answer says about the next charge of the same weight, if that would be rejected.
    pub(super) fn of(answer: &Answer<'_>) -> Option<Self> {
        let counter = answer.counter();
        let asked = answer.charge.weight();
        let reading = counter.charged(answer.reading, answer.charged);
        let at = answer.at.now.as_micros();
        counter.denial(reading, at, asked, asked, 0)?;
        if answer.charged > 0 && !counter.foretells(reading, asked) {
            return None;
        }
        let held_until = match answer.charged {
            0 => answer.clock.now().saturating_add(hold(counter)),
            _ => Timestamp::default(),
        };
        Some(Self {
            policies: answer.policies.clone(),
            index: answer.index,
            known: Known {
                reading,
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
            .and_then(|expected| self.denial(expected.known, expected.at, weight, now));
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
        let hold = hold(self.counter());
        if is_stale {
            if self.known_denial(weight, now).is_some() {
                self.asks_at = now.saturating_add(hold);
            }
            return;
        }
        let (known, known_at, until) = match self.expected.take().filter(|expected| now < expected.until) {
            Some(expected) => (expected.known, expected.at, expected.until),
            None => (self.known, self.goes_on_at, now.saturating_add(hold)),
        };
        let elapsed = now.micros_since(known_at);
        let at = known.at.as_micros();
        let Some(reading) = self
            .counter()
            .foreseen(known.reading, at, elapsed, weight, HOLD.as_micros() as u64)
        else {
            return;
        };
        self.expected = Some(Expected {
            known: Known {
                reading,
                at: known.at.saturating_add(Duration::from_micros(elapsed)),
            },
            at: now.max(known_at),
            until,
        });
    }

    /// How long the charge is rejected for certain.
    #[inline]
    fn known_denial(&self, weight: u64, now: Timestamp) -> Option<Denial> {
        self.denial(self.known, self.goes_on_at, weight, now)
    }

    /// The same by a reading from which the partition's time went on at a moment by the local clock.
    #[inline]
    fn denial(&self, known: Known, goes_on_at: Timestamp, weight: u64, now: Timestamp) -> Option<Denial> {
        let elapsed = now.micros_since(goes_on_at);
        let at = known.at.as_micros();
        let denial = self.counter().denial(known.reading, at, self.asked, weight, elapsed)?;
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
    fn counter(&self) -> &Counter {
        self.policy().counter()
    }
}

/// What a store has said about one charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer<'a> {
    pub(super) policies: &'a PolicySet,
    pub(super) index: usize,
    pub(super) charge: Charge<'a>,
    /// Before the charge.
    pub(super) reading: Reading,
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
    fn counter(&self) -> &Counter {
        self.charge.policy().counter()
    }
}
