//! From what is shown to header fields.

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::{Form, LegacyReset, PolicyFields, ResponseFields, limit_members::LimitMembers};
use crate::{
    clock::Clock,
    decision::{Decision, Outcome},
    fields::{
        self, ClosestLimit, LayerFields, RetryAfter,
        draft11::Draft11,
        in_between::EditorsCopy,
        legacy::{XRateLimitLimit, XRateLimitRemaining, XRateLimitReset},
    },
    policy::QuotaPolicy,
    response::scratch,
    sync::random,
};

/// A layer of ours has written `X-RateLimit-*` on the response, so that another one knows what they mean there.
#[derive(Clone)]
struct ResetsInSeconds;

/// The same with the other meaning of the reset. Values without a size take no allocation.
#[derive(Clone)]
struct ResetsAtUnixTime;

/// The times of one response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Whole seconds that are added to all of them.
    jitter: u64,
    /// The wait of a rejected client, before it is rounded up to whole seconds and after.
    wait: Option<(Duration, u64)>,
}

impl Times {
    /// The wait of a rejected client, before it is rounded up to whole seconds.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.wait.map(|(wait, _)| wait)
    }
}

impl ResponseFields {
    /// Tells the client about a decision; `policies` are those that it was made by.
    pub(crate) fn tell<B>(
        &self,
        decision: &Decision,
        policies: Option<&PolicyFields>,
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
            let telling = Telling {
                settings: self,
                decision,
                policies,
                jitter: times.jitter,
                wait,
            };
            telling.write(response);
        }
        if let Some(extra) = self.extra.as_ref().filter(|_| is_about_policies) {
            extra(decision, response.headers_mut());
        }
    }

    /// Writes `Retry-After`, and returns what it says in the end: the application may have made the response, or an inner
    /// service, and have asked for more.
    fn ask_to_wait(&self, seconds: Option<u64>, headers: &mut HeaderMap) -> Option<u64> {
        let present = RetryAfter::read(headers).ok().flatten();
        if seconds.is_none() && present.is_none() {
            return None;
        }
        // Only dates need the clock.
        let now = || UNIX_EPOCH + Duration::from_micros(Clock::system().now().as_micros());
        let present = present.map(|present| fields::whole_seconds(present.wait(now())));
        let Some(own) = seconds.filter(|own| present.is_none_or(|present| present <= *own)) else {
            return present;
        };
        let is_date = self.retry_after_as_date;
        let date = is_date.then(|| now().checked_add(Duration::from_secs(own))).flatten();
        // A moment that no date can say is said in seconds.
        let value = match date.map(RetryAfter::at) {
            Some(Ok(date)) => date.to_header_value(),
            _ => digits(own),
        };
        headers.insert(header::RETRY_AFTER, value);
        Some(own)
    }

    /// The times of the response to a decision.
    pub(crate) fn times(&self, decision: &Decision) -> Times {
        let jitter = match self.jitter.as_secs() {
            0 => 0,
            most => u64::from(random::number()) % (most + 1),
        };
        let wait = decision.retry_after().map(|exact| {
            let told = self.rejection_seconds(decision, exact, jitter);
            let is_exact = fields::whole_seconds(exact).max(1) == told;
            (if is_exact { exact } else { Duration::from_secs(told) }, told)
        });
        Times { jitter, wait }
    }
}

/// The content of one response.
struct Telling<'a> {
    settings: &'a ResponseFields,
    decision: &'a Decision,
    policies: Option<&'a PolicyFields>,
    jitter: u64,
    /// The seconds that `Retry-After` says.
    wait: Option<u64>,
}

