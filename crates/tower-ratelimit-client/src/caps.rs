use std::{ops::RangeInclusive, time::Duration};

use super::BuildError;
use ratelimit_fields::MAX_INTEGER;

/// Upper bounds on the values accepted from servers.
///
/// Larger values are reduced. After a capped wait, the client sends a request although the server imposed more.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit_client::Caps;
///
/// let caps = Caps::default();
/// assert_eq!(caps.max_wait(), Duration::from_secs(600));
/// assert_eq!(caps.max_units(), 10_000);
///
/// let caps = Caps::new(Duration::from_secs(60), 500)?;
/// assert_eq!((caps.max_wait(), caps.max_units()), (Duration::from_secs(60), 500));
///
/// let error = Caps::new(Duration::ZERO, 10_000).unwrap_err();
/// assert_eq!(error.to_string(), "client: max_wait 0ns is outside 1s..=86400s");
/// let error = Caps::new(Duration::from_secs(60), 0).unwrap_err();
/// assert_eq!(error.to_string(), "client: max_units 0 is outside 1..=999999999999999");
/// # Ok::<_, tower_ratelimit_client::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    max_wait: Duration,
    max_units: u64,
    trusts_dates: bool,
}

impl Caps {
    const WAITS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
    const UNITS: RangeInclusive<u64> = 1..=MAX_INTEGER;

    /// Creates caps for waits, from one second to one day, and for units, from 1 to 999,999,999,999,999. Fails outside
    /// these ranges.
    pub fn new(max_wait: Duration, max_units: u64) -> Result<Self, BuildError> {
        BuildError::check_range("max_wait", max_wait, Self::WAITS)?;
        BuildError::check_range("max_units", max_units, Self::UNITS)?;
        Ok(Self {
            max_wait,
            max_units,
            trusts_dates: false,
        })
    }

    /// Sets whether the `Date` of a response is compared with the local clock. Default: `false`.
    ///
    /// If `true`, the transit time of a response is subtracted from its waits, and a response whose `Date` precedes the
    /// request by more than a second is treated as cached. If the local clock is ahead by more, the server's
    /// `RateLimit` fields are ignored.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use http::{HeaderMap, StatusCode};
    /// use tower_ratelimit_client::{Advice, Caps, Exchange};
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("ratelimit", r#""default";r=5;t=40"#.parse()?);
    /// headers.insert("date", "Tue, 14 Nov 2023 22:13:20 GMT".parse()?);
    ///
    /// // The exchange took two seconds. The clocks of client and server agree.
    /// let sent = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    /// let exchange = Exchange { received: sent + Duration::from_secs(2), elapsed: Duration::from_secs(2) };
    /// let reset = |caps| Advice::read(StatusCode::OK, &headers, exchange, &caps).limits()[0].reset();
    /// assert_eq!(reset(Caps::default()), Some(Duration::from_secs(40)));
    /// assert_eq!(reset(Caps::default().trust_dates(true)), Some(Duration::from_secs(38)));
    ///
    /// // An hour later, the response can only have come from a cache.
    /// let exchange = Exchange { received: sent + Duration::from_secs(3_600), elapsed: Duration::ZERO };
    /// let caps = Caps::default().trust_dates(true);
    /// assert!(Advice::read(StatusCode::OK, &headers, exchange, &caps).limits().is_empty());
    /// # Ok::<_, http::header::InvalidHeaderValue>(())
    /// ```
    #[must_use]
    pub fn trust_dates(mut self, trusts_dates: bool) -> Self {
        self.trusts_dates = trusts_dates;
        self
    }

    /// Returns the longest wait. Default: ten minutes.
    pub fn max_wait(&self) -> Duration {
        self.max_wait
    }

    /// Returns the largest number of units. Default: 10,000.
    pub fn max_units(&self) -> u64 {
        self.max_units
    }

    /// Returns `true` if `Date` fields are [trusted](Self::trust_dates).
    pub fn trusts_dates(&self) -> bool {
        self.trusts_dates
    }
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(600),
            max_units: 10_000,
            trusts_dates: false,
        }
    }
}
