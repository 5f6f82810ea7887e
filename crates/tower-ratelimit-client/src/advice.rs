use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, StatusCode,
    header::{AGE, DATE},
};

use super::{
    Caps, Limit, Profile,
    reader::Reader,
    time::{Clock, number},
};
use ratelimit_fields::{Dialect, FieldError, Hints, LimitHint, PolicyHint};

/// The arrival time of a response and the duration of its exchange.
///
/// Dates in a response without `Date` are compared with `received`.
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Advice, Caps, Exchange};
///
/// let exchange = Exchange {
///     received: UNIX_EPOCH + Duration::from_secs(1_700_000_000), // November 14, 2023, 22:13:20
///     elapsed: Duration::from_millis(300),
/// };
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", "Tue, 14 Nov 2023 22:14:20 GMT".parse()?);
/// let advice = Advice::read(StatusCode::TOO_MANY_REQUESTS, &headers, exchange, &Caps::default());
/// assert_eq!(advice.retry_after(), Some(Duration::from_secs(60)));
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The wall-clock time at which the head of the response arrived.
    pub received: SystemTime,
    /// The time from sending the request to `received`, by a monotonic clock, for [trusted dates](Caps::trust_dates).
    pub elapsed: Duration,
}

/// The limits in one response: [`Hints`] that apply to this client, capped by [`Caps`].
///
/// [`ClientLayer`](super::ClientLayer) inserts it into the extensions of the response, unless it is
/// [empty](Self::is_empty).
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Advice, Caps, Exchange};
/// use ratelimit_fields::Dialect;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", r#""default";r=0;t=40"#.parse()?);
/// headers.insert("ratelimit-policy", "nonsense;".parse()?);
/// headers.insert("retry-after", "1000000".parse()?);
///
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// let advice = Advice::read(StatusCode::TOO_MANY_REQUESTS, &headers, exchange, &Caps::default());
/// assert_eq!(advice.limits()[0].remaining(), Some(0));
/// assert_eq!(advice.limits()[0].reset(), Some(Duration::from_secs(40)));
/// assert_eq!(advice.dialect(), Some(Dialect::Draft11));
/// assert_eq!(advice.ignored()[0].field(), "RateLimit-Policy");
///
/// // The default cap is ten minutes.
/// assert_eq!(advice.retry_after(), Some(Duration::from_secs(600)));
///
/// assert!(Advice::read(StatusCode::OK, &HeaderMap::new(), exchange, &Caps::default()).is_empty());
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
///
/// # What is ignored
///
/// - Malformed fields, each individually.
/// - `RateLimit` fields of cached responses, whose `Retry-After` is shortened by `Age`.
/// - `Retry-After` of responses without a 4xx or 5xx status, `RateLimit` fields, or gRPC status 8 or 14, which concerns
///   a single resource, such as the result of a job.
///
/// # What is read in addition to the drafts
///
/// - `grpc-retry-pushback-ms` of a rejection. The longer of this wait and `Retry-After` applies.
/// - Fractions of seconds in `Retry-After`, rounded up.
/// - Unix times in `Retry-After` and in the reset of an unnamed limit (drafts 03 to 07): seconds from 10⁹, milliseconds
///   from 10¹². A reset more than a day before or 366 days after the response is malformed, and such a `Retry-After` is
///   a delay.
///
/// Dates and Unix times are compared with the `Date` of the response, or else with the local clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    limits: Vec<Limit>,
    dialect: Option<Dialect>,
    retry_after: Option<Duration>,
    ignored: Vec<FieldError>,
    is_rejection: bool,
    is_final: bool,
}

impl Advice {
    /// Parses the head of a response.
    pub fn read(status: StatusCode, headers: &HeaderMap, exchange: Exchange, caps: &Caps) -> Self {
        Self::read_as(&Profile::new(), status, headers, exchange, caps)
    }

