use http::{HeaderMap, HeaderValue, Response, header::RETRY_AFTER};

use super::{
    super::{
        bounds::{MAX_ITEMS, MAX_LENGTH},
        closest::ClosestLimit,
        draft06, legacy,
        names::{RATELIMIT, RATELIMIT_POLICY},
        syntax::insert,
        text::Text,
        wire::{self, OwnLists},
    },
    Form, Prepared,
    report::{KeyOf, LimitNumbers, Report},
};

impl Prepared {
    /// Adds the fields to a response by the rules of [`merge_into`](crate::merge_into).
    ///
    /// `Retry-After` is not changed. A list of more than [`MAX_ITEMS`] limits or [`MAX_LENGTH`] bytes is omitted.
    pub fn write<B>(&self, response: &mut Response<B>, report: &Report<'_>) {
        let dialect = match self.form {
            Form::Dialect(dialect) => dialect,
            Form::Legacy(reset) => {
                if let Some(limit) = self.closest(report).filter(|_| !report.is_overloaded) {
                    legacy::merge_limit(response, limit, reset, report.now);
                }
                return;
            }
        };
        let headers = response.headers_mut();
        match &dialect.wire().form {
            wire::Form::List(_) => self.write_lists(headers, report),
            wire::Form::Closest {
                merge_limit,
                merge_policies,
            } => {
                if let Some(limit) = self.closest(report) {
                    merge_limit(headers, limit);
                }
                if let Some(policies) = self.policies.value(&|_| None) {
                    merge_policies(headers, policies);
                }
            }
        }
    }

    /// Returns `true` if [`write_numbers`](Self::write_numbers) can be used for this number of policies: all of them,
    /// at most 16, in a dialect with lists, without draft-06 limits and partition keys.
    pub fn takes_numbers(&self, policies: usize) -> bool {
        let is_list = self.form.list().is_some();
        let shows_keys = self.limits.iter().any(|limit| limit.shows_partition_key);
        is_list && !self.adds_draft06_limit && !shows_keys && self.limits.len() == policies && policies <= MAX_NUMBERS
    }

    /// Adds the fields of an admitted request, from the remaining units and the seconds until the reset of each policy,
    /// in the order of [`new`](Self::new).
    ///
    /// Requires [`takes_numbers`](Self::takes_numbers). Returns `false` and writes nothing if the response needs
    /// [`write`](Self::write), as with `Retry-After` in the editors' copy.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use ratelimit_fields::{Dialect, Prepared, draft11::PolicyItem};
    ///
    /// let prepared = Prepared::new(Dialect::Draft11, [PolicyItem::new("minute", 60)?, PolicyItem::new("day", 5_000)?])?;
    /// assert!(prepared.takes_numbers(2));
    /// let mut headers = HeaderMap::new();
    /// assert!(prepared.write_numbers(&mut headers, &[(59, 1), (12, 300)]));
    /// assert_eq!(headers["ratelimit"], r#""minute";r=59;t=1, "day";r=12;t=300"#);
    /// assert_eq!(headers["ratelimit-policy"], r#""minute";q=60, "day";q=5000"#);
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    #[inline]
    pub fn write_numbers(&self, headers: &mut HeaderMap, numbers: &[(u64, u64)]) -> bool {
        if self.resets_with_retry_after() && headers.contains_key(RETRY_AFTER) {
            return false;
        }
        let mut text = Text::new();
        for (prepared, (remaining, seconds)) in self.limits.iter().zip(numbers) {
            prepared.push(&mut text, *remaining, Some(*seconds));
        }
        self.merge(headers, text.to_header_value(), &|_| None);
        true
    }

    /// Returns the value of `RateLimit` in a response without fields, for the dialects with lists, without partition
    /// keys.
    ///
    /// Use this to replace the value in a response whose other fields do not change; not in the editors' copy with
    /// `Retry-After`, which changes the value. Returns `None` if the list is empty or too long.
    ///
    /// ```
    /// use ratelimit_fields::{Dialect, LimitNumbers, Prepared, draft11::PolicyItem};
    ///
    /// let prepared = Prepared::new(Dialect::Draft11, [PolicyItem::new("minute", 60)?])?;
    /// let limit = LimitNumbers { policy: 0, remaining: 0, reset: Some(7), is_violated: true };
    /// assert_eq!(prepared.list(&[limit]).unwrap(), r#""minute";r=0;t=7"#);
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    pub fn list(&self, limits: &[LimitNumbers]) -> Option<HeaderValue> {
        let mut text = Text::new();
        self.push_list(&Report::new(limits), &mut text);
        text.to_header_value()
    }

