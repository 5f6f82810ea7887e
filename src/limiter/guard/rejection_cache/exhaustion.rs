use std::time::Duration;

use super::answer::{Answer, Known};
use crate::{
    algorithm::{ChargeRejection, Form, Reading},
    clock::Timestamp,
    policy::{Policy, PolicySet},
};

/// Servers expire keys with a resolution of a millisecond.
const MARGIN: Duration = Duration::from_millis(10);

/// More than can be added while a partition is cached. Logs start at random 40-bit numbers.
const MOST_ENTRIES: u64 = 1 << 24;

/// The last charge after which another one would be rejected, to detect that the store has lost its state.
///
/// Only charges are recorded: the state read by a rejection may belong to other rules and refill faster.
#[derive(Clone, Debug)]
pub(super) struct Exhaustion {
    policies: PolicySet,
    birth: u32,
    /// The store needs the state with this birth until this time on the partition's clock.
    used_until: Timestamp,
    log: Option<LogTrace>,
    asked_at: Timestamp,
    learned_at: Timestamp,
    /// The local time until which the store needs the state.
    expires_at: Timestamp,
}

/// A log has numbered entries instead of a birth.
#[derive(Clone, Copy, Debug)]
struct LogTrace {
    policy: u32,
    sequence: u64,
    used_until: Timestamp,
}

impl Exhaustion {
    pub(super) fn of(charged: &Answer, now: Timestamp) -> Option<Self> {
        let (at, mut used, mut log) = (charged.at().now, 0, None);
        let is_exhausted = |(policy, known): (&Policy, &Known)| {
            let next = policy
                .limit()
                .rejection(known.reading, at.as_micros(), known.weight, known.weight, 0);
            matches!(next, Some(ChargeRejection::For(_)))
        };
        if !charged.cached().any(is_exhausted) {
            return None;
        }
        let after = |micros| at.saturating_add(Duration::from_micros(micros));
        for (policy, known) in charged.cached() {
            let (limit, reading) = (policy.limit(), known.reading);
            if let (Reading::SlidingLog(counted), Form::Log) = (reading.counted, limit.counter.form()) {
                used = used.max(reading.locked);
                if known.weight > 0 {
                    log = Some(LogTrace {
                        policy: policy.id(),
                        sequence: counted.sequence,
                        used_until: after(limit.counter.fill_micros()),
                    });
                }
            } else {
                used = used.max(limit.full_after(reading, at.as_micros()).unwrap_or(0));
            }
        }
        let used_until = after(used);
        let last = log.map_or(used_until, |log| log.used_until.max(used_until));
        let lasting = charged.at().until(last.micros_since(at));
        Some(Self {
            policies: charged.policies().clone(),
            birth: charged.at().birth,
            used_until,
            log,
            asked_at: charged.asked_at(),
            learned_at: now,
            expires_at: now.saturating_add(Duration::from_micros(lasting)),
        })
    }

    /// `true` if an answer shows that the store has lost this state. Ignores calls that started before this charge was
    /// answered, which may have read an older state, and answers under changed policies, whose state may become empty
    /// earlier.
    pub(super) fn is_lost(&self, answer: &Answer) -> bool {
        if answer.asked_at() < self.learned_at || answer.cached().next().is_none() {
            return false;
        }
        let is_due = |until: Timestamp| answer.at().now.saturating_add(MARGIN) < until;
        let is_reborn = answer.at().birth != self.birth && is_due(self.used_until);
        let has_lost_log = |log: &LogTrace| {
            let mut logs = answer.cached().filter(|(policy, _)| policy.id() == log.policy);
            is_due(log.used_until)
                && logs.any(|(_, known)| match known.reading.counted {
                    Reading::SlidingLog(found) => found.sequence.wrapping_sub(log.sequence) > MOST_ENTRIES,
                    _ => false,
                })
        };
        (is_reborn || self.log.as_ref().is_some_and(has_lost_log)) && self.agrees_with(answer.policies())
    }

    pub(super) fn agrees_with(&self, policies: &PolicySet) -> bool {
        self.policies.is_same(policies)
            || policies.iter().all(|policy| {
                let mut own = self.policies.iter();
                own.all(|own| own.id() != policy.id() || own == policy)
            })
    }

    /// If the clock was set back, the charge does not count as newer than a call at `asked_at`.
    pub(super) fn is_newer(&self, asked_at: Timestamp, now: Timestamp) -> bool {
        asked_at < self.asked_at && self.learned_at <= now
    }

    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        now < self.learned_at || self.expires_at <= now
    }
}