    /// Parses the head of a response, including the fields of a [`Profile`], whose limits come last.
    pub fn read_as(
        profile: &Profile,
        status: StatusCode,
        headers: &HeaderMap,
        exchange: Exchange,
        caps: &Caps,
    ) -> Self {
        let hints = Hints::read(headers);
        let ages = Ages::of(headers, exchange, caps);
        let (clock, ignored) = (&ages.clock, hints.ignored().to_vec());
        let mut reader = Reader {
            headers,
            clock,
            ignored,
        };
        let mut limits = Vec::new();
        if !ages.is_from_a_cache {
            limits = limits_of(&hints, &mut reader);
            profile.read_limits(&mut reader, &mut limits);
        }
        let wait = retry_after(&hints, &mut reader).max(profile.read_wait(&mut reader));
        let counts = is_about_the_server(status, headers) || profile.rejects(status, false) || !limits.is_empty();
        let left_of = |wait| clock.left_of(wait).saturating_sub(ages.in_caches);
        let mut wait = wait.filter(|_| counts).map(left_of);
        let pushback = pushback(headers);
        let is_standard = status == StatusCode::TOO_MANY_REQUESTS || grpc_status(headers) == Some(b"8");
        let is_rejection = is_standard || profile.rejects(status, is_exhausted(&limits) || is_imposed(wait));
        if is_rejection {
            // Servers without counters send only the reset.
            for limit in limits.iter_mut().filter(|limit| limit.reset.is_some()) {
                limit.remaining.get_or_insert(0);
            }
            wait = wait.max(pushback.flatten().map(left_of));
            if !is_imposed(wait) && !is_exhausted(&limits) && !ages.is_from_a_cache {
                wait = profile.default_wait().or(wait);
            }
        }
        let is_closed = is_rejection && !is_imposed(wait) && limits.iter().any(|limit| limit.quota == Some(0));
        Self {
            dialect: hints.dialect().filter(|_| !ages.is_from_a_cache),
            limits: limits.into_iter().map(|limit| limit.capped(caps)).collect(),
            retry_after: wait.map(|wait| wait.min(caps.max_wait())),
            ignored: reader.ignored,
            is_rejection,
            is_final: is_closed || pushback == Some(None),
        }
    }

    /// Returns the limits. Those of several partitions can have the same name.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns the time during which nothing should be sent, at most [`Caps::max_wait`]. Zero imposes no wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns `true` if a limit has rejected the request: with 429, another status of the [`Profile`], or gRPC status
    /// 8 in the header section.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, StatusCode};
    /// use tower_ratelimit_client::{Advice, Caps, Exchange};
    ///
    /// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
    /// let read = |status| Advice::read(status, &HeaderMap::new(), exchange, &Caps::default());
    /// assert!(read(StatusCode::TOO_MANY_REQUESTS).is_rejection());
    /// assert!(!read(StatusCode::SERVICE_UNAVAILABLE).is_rejection());
    /// ```
    pub fn is_rejection(&self) -> bool {
        self.is_rejection
    }

    /// Returns `true` if the server forbids a retry: with a negative or malformed `grpc-retry-pushback-ms`, or a quota
    /// of zero in a rejection without `Retry-After`.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, StatusCode};
    /// use tower_ratelimit_client::{Advice, Caps, Exchange};
    ///
    /// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
    /// let read = |pushback: &'static str| {
    ///     let mut headers = HeaderMap::new();
    ///     headers.insert("grpc-status", "8".parse().unwrap());
    ///     headers.insert("grpc-retry-pushback-ms", pushback.parse().unwrap());
    ///     Advice::read(StatusCode::OK, &headers, exchange, &Caps::default())
    /// };
    /// assert_eq!(read("2500").retry_after(), Some(Duration::from_millis(2_500)));
    /// assert!(read("-1").is_final());
    /// ```
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// Returns the dialect of the `RateLimit` fields.
    pub fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// Returns one error for each malformed field.
    pub fn ignored(&self) -> &[FieldError] {
        &self.ignored
    }

    /// Returns `true` if the response has no limits, no `Retry-After` and no malformed fields.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.retry_after.is_none() && self.ignored.is_empty()
    }
}

fn is_exhausted(limits: &[Limit]) -> bool {
    limits.iter().any(|limit| limit.remaining == Some(0))
}

