use serde_json::{Value, json};

use super::{
    KeyId, MessageError, Profile, PublicKey,
    base64url::{from_base64, to_base64},
};
use tower_quota::clock::Timestamp;

/// The resource in which an issuer lists its keys (RFC 9578, section 4).
///
/// Use this type to publish the keys in another way, such as a CDN, whose caches must keep it for less time than an old
/// key and its successor are both valid.
///
/// ```
/// use tower_quota::clock::Timestamp;
/// use tower_quota_anonymous::{Directory, IssuerKey, Profile};
///
/// let (old, new) = (IssuerKey::generate(Profile::P256)?, IssuerKey::generate(Profile::P256)?);
/// let friday = Timestamp::from_micros(1_800_000_000_000_000);
/// let directory = Directory::new("/arc/request")
///     .with_key(new.public_key().clone(), Some(friday))
///     .with_key(old.public_key().clone(), None);
/// let read = Directory::parse(directory.to_json().as_bytes())?;
/// assert_eq!(read.request_uri(), "/arc/request");
///
/// // The preferred key is the first one whose period has begun.
/// let preferred = |moment| read.preferred_key(Profile::P256, moment).map(|key| key.key_id());
/// assert_eq!(preferred(Timestamp::from_micros(0)), Some(old.key_id()));
/// assert_eq!(preferred(friday), Some(new.key_id()));
/// assert!(read.key(&new.key_id()).is_some());
/// assert_eq!(read.preferred_key(Profile::P384, friday), None);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    request_uri: String,
    keys: Vec<(PublicKey, Option<Timestamp>)>,
}

impl Directory {
    /// The path of the directory.
    pub const PATH: &str = "/.well-known/private-token-issuer-directory";
    /// The media type of the directory.
    pub const MEDIA_TYPE: &str = "application/private-token-issuer-directory";
    /// The maximum length in bytes.
    pub const MAX_LENGTH: usize = 64 * 1024;
    /// The maximum number of keys. Further keys are ignored.
    pub const MAX_KEYS: usize = 64;

    const MICROS: u64 = 1_000_000;

    /// Later times are read as this one.
    const LAST_SECOND: u64 = u64::MAX / Self::MICROS;

    /// Creates a directory without keys. The URL for credential requests may be relative.
    pub fn new(request_uri: impl Into<String>) -> Self {
        Self {
            request_uri: request_uri.into(),
            keys: Vec::new(),
        }
    }

    /// Adds a key, usable from `not_before` in whole seconds, or at once. Clients use the first usable one.
    #[must_use]
    pub fn with_key(mut self, key: PublicKey, not_before: Option<Timestamp>) -> Self {
        self.keys.push((key, not_before));
        self
    }

    /// Parses a directory. Unknown members, and unknown or malformed keys, are ignored.
    ///
    /// Fails if the input is longer than [`MAX_LENGTH`](Self::MAX_LENGTH), or lacks the URL or the list of keys.
    pub fn parse(json: &[u8]) -> Result<Self, MessageError> {
        if json.len() > Self::MAX_LENGTH {
            return Err(MessageError::Length("directory"));
        }
        let directory: Value = serde_json::from_slice(json).map_err(|_| MessageError::Malformed("directory"))?;
        let request_uri = directory["issuer-request-uri"].as_str();
        let keys = directory["token-keys"].as_array();
        Ok(Self {
            request_uri: request_uri
                .ok_or(MessageError::Malformed("issuer-request-uri"))?
                .to_owned(),
            keys: keys
                .ok_or(MessageError::Malformed("token-keys"))?
                .iter()
                .filter_map(key)
                .take(Self::MAX_KEYS)
                .collect(),
        })
    }

    /// Serializes the directory.
    pub fn to_json(&self) -> String {
        let key = |(key, not_before): &(PublicKey, Option<Timestamp>)| {
            let mut entry = json!({
                "token-type": key.profile().token_type(),
                "token-key": to_base64(key.as_bytes()),
            });
            if let Some(moment) = not_before {
                entry["not-before"] = (moment.as_micros() / Self::MICROS).into();
            }
            entry
        };
        let keys: Vec<Value> = self.keys.iter().map(key).collect();
        json!({ "issuer-request-uri": self.request_uri, "token-keys": keys }).to_string()
    }

    /// Returns the URL for credential requests, as written by the issuer.
    pub fn request_uri(&self) -> &str {
        &self.request_uri
    }

    /// Returns all keys in order, with the time from which each is usable.
    pub fn keys(&self) -> impl Iterator<Item = (&PublicKey, Option<Timestamp>)> {
        self.keys.iter().map(|(key, not_before)| (key, *not_before))
    }

    /// Returns the first key of this profile that is usable at `now`.
    pub fn preferred_key(&self, profile: Profile, now: Timestamp) -> Option<&PublicKey> {
        let mut usable = self
            .keys()
            .filter(|(_, not_before)| not_before.is_none_or(|from| from <= now));
        usable.find(|(key, _)| key.profile() == profile).map(|(key, _)| key)
    }

    /// Returns the key with this ID, even if it is not usable yet.
    pub fn key(&self, id: &KeyId) -> Option<&PublicKey> {
        self.keys().map(|(key, _)| key).find(|key| key.key_id() == *id)
    }
}

fn key(entry: &Value) -> Option<(PublicKey, Option<Timestamp>)> {
    let token_type = u16::try_from(entry["token-type"].as_u64()?).ok()?;
    let profile = Profile::from_token_type(token_type)?;
    let bytes = from_base64("token-key", entry["token-key"].as_str()?).ok()?;
    let not_before = match &entry["not-before"] {
        Value::Null => None,
        seconds => Some(Timestamp::from_micros(
            seconds.as_u64()?.min(Directory::LAST_SECOND) * Directory::MICROS,
        )),
    };
    Some((PublicKey::from_bytes(profile, &bytes).ok()?, not_before))
}
