use std::time::Duration;

use super::record::Finding;
use crate::{
    algorithm::{ChargeRejection, Form, Reading},
    clock::Timestamp,
    policy::PolicySet,
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
    pub(super) fn of(findings: &[Finding<'_>], now: Timestamp) -> Option<Self> {
        let first = findings.first().filter(|first| first.is_charged)?;
        let is_exhausted = |finding: &Finding<'_>| matches!(finding.next_rejection(), Some(ChargeRejection::For(_)));
        if !findings.iter().any(is_exhausted) {
            return None;
        }
        let (at, mut used, mut log) = (first.at.now, 0, None);
        let after = |micros| at.saturating_add(Duration::from_micros(micros));
        for finding in findings {
            let (limit, reading) = (finding.policy().limit(), finding.left());
            if let (Reading::SlidingLog(counted), Form::Log) = (finding.reading.counted, limit.counter.form()) {
                used = used.max(reading.locked);
                if finding.weight > 0 {
                    log = Some(LogTrace {
                        policy: finding.policy().id(),
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
        let lasting = first.at.until(last.micros_since(at));
        Some(Self {
            policies: first.policies.clone(),
            birth: first.at.birth,
            used_until,
            log,
            asked_at: first.asked_at,
            learned_at: now,
            expires_at: now.saturating_add(Duration::from_micros(lasting)),
        })
    }

    /// `true` if an answer shows that the store has lost this state. Ignores calls that started before this charge was
    /// answered, which may have read an older state, and answers under changed policies, whose state may become empty
    /// earlier.
    pub(super) fn is_lost(&self, findings: &[Finding<'_>]) -> bool {
        let Some(first) = findings.first().filter(|first| first.asked_at >= self.learned_at) else {
            return false;
        };
        let is_due = |until: Timestamp| first.at.now.saturating_add(MARGIN) < until;
        let is_reborn = first.at.birth != self.birth && is_due(self.used_until);
        let has_lost_log = |log: &LogTrace| {
            let mut logs = findings.iter().filter(|finding| finding.policy().id() == log.policy);
            is_due(log.used_until)
                && logs.any(|finding| match finding.reading.counted {
                    Reading::SlidingLog(found) => found.sequence.wrapping_sub(log.sequence) > MOST_ENTRIES,
                    _ => false,
                })
        };
        (is_reborn || self.log.as_ref().is_some_and(has_lost_log)) && self.agrees_with(first.policies)
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