fn is_imposed(wait: Option<Duration>) -> bool {
    wait.is_some_and(|wait| !wait.is_zero())
}

fn retry_after(hints: &Hints, reader: &mut Reader<'_>) -> Option<Duration> {
    let wait = reader.clock.retry_after(hints.retry_after(), reader.headers)?;
    reader.accept("Retry-After");
    Some(wait)
}

fn limits_of(hints: &Hints, reader: &mut Reader<'_>) -> Vec<Limit> {
    let mut limits = Vec::new();
    for (index, hint) in hints.limits().iter().enumerate() {
        let reset = hint.reset();
        let wait = match hint.name() {
            Some(_) => reset.map(|reset| reader.clock.left_of(reset)),
            None => reset.and_then(|reset| reader.clock.wait_of(reset)),
        };
        if reset.is_some() && wait.is_none() {
            // Only the dictionary of draft-07 is malformed as a whole.
            let is_dictionary = index == 0 && hints.dialect() == Some(Dialect::Draft07);
            let field = if is_dictionary { "RateLimit" } else { "RateLimit-Reset" };
            reader.reject(field, "the reset is neither a delay nor a current Unix time");
            if is_dictionary {
                continue;
            }
        }
        limits.push(limit_of(hint, hints.policies(), wait));
    }
    limits
}

fn limit_of(hint: &LimitHint, policies: &[PolicyHint], reset: Option<Duration>) -> Limit {
    let policy = policy_of(hint, policies);
    Limit {
        name: hint.name().map(Into::into),
        partition_key: hint.partition_key().map(Into::into),
        unit: policy.map(|policy| policy.unit().clone()),
        quota: hint.quota().or(policy.map(PolicyHint::quota)),
        remaining: hint.remaining(),
        reset,
    }
}

/// Prefers the policy of the same partition.
fn policy_of<'a>(limit: &LimitHint, policies: &'a [PolicyHint]) -> Option<&'a PolicyHint> {
    let name = limit.name()?;
    let mut named = policies.iter().filter(|policy| policy.name() == Some(name));
    let first = named.clone().next();
    named
        .find(|policy| policy.partition_key() == limit.partition_key())
        .or(first)
}

struct Ages {
    clock: Clock,
    in_caches: Duration,
    is_from_a_cache: bool,
}

impl Ages {
    fn of(headers: &HeaderMap, exchange: Exchange, caps: &Caps) -> Self {
        let text = |name| headers.get(name)?.to_str().ok();
        let date = text(DATE).and_then(|date| httpdate::parse_http_date(date).ok());
        let in_caches = text(AGE).and_then(|age| number(age.trim_ascii()));
        let in_caches = Duration::from_secs(in_caches.unwrap_or_default());
        let mut ages = Self {
            clock: Clock {
                now: date.unwrap_or(exchange.received),
                in_transit: Duration::ZERO,
            },
            in_caches,
            is_from_a_cache: !in_caches.is_zero(),
        };
        if let Some(date) = date.filter(|_| caps.trusts_dates()) {
            let apparent = exchange.received.duration_since(date).unwrap_or_default();
            // `Date` has a resolution of one second, so a new response can seem to be one second old.
            ages.is_from_a_cache |= apparent > exchange.elapsed.saturating_add(Duration::from_secs(1));
            ages.clock.in_transit = apparent.min(exchange.elapsed);
        }
        ages
    }
}

fn is_about_the_server(status: StatusCode, headers: &HeaderMap) -> bool {
    let is_grpc_error = matches!(grpc_status(headers), Some(b"8" | b"14"));
    status.is_client_error() || status.is_server_error() || is_grpc_error
}

/// The delay of a retry (gRFC A6), or `Some(None)` if the server forbids a retry.
fn pushback(headers: &HeaderMap) -> Option<Option<Duration>> {
    let mut lines = headers.get_all("grpc-retry-pushback-ms").iter();
    let line = lines.next()?.to_str().ok();
    let is_alone = lines.next().is_none();
    Some(line.and_then(number).filter(|_| is_alone).map(Duration::from_millis))
}

fn grpc_status(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get("grpc-status").map(|status| status.as_bytes())
}
