use std::time::Duration;

use crate::{
    algorithm::{ChargeRejection, Counter, Form, Limit, Moment, PolicyReading},
    breaker::jittered,
    clock::{Clock, Timestamp},
    policy::{Algorithm, Policy, PolicySet},
};

/// Bounds how late refunds by other instances are noticed.
pub(super) const LIFE: Duration = Duration::from_secs(1);

/// The maximum time for which a charge is rejected without a call, or a sent charge counts as applied.
const HOLD: Duration = Duration::from_millis(20);

/// From this age, one request at a time calls the store, so that not all do when the record expires.
const STALE: Duration = Duration::from_millis(850);

/// The policy has rejected a charge, or would reject the next one.
#[derive(Clone, Debug)]
pub(super) struct Record {
    policies: PolicySet,
    index: usize,
    /// The reading, including the charge if it was applied.
    known: Known,
    asked: u64,
    /// The local time before the call, and so no later than the reading.
    asked_at: Timestamp,
    /// Charges of weight `asked` or more are rejected until this time.
    held_until: Timestamp,
    /// The reading including all charges sent since, and until when they count as applied.
    expected: Option<(Known, Timestamp)>,
    /// Before this time, no request checks whether the record is still valid.
    asks_at: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    reading: PolicyReading,
    at: Timestamp,
    /// The local time from which the partition's clock advances; later than the reading if the clock stands still.
    goes_on_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Rejected(ChargeRejection),
    /// One request may check whether the rejection still applies.
    Stale(ChargeRejection),
    Open,
}

/// A hold takes at most half of the time in which the whole quota refills, so that refilled units are not wasted.
fn hold(counter: &Counter) -> Duration {
    jittered(HOLD.min(Duration::from_micros(counter.fill_micros() / 2)))
}

impl Record {
    /// `None` if the policy would admit another charge of the same weight.
    pub(super) fn of(finding: &Finding<'_>, clock: &Clock) -> Option<Self> {
        let (counter, weight, reading) = (finding.policy().counter(), finding.weight, finding.left());
        finding.rejection(reading)?;
        if finding.is_charged && !counter.predicts(reading.counted, weight) {
            return None;
        }
        let held_until = match finding.is_charged {
            true => Timestamp::default(),
            false => clock.now().saturating_add(hold(counter)),
        };
        let ahead = Duration::from_micros(finding.at.ahead.into());
        Some(Self {
            policies: finding.policies.clone(),
            index: finding.index,
            known: Known {
                reading,
                at: finding.at.now,
                goes_on_at: finding.asked_at.saturating_add(ahead),
            },
            asked: weight,
            asked_at: finding.asked_at,
            held_until,
            expected: None,
            asks_at: finding.asked_at.saturating_add(STALE),
        })
    }

    /// Compares the whole policy, because a record is meaningless under other rules.
    #[inline]
    pub(super) fn is_about(&self, policies: &PolicySet, index: usize) -> bool {
        match self.policies.is_same(policies) {
            true => self.index == index,
            false => self.policy() == policy(policies, index),
        }
    }

    #[inline]
    pub(super) fn policy(&self) -> &Policy {
        policy(&self.policies, self.index)
    }

    pub(super) fn asked_at(&self) -> Timestamp {
        self.asked_at
    }

