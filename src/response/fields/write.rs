use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, Response, StatusCode, header};

use super::{ResponseFields, shown::Shown};
use crate::{
    clock::Clock,
    decision::{Decision, Outcome, retry_seconds, whole_seconds},
    fields::{EXPOSED, LimitReport, MAX_INTEGER, Prepared, ReportedLimit, RetryAfter},
    policy::QuotaPolicy,
    sync::random,
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Added to all times, in seconds.
    jitter: u64,
    /// The wait of a rejected client: the exact wait, and the seconds for `Retry-After`.
    wait: Option<(Duration, u64)>,
}

impl Times {
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.map(|(wait, _)| wait)
    }
}

impl ResponseFields {
    /// Returns the header fields for `decision`, including `Retry-After` for a rejection.
    ///
    /// Use this for responses that no layer of this crate sends, for example in a framework without Tower, in a
    /// gateway, or at the start of a stream. See [`ResponseFields`] for examples. If the dialect cannot express a
    /// policy, `RateLimit-Policy` is omitted. A layer prepares its fields once; this method prepares them on each call,
    /// which takes a few microseconds.
    pub fn to_headers(&self, decision: &Decision) -> HeaderMap {
        let mut policies: Vec<&QuotaPolicy> = Vec::new();
        for policy in decision.allowances().map(|allowance| allowance.policy()) {
            // A plan may charge the same policy to several partitions.
            if policies.iter().all(|other| other.name() != policy.name()) {
                policies.push(policy);
            }
        }
        let prepared = self.prepare(policies).ok().flatten();
        let mut response = Response::new(());
        self.tell(decision, prepared.as_ref(), self.times(decision), &mut response);
        response.into_parts().0.headers
    }

    /// `prepared` are the fields of the policies that made the decision.
    pub(crate) fn tell<B>(
        &self,
        decision: &Decision,
        prepared: Option<&Prepared>,
        times: Times,
        response: &mut Response<B>,
    ) {
        if self.overwrite_upstream {
            remove_all(response.headers_mut());
        }
        let seconds = times.wait.map(|(_, seconds)| seconds);
        let wait = self.ask_to_wait(seconds, response.headers_mut());
        let is_about_policies = decision.now().is_some() || decision.outcome() == Outcome::Overloaded;
        if is_about_policies && self.is_due(decision) {
            // A client should not delay the request to the new location.
            let is_quiet = is_redirect(response.status()) && self.is_low(decision);
            let report = Report {
                settings: self,
                decision,
                jitter: times.jitter,
                wait,
                shows_limits: !self.without_limits && !is_quiet,
            };
            if let Some(prepared) = prepared {
                prepared.write(response, &report);
            } else if let Some(unprepared) = self.unprepared() {
                // The layer has prepared no fields for these policies.
                unprepared.write(response, &report);
            }
        }
        if let Some(extra) = self.extra.as_ref().filter(|_| is_about_policies) {
            extra(decision, response.headers_mut());
        }
    }

    /// Writes `Retry-After`, unless an inner service or the application has set a later time. Returns the final value.
    #[inline]
    fn ask_to_wait(&self, seconds: Option<u64>, headers: &mut HeaderMap) -> Option<u64> {
        let present = RetryAfter::read(headers).ok().flatten();
        if seconds.is_none() && present.is_none() {
            return None;
        }
        self.ask_to_wait_longer(seconds, present, headers)
    }

    fn ask_to_wait_longer(
        &self,
        seconds: Option<u64>,
        present: Option<RetryAfter>,
        headers: &mut HeaderMap,
    ) -> Option<u64> {
        // Only dates need the clock.
        let now = || UNIX_EPOCH + Duration::from_micros(Clock::system().now().as_micros());
        let present = present.map(|present| whole_seconds(present.wait(now())));
        let Some(own) = seconds.filter(|own| present.is_none_or(|present| present <= *own)) else {
            return present;
        };
        let is_date = self.retry_after_as_date;
        let date = is_date.then(|| now().checked_add(Duration::from_secs(own))).flatten();
        // If the time is out of range for a date, it is written in seconds.
        let value = match date.map(RetryAfter::at) {
            Some(Ok(date)) => date,
            _ => RetryAfter::after(Duration::from_secs(own.min(MAX_INTEGER))),
        };
        headers.insert(header::RETRY_AFTER, value.to_header_value());
        Some(own)
    }

    #[inline]
    pub(crate) fn times(&self, decision: &Decision) -> Times {
        let jitter = match self.jitter.as_secs() {
            0 => 0,
            most => u64::from(random::number()) % (most + 1),
        };
        let wait = decision
            .retry_after()
            .map(|exact| self.wait_shown(decision, exact, jitter));
        Times { jitter, wait }
    }

    fn wait_shown(&self, decision: &Decision, exact: Duration, jitter: u64) -> (Duration, u64) {
        let told = self.rejection_seconds(decision, exact, jitter);
        let is_exact = retry_seconds(exact) == told;
        (if is_exact { exact } else { Duration::from_secs(told) }, told)
    }
}

struct Report<'a> {
    settings: &'a ResponseFields,
    decision: &'a Decision,
    jitter: u64,
    /// The seconds of `Retry-After`.
    wait: Option<u64>,
    shows_limits: bool,
}

impl LimitReport for Report<'_> {
    fn limits(&self) -> impl Iterator<Item = ReportedLimit<'_>> {
        let listed = self.settings.listed(self.decision, self.jitter);
        listed.filter(|_| self.shows_limits).map(Shown::report)
    }

    fn partition_key(&self, policy: &str) -> Option<Vec<u8>> {
        Some(self.decision.partition_of(policy)?.shown_key().to_vec())
    }

    fn retry_after(&self) -> Option<u64> {
        self.wait
    }

    fn is_overloaded(&self) -> bool {
        self.decision.outcome() == Outcome::Overloaded && self.shows_limits
    }

    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.decision.now().unwrap_or_default().as_micros())
    }
}

#[inline]
pub(crate) fn is_redirect(status: StatusCode) -> bool {
    status.is_redirection() && status != StatusCode::NOT_MODIFIED
}

fn remove_all(headers: &mut HeaderMap) {
    for name in EXPOSED.iter().filter(|name| **name != header::RETRY_AFTER) {
        headers.remove(name);
    }
}
