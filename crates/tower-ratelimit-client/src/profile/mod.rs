//! Fields of well-known services that no document defines, and what they mean there.

mod of_origins;
mod time;

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};

pub(super) use self::of_origins::Profiles;
use super::Limit;
use ratelimit_fields::{FieldError, Unit};

/// The fields of a service that no document defines, and their meaning there.
///
/// You want one for a service that sends `X-RateLimit-*` or fields of its own: such names alone do not say what the numbers
/// mean, so a client has to be told. Choose it for each origin with
/// [`ClientLayerBuilder::profile`](super::ClientLayerBuilder::profile), or read a response with
/// [`Advice::read_as`](super::Advice::read_as).
///
/// With every profile `Retry-After` counts first, and the `RateLimit` fields of the drafts are read, too: all limits hold.
/// [`Caps`](super::Caps) bound what is believed, so that no number makes a client wait for ever. A field that is malformed
/// (`-1`, say, which some gateways send) is ignored by itself, and named in [`Advice::ignored`](super::Advice::ignored).
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
/// A limit of tokens holds requests back as one of bytes does: while none is left, and not before, since the cost of the next
/// request is not known. A moment is compared with the `Date` of the response, since both are by the server's clock; if there
/// is none, with the clock of this computer.
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
/// // Without a profile, their meaning is not known.
/// assert!(read(Profile::Standard).is_empty());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// The fields of the drafts, and no others. The default.
    #[default]
    Standard,
    /// GitHub ([its documentation](https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api)). The
    /// name of the limit is its resource: `core`, `search`, `graphql`.
    ///
    /// Each resource holds back all requests to the origin:
    /// [`partition_by`](super::ClientLayerBuilder::partition_by) keeps them apart. A response 429 that says neither
    /// `Retry-After` nor that nothing is left is about a secondary limit: the client waits one minute, as GitHub asks.
    GitHub,
    /// OpenAI ([its documentation](https://platform.openai.com/docs/guides/rate-limits)), and the services that have taken
    /// over its fields. There are two limits, `requests` and `tokens`. A reset without a unit is in seconds.
    ///
    /// The reset is the time until the whole limit is back, so a client that has used up everything waits longer than it has
    /// to, and then has all of it.
    OpenAi,
    /// Anthropic ([its documentation](https://platform.claude.com/docs/en/api/rate-limits)), with limits `requests`,
    /// `tokens`, `input-tokens` and `output-tokens`. The reset is the moment at which the whole limit is back.
    Anthropic,
    /// `X-RateLimit-*` with a reset in seconds from now, as tower-quota writes it with `LegacyReset::DeltaSeconds`.
    XRateLimitSeconds,
    /// `X-RateLimit-*` with a reset in seconds since the beginning of 1970, as express-rate-limit writes it, and
    /// tower-quota with `LegacyReset::UnixTime`.
    XRateLimitUnixTime,
}

/// The names of the three fields of one limit.
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
    /// The wait that GitHub asks for after a secondary limit that says nothing else.
    const SECONDARY_WAIT: Duration = Duration::from_secs(60);

    /// The limits of a response that was made at `now`, and the errors of fields that were ignored.
    pub(super) fn read(self, headers: &HeaderMap, now: SystemTime) -> (Vec<Limit>, Vec<FieldError>) {
        let mut reader = Reader {
            headers,
            limits: Vec::new(),
            ignored: Vec::new(),
        };
        let until = |moment: SystemTime| moment.duration_since(now).unwrap_or_default();
        let unix_time = |text: &str| time::unix_time(text).map(until);
        let rfc3339 = |text: &str| time::rfc3339(text).map(until);
        match self {
            Self::Standard => {}
            Self::GitHub => reader.read(resource(headers), Unit::Requests, &X_RATE_LIMIT, unix_time),
            Self::XRateLimitSeconds => reader.read(None, Unit::Requests, &X_RATE_LIMIT, time::duration),
            Self::XRateLimitUnixTime => reader.read(None, Unit::Requests, &X_RATE_LIMIT, unix_time),
            Self::OpenAi => reader.read_all(&OPEN_AI, time::duration),
            Self::Anthropic => reader.read_all(&ANTHROPIC, rfc3339),
        }
        (reader.limits, reader.ignored)
    }

    /// The wait after a response without `Retry-After`, if the service documents one.
    pub(super) fn usual_wait(self, status: StatusCode, limits: &[Limit]) -> Option<Duration> {
        let is_used_up = limits.iter().any(|limit| limit.remaining == Some(0));
        let is_secondary = self == Self::GitHub && status == StatusCode::TOO_MANY_REQUESTS && !is_used_up;
        is_secondary.then_some(Self::SECONDARY_WAIT)
    }
}

/// The resource that a request to GitHub has counted for.
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
        let reset = self.field(names.reset, "a time that this service sends", reset);
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
            let error = FieldError::malformed(name, "there is more than one line");
            self.ignored.push(error);
            return None;
        }
        let value = line.to_str().ok().and_then(|text| parse(text.trim_ascii()));
        if value.is_none() {
            let error = FieldError::malformed(name, &format!("it is not {expected}"));
            self.ignored.push(error);
        }
        value
    }
}

/// A whole number. One that is too large is the largest.
pub(super) fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}