impl Telling<'_> {
    fn write<B>(&self, response: &mut Response<B>) {
        let settings = self.settings;
        // A client is not to put off the request that a redirect tells it to make.
        let is_quiet = is_redirect(response.status()) && settings.is_low(self.decision);
        let shows_limits = !settings.without_limits && !is_quiet;
        match settings.form {
            Form::Draft11 => {
                let (list, limit) = self.list_and_limit(shows_limits);
                fields::merge_lists::<Draft11>(response.headers_mut(), self.lists(list));
                if let Some((limit, values)) = limit {
                    fields::merge_draft06_limit(response.headers_mut(), limit, values);
                }
            }
            Form::EditorsCopy => {
                let (list, _) = self.list_and_limit(shows_limits);
                fields::merge_lists::<EditorsCopy>(response.headers_mut(), self.lists(list));
            }
            Form::Draft06 | Form::Draft07 => {
                let headers = response.headers_mut();
                match self.closest().filter(|_| shows_limits) {
                    Some(limit) if settings.form == Form::Draft07 => fields::merge_draft07_limit(headers, limit),
                    Some(limit) => fields::merge_draft06_limit(headers, limit, values_of(limit)),
                    None => {}
                }
                if let Some(policies) = self.policies.and_then(|policies| policies.value(&|_| None)) {
                    fields::merge_draft06_policies(response.headers_mut(), policies);
                }
            }
            Form::Legacy(reset) if shows_limits => self.write_legacy(reset, response),
            Form::Legacy(_) | Form::None => {}
        }
    }

    /// The key of the partition that a policy counts for.
    fn key_of(&self, policy: &str) -> Option<[u8; 12]> {
        Some(self.decision.partition_of(policy)?.shown_key())
    }

    fn lists(&self, rate_limit: Option<HeaderValue>) -> LayerFields {
        LayerFields {
            rate_limit,
            rate_limit_policy: self
                .policies
                .and_then(|policies| policies.value(&|name| self.key_of(name))),
            hidden_policy: self.policies.and_then(|policies| policies.units.clone()),
            retry_after: None,
        }
    }

    /// The list of limits, and the numbers of draft-06 where they stand beside it.
    fn list_and_limit(&self, shows_limits: bool) -> (Option<HeaderValue>, Option<(ClosestLimit, [HeaderValue; 3])>) {
        if !shows_limits {
            return (None, None);
        }
        let limit = self.settings.adds_draft06_limit.then(|| self.closest());
        scratch::with_text(|field| {
            let is_list = self.write_list(field);
            match limit.flatten() {
                Some(limit) => {
                    let (list, values) = limit.to_header_values_behind(field);
                    (list.filter(|_| is_list), Some((limit, values)))
                }
                None => (HeaderValue::from_str(field).ok().filter(|_| is_list), None),
            }
        })
    }

    /// `"burst";r=9;t=1, "daily";r=4999;t=86383`; nothing if the list has no members, which is not sent at all.
    fn write_list(&self, field: &mut String) -> bool {
        let unprepared = LimitMembers::default();
        let members = self.policies.map_or(&unprepared, |policies| &*policies.members);
        let moment = self.wait.filter(|_| self.settings.form == Form::EditorsCopy);
        let nearest = moment.and_then(|_| self.nearest_item());
        for mut shown in self.settings.listed(self.decision, self.jitter) {
            let is_nearest = nearest.is_some_and(|policy| std::ptr::eq(policy, shown.policy));
            if let Some(seconds) = moment.filter(|_| shown.is_violated || is_nearest) {
                shown = shown.resetting_after(seconds);
            }
            members.push(self.settings.form, &shown, field);
        }
        !field.is_empty()
    }

    /// The item that `Retry-After` is about as far as the client can see: a violated one, or else the closest one.
    fn nearest_item(&self) -> Option<&QuotaPolicy> {
        let items = self.settings.listed(self.decision, self.jitter);
        let nearest = items.min_by_key(|shown| (!shown.is_violated, shown.distance()));
        nearest.map(|shown| shown.policy)
    }

    fn write_legacy<B>(&self, reset: LegacyReset, response: &mut Response<B>) {
        let names = [XRateLimitLimit::NAME, XRateLimitRemaining::NAME, XRateLimitReset::NAME];
        let Some(mut limit) = self.closest() else {
            return;
        };
        if let (LegacyReset::UnixTime, Some(now)) = (reset, self.decision.now()) {
            let moment = now.saturating_add(Duration::from_secs(limit.reset));
            limit.reset = moment.as_micros().div_ceil(1_000_000);
        }
        if names.iter().any(|name| response.headers().contains_key(name)) {
            let number = |name| response.headers().get(name)?.to_str().ok()?.parse().ok();
            let inner = number(&names[1]).zip(number(&names[2]));
            let extensions = response.extensions();
            let is_ours = match reset {
                LegacyReset::DeltaSeconds => extensions.get::<ResetsInSeconds>().is_some(),
                LegacyReset::UnixTime => extensions.get::<ResetsAtUnixTime>().is_some(),
            };
            let joined = inner.filter(|_| is_ours).and_then(|inner| limit.closer_than(inner));
            let Some(joined) = joined else {
                return;
            };
            limit = joined;
        }
        match reset {
            LegacyReset::DeltaSeconds => drop(response.extensions_mut().insert(ResetsInSeconds)),
            LegacyReset::UnixTime => drop(response.extensions_mut().insert(ResetsAtUnixTime)),
        }
        for (name, value) in names.into_iter().zip(values_of(limit)) {
            let _ = response.headers_mut().try_insert(name, value);
        }
    }

    /// The numbers of the closest limit. Beside a `Retry-After`, its reset names the same moment. A service that has no
    /// capacity has a limit of zero until then.
    fn closest(&self) -> Option<ClosestLimit> {
        // There is no store's time, which some of these fields are by.
        let is_legacy = matches!(self.settings.form, Form::Legacy(_));
        if self.decision.outcome() == Outcome::Overloaded && !is_legacy {
            return self.wait.map(ClosestLimit::of_nothing);
        }
        let closest = self.settings.closest(self.decision, self.jitter)?;
        let closest = match self.wait {
            Some(seconds) => closest.resetting_after(seconds),
            None => closest,
        };
        Some(ClosestLimit {
            quota: closest.policy.quota(),
            remaining: closest.remaining,
            // These dialects need a number: where nothing passes, it is the window.
            reset: closest
                .reset
                .or(closest.policy.usual_window().map(fields::whole_seconds))
                .unwrap_or(0),
        })
    }
}

/// `HeaderValue::from` would allocate twice.
fn digits(number: u64) -> HeaderValue {
    scratch::with_text(|text| {
        fields::push_integer(text, number);
        HeaderValue::from_str(text).expect("digits are ASCII")
    })
}

fn values_of(limit: ClosestLimit) -> [HeaderValue; 3] {
    scratch::with_text(|text| limit.to_header_values_behind(text).1)
}

fn is_redirect(status: StatusCode) -> bool {
    status.is_redirection() && status != StatusCode::NOT_MODIFIED
}

fn remove_all(headers: &mut HeaderMap) {
    for name in fields::EXPOSED.iter().filter(|name| **name != header::RETRY_AFTER) {
        headers.remove(name);
    }
}
