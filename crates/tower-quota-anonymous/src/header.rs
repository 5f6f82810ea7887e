use std::{fmt::Write as _, time::Duration};

use http::{HeaderMap, HeaderValue, header};

use super::{
    MessageError, TokenChallenge,
    base64url::{from_base64, to_base64},
    schemes::{self, Parameters, SCHEME, Schemes},
};

/// A `PrivateToken` challenge in `WWW-Authenticate` (RFC 9577, section 2.1), with the `rate-limit` attribute of the
/// drafts.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, header::WWW_AUTHENTICATE};
/// use tower_quota_anonymous::{Challenge, Profile, TokenChallenge};
///
/// let asked = TokenChallenge::new(Profile::P384, "issuer.example")?;
/// let challenge = Challenge::new(&asked).with_rate_limit(100).with_max_age(Duration::from_secs(60));
/// let value = challenge.to_header_value();
/// assert_eq!(value, r#"PrivateToken challenge="x9MADmlzc3Vlci5leGFtcGxlAAAA", rate-limit=100, max-age=60"#);
///
/// let mut headers = HeaderMap::new();
/// headers.append(WWW_AUTHENTICATE, r#"Basic realm="home, sweet home""#.parse()?);
/// headers.append(WWW_AUTHENTICATE, value);
/// assert_eq!(Challenge::from_headers(&headers), [challenge]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    challenge: Vec<u8>,
    token_key: Option<Vec<u8>>,
    rate_limit: Option<u32>,
    max_age: Option<Duration>,
}

impl Challenge {
    /// The maximum number of challenges read from a response.
    pub const MAX_COUNT: usize = 16;
    /// The maximum total length of the field lines read, in bytes.
    pub const MAX_LENGTH: usize = schemes::MAX_LENGTH;

    /// Creates a challenge without attributes.
    pub fn new(challenge: &TokenChallenge) -> Self {
        Self {
            challenge: challenge.to_bytes(),
            token_key: None,
            rate_limit: None,
            max_age: None,
        }
    }

    /// Adds a public key in the encoding of its token type.
    #[must_use]
    pub fn with_token_key(self, key: impl Into<Vec<u8>>) -> Self {
        Self {
            token_key: Some(key.into()),
            ..self
        }
    }

    /// Adds the number of presentations per credential and context. 0 is omitted.
    #[must_use]
    pub fn with_rate_limit(self, limit: u32) -> Self {
        Self {
            rate_limit: Some(limit).filter(|limit| *limit > 0),
            ..self
        }
    }

    /// Adds how long the challenge is accepted, rounded down to whole seconds.
    #[must_use]
    pub fn with_max_age(self, age: Duration) -> Self {
        Self {
            max_age: Some(Duration::from_secs(age.as_secs())),
            ..self
        }
    }

    /// Parses the challenges of a response, in order, up to [`MAX_COUNT`](Self::MAX_COUNT).
    ///
    /// Omits other schemes, and challenges without `challenge` or with a duplicate or invalid attribute. Ignores
    /// unknown attributes. Quotes and padding are optional.
    ///
    /// ```
    /// use http::{HeaderMap, header::WWW_AUTHENTICATE};
    /// use tower_quota_anonymous::Challenge;
    ///
    /// let read = |value: &str| {
    ///     let mut headers = HeaderMap::new();
    ///     headers.insert(WWW_AUTHENTICATE, value.parse().unwrap());
    ///     Challenge::from_headers(&headers)
    /// };
    /// assert_eq!(read("privatetoken CHALLENGE=AAEC, rate-limit=\"7\", new=thing")[0].rate_limit(), Some(7));
    /// for limit in ["abc", "-1", "1.5", "0", "4294967296"] {
    ///     assert!(read(&format!("PrivateToken challenge=AAEC, rate-limit={limit}")).is_empty());
    /// }
    /// ```
    pub fn from_headers(headers: &HeaderMap) -> Vec<Self> {
        let mut left = Self::MAX_LENGTH;
        let lines = headers.get_all(header::WWW_AUTHENTICATE).iter();
        let lines = lines.map(HeaderValue::as_bytes).take_while(|line| {
            let rest = left.checked_sub(line.len());
            left = rest.unwrap_or(0);
            rest.is_some()
        });
        let challenges = lines.flat_map(Schemes).filter_map(|scheme| scheme.private_token());
        let challenges = challenges.filter_map(|parameters| Self::of(&parameters.ok()?).ok());
        challenges.take(Self::MAX_COUNT).collect()
    }

    fn of(parameters: &Parameters<'_>) -> Result<Self, MessageError> {
        let challenge = parameters
            .get("challenge")
            .ok_or(MessageError::Malformed("challenge"))?;
        let token_key = parameters.get("token-key");
        let rate_limit = parameters.get("rate-limit").map(|limit| number("rate-limit", limit));
        let max_age = parameters.get("max-age").map(|age| number("max-age", age));
        let rate_limit = rate_limit.transpose()?.map(|limit| match u32::try_from(limit) {
            Ok(limit) if limit > 0 => Ok(limit),
            _ => Err(MessageError::Malformed("rate-limit")),
        });
        Ok(Self {
            challenge: from_base64("challenge", challenge)?,
            token_key: token_key.map(|key| from_base64("token-key", key)).transpose()?,
            rate_limit: rate_limit.transpose()?,
            max_age: max_age.transpose()?.map(Duration::from_secs),
        })
    }

    /// Returns the value of a `WWW-Authenticate` field.
    pub fn to_header_value(&self) -> HeaderValue {
        let mut text = format!("{SCHEME} challenge=\"{}\"", to_base64(&self.challenge));
        // Writing to a `String` cannot fail.
        if let Some(key) = &self.token_key {
            let _ = write!(text, ", token-key=\"{}\"", to_base64(key));
        }
        if let Some(limit) = self.rate_limit {
            let _ = write!(text, ", rate-limit={limit}");
        }
        if let Some(age) = self.max_age {
            let _ = write!(text, ", max-age={}", age.as_secs());
        }
        HeaderValue::try_from(text).expect("names, base64url and numbers")
    }

    /// Parses the token challenge. Fails if it is malformed or has an unknown token type.
    pub fn token_challenge(&self) -> Result<TokenChallenge, MessageError> {
        TokenChallenge::parse(&self.challenge)
    }

    /// Returns the encoded token challenge.
    pub fn as_bytes(&self) -> &[u8] {
        &self.challenge
    }

    /// Returns the public key in the encoding of its token type, not validated.
    pub fn token_key(&self) -> Option<&[u8]> {
        self.token_key.as_deref()
    }

    /// Returns the number of presentations per credential and context, at least 1.
    pub fn rate_limit(&self) -> Option<u32> {
        self.rate_limit
    }

    /// Returns how long the challenge is accepted.
    pub fn max_age(&self) -> Option<Duration> {
        self.max_age
    }
}

/// A nonnegative JSON integer.
fn number(part: &'static str, text: &[u8]) -> Result<u64, MessageError> {
    let number: serde_json::Number = serde_json::from_slice(text).map_err(|_| MessageError::Malformed(part))?;
    number.as_u64().ok_or(MessageError::Malformed(part))
}
