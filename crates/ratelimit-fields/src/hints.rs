use std::time::Duration;

use http::{HeaderMap, HeaderValue, header::GetAll};

use super::{
    draft06, draft07, draft11,
    error::FieldError,
    in_between,
    list::{List, Member},
    named::{self, Named},
    names::{RATELIMIT, RATELIMIT_POLICY},
    retry_after::RetryAfter,
    seconds,
    unit::Unit,
};

/// A dialect of the `RateLimit` fields.
///
/// ```
/// use ratelimit_fields::Dialect;
///
/// assert_eq!(Dialect::detect([r#""default";r=50;t=30"#]), Some(Dialect::Draft11));
/// assert_eq!(Dialect::detect(["default;r=50;t=30"]), Some(Dialect::EditorsCopy));
/// assert_eq!(Dialect::detect(["limit=100, remaining=50, reset=30"]), Some(Dialect::Draft07));
/// assert_eq!(Dialect::detect(["100;w=60"]), Some(Dialect::Draft06));
/// assert_eq!(Dialect::detect(["?1"]), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// Names are Strings: [`draft11`].
    Draft11,
    /// Names are Tokens: [`in_between`].
    EditorsCopy,
    /// A dictionary of numbers: [`draft07`]. `RateLimit-Policy` has the form of draft-06.
    Draft07,
    /// Numbers instead of names: [`draft06`].
    Draft06,
}

impl Dialect {
    /// Detects the dialect of a `RateLimit` or `RateLimit-Policy` field from its first bare item or key.
    ///
    /// Returns `None` if the start matches no dialect. The rest is not checked: a list that mixes dialects is
    /// malformed, which only parsing detects.
    pub fn detect<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Option<Self> {
        let line = lines.into_iter().next()?;
        let start = line.as_ref().iter().position(|byte| *byte != b' ')?;
        let first = &line.as_ref()[start..];
        match first[0] {
            b'"' => Some(Self::Draft11),
            b'-' | b'0'..=b'9' => Some(Self::Draft06),
            _ if begins_with_a_key(first) => Some(Self::Draft07),
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => Some(Self::EditorsCopy),
            _ => None,
        }
    }
}

/// Returns `true` for a dictionary, because only a key can be followed by an equals sign, not the name of an item.
fn begins_with_a_key(line: &[u8]) -> bool {
    let is_of_a_key = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(byte);
    let length = line.iter().take_while(|byte| is_of_a_key(byte)).count();
    length > 0 && line.get(length) == Some(&b'=')
}

/// The limits in a response of any server, in any dialect, as parsed by a client.
///
/// Hints are not guarantees: a request may be rejected although units remain. A server can send any number, so bound
/// all values. [`retry_after`](Self::retry_after) takes precedence over the limits.
///
/// Malformed fields are ignored as a whole; [`ignored`](Self::ignored) returns the errors. The `RateLimit` fields of a
/// response with a positive `Age` are ignored as well, because a cache received them earlier, for another client.
/// `Retry-After` is returned even then.
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
///
/// If a response uses two dialects, both limits apply, and [`limits`](Self::limits) contains both. `X-RateLimit-*`
/// fields are not parsed; `tower-ratelimit-client` has profiles for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    limits: Vec<LimitHint>,
    limits_dialect: Option<Dialect>,
    policies: Vec<PolicyHint>,
    policies_dialect: Option<Dialect>,
    retry_after: Option<RetryAfter>,
    ignored: Vec<FieldError>,
}

/// A limit of a response: see [`Hints::limits`].
///
/// ```
/// use http::HeaderMap;
/// use ratelimit_fields::Hints;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", "default;r=999;pk=trial-121323".parse()?);
/// let hints = Hints::read(&headers);
/// assert_eq!(hints.limits()[0].name(), Some("default"));
/// assert_eq!(hints.limits()[0].remaining(), Some(999));
/// assert_eq!(hints.limits()[0].partition_key(), Some(b"trial-121323".as_slice()));
/// assert_eq!(hints.limits()[0].reset(), None);
///
/// // The fields of draft-06 and draft-07 contain a single limit, with a quota but without a name.
/// headers.remove("ratelimit");
/// headers.insert("ratelimit-limit", "100".parse()?);
/// let hints = Hints::read(&headers);
/// assert_eq!(hints.limits()[0].quota(), Some(100));
/// assert_eq!(hints.limits()[0].name(), None);
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitHint {
    name: Option<String>,
    quota: Option<u64>,
    remaining: Option<u64>,
    reset: Option<Duration>,
    partition_key: Option<Vec<u8>>,
}