    fn write_lists(&self, headers: &mut HeaderMap, report: &Report<'_>) {
        let mut text = Text::new();
        self.push_list(report, &mut text);
        let limit = self.adds_draft06_limit.then(|| self.closest(report));
        let Some(limit) = limit.flatten() else {
            return self.merge(headers, text.to_header_value(), report.partition_key);
        };
        let (list, values) = limit.to_header_values_behind(&mut text);
        self.merge(headers, list, report.partition_key);
        draft06::merge_limit(headers, limit, values);
    }

    fn push_list(&self, report: &Report<'_>, text: &mut Text) {
        let wait = report.retry_after.filter(|_| self.resets_with_retry_after());
        let nearest = wait.and_then(|_| nearest_limit(report.limits));
        for (index, limit) in report.limits.iter().enumerate() {
            let Some(prepared) = self.limits.get(limit.policy) else {
                continue;
            };
            let mut limit = *limit;
            if let Some(seconds) = wait.filter(|_| limit.is_violated || nearest == Some(index)) {
                limit = limit.resetting_after(seconds);
            }
            prepared.push(text, limit.remaining, limit.reset);
            if prepared.shows_partition_key {
                prepared.push_key(text, report.partition_key);
            }
        }
        if report.limits.len() > MAX_ITEMS || text.len() > MAX_LENGTH {
            *text = Text::new();
        }
    }

    #[inline]
    fn merge(&self, headers: &mut HeaderMap, limits: Option<HeaderValue>, key: &KeyOf<'_>) {
        if headers.contains_key(RATELIMIT) || headers.contains_key(RATELIMIT_POLICY) {
            return self.merge_lists(headers, limits, key);
        }
        if let Some(limits) = limits {
            insert(headers, RATELIMIT, limits);
        }
        if let Some(policies) = self.policies.value(key) {
            insert(headers, RATELIMIT_POLICY, policies);
        }
    }

    #[cold]
    fn merge_lists(&self, headers: &mut HeaderMap, rate_limit: Option<HeaderValue>, key: &KeyOf<'_>) {
        let is_custom = |name: &str| {
            let mut prepared = self.limits.iter();
            prepared.any(|limit| limit.has_custom_unit && limit.item.name() == name)
        };
        if let Some(list) = self.form.list() {
            let own = OwnLists {
                rate_limit,
                rate_limit_policy: self.policies.value(key),
                hidden_policy: self.hidden_policies.as_ref(),
                is_custom: &is_custom,
            };
            (list.merge)(headers, own);
        }
    }

    #[inline]
    fn resets_with_retry_after(&self) -> bool {
        self.form.list().is_some_and(|list| list.resets_with_retry_after)
    }

    fn closest(&self, report: &Report<'_>) -> Option<ClosestLimit> {
        if report.is_overloaded {
            return report.retry_after.map(ClosestLimit::of_nothing);
        }
        let limits = report.limits.iter();
        let known = limits.filter_map(|limit| Some((limit, self.limits.get(limit.policy)?)));
        let (closest, prepared) = known
            .filter(|(_, prepared)| prepared.counts_requests())
            .min_by_key(|(limit, _)| limit.distance())?;
        let closest = match report.retry_after {
            Some(seconds) => closest.resetting_after(seconds),
            None => *closest,
        };
        Some(ClosestLimit {
            quota: prepared.limit,
            remaining: closest.remaining,
            reset: closest.reset.unwrap_or(prepared.reset),
        })
    }
}

/// Few enough that no list is too long.
const MAX_NUMBERS: usize = 16;

/// The limit that explains `Retry-After`: a violated one, or else the closest.
fn nearest_limit(limits: &[LimitNumbers]) -> Option<usize> {
    let limits = limits.iter().enumerate();
    let nearest = limits.min_by_key(|(_, limit)| (!limit.is_violated, limit.distance()));
    nearest.map(|(index, _)| index)
}
