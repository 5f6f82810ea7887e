mod fields;
mod of_origins;

use std::time::Duration;

use http::{HeaderName, StatusCode};

pub use self::fields::LimitFields;
use self::fields::TimeField;
pub(super) use self::of_origins::Profiles;
use super::{Limit, reader::Reader};
use ratelimit_fields::Unit;

/// A description of the nonstandard rate-limit fields of a service.
///
/// Select it for an origin with [`ClientLayerBuilder::profile`](super::ClientLayerBuilder::profile), or parse a
/// response with [`Advice::read_as`](super::Advice::read_as). Fields of limits, fields with a wait, and statuses can
/// also extend the profiles of known services.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Advice, Caps, Exchange, LimitFields, Profile};
///
/// // A shop reports 38 used of 40 units, and rejects with 430 and a wait in milliseconds.
/// let shop = Profile::new()
///     .with_limit(LimitFields::new().with_name("calls").with_used("x-shop-call-limit").with_reset("x-shop-reset"))
///     .with_retry_after_ms("x-shop-retry-after-ms")
///     .with_rejection(StatusCode::from_u16(430)?);
///
/// let headers = HeaderMap::from_iter([
///     ("x-shop-call-limit".parse()?, "38/40".parse()?),
///     ("x-shop-reset".parse()?, "1.5".parse()?),
///     ("x-shop-retry-after-ms".parse()?, "2500".parse()?),
/// ]);
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// let advice = Advice::read_as(&shop, StatusCode::from_u16(430)?, &headers, exchange, &Caps::default());
/// let calls = &advice.limits()[0];
/// assert_eq!((calls.name(), calls.quota(), calls.remaining()), (Some("calls"), Some(40), Some(2)));
/// assert_eq!(calls.reset(), Some(Duration::from_millis(1_500)));
/// assert_eq!(advice.retry_after(), Some(Duration::from_millis(2_500)));
/// assert!(advice.is_rejection());
///
/// // Without the profile, these fields are ignored.
/// assert!(Advice::read(StatusCode::OK, &headers, exchange, &Caps::default()).is_empty());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// With every profile, `Retry-After` takes precedence, the `RateLimit` fields of the drafts apply as well, and
/// [`Caps`](super::Caps) bound all values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    limits: Vec<LimitFields>,
    waits: Vec<TimeField>,
    rejections: Vec<StatusCode>,
    exhausted_rejections: Vec<StatusCode>,
    default_wait: Option<Duration>,
}

macro_rules! limit_fields {
    ($before:literal, $after:literal) => {
        LimitFields::new()
            .with_quota(concat!($before, "limit", $after))
            .with_remaining(concat!($before, "remaining", $after))
            .with_reset(concat!($before, "reset", $after))
    };
}

