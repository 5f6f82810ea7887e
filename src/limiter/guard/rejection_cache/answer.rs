use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::{ChargeRejection, Form, Moment, PolicyReading},
    breaker::jittered,
    clock::Timestamp,
    decision::{ChargeRejections, MeasuredCharge, PartPlan},
    policy::{Algorithm, Policy, PolicySet},
};

/// Bounds how late refunds by other instances are noticed.
pub(super) const LIFE: Duration = Duration::from_secs(1);

/// The maximum time for which a charge is rejected without a call, or a sent charge counts as applied.
const HOLD: Duration = Duration::from_millis(20);

/// From this age, one request at a time calls the store, so that not all do when the answer expires.
const STALE: Duration = Duration::from_millis(850);

/// The store's last readings of a partition under one set of policies.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    policies: PolicySet,
    /// One per policy.
    known: SmallVec<[Known; 1]>,
    at: Moment,
    /// The local time before the call, and so no later than the readings.
    asked_at: Timestamp,
    /// Charges of the weight that was rejected, or more, are rejected until this time.
    held_until: Timestamp,
    /// Before this time, no request checks whether the readings are still valid.
    asks_at: Timestamp,
    /// When the last charge was sent, and until when all sent since the answer count as applied.
    sent_at: Timestamp,
    sent_until: Timestamp,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Of the charge.
    pub(super) weight: u64,
    /// Includes the charge if it was applied.
    pub(super) reading: PolicyReading,
    /// Includes all charges sent since.
    sent: Option<PolicyReading>,
    /// Another such charge would be rejected, by a policy that is cached. If not, smaller ones have room, too, unless
    /// other instances used it.
    pub(super) rejects: bool,
}

/// A rejection reports the longest wait of all policies. If it is unknown whether one of them has room, the charge is
/// sent to the store, even if another one is known to reject it.
#[derive(Default)]
pub(super) struct Found {
    pub(super) rejections: ChargeRejections,
    pub(super) now: Timestamp,
    is_rejecting: bool,
    /// One request may check whether the rejection still applies.
    is_stale: bool,
    pub(super) is_known: bool,
    /// Only the store can determine whether a policy rejects the plan.
    pub(super) is_open: bool,
}

impl Found {
    #[inline]
    pub(super) fn is_rejected(&self) -> bool {
        self.is_rejecting && !self.is_open
    }

    pub(super) fn goes_to_store(&self) -> bool {
        self.is_known && !self.is_rejected()
    }

    /// The plan will probably be rejected and so not charged.
    pub(super) fn only_asks(&self) -> bool {
        self.is_stale || self.is_rejecting
    }
}

impl Answer {
    pub(super) fn of(
        part: PartPlan<'_>,
        charges: &[MeasuredCharge<'_>],
        is_charged: bool,
        asked_at: Timestamp,
        now: Timestamp,
    ) -> Self {
        let known = charges.iter().map(|measured| Known::of(measured, is_charged));
        let mut answer = Self {
            policies: part.policies().clone(),
            known: known.collect(),
            at: charges.first().map(|measured| measured.moment).unwrap_or_default(),
            asked_at,
            held_until: Timestamp::default(),
            asks_at: asked_at.saturating_add(STALE),
            sent_at: Timestamp::default(),
            sent_until: Timestamp::default(),
        };
        if !is_charged {
            answer.held_until = now.saturating_add(answer.hold());
        }
        answer
    }

    pub(super) fn cached(&self) -> impl Iterator<Item = (&Policy, &Known)> {
        self.policies
            .iter()
            .zip(&self.known)
            .filter(|(policy, _)| is_cached(policy))
    }

    fn rejecting(&self) -> impl Iterator<Item = (&Policy, &Known)> {
        self.policies.iter().zip(&self.known).filter(|(_, known)| known.rejects)
    }

    pub(super) fn rejects(&self) -> bool {
        self.rejecting().next().is_some()
    }

    /// `false` if it is unknown how long a policy rejects another such charge.
    pub(super) fn is_lasting(&self, is_charged: bool) -> bool {
        let predicts =
            |(policy, known): (&Policy, &Known)| policy.counter().predicts(known.reading.counted, known.weight);
        !is_charged || self.rejecting().all(predicts)
    }

    pub(super) fn policies(&self) -> &PolicySet {
        &self.policies
    }

    pub(super) fn at(&self) -> Moment {
        self.at
    }

    pub(super) fn asked_at(&self) -> Timestamp {
        self.asked_at
    }

    /// Compares the policies themselves, because an answer is meaningless under other rules.
    #[inline]
    pub(super) fn is_about(&self, policies: &PolicySet) -> bool {
        self.policies.is_same(policies) || self.policies == *policies
    }

    /// Also `true` if the clock is set back.
    #[inline]
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        now < self.asked_at || self.asked_at.saturating_add(LIFE) <= now
    }

    /// A hold takes at most half of the time in which a whole quota refills, so that refilled units are not wasted.
    fn hold(&self) -> Duration {
        let fill = self.rejecting().map(|(policy, _)| policy.counter().fill_micros()).min();
        jittered(HOLD.min(Duration::from_micros(fill.unwrap_or(0) / 2)))
    }

    /// The local time from which the partition's clock advances; later than the readings if the clock stands still.
    #[inline]
    fn goes_on_at(&self) -> Timestamp {
        self.asked_at
            .saturating_add(Duration::from_micros(self.at.ahead.into()))
    }