/// A policy of a response: see [`Hints::policies`].
///
/// ```
/// use std::time::Duration;
/// use http::HeaderMap;
/// use ratelimit_fields::{Hints, Unit};
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit-policy", "100;w=60".parse()?);
/// let hints = Hints::read(&headers);
/// assert_eq!(hints.policies()[0].quota(), 100);
/// assert_eq!(hints.policies()[0].unit(), &Unit::Requests);
/// assert_eq!(hints.policies()[0].window(), Some(Duration::from_secs(60)));
/// assert_eq!(hints.policies()[0].name(), None);
///
/// headers.insert("ratelimit-policy", r#""bytes";q=5000;qu="content-bytes";pk=:YWxpY2U=:"#.parse()?);
/// let hints = Hints::read(&headers);
/// assert_eq!(hints.policies()[0].name(), Some("bytes"));
/// assert_eq!(hints.policies()[0].unit(), &Unit::ContentBytes);
/// assert_eq!(hints.policies()[0].partition_key(), Some(b"alice".as_slice()));
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyHint {
    name: Option<String>,
    quota: u64,
    unit: Unit,
    window: Option<Duration>,
    partition_key: Option<Vec<u8>>,
}

impl Hints {
    /// Parses the header section of a response.
    ///
    /// Do not pass trailers, where these fields must not appear.
    pub fn read(headers: &HeaderMap) -> Self {
        let mut hints = Self::default();
        hints.retry_after = hints.keep(RetryAfter::read(headers)).flatten();
        // The fields of a cached response are outdated.
        if seconds::age(headers) > 0 {
            return hints;
        }
        hints.read_limits(headers);
        hints.read_policies(headers);
        hints.read_numbers(headers);
        hints
    }

    /// Returns the dialect of the limits or, without limits, of the policies.
    ///
    /// If a response uses two dialects, returns the dialect of `RateLimit`.
    pub fn dialect(&self) -> Option<Dialect> {
        self.limits_dialect.or(self.policies_dialect)
    }

    /// Returns the limits of the response.
    ///
    /// The items of `RateLimit` come first, in order, at most [`MAX_ITEMS`](super::MAX_ITEMS). The unnamed limit of the
    /// draft-06 fields follows, unless it only repeats an item. Limits of several partitions can have the same name.
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

    /// Returns the server's policies in the order of the field, at most [`MAX_ITEMS`](super::MAX_ITEMS).
    ///
    /// Policies are informational.
    pub fn policies(&self) -> &[PolicyHint] {
        &self.policies
    }

    /// Returns `Retry-After`, which has no upper bound: see [`RetryAfter`].
    pub fn retry_after(&self) -> Option<RetryAfter> {
        self.retry_after
    }

    /// Returns one error for each malformed field that was ignored.
    pub fn ignored(&self) -> &[FieldError] {
        &self.ignored
    }

    fn keep<T>(&mut self, read: Result<T, FieldError>) -> Option<T> {
        read.map_err(|error| self.ignored.push(error)).ok()
    }

    fn read_limits(&mut self, headers: &HeaderMap) {
        let lines = headers.get_all(RATELIMIT);
        let dialect = Dialect::detect(&lines);
        let limits = match dialect {
            None if lines.iter().next().is_none() => return,
            Some(Dialect::EditorsCopy) => read::<in_between::LimitItem, _>(lines),
            Some(Dialect::Draft07) => draft07::RateLimit::parse(lines).map(|field| vec![field.into()]),
            _ => read::<draft11::LimitItem, _>(lines),
        };
        if let Some(limits) = self.keep(limits) {
            self.limits = limits;
            self.limits_dialect = dialect;
        }
    }

