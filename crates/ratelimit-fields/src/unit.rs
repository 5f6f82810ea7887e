use std::fmt;

use sfv::{String as Text, StringRef};

/// The unit that a quota counts.
///
/// Units outside the draft's registry are [`Other`](Self::Other). Except for [`tokens`](Self::tokens), they can only be
/// parsed, not created.
///
/// ```
/// use ratelimit_fields::{Unit, draft11::RateLimitPolicy};
///
/// let text = r#""a";q=5, "b";q=5;qu="content-bytes", "c";q=5;qu="concurrent-requests", "d";q=5;qu="tokens""#;
/// let field = RateLimitPolicy::parse([text])?;
/// let units: Vec<&Unit> = field.items().iter().map(|policy| policy.unit()).collect();
/// assert_eq!(units[..3], [&Unit::Requests, &Unit::ContentBytes, &Unit::ConcurrentRequests]);
/// assert_eq!(units[3].as_str(), "tokens");
/// assert!(!units[3].is_known());
/// assert_eq!(field.to_string(), text);
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// Processed requests.
    #[default]
    Requests,
    /// Processed bytes of content.
    ContentBytes,
    /// Concurrent requests.
    ConcurrentRequests,
    /// A unit unknown to this crate.
    Other(OtherUnit),
}

/// A quota unit unknown to this crate: see [`Unit::Other`].
///
/// ```
/// use ratelimit_fields::{Unit, draft11::RateLimitPolicy};
///
/// let field = RateLimitPolicy::parse([r#""x";q=5;qu="tokens""#])?;
/// let Unit::Other(unit) = field.items()[0].unit() else { panic!("tokens are not in the registry") };
/// assert_eq!(unit.to_string(), "tokens");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OtherUnit(Text);

impl Unit {
    /// Returns the name in the draft's registry, or the parsed text of an unknown unit.
    pub fn as_str(&self) -> &str {
        self.text().map_or("requests", |text| text.as_str())
    }

    /// Returns the unit `tokens` of language models, which is not in the draft's registry.
    ///
    /// ```
    /// use ratelimit_fields::{Unit, draft11::RateLimitPolicy};
    ///
    /// let field = RateLimitPolicy::parse([r#""x";q=5;qu="tokens""#])?;
    /// assert_eq!(field.items()[0].unit(), &Unit::tokens());
    /// assert!(!Unit::tokens().is_known());
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    pub fn tokens() -> Self {
        const TOKENS: &StringRef = StringRef::constant("tokens");
        Self::Other(OtherUnit(TOKENS.to_owned()))
    }

    /// Returns `true` if this crate knows the unit.
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Other(_))
    }

    /// Accepts `request`, because one table of the draft has this spelling.
    pub(super) fn from_text(text: Text) -> Self {
        match text.as_str() {
            "request" | "requests" => Self::Requests,
            "content-bytes" => Self::ContentBytes,
            "concurrent-requests" => Self::ConcurrentRequests,
            _ => Self::Other(OtherUnit(text)),
        }
    }

    pub(super) fn text(&self) -> Option<&StringRef> {
        const CONTENT_BYTES: &StringRef = StringRef::constant("content-bytes");
        const CONCURRENT_REQUESTS: &StringRef = StringRef::constant("concurrent-requests");
        match self {
            Self::Requests => None,
            Self::ContentBytes => Some(CONTENT_BYTES),
            Self::ConcurrentRequests => Some(CONCURRENT_REQUESTS),
            Self::Other(unit) => Some(&unit.0),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for OtherUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}