    #[inline]
    fn store_time(&self, now: Timestamp) -> Timestamp {
        let at = self.at.now.as_micros().saturating_add(now.micros_since(self.asked_at));
        Timestamp::from_micros(at.saturating_sub(self.at.ahead.into()))
    }

    /// The answer has not expired.
    #[inline]
    pub(super) fn judge(&self, part: PartPlan<'_>, now: Timestamp, found: &mut Found) {
        for (charge, known) in part.charges().zip(&self.known) {
            let (policy, weight) = (charge.checked(), charge.weight());
            let rejection = match known.rejects {
                true => self.rejection(policy, known, weight, now, found),
                false => {
                    found.is_open |= weight > known.weight && is_cached(policy);
                    None
                }
            };
            if rejection.is_some() {
                found.now = found.now.max(self.store_time(now));
            }
            found.rejections.push(rejection);
        }
    }

    #[inline]
    fn rejection(
        &self,
        policy: &Policy,
        known: &Known,
        weight: u64,
        now: Timestamp,
        found: &mut Found,
    ) -> Option<ChargeRejection> {
        if let certain @ Some(_) = self.certain(policy, known, weight, now) {
            match now < self.asks_at {
                true => found.is_rejecting = true,
                false => found.is_stale = true,
            }
            return certain;
        }
        let held = match weight >= known.weight {
            true => self.held_until.micros_since(now),
            false => 0,
        };
        let sent = known.sent.filter(|_| now < self.sent_until);
        let sent =
            sent.and_then(|reading| self.rejection_since(policy, (reading, self.sent_at), known.weight, weight, now));
        let rejection = match (held, sent) {
            (0, sent) => sent,
            (held, None) => Some(ChargeRejection::For(held)),
            (held, Some(ChargeRejection::For(wait))) => Some(ChargeRejection::For(wait.max(held))),
            (_, never) => never,
        };
        found.is_rejecting |= rejection.is_some();
        // For logs, it is unknown when each unit expires.
        found.is_open |= rejection.is_none() && policy.counter().form() == Form::Log;
        rejection
    }

    #[inline]
    fn certain(&self, policy: &Policy, known: &Known, weight: u64, now: Timestamp) -> Option<ChargeRejection> {
        self.rejection_since(policy, (known.reading, self.goes_on_at()), known.weight, weight, now)
    }

    #[inline]
    fn rejection_since(
        &self,
        policy: &Policy,
        (reading, since): (PolicyReading, Timestamp),
        asked: u64,
        weight: u64,
        now: Timestamp,
    ) -> Option<ChargeRejection> {
        let (at, elapsed) = (self.partition_time(since), now.micros_since(since));
        let rejection = policy.limit().rejection(reading, at, asked, weight, elapsed)?;
        let until = |micros: u64| micros.saturating_add(since.micros_since(now));
        Some(match rejection {
            ChargeRejection::For(wait) => ChargeRejection::For(until(wait)),
            ChargeRejection::Never { remaining, reset } => ChargeRejection::Never {
                remaining,
                reset: reset.map(until),
            },
        })
    }

    /// In microseconds. Stands still until [`goes_on_at`](Self::goes_on_at).
    #[inline]
    fn partition_time(&self, local: Timestamp) -> u64 {
        let at = self.at.now.as_micros();
        at.saturating_add(local.micros_since(self.goes_on_at()))
    }

    /// With `only_asks`, the charge will probably be rejected and not applied.
    pub(super) fn asks(&mut self, part: PartPlan<'_>, now: Timestamp, only_asks: bool) {
        let until = now.saturating_add(self.hold());
        if only_asks {
            let mut charges = part.charges().zip(&self.known).filter(|(_, known)| known.rejects);
            if charges.any(|(charge, known)| self.certain(charge.checked(), known, charge.weight(), now).is_some()) {
                self.asks_at = until;
            }
            return;
        }
        let (begun, is_first) = (self.goes_on_at(), self.sent_until <= now);
        let mut known = std::mem::take(&mut self.known);
        for (charge, known) in part.charges().zip(&mut known).filter(|(_, known)| known.rejects) {
            let (reading, since) = match known.sent.filter(|_| !is_first) {
                Some(sent) => (sent, self.sent_at),
                None => (known.reading, begun),
            };
            let (at, elapsed) = (self.partition_time(since), now.micros_since(since));
            let (limit, longest) = (charge.checked().limit(), HOLD.as_micros() as u64);
            known.sent = limit.predict(reading, at, elapsed, charge.weight(), longest);
        }
        self.known = known;
        self.sent_at = now.max(begun);
        if is_first {
            self.sent_until = until;
        }
    }

    /// Drops all sent charges, because it is unknown which one was not applied.
    pub(super) fn unsent(&mut self) {
        self.sent_until = Timestamp::default();
    }
}

impl Known {
    pub(super) fn of(measured: &MeasuredCharge<'_>, is_charged: bool) -> Self {
        let (charge, now) = (measured.charge(), measured.moment.now.as_micros());
        let (limit, weight) = (charge.checked().limit(), charge.weight());
        let reading = match is_charged {
            true => limit.charged(*measured.reading, now, weight),
            false => *measured.reading,
        };
        Self {
            weight,
            reading,
            sent: None,
            rejects: is_cached(charge.checked()) && limit.rejection(reading, now, weight, weight, 0).is_some(),
        }
    }
}

/// The policy enforces its limit, restores its units over time, and has no queue.
#[inline]
pub(super) fn is_cached(policy: &Policy) -> bool {
    let (form, policy) = (policy.counter().form(), policy.policy());
    let is_queue = matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. });
    !policy.is_shadow() && !is_queue && form != Form::Slots
}
