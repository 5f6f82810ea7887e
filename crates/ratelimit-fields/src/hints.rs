use http::{HeaderMap, HeaderName};

use super::{
    dialect::Dialect,
    error::FieldError,
    hint_items::{LimitHint, PolicyHint},
    names::{RATELIMIT, RATELIMIT_POLICY},
    retry_after::RetryAfter,
    seconds,
    unit::Unit,
    wire::{Parse, Wire},
};

/// The limits in a response of any server, in any dialect, as parsed by a client.
///
/// [`retry_after`](Self::retry_after) takes precedence over the limits. If a response uses two dialects, both limits
/// apply. [`X-RateLimit-*`](super::legacy) fields are not parsed.
///
/// Malformed fields are [ignored](Self::ignored) as a whole. If `Age` is positive, all fields but `Retry-After` are
/// ignored, because a cache received them earlier, for another client.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::HeaderMap;
/// use ratelimit_fields::{Dialect, Hints};
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit-limit", "100".parse()?);
/// headers.insert("ratelimit-remaining", "60".parse()?);
/// headers.insert("ratelimit-reset", "58".parse()?);
/// headers.insert("ratelimit-policy", "nonsense;".parse()?);
/// headers.insert("retry-after", "2".parse()?);
///
/// let hints = Hints::read(&headers);
/// assert_eq!(hints.dialect(), Some(Dialect::Draft06));
/// assert_eq!(hints.limits()[0].remaining(), Some(60));
/// assert_eq!(hints.limits()[0].reset(), Some(Duration::from_secs(58)));
/// assert!(hints.policies().is_empty());
/// assert_eq!(hints.ignored()[0].field(), "RateLimit-Policy");
/// let wait = hints.retry_after().map(|field| field.wait(SystemTime::now()));
/// assert_eq!(wait, Some(Duration::from_secs(2)));
///
/// headers.insert("age", "30".parse()?);
/// let stale = Hints::read(&headers);
/// assert!(stale.limits().is_empty());
/// assert!(stale.retry_after().is_some());
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    limits: Vec<LimitHint>,
    limits_dialect: Option<Dialect>,
    policies: Vec<PolicyHint>,
    policies_dialect: Option<Dialect>,
    retry_after: Option<RetryAfter>,
    ignored: Vec<FieldError>,
}

impl Hints {
    /// Parses the header section of a response.
    pub fn read(headers: &HeaderMap) -> Self {
        let mut hints = Self::default();
        hints.retry_after = hints.keep(RetryAfter::read(headers)).flatten();
        // The fields of a cached response are outdated.
        if seconds::age(headers) > 0 {
            return hints;
        }
        (hints.limits, hints.limits_dialect) = hints.parse(headers, RATELIMIT, |wire| wire.limits);
        (hints.policies, hints.policies_dialect) = hints.parse(headers, RATELIMIT_POLICY, |wire| wire.policies);
        hints.read_numbers(headers);
        hints
    }

    /// Returns the dialect of `RateLimit` or, if it is absent, of the other fields.
    pub fn dialect(&self) -> Option<Dialect> {
        self.limits_dialect.or(self.policies_dialect)
    }

    /// Returns the limits of the response.
    ///
    /// The items of `RateLimit` come first, at most [`MAX_ITEMS`](super::MAX_ITEMS). The unnamed limit of the draft-06
    /// fields follows, unless it only repeats an item. Limits of several partitions can have the same name.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use ratelimit_fields::Hints;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("ratelimit", r#""edge";r=999;t=60"#.parse()?);
    /// headers.insert("ratelimit-limit", "10".parse()?);
    /// headers.insert("ratelimit-remaining", "0".parse()?);
    /// headers.insert("ratelimit-reset", "60".parse()?);
    /// let remaining: Vec<_> = Hints::read(&headers).limits().iter().map(|limit| limit.remaining()).collect();
    /// assert_eq!(remaining, [Some(999), Some(0)]);
    ///
    /// // A server that sends the same limit in both dialects.
    /// headers.insert("ratelimit", r#""edge";r=0;t=60"#.parse()?);
    /// assert_eq!(Hints::read(&headers).limits().len(), 1);
    /// # Ok::<_, http::header::InvalidHeaderValue>(())
    /// ```
    pub fn limits(&self) -> &[LimitHint] {
        &self.limits
    }

    /// Returns the policies, which are informational, at most [`MAX_ITEMS`](super::MAX_ITEMS).
    pub fn policies(&self) -> &[PolicyHint] {
        &self.policies
    }

    /// Returns `Retry-After`, which has no upper bound.
    pub fn retry_after(&self) -> Option<RetryAfter> {
        self.retry_after
    }

    /// Returns one error for each malformed field.
    pub fn ignored(&self) -> &[FieldError] {
        &self.ignored
    }

    fn keep<T>(&mut self, read: Result<T, FieldError>) -> Option<T> {
        read.map_err(|error| self.ignored.push(error)).ok()
    }

    /// From separate fields, which a response can have in addition to another dialect.
    fn read_numbers(&mut self, headers: &HeaderMap) {
        for dialect in Dialect::ALL {
            let Some(numbers) = dialect.wire().numbers else {
                continue;
            };
            let hint = numbers(headers, &mut self.ignored);
            if hint == LimitHint::default() || self.limits.iter().any(|limit| self.says_no_more(&hint, limit)) {
                continue;
            }
            self.limits.push(hint);
            self.limits_dialect = self.limits_dialect.or(Some(dialect));
        }
    }

    fn says_no_more(&self, numbers: &LimitHint, item: &LimitHint) -> bool {
        let is_quota = |quota: u64| numbers.quota.is_none_or(|number| number == quota);
        let is_its = |policy: &PolicyHint| policy.unit == Unit::Requests && is_quota(policy.quota);
        let is_of_its_policy = || {
            let mut policies = self.policies.iter().filter(|policy| policy.name == item.name);
            policies.all(is_its)
        };
        numbers.remaining.is_none_or(|_| numbers.remaining == item.remaining)
            && numbers.reset.is_none_or(|_| numbers.reset == item.reset)
            // An item with a partition key may concern another client.
            && item.partition_key.is_none()
            && item.quota.map_or_else(is_of_its_policy, is_quota)
    }

    fn parse<T>(
        &mut self,
        headers: &HeaderMap,
        name: HeaderName,
        parse_of: impl Fn(&Wire) -> Option<Parse<T>>,
    ) -> (Vec<T>, Option<Dialect>) {
        let lines = headers.get_all(name);
        if lines.iter().next().is_none() {
            return (Vec::new(), None);
        }
        let dialect = Dialect::detect(&lines);
        let own = dialect.and_then(|dialect| parse_of(dialect.wire()));
        // A field in no dialect has the errors of draft-11.
        let parse = own.or_else(|| parse_of(Dialect::Draft11.wire()));
        let items = parse.and_then(|parse| self.keep(parse(lines)));
        items.map_or((Vec::new(), None), |items| (items, dialect))
    }
}
