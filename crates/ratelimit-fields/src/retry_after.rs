use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use httpdate::HttpDate;

use super::{
    bounds::MAX_LENGTH,
    error::{FieldError, Problem},
    seconds::{self, whole_seconds},
    syntax::read,
    text::{MAX_DIGITS, digits_of},
    typed::typed_headers,
};

typed_headers!(RetryAfter);

const FIELD: &str = "Retry-After";

/// The year 10000, which HTTP dates cannot represent.
const END_OF_DATES: u64 = 253_402_300_800;

/// The `Retry-After` field (RFC 9110, section 10.2.3): the time to wait before the next request.
///
/// Takes precedence over the `RateLimit` fields.
///
/// ```
/// use std::time::{Duration, SystemTime, UNIX_EPOCH};
/// use ratelimit_fields::RetryAfter;
///
/// let seconds = RetryAfter::parse(["120"])?;
/// assert_eq!(seconds.wait(SystemTime::now()), Duration::from_secs(120));
///
/// let date = RetryAfter::parse(["Sun, 06 Nov 1994 08:49:37 GMT"])?;
/// let five_seconds_earlier = UNIX_EPOCH + Duration::from_secs(784_111_772);
/// assert_eq!(date.wait(five_seconds_earlier), Duration::from_secs(5));
/// assert_eq!(date.wait(SystemTime::now()), Duration::ZERO);
///
/// // Fractions of a second are rounded up, and the minimum is one second.
/// assert_eq!(RetryAfter::after(Duration::from_millis(200)).to_header_value(), "1");
/// assert_eq!(RetryAfter::after(Duration::ZERO).to_header_value(), "1");
///
/// // Other values are errors.
/// assert!(RetryAfter::parse(["soon"]).is_err());
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetryAfter {
    // At least one of the two is set. If both are, the current time determines which of them is later.
    seconds: Option<u64>,
    /// In whole seconds, from 1970 to 9999.
    date: Option<SystemTime>,
}

impl RetryAfter {
    /// The name of the field.
    pub const NAME: HeaderName = http::header::RETRY_AFTER;

    /// Creates the field in seconds, rounded up, at least one.
    pub fn after(wait: Duration) -> Self {
        Self::of_seconds(whole_seconds(wait).max(1))
    }

    /// Creates the field as a date, rounded up to whole seconds. Fails outside the years 1970 to 9999.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use ratelimit_fields::RetryAfter;
    ///
    /// let field = RetryAfter::at(UNIX_EPOCH + Duration::from_millis(784_111_776_001))?;
    /// assert_eq!(field.to_header_value(), "Sun, 06 Nov 1994 08:49:37 GMT");
    /// assert_eq!(field.date(), Some(UNIX_EPOCH + Duration::from_secs(784_111_777)));
    ///
    /// let error = RetryAfter::at(UNIX_EPOCH - Duration::from_secs(1)).unwrap_err();
    /// assert_eq!(error.to_string(), "Retry-After: date is outside the years 1970 to 9999");
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    pub fn at(moment: SystemTime) -> Result<Self, FieldError> {
        let since = moment.duration_since(UNIX_EPOCH).ok().map(whole_seconds);
        match since {
            Some(seconds) if seconds < END_OF_DATES => Ok(Self {
                seconds: None,
                date: Some(UNIX_EPOCH + Duration::from_secs(seconds)),
            }),
            _ => Err(Problem::Moment.of(FIELD)),
        }
    }

    /// Parses the lines of a field.
    ///
    /// Accepts all three formats of HTTP dates. Numbers above [`u64::MAX`] are reduced to it. Of several lines, the
    /// longest wait is used.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no line, or if any line is neither a number nor a date.
    pub fn parse<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Result<Self, FieldError> {
        let mut field: Option<Self> = None;
        // Not joined with a comma, because two lines could then form a date that the server has not sent.
        for line in lines {
            let line = Self::parse_line(line.as_ref())?;
            field = Some(field.map_or(line, |field| Self {
                seconds: field.seconds.max(line.seconds),
                date: field.date.max(line.date),
            }));
        }
        field.ok_or_else(|| Problem::Empty.of(FIELD))
    }

    fn parse_line(line: &[u8]) -> Result<Self, FieldError> {
        let value = line.trim_ascii();
        if value.is_empty() {
            return Err(Problem::Empty.of(FIELD));
        }
        if value.len() > MAX_LENGTH {
            return Err(Problem::TooLong.of(FIELD));
        }
        if let Some(seconds) = seconds::digits(value) {
            return Ok(Self::of_seconds(seconds));
        }
        let date = str::from_utf8(value)
            .ok()
            .and_then(|value| httpdate::parse_http_date(value).ok())
            .ok_or_else(|| Problem::Syntax("neither a number of seconds nor a date".into()).of(FIELD))?;
        Self::at(date)
    }

    /// Parses the field of a response, if present. Fails like [`parse`](Self::parse).
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::HeaderMap;
    /// use ratelimit_fields::RetryAfter;
    ///
    /// let mut headers = HeaderMap::new();
    /// assert_eq!(RetryAfter::read(&headers)?, None);
    /// let field = RetryAfter::after(Duration::from_secs(5));
    /// headers.insert(RetryAfter::NAME, field.to_header_value());
    /// assert_eq!(RetryAfter::read(&headers)?, Some(field));
    ///
    /// // A gateway imposes a longer wait.
    /// headers.append(RetryAfter::NAME, "60".parse()?);
    /// assert_eq!(RetryAfter::read(&headers)?, Some(RetryAfter::after(Duration::from_secs(60))));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(headers: &HeaderMap) -> Result<Option<Self>, FieldError> {
        read(headers, Self::NAME, Self::parse)
    }

    /// Returns the wait from `now`, or zero if the date has passed.
    ///
    /// Only dates need `now`. If clocks may differ, pass the `Date` of the response.
    pub fn wait(self, now: SystemTime) -> Duration {
        let until_date = self.date.map(|date| date.duration_since(now).unwrap_or_default());
        self.seconds
            .map(Duration::from_secs)
            .max(until_date)
            .unwrap_or_default()
    }

    /// Returns the date, if a line contains one.
    pub fn date(self) -> Option<SystemTime> {
        self.date
    }

    /// Serializes the field as the value of one line. If it was parsed from a number and a date, the value is the
    /// number.
    pub fn to_header_value(self) -> HeaderValue {
        match self.seconds {
            // `HeaderValue::from` would allocate twice.
            Some(seconds) => {
                let mut digits = [0; MAX_DIGITS];
                HeaderValue::from_bytes(digits_of(seconds, &mut digits)).expect("digits are ASCII")
            }
            None => HeaderValue::try_from(self.to_string()).expect("a date is printable ASCII"),
        }
    }

    const fn of_seconds(seconds: u64) -> Self {
        Self {
            seconds: Some(seconds),
            date: None,
        }
    }
}

impl fmt::Display for RetryAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.seconds, self.date) {
            (None, Some(date)) => HttpDate::from(date).fmt(f),
            (seconds, _) => seconds.unwrap_or_default().fmt(f),
        }
    }
}
