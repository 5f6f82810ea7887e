mod of_origins;

use std::time::Duration;

use http::{HeaderMap, StatusCode};

pub(super) use self::of_origins::Profiles;
use super::{
    Limit,
    time::{self, Clock, number},
};
use ratelimit_fields::{FieldError, Unit};

/// The nonstandard rate-limit fields of a service.
///
/// Use a profile for services with `X-RateLimit-*` or custom fields, whose names do not determine the meaning of their
/// values. Select it for each origin with [`ClientLayerBuilder::profile`](super::ClientLayerBuilder::profile), or parse
/// a response with [`Advice::read_as`](super::Advice::read_as).
///
/// | profile | the client reads | reset |
/// |---|---|---|
/// | [`Standard`](Self::Standard) | the `RateLimit` fields only | |
/// | [`GitHub`](Self::GitHub) | `x-ratelimit-limit`, `-remaining`, `-reset`, `-resource` | Unix time |
/// | [`OpenAi`](Self::OpenAi) | `x-ratelimit-limit-requests`, `-remaining-requests`, `-reset-requests`, and `-tokens` | `6m0s` |
/// | [`Anthropic`](Self::Anthropic) | `anthropic-ratelimit-requests-limit`, `-remaining`, `-reset`, and `-tokens-`, `-input-tokens-`, `-output-tokens-` | RFC 3339 |
/// | [`XRateLimitSeconds`](Self::XRateLimitSeconds) | `x-ratelimit-limit`, `-remaining`, `-reset` | seconds |
/// | [`XRateLimitUnixTime`](Self::XRateLimitUnixTime) | the same | Unix time |
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Advice, Caps, Exchange, Profile};
///
/// let headers = HeaderMap::from_iter([
///     ("x-ratelimit-remaining-requests".parse()?, "59".parse()?),
///     ("x-ratelimit-reset-requests".parse()?, "1s".parse()?),
///     ("x-ratelimit-remaining-tokens".parse()?, "0".parse()?),
///     ("x-ratelimit-reset-tokens".parse()?, "6m0s".parse()?),
/// ]);
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// let read = |profile| Advice::read_as(profile, StatusCode::OK, &headers, exchange, &Caps::default());
/// let [requests, tokens] = read(Profile::OpenAi).limits().to_vec().try_into().unwrap();
/// assert_eq!((requests.name(), requests.remaining()), (Some("requests"), Some(59)));
/// assert_eq!((tokens.unit().as_str(), tokens.reset()), ("tokens", Some(Duration::from_secs(360))));
///
/// // Without a profile, these fields are ignored.
/// assert!(read(Profile::Standard).is_empty());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// With every profile, `Retry-After` takes precedence, and the `RateLimit` fields of the drafts apply as well.
/// [`Caps`](super::Caps) bound all values. A malformed field (for example `-1`, which some gateways send) is ignored
/// individually, with an error in [`Advice::ignored`](super::Advice::ignored).
///
/// A limit on tokens delays requests only while no tokens remain, because the cost of the next request is unknown.
/// Absolute times are compared with the `Date` of the response, because the server's clock sets both. Without `Date`,
/// they are compared with the local clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// Only the fields of the drafts. The default.
    #[default]
    Standard,
    /// GitHub ([its documentation](https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api)).
    /// The name of the limit is its resource: `core`, `search`, `graphql`.
    ///
    /// The limit of each resource delays all requests to the origin, unless
    /// [`partition_by`](super::ClientLayerBuilder::partition_by) separates the resources. A 429 response with remaining
    /// units and without `Retry-After` concerns a secondary limit: the client waits one minute, as GitHub recommends.
    GitHub,
    /// OpenAI ([its documentation](https://platform.openai.com/docs/guides/rate-limits)), and services that use the
    /// same fields. Has two limits, `requests` and `tokens`. A reset without a unit is in seconds.
    ///
    /// The reset is the time until the entire limit is restored, so a client that exhausts the limit waits longer than
    /// necessary.
    OpenAi,
    /// Anthropic ([its documentation](https://platform.claude.com/docs/en/api/rate-limits)), with limits `requests`,
    /// `tokens`, `input-tokens` and `output-tokens`. The reset is the time at which the entire limit is restored.
    Anthropic,
    /// `X-RateLimit-*` with a reset in seconds from now, like `LegacyReset::DeltaSeconds` of tower-quota.
    XRateLimitSeconds,
    /// `X-RateLimit-*` with a reset in Unix time, like express-rate-limit and `LegacyReset::UnixTime` of tower-quota.
    XRateLimitUnixTime,
}

