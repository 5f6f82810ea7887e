//! The single limit that draft-06 and draft-07 report, merged with the limit of an inner service.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::{
    bounds::MAX_INTEGER,
    draft06::{RateLimitLimit, RateLimitRemaining, RateLimitReset},
    draft07::RateLimit,
    error::FieldError,
    syntax::insert,
    text::Text,
};

/// The limit closest to exhaustion, as reported by draft-06 and draft-07.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosestLimit {
    pub(super) quota: u64,
    pub(super) remaining: u64,
    pub(super) reset: u64,
}

impl ClosestLimit {
    pub(super) fn of_nothing(reset: u64) -> Self {
        Self {
            quota: 0,
            remaining: 0,
            reset,
        }
    }

    /// Returns this limit with the later reset of the two, or `None` if the limit of the inner service is at least as
    /// close to exhaustion.
    pub(super) fn closer_than(self, (remaining, reset): (u64, u64)) -> Option<Self> {
        let is_closer = (remaining, self.reset) > (self.remaining, reset);
        is_closer.then(|| Self {
            reset: self.reset.max(reset),
            ..self
        })
    }

    fn to_dictionary(self) -> Result<RateLimit, FieldError> {
        let field = RateLimit::new(self.quota.min(MAX_INTEGER), Duration::from_secs(self.reset))?;
        field.with_remaining(self.remaining.min(MAX_INTEGER))
    }

    pub(super) fn to_header_values(self) -> [HeaderValue; 3] {
        self.to_header_values_behind(&mut Text::new()).1
    }

    /// Returns `text`, unless it is empty, and the three numbers as values that share one allocation.
    pub(super) fn to_header_values_behind(self, text: &mut Text) -> (Option<HeaderValue>, [HeaderValue; 3]) {
        let before = text.len();
        let ends = [self.quota, self.remaining, self.reset].map(|number| {
            text.push_integer(number);
            text.len()
        });
        let text = Bytes::copy_from_slice(text.as_bytes());
        let digits = |start, end| HeaderValue::from_maybe_shared(text.slice(start..end)).expect("digits are ASCII");
        let values = [
            digits(before, ends[0]),
            digits(ends[0], ends[1]),
            digits(ends[1], ends[2]),
        ];
        let text = Some(text.slice(..before)).filter(|text| !text.is_empty());
        (text.and_then(|text| HeaderValue::from_maybe_shared(text).ok()), values)
    }
}

/// Reports `own`, serialized in `values`, if it is closer to exhaustion than the limit of the inner service.
pub(super) fn merge_draft06_limit(headers: &mut HeaderMap, own: ClosestLimit, mut values: [HeaderValue; 3]) {
    let names = [RateLimitLimit::NAME, RateLimitRemaining::NAME, RateLimitReset::NAME];
    if names.iter().any(|name| headers.contains_key(name)) {
        let read = || {
            RateLimitLimit::read(headers).ok()??;
            let remaining = RateLimitRemaining::read(headers).ok()??;
            let reset = RateLimitReset::read(headers).ok()??;
            Some((remaining.get(), reset.get()))
        };
        // Malformed fields, and a limit with unknown remaining units, are not changed.
        let Some(closer) = read().and_then(|inner| own.closer_than(inner)) else {
            return;
        };
        if closer.reset != own.reset {
            values = closer.to_header_values();
        }
    }
    for (name, value) in names.into_iter().zip(values) {
        insert(headers, name, value);
    }
}

/// Like [`merge_draft06_limit`], for the dictionary of draft-07. A list of another dialect is not changed.
pub(super) fn merge_draft07_limit(headers: &mut HeaderMap, own: ClosestLimit) {
    let closer = match RateLimit::read(headers) {
        Ok(None) => Some(own),
        Ok(Some(inner)) => inner
            .remaining()
            .and_then(|remaining| own.closer_than((remaining, inner.reset().as_secs()))),
        Err(_) => None,
    };
    if let Some(Ok(field)) = closer.map(ClosestLimit::to_dictionary) {
        insert(headers, RateLimit::NAME, field.to_header_value());
    }
}
