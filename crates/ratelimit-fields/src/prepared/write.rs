use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, Response};

use super::{
    super::{
        Dialect, MAX_ITEMS, MAX_LENGTH,
        closest::{ClosestLimit, merge_draft06_limit, merge_draft07_limit},
        draft11::Draft11,
        in_between::EditorsCopy,
        legacy::{XRateLimitLimit, XRateLimitRemaining, XRateLimitReset},
        merge::{OwnLists, merge_draft06_policies, merge_lists},
        named::Named,
        scratch,
        seconds::whole_seconds,
    },
    Form, LegacyReset, LimitReport, Prepared,
};

/// Marks a response whose `X-RateLimit-Reset` is in seconds, so that an outer layer knows its meaning and can merge.
#[derive(Clone)]
struct ResetsInSeconds;

/// Marks a response whose `X-RateLimit-Reset` is a Unix time. Zero-sized extensions do not allocate.
#[derive(Clone)]
struct ResetsAtUnixTime;

impl Prepared {
    /// Adds the fields to a response, merged with those of an inner service.
    ///
    /// The rules are those of [`merge_into`](crate::merge_into). `Retry-After` is not changed. Limits whose names the
    /// dialect cannot represent are omitted. A list of more than [`MAX_ITEMS`] limits or [`MAX_LENGTH`] bytes is
    /// omitted as a whole, because clients would ignore it.
    pub fn write<B, R: LimitReport + ?Sized>(&self, response: &mut Response<B>, report: &R) {
        let dialect = match self.form {
            Form::Dialect(dialect) => dialect,
            Form::Legacy(reset) => return write_legacy(reset, response, report),
        };
        let headers = response.headers_mut();
        match dialect {
            Dialect::Draft11 => {
                let (list, limit) = self.list_and_limit(dialect, report);
                self.merge::<Draft11, R>(headers, list, report);
                if let Some((limit, values)) = limit {
                    merge_draft06_limit(headers, limit, values);
                }
            }
            Dialect::EditorsCopy => {
                let (list, _) = self.list_and_limit(dialect, report);
                self.merge::<EditorsCopy, R>(headers, list, report);
            }
            Dialect::Draft06 | Dialect::Draft07 => {
                match number_limit(report) {
                    Some(limit) if dialect == Dialect::Draft07 => merge_draft07_limit(headers, limit),
                    Some(limit) => merge_draft06_limit(headers, limit, values_of(limit)),
                    None => {}
                }
                if let Some(policies) = self.policies.value(&|_| None) {
                    merge_draft06_policies(headers, policies);
                }
            }
        }
    }

    /// `rate_limit` is the list of limits.
    #[inline]
    fn merge<D: Named, R: LimitReport + ?Sized>(
        &self,
        headers: &mut HeaderMap,
        rate_limit: Option<HeaderValue>,
        report: &R,
    ) {
        let own = OwnLists {
            rate_limit,
            rate_limit_policy: self.policies.value(&|policy| report.partition_key(policy)),
            hidden_policy: self.hidden_policies.as_ref(),
        };
        merge_lists::<D>(headers, own, |name| self.starts.is_custom(name));
    }

    /// Returns the list of limits, and the numbers of draft-06 if [`with_draft06_limit`](Self::with_draft06_limit) adds
    /// them.
    fn list_and_limit<R: LimitReport + ?Sized>(
        &self,
        dialect: Dialect,
        report: &R,
    ) -> (Option<HeaderValue>, Option<(ClosestLimit, [HeaderValue; 3])>) {
        let limit = self.adds_draft06_limit.then(|| number_limit(report)).flatten();
        scratch::with_text(|field| {
            self.write_list(dialect, report, field);
            let is_list = !field.is_empty();
            match limit {
                Some(limit) => {
                    let (list, values) = limit.to_header_values_behind(field);
                    (list.filter(|_| is_list), Some((limit, values)))
                }
                None => (HeaderValue::from_str(field).ok().filter(|_| is_list), None),
            }
        })
    }