    /// Each of the three fields of draft-06 is valid without the others.
    fn read_numbers(&mut self, headers: &HeaderMap) {
        let quota = self.keep(draft06::RateLimitLimit::read(headers)).flatten();
        let remaining = self.keep(draft06::RateLimitRemaining::read(headers)).flatten();
        let reset = self.keep(draft06::RateLimitReset::read(headers)).flatten();
        let hint = LimitHint {
            quota: quota.map(|field| field.get()),
            remaining: remaining.map(|field| field.get()),
            reset: reset.map(|field| field.wait()),
            ..LimitHint::default()
        };
        if hint == LimitHint::default() || self.limits.iter().any(|limit| self.says_no_more(&hint, limit)) {
            return;
        }
        self.limits.push(hint);
        self.limits_dialect = self.limits_dialect.or(Some(Dialect::Draft06));
    }

    /// Returns `true` if the numbers, which count requests, only repeat `item`.
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

    fn read_policies(&mut self, headers: &HeaderMap) {
        let lines = headers.get_all(RATELIMIT_POLICY);
        let dialect = Dialect::detect(&lines);
        let policies = match dialect {
            None if lines.iter().next().is_none() => return,
            Some(Dialect::EditorsCopy) => read::<in_between::PolicyItem, _>(lines),
            Some(Dialect::Draft06) => read::<draft06::PolicyItem, _>(lines),
            _ => read::<draft11::PolicyItem, _>(lines),
        };
        if let Some(policies) = self.keep(policies) {
            self.policies = policies;
            self.policies_dialect = dialect;
        }
    }
}

fn read<T: Member + Into<H>, H>(lines: GetAll<'_, HeaderValue>) -> Result<Vec<H>, FieldError> {
    let items = List::<T>::parse(lines)?.into_items();
    Ok(items.into_iter().map(Into::into).collect())
}

impl LimitHint {
    /// Returns the name of the policy, or `None` in draft-06 and draft-07.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the quota, with at most 15 digits, or `None` unless the dialect is draft-06 or draft-07.
    pub fn quota(&self) -> Option<u64> {
        self.quota
    }

    /// Returns the remaining units, if the server sends them, with at most 15 digits. May exceed the quota.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns the effective window, in whole seconds from the creation of the response.
    ///
    /// The quota is not necessarily restored afterwards.
    pub fn reset(&self) -> Option<Duration> {
        self.reset
    }

    /// Returns the partition key, if the server sends it.
    pub fn partition_key(&self) -> Option<&[u8]> {
        self.partition_key.as_deref()
    }
}

impl PolicyHint {
    /// Returns the name of the policy, or `None` in draft-06 and draft-07.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the quota per window, with at most 15 digits.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Returns the quota unit.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Returns the window in whole seconds, or `None` for a quota without one.
    pub fn window(&self) -> Option<Duration> {
        self.window
    }

    /// Returns the partition key, if the server sends it.
    pub fn partition_key(&self) -> Option<&[u8]> {
        self.partition_key.as_deref()
    }
}

impl<D: Named> From<named::LimitItem<D>> for LimitHint {
    fn from(item: named::LimitItem<D>) -> Self {
        Self {
            name: Some(item.name().to_owned()),
            quota: None,
            remaining: item.remaining().into(),
            reset: item.reset(),
            partition_key: item.partition_key,
        }
    }
}

impl<D: Named> From<named::PolicyItem<D>> for PolicyHint {
    fn from(item: named::PolicyItem<D>) -> Self {
        Self {
            name: Some(item.name().to_owned()),
            quota: item.quota(),
            window: item.window(),
            unit: item.unit,
            partition_key: item.partition_key,
        }
    }
}

impl From<draft07::RateLimit> for LimitHint {
    fn from(field: draft07::RateLimit) -> Self {
        Self {
            quota: Some(field.limit()),
            remaining: field.remaining(),
            reset: Some(field.reset()),
            ..Self::default()
        }
    }
}

impl From<draft06::PolicyItem> for PolicyHint {
    fn from(item: draft06::PolicyItem) -> Self {
        Self {
            name: None,
            quota: item.quota(),
            unit: Unit::default(),
            window: Some(item.window()),
            partition_key: None,
        }
    }
}
