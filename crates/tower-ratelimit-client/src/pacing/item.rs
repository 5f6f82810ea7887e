use std::time::{Duration, Instant};

use ratelimit_fields::Unit;

use crate::limit::Limit;

#[derive(Debug)]
pub(super) struct Item {
    pub(super) name: Option<String>,
    pub(super) partition_key: Option<Vec<u8>>,
    pub(super) unit: Unit,
    quota: u64,
    /// Requests that can be sent before `until`. For other units, the last value from the server.
    left: u64,
    /// Requests that were sent with `left` at 0 since the server last sent the limit.
    without: u64,
    until: Instant,
    next_at: Instant,
    pub(super) forget_at: Instant,
    /// The number of the last request when the server last sent the limit.
    heard_at: u64,
    lowest: Lowest,
}

/// Since the last request was sent.
#[derive(Debug, Default)]
struct Lowest {
    last: u64,
    remaining: u64,
    answers: u64,
    /// The request number of the latest response, so that a response with the same limit twice counts once.
    number: u64,
}

pub(super) struct Answer {
    pub(super) number: u64,
    pub(super) last: u64,
    pub(super) in_flight: u64,
    /// Requests that the server may not have counted: all but those that had finished when the request was sent.
    pub(super) uncounted: u64,
}

impl Lowest {
    fn before(last: u64, remaining: u64) -> Self {
        Self {
            last,
            remaining,
            ..Self::default()
        }
    }

    fn observe(&mut self, remaining: u64, answer: &Answer) {
        if self.last != answer.last {
            *self = Self::before(answer.last, remaining);
        }
        self.remaining = self.remaining.min(remaining);
        self.answers += u64::from(self.number != answer.number);
        self.number = answer.number;
    }
}

impl Item {
    const MAX_NAME_LENGTH: usize = 256;
    const SHORTEST_MEMORY: Duration = Duration::from_secs(10);
    const LONGEST_MEMORY: Duration = Duration::from_secs(60);

    pub(super) fn new(limit: &Limit, answer: &Answer, now: Instant, until: Instant) -> Option<Self> {
        let remaining = limit.remaining?;
        let length = limit.name.as_ref().map_or(0, String::len) + limit.partition_key.as_ref().map_or(0, Vec::len);
        if length > Self::MAX_NAME_LENGTH {
            return None;
        }
        let mut item = Self {
            name: limit.name.clone(),
            partition_key: limit.partition_key.clone(),
            unit: Unit::Requests,
            quota: 0,
            left: remaining.saturating_sub(answer.uncounted),
            without: 0,
            until,
            next_at: now,
            forget_at: until,
            heard_at: 0,
            lowest: Lowest::before(answer.last, remaining),
        };
        item.observe(limit, answer, now, until);
        Some(item)
    }

    pub(super) fn observe(&mut self, limit: &Limit, answer: &Answer, now: Instant, until: Instant) {
        if let Some(unit) = &limit.unit {
            self.unit = unit.clone();
        }
        let Some(remaining) = limit.remaining else { return };
        self.quota = limit.quota.unwrap_or_else(|| self.quota.max(remaining));
        // A response is certainly newer only if its request was sent after the previous response had arrived. A
        // response that may be older can lower `left`, but not raise it.
        let is_newer = answer.number > self.heard_at;
        if self.counts_requests() {
            self.hear_of_requests(remaining, answer, is_newer);
        } else if is_newer || remaining < self.left {
            self.left = remaining;
        }
        self.until = if is_newer { until } else { self.until.max(until) };
        let window = self.until.saturating_duration_since(now);
        self.forget_at = self.until + window.clamp(Self::SHORTEST_MEMORY, Self::LONGEST_MEMORY);
        self.heard_at = answer.last;
        self.without = 0;
        self.lowest.observe(remaining, answer);
    }

    fn hear_of_requests(&mut self, remaining: u64, answer: &Answer, is_newer: bool) {
        let least = remaining.saturating_sub(answer.uncounted);
        if is_newer {
            self.left = self.left.max(least);
        }
        if self.left > remaining {
            // Another client shares the quota, or requests cost more than one unit.
            self.left = least.max(remaining.saturating_sub(answer.in_flight));
        }
    }

    /// `Retry-After` takes precedence over the window.
    pub(super) fn end_at(&mut self, moment: Instant) {
        self.until = self.until.min(moment);
        self.next_at = self.next_at.min(moment);
    }

    pub(super) fn use_one(&mut self, now: Instant, low_percent: u8) {
        if !self.counts_requests() {
            return;
        }
        if self.is_low(low_percent) && self.left > 0 {
            let left = u32::try_from(self.left).unwrap_or(u32::MAX);
            self.next_at = now + self.until.saturating_duration_since(now) / left;
        }
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.without += 1,
        }
    }

    pub(super) fn give_back(&mut self, number: u64) {
        // If a response has arrived since the request was acquired, `left` already excludes the request.
        if number > self.heard_at && self.counts_requests() {
            match self.without.checked_sub(1) {
                Some(without) => self.without = without,
                None => self.left += 1,
            }
        }
    }

    /// Called without requests in flight; `finished` requests have finished since the last one was sent.
    pub(super) fn settle(&mut self, last: u64, finished: u64) {
        let all_have_told = self.lowest.last == last && self.lowest.answers == finished;
        if all_have_told && self.counts_requests() {
            self.left = self.left.max(self.lowest.remaining);
        }
    }

    /// Regardless of requests in flight, but not before `now`.
    pub(super) fn wait_until(&self, now: Instant, low_percent: u8) -> Instant {
        if self.is_over(now) {
            now
        } else if self.is_used_up() {
            self.until
        } else if self.counts_requests() && self.is_low(low_percent) {
            self.next_at.min(self.until)
        } else {
            now
        }
    }

    /// A single request is always allowed.
    pub(super) fn is_full(&self, in_flight: u64) -> bool {
        // The server may have sent the number of free slots before it counted any of the requests in flight.
        self.unit == Unit::ConcurrentRequests && in_flight >= self.left.max(1)
    }

    fn is_low(&self, percent: u8) -> bool {
        // Cannot overflow, because `left` and `quota` have at most 15 digits.
        percent > 0 && self.left.saturating_mul(100) <= self.quota.saturating_mul(percent.min(100).into())
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.left == 0
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until <= now
    }

    pub(super) fn lasts_until(&self, moment: Instant) -> bool {
        self.until >= moment
    }

    pub(super) fn is_known(&self, now: Instant) -> bool {
        self.forget_at > now
    }

    fn counts_requests(&self) -> bool {
        self.unit == Unit::Requests
    }

    pub(super) fn is_for(&self, partition_key: &[u8]) -> bool {
        self.partition_key.as_deref() == Some(partition_key)
    }

    pub(super) fn is_of(&self, limit: &Limit) -> bool {
        self.name == limit.name && self.partition_key == limit.partition_key
    }

    pub(super) fn to_limit(&self, now: Instant) -> Limit {
        Limit {
            name: self.name.clone(),
            partition_key: self.partition_key.clone(),
            unit: Some(self.unit.clone()),
            quota: Some(self.quota),
            remaining: Some(self.left),
            reset: Some(self.until.saturating_duration_since(now)),
        }
    }
}