    #[inline]
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        is_expired(self.asked_at, now)
    }

    #[inline]
    pub(super) fn store_time(&self, now: Timestamp) -> Timestamp {
        let ahead = self.known.goes_on_at.micros_since(self.asked_at);
        let read_at = self.known.at.as_micros();
        let at = read_at.saturating_add(now.micros_since(self.asked_at));
        Timestamp::from_micros(at.saturating_sub(ahead))
    }

    #[inline]
    pub(super) fn standing(&self, weight: u64, now: Timestamp) -> Standing {
        if self.is_expired(now) {
            return Standing::Open;
        }
        match self.rejection(self.known, weight, now) {
            Some(rejection) if now < self.asks_at => return Standing::Rejected(rejection),
            Some(rejection) => return Standing::Stale(rejection),
            None => {}
        }
        let held = match weight >= self.asked {
            true => self.held_until.micros_since(now),
            false => 0,
        };
        let expected = self.expected.filter(|(_, until)| now < *until);
        let expected = expected.and_then(|(known, _)| self.rejection(known, weight, now));
        match (held, expected) {
            (0, None) => Standing::Open,
            (held, None) => Standing::Rejected(ChargeRejection::For(held)),
            (held, Some(ChargeRejection::For(wait))) => Standing::Rejected(ChargeRejection::For(wait.max(held))),
            (_, Some(never @ ChargeRejection::Never { .. })) => Standing::Rejected(never),
        }
    }

    /// `true` if the store admits charges that the record does not reject. For logs, it is unknown when each unit
    /// expires.
    pub(super) fn tells_room(&self) -> bool {
        self.policy().counter().form() != Form::Log
    }

    /// With `only_asks`, the charge will probably be rejected and not applied.
    pub(super) fn asks(&mut self, weight: u64, now: Timestamp, only_asks: bool) {
        if self.is_expired(now) {
            return;
        }
        let hold = hold(&self.limit().counter);
        if only_asks {
            if self.rejection(self.known, weight, now).is_some() {
                self.asks_at = now.saturating_add(hold);
            }
            return;
        }
        let expected = self.expected.take().filter(|(_, until)| now < *until);
        let (known, until) = expected.unwrap_or((self.known, now.saturating_add(hold)));
        let (at, elapsed) = (known.at.as_micros(), now.micros_since(known.goes_on_at));
        let (limit, longest) = (self.limit(), HOLD.as_micros() as u64);
        self.expected = limit
            .predict(known.reading, at, elapsed, weight, longest)
            .map(|reading| {
                let predict = Known {
                    reading,
                    at: known.at.saturating_add(Duration::from_micros(elapsed)),
                    goes_on_at: now.max(known.goes_on_at),
                };
                (predict, until)
            });
    }

    /// Drops all sent charges, because it is unknown which one was not applied.
    pub(super) fn unsent(&mut self) {
        self.expected = None;
    }

    #[inline]
    fn rejection(&self, known: Known, weight: u64, now: Timestamp) -> Option<ChargeRejection> {
        let elapsed = now.micros_since(known.goes_on_at);
        let at = known.at.as_micros();
        let rejection = self.limit().rejection(known.reading, at, self.asked, weight, elapsed)?;
        let until = |micros: u64| micros.saturating_add(known.goes_on_at.micros_since(now));
        Some(match rejection {
            ChargeRejection::For(wait) => ChargeRejection::For(until(wait)),
            ChargeRejection::Never { remaining, reset } => ChargeRejection::Never {
                remaining,
                reset: reset.map(until),
            },
        })
    }

    #[inline]
    fn limit(&self) -> &Limit {
        self.policy().limit()
    }
}

/// A record expires if the clock is set back.
#[inline]
pub(super) fn is_expired(asked_at: Timestamp, now: Timestamp) -> bool {
    now < asked_at || asked_at.saturating_add(LIFE) <= now
}

/// The policy must enforce its limit, restore its units over time, and have no queue.
#[inline]
pub(super) fn is_cached(policy: &Policy) -> bool {
    let (form, policy) = (policy.counter().form(), policy.policy());
    let is_queue = matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. });
    !policy.is_shadow() && !is_queue && form != Form::Slots
}

fn policy(policies: &PolicySet, index: usize) -> &Policy {
    &policies.iter().as_slice()[index]
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Finding<'a> {
    pub(super) policies: &'a PolicySet,
    pub(super) index: usize,
    pub(super) weight: u64,
    /// Before the charge.
    pub(super) reading: PolicyReading,
    pub(super) is_charged: bool,
    pub(super) at: Moment,
    /// The local time before the call.
    pub(super) asked_at: Timestamp,
}

impl Finding<'_> {
    pub(super) fn policy(&self) -> &Policy {
        policy(self.policies, self.index)
    }

    pub(super) fn has_room(&self) -> bool {
        self.next_rejection().is_none()
    }

    pub(super) fn next_rejection(&self) -> Option<ChargeRejection> {
        self.rejection(self.left())
    }

    pub(super) fn left(&self) -> PolicyReading {
        match self.is_charged {
            true => self
                .policy()
                .limit()
                .charged(self.reading, self.at.now.as_micros(), self.weight),
            false => self.reading,
        }
    }

    fn rejection(&self, reading: PolicyReading) -> Option<ChargeRejection> {
        let (weight, now) = (self.weight, self.at.now.as_micros());
        self.policy().limit().rejection(reading, now, weight, weight, 0)
    }
}
