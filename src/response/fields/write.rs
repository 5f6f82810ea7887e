use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, Response, StatusCode, header};

use super::{
    ResponseFields,
    told::{Told, retry_after},
};
use crate::{
    clock::Clock,
    decision::{Decision, Outcome, whole_seconds},
    fields::{EXPOSED, Prepared, Report, RetryAfter},
    policy::QuotaPolicy,
};

impl ResponseFields {
    /// Returns the header fields for `decision`, including `Retry-After` for a rejection.
    ///
    /// Use this for responses that no layer of this crate sends, for example in a framework without Tower, or at the
    /// start of a stream. If the dialect cannot express a policy, `RateLimit-Policy` is omitted. The fields are
    /// prepared on each call, which takes a few microseconds.
    pub fn to_headers(&self, decision: &Decision) -> HeaderMap {
        let mut policies: Vec<&QuotaPolicy> = Vec::new();
        for policy in decision.allowances().map(|allowance| allowance.policy()) {
            // A plan may charge the same policy to several partitions.
            if policies.iter().all(|other| other.name() != policy.name()) {
                policies.push(policy);
            }
        }
        let prepared = match self.prepare(policies.iter().copied()) {
            Ok(prepared) => prepared,
            Err(_) => self.prepare_limits(policies),
        };
        let mut response = Response::new(());
        let told = self.told(decision, prepared.as_ref());
        self.tell(decision, prepared.as_ref(), &told, &mut response);
        response.into_parts().0.headers
    }

    pub(crate) fn tell<B>(
        &self,
        decision: &Decision,
        prepared: Option<&Prepared>,
        told: &Told,
        response: &mut Response<B>,
    ) {
        if self.overwrite_upstream {
            remove_all(response.headers_mut());
        }
        let seconds = told.wait.map(|(_, seconds)| seconds);
        let retry_after = self.ask_to_wait(seconds, response.headers_mut());
        let is_about_policies = decision.now().is_some() || decision.outcome() == Outcome::Overloaded;
        if is_about_policies && told.is_due {
            // A client should not delay the request to the new location.
            let is_quiet = is_redirect(response.status()) && told.is_low;
            let shows_limits = !self.without_limits && !is_quiet;
            let report = Report {
                limits: if shows_limits { &told.limits } else { &[] },
                retry_after,
                is_overloaded: decision.outcome() == Outcome::Overloaded && shows_limits,
                now: decision
                    .now()
                    .map(|now| UNIX_EPOCH + Duration::from_micros(now.as_micros())),
                partition_key: &|policy| Some(decision.partition_of(policy)?.shown_key().to_vec()),
            };
            if let Some(prepared) = prepared {
                prepared.write(response, &report);
            } else if let Some(unprepared) = self.prepare_limits([]) {
                // No policies apply, but the server is overloaded.
                unprepared.write(response, &report);
            }
        }
        if let Some(extra) = self.extra.as_ref().filter(|_| is_about_policies) {
            extra(decision, response.headers_mut());
        }
    }

    /// An inner service or the application may have set a later time.
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
            _ => retry_after(own),
        };
        headers.insert(header::RETRY_AFTER, value.to_header_value());
        Some(own)
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