struct Names {
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
}

macro_rules! names {
    ($before:literal, $after:literal) => {
        Names {
            limit: concat!($before, "limit", $after),
            remaining: concat!($before, "remaining", $after),
            reset: concat!($before, "reset", $after),
        }
    };
}

const X_RATE_LIMIT: Names = names!("x-ratelimit-", "");

const OPEN_AI: [(&str, Names); 2] = [
    ("requests", names!("x-ratelimit-", "-requests")),
    ("tokens", names!("x-ratelimit-", "-tokens")),
];

const ANTHROPIC: [(&str, Names); 4] = [
    ("requests", names!("anthropic-ratelimit-requests-", "")),
    ("tokens", names!("anthropic-ratelimit-tokens-", "")),
    ("input-tokens", names!("anthropic-ratelimit-input-tokens-", "")),
    ("output-tokens", names!("anthropic-ratelimit-output-tokens-", "")),
];

impl Profile {
    /// The wait that GitHub recommends after a secondary rate limit.
    const SECONDARY_WAIT: Duration = Duration::from_secs(60);

    pub(super) fn read(self, headers: &HeaderMap, clock: &Clock) -> (Vec<Limit>, Vec<FieldError>) {
        let mut reader = Reader {
            headers,
            limits: Vec::new(),
            ignored: Vec::new(),
        };
        let unix_time = |text: &str| clock.until(time::unix_time(text)?);
        let rfc3339 = |text: &str| clock.until(time::rfc3339(text)?);
        let duration = |text: &str| time::duration(text).map(|delay| clock.left_of(delay));
        match self {
            Self::Standard => {}
            Self::GitHub => reader.read(resource(headers), Unit::Requests, &X_RATE_LIMIT, unix_time),
            Self::XRateLimitSeconds => reader.read(None, Unit::Requests, &X_RATE_LIMIT, duration),
            Self::XRateLimitUnixTime => reader.read(None, Unit::Requests, &X_RATE_LIMIT, unix_time),
            Self::OpenAi => reader.read_all(&OPEN_AI, duration),
            Self::Anthropic => reader.read_all(&ANTHROPIC, rfc3339),
        }
        (reader.limits, reader.ignored)
    }

    /// The documented wait after a response without `Retry-After`.
    pub(super) fn usual_wait(self, status: StatusCode, limits: &[Limit]) -> Option<Duration> {
        let is_used_up = limits.iter().any(|limit| limit.remaining == Some(0));
        let is_secondary = self == Self::GitHub && status == StatusCode::TOO_MANY_REQUESTS && !is_used_up;
        is_secondary.then_some(Self::SECONDARY_WAIT)
    }
}

fn resource(headers: &HeaderMap) -> Option<String> {
    const MAX_LENGTH: usize = 64;
    let resource = headers.get("x-ratelimit-resource")?.to_str().ok()?;
    (!resource.is_empty() && resource.len() <= MAX_LENGTH).then(|| resource.to_owned())
}

struct Reader<'a> {
    headers: &'a HeaderMap,
    limits: Vec<Limit>,
    ignored: Vec<FieldError>,
}

impl Reader<'_> {
    fn read_all(&mut self, limits: &[(&str, Names)], reset: impl Fn(&str) -> Option<Duration>) {
        for (name, names) in limits {
            let unit = match *name {
                "requests" => Unit::Requests,
                _ => Unit::tokens(),
            };
            self.read(Some((*name).to_owned()), unit, names, &reset);
        }
    }

    fn read(&mut self, name: Option<String>, unit: Unit, names: &Names, reset: impl Fn(&str) -> Option<Duration>) {
        let quota = self.field(names.limit, "a number", number);
        let remaining = self.field(names.remaining, "a number", number);
        let reset = self.field(names.reset, "a time in the format of this service", reset);
        if quota.is_some() || remaining.is_some() {
            self.limits.push(Limit {
                name,
                partition_key: None,
                unit: Some(unit),
                quota,
                remaining,
                reset,
            });
        }
    }

    fn field<T>(&mut self, name: &'static str, expected: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let mut lines = self.headers.get_all(name).iter();
        let line = lines.next()?;
        if lines.next().is_some() {
            let error = FieldError::malformed(name, "more than one line");
            self.ignored.push(error);
            return None;
        }
        let value = line.to_str().ok().and_then(|text| parse(text.trim_ascii()));
        if value.is_none() {
            let error = FieldError::malformed(name, &format!("not {expected}"));
            self.ignored.push(error);
        }
        value
    }
}