impl Profile {
    /// Creates a profile without fields, the default, which reads only the fields of the drafts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the profile of services with `-Limit`, `-Remaining` and `-Reset` after `X-RateLimit`, `X-Rate-Limit` or
    /// `RateLimit`, such as X, Okta and Reddit.
    ///
    /// The limits are named `x-ratelimit` and `x-rate-limit`, because a gateway and the service behind it can use
    /// different fields; that of `RateLimit-*` has no name.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, StatusCode};
    /// use tower_ratelimit_client::{Advice, Caps, Exchange, Profile};
    ///
    /// let headers = HeaderMap::from_iter([
    ///     ("date".parse()?, "Tue, 14 Nov 2023 22:13:20 GMT".parse()?),
    ///     ("x-rate-limit-remaining".parse()?, "59".parse()?),
    ///     ("x-rate-limit-reset".parse()?, "1700000030".parse()?),
    /// ]);
    /// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
    /// let profile = Profile::x_rate_limit();
    /// let advice = Advice::read_as(&profile, StatusCode::OK, &headers, exchange, &Caps::default());
    /// assert_eq!(advice.limits()[0].remaining(), Some(59));
    /// assert_eq!(advice.limits()[0].reset(), Some(Duration::from_secs(30)));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn x_rate_limit() -> Self {
        Self::new()
            .with_limit(limit_fields!("x-ratelimit-", "").with_name("x-ratelimit"))
            .with_limit(limit_fields!("x-rate-limit-", "").with_name("x-rate-limit"))
            .with_limit(limit_fields!("ratelimit-", ""))
    }

    /// Creates the profile of
    /// [GitHub](https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api).
    ///
    /// Reads `x-ratelimit-limit`, `-remaining`, `-reset` and `-resource`. The name of a limit is its resource: `core`,
    /// `search`, `graphql`. Each limit delays all requests to the origin, unless
    /// [`partition_by`](super::ClientLayerBuilder::partition_by) separates the resources. A 403 response is a rejection
    /// if no units remain or if it has `Retry-After`. A rejection with remaining units and without `Retry-After`
    /// concerns a secondary limit: the client waits one minute.
    pub fn github() -> Self {
        Self::new()
            .with_limit(limit_fields!("x-ratelimit-", "").with_name_field("x-ratelimit-resource"))
            .with_exhausted_rejection(StatusCode::FORBIDDEN)
            .with_default_wait(Duration::from_secs(60))
    }

    /// Creates the profile of [OpenAI](https://platform.openai.com/docs/guides/rate-limits), with limits `requests` and
    /// `tokens`.
    ///
    /// Reads `x-ratelimit-limit-requests`, `-remaining-requests`, `-reset-requests`, the same with `-tokens`, and
    /// `retry-after-ms`. The reset is when the entire limit is restored, so a client waits longer than necessary.
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
    /// let advice = Advice::read_as(&Profile::open_ai(), StatusCode::OK, &headers, exchange, &Caps::default());
    /// let [requests, tokens] = advice.limits().to_vec().try_into().unwrap();
    /// assert_eq!((requests.name(), requests.remaining()), (Some("requests"), Some(59)));
    /// assert_eq!((tokens.unit().as_str(), tokens.reset()), ("tokens", Some(Duration::from_secs(360))));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_ai() -> Self {
        let tokens = limit_fields!("x-ratelimit-", "-tokens").with_unit(Unit::tokens());
        Self::new()
            .with_limit(limit_fields!("x-ratelimit-", "-requests").with_name("requests"))
            .with_limit(tokens.with_name("tokens"))
            .with_retry_after_ms("retry-after-ms")
    }

    /// Creates the profile of [Anthropic](https://platform.claude.com/docs/en/api/rate-limits), with limits `requests`,
    /// `tokens`, `input-tokens` and `output-tokens`.
    ///
    /// Reads `anthropic-ratelimit-NAME-limit`, `-remaining` and `-reset`. The reset is when the entire limit is
    /// restored.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, StatusCode};
    /// use tower_ratelimit_client::{Advice, Caps, Exchange, Profile};
    ///
    /// let headers = HeaderMap::from_iter([
    ///     ("date".parse()?, "Thu, 21 Aug 2025 12:40:29 GMT".parse()?),
    ///     ("anthropic-ratelimit-input-tokens-remaining".parse()?, "0".parse()?),
    ///     ("anthropic-ratelimit-input-tokens-reset".parse()?, "2025-08-21T12:40:59Z".parse()?),
    /// ]);
    /// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
    /// let advice = Advice::read_as(&Profile::anthropic(), StatusCode::OK, &headers, exchange, &Caps::default());
    /// assert_eq!(advice.limits()[0].name(), Some("input-tokens"));
    /// assert_eq!(advice.limits()[0].reset(), Some(Duration::from_secs(30)));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn anthropic() -> Self {
        let tokens = |fields: LimitFields| fields.with_unit(Unit::tokens());
        let [all, input, output] = [
            limit_fields!("anthropic-ratelimit-tokens-", "").with_name("tokens"),
            limit_fields!("anthropic-ratelimit-input-tokens-", "").with_name("input-tokens"),
            limit_fields!("anthropic-ratelimit-output-tokens-", "").with_name("output-tokens"),
        ]
        .map(tokens);
        Self::new()
            .with_limit(limit_fields!("anthropic-ratelimit-requests-", "").with_name("requests"))
            .with_limit(all)
            .with_limit(input)
            .with_limit(output)
    }

    /// Adds the fields of a limit.
    #[must_use]
    pub fn with_limit(mut self, fields: LimitFields) -> Self {
        self.limits.push(fields);
        self
    }

    /// Adds a field with the meaning of `Retry-After`, in any format [of a reset](LimitFields::with_reset). The longest
    /// wait of several fields applies.
    #[must_use]
    pub fn with_retry_after(mut self, field: &'static str) -> Self {
        self.waits.push(TimeField::seconds(field));
        self
    }

    /// Adds a field like [`with_retry_after`](Self::with_retry_after), with numbers in milliseconds.
    #[must_use]
    pub fn with_retry_after_ms(mut self, field: &'static str) -> Self {
        self.waits.push(TimeField::milliseconds(field));
        self
    }

    /// Treats each response with `status` as a [rejection](super::Advice::is_rejection), like 429.
    #[must_use]
    pub fn with_rejection(mut self, status: StatusCode) -> Self {
        self.rejections.push(status);
        self
    }

    /// Treats a response with `status` as a rejection if it has a wait or a limit without remaining units.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, StatusCode};
    /// use tower_ratelimit_client::{Advice, Caps, Exchange, Profile};
    ///
    /// let profile = Profile::x_rate_limit().with_exhausted_rejection(StatusCode::FORBIDDEN);
    /// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
    /// let is_rejection = |remaining: &str| {
    ///     let mut headers = HeaderMap::new();
    ///     headers.insert("x-ratelimit-remaining", remaining.parse().unwrap());
    ///     Advice::read_as(&profile, StatusCode::FORBIDDEN, &headers, exchange, &Caps::default()).is_rejection()
    /// };
    /// assert!(is_rejection("0"));
    /// assert!(!is_rejection("1"));
    /// ```
    #[must_use]
    pub fn with_exhausted_rejection(mut self, status: StatusCode) -> Self {
        self.exhausted_rejections.push(status);
        self
    }

    /// Sets the wait after a rejection that has neither a wait nor a limit without remaining units. Default: none, so
    /// that the client [backs off](super::Pacing#rules).
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, StatusCode};
    /// use tower_ratelimit_client::{Advice, Caps, Exchange, Profile};
    ///
    /// let profile = Profile::new().with_retry_after("x-pause").with_default_wait(Duration::from_secs(30));
    /// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
    /// let wait = |headers| {
    ///     let rejection = StatusCode::TOO_MANY_REQUESTS;
    ///     Advice::read_as(&profile, rejection, &headers, exchange, &Caps::default()).retry_after()
    /// };
    /// assert_eq!(wait(HeaderMap::from_iter([("x-pause".parse()?, "5".parse()?)])), Some(Duration::from_secs(5)));
    /// assert_eq!(wait(HeaderMap::new()), Some(Duration::from_secs(30)));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_default_wait(mut self, wait: Duration) -> Self {
        self.default_wait = Some(wait);
        self
    }

    pub(super) fn read_limits(&self, reader: &mut Reader<'_>, limits: &mut Vec<Limit>) {
        for fields in &self.limits {
            let limit = fields.read(reader).filter(|limit| !limits.contains(limit));
            limits.extend(limit);
        }
    }

    pub(super) fn read_wait(&self, reader: &mut Reader<'_>) -> Option<Duration> {
        let waits = self.waits.iter().filter_map(|field| field.read(reader));
        waits.max()
    }

    pub(super) fn rejects(&self, status: StatusCode, is_exhausted: bool) -> bool {
        self.rejections.contains(&status) || (is_exhausted && self.exhausted_rejections.contains(&status))
    }

    pub(super) fn default_wait(&self) -> Option<Duration> {
        self.default_wait
    }

    fn invalid_field(&self) -> Option<&'static str> {
        let of_limits = self.limits.iter().flat_map(LimitFields::fields);
        let mut fields = of_limits.chain(self.waits.iter().map(TimeField::name));
        fields.find(|field| HeaderName::from_bytes(field.as_bytes()).is_err())
    }
}