    /// For example, `"burst";r=9;t=1, "daily";r=4999;t=86383`. Writes nothing if there are no limits, because an empty
    /// list must not be sent, or if the list is too long for clients.
    fn write_list<R: LimitReport + ?Sized>(&self, dialect: Dialect, report: &R, field: &mut String) {
        let wait = report.retry_after().filter(|_| dialect == Dialect::EditorsCopy);
        let nearest = wait.and_then(|_| nearest_item(report));
        let mut items = 0;
        // Faster than a `for` loop, which would call `next` of each iterator adapter for each limit.
        report.limits().enumerate().for_each(|(index, mut limit)| {
            items = index + 1;
            if let Some(seconds) = wait.filter(|_| limit.is_violated || nearest == Some(index)) {
                limit = limit.resetting_after(seconds);
            }
            self.starts.push(dialect, &limit, report, field);
        });
        if items > MAX_ITEMS || field.len() > MAX_LENGTH {
            field.clear();
        }
    }
}

/// Returns the index of the item that explains `Retry-After` to the client: a violated item, or else the closest one.
fn nearest_item<R: LimitReport + ?Sized>(report: &R) -> Option<usize> {
    let limits = report.limits().enumerate();
    let nearest = limits.min_by_key(|(_, limit)| (!limit.is_violated, limit.distance()));
    nearest.map(|(index, _)| index)
}

/// Returns the limit for dialects that report a single limit. If the response has `Retry-After`, the reset equals
/// `Retry-After`.
fn number_limit<R: LimitReport + ?Sized>(report: &R) -> Option<ClosestLimit> {
    if report.is_overloaded() {
        return report.retry_after().map(ClosestLimit::of_nothing);
    }
    let limits = report.limits().filter(|limit| limit.counts_requests);
    let closest = limits.min_by_key(|limit| limit.distance())?;
    let closest = match report.retry_after() {
        Some(seconds) => closest.resetting_after(seconds),
        None => closest,
    };
    Some(ClosestLimit {
        quota: closest.quota,
        remaining: closest.remaining,
        reset: closest.reset_or_window(),
    })
}

fn write_legacy<B, R: LimitReport + ?Sized>(reset: LegacyReset, response: &mut Response<B>, report: &R) {
    let names = [XRateLimitLimit::NAME, XRateLimitRemaining::NAME, XRateLimitReset::NAME];
    let Some(mut limit) = number_limit(report).filter(|_| !report.is_overloaded()) else {
        return;
    };
    if reset == LegacyReset::UnixTime {
        let now = report.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let moment = now.saturating_add(Duration::from_secs(limit.reset));
        limit.reset = whole_seconds(moment);
    }
    if names.iter().any(|name| response.headers().contains_key(name)) {
        let number = |name| response.headers().get(name)?.to_str().ok()?.parse().ok();
        let inner = number(&names[1]).zip(number(&names[2]));
        let extensions = response.extensions();
        let is_known = match reset {
            LegacyReset::DeltaSeconds => extensions.get::<ResetsInSeconds>().is_some(),
            LegacyReset::UnixTime => extensions.get::<ResetsAtUnixTime>().is_some(),
        };
        let merged = inner.filter(|_| is_known).and_then(|inner| limit.closer_than(inner));
        let Some(merged) = merged else {
            return;
        };
        limit = merged;
    }
    match reset {
        LegacyReset::DeltaSeconds => drop(response.extensions_mut().insert(ResetsInSeconds)),
        LegacyReset::UnixTime => drop(response.extensions_mut().insert(ResetsAtUnixTime)),
    }
    for (name, value) in names.into_iter().zip(values_of(limit)) {
        let _ = response.headers_mut().try_insert(name, value);
    }
}

fn values_of(limit: ClosestLimit) -> [HeaderValue; 3] {
    scratch::with_text(|text| limit.to_header_values_behind(text).1)
}
