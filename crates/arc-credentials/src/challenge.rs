use sha2::{Digest, Sha256};

use super::{
    KeyId, Profile,
    message::{MessageError, Reader, put_field16},
};

/// An origin's challenge: `TokenChallenge` of RFC 9577, section 2.1.
///
/// Tokens of one credential count together if they respond to equal challenges. Challenges for [`Profile::P256`] have
/// an additional field, the credential context. Other token types can also be parsed. Names are checked only for
/// characters of a host and port.
///
/// ```
/// use arc_credentials::{Profile, TokenChallenge};
///
/// let challenge = TokenChallenge::new(Profile::P384, "issuer.example")?
///     .with_origins(["api.example", "www.example"])?
///     .with_redemption_context([7; 32]);
/// assert_eq!(challenge.token_type(), 0xc7d3);
/// assert!(challenge.is_for("API.example"));
/// assert!(!challenge.is_for("example"));
/// assert_eq!(TokenChallenge::parse(&challenge.to_bytes()), Ok(challenge));
///
/// // Names have no spaces and no commas.
/// assert!(TokenChallenge::new(Profile::P384, "").is_err());
/// assert!(TokenChallenge::new(Profile::P384, "a, b").is_err());
/// # Ok::<_, arc_credentials::MessageError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenChallenge {
    token_type: u16,
    issuer_name: Box<str>,
    redemption_context: Option<[u8; 32]>,
    /// Comma-separated.
    origin_info: Box<str>,
    credential_context: Option<[u8; 32]>,
}

impl TokenChallenge {
    /// The maximum length in bytes, which fits into a header field.
    pub const MAX_LENGTH: usize = 8 * 1024;

    const ISSUER_NAME: &str = "issuer_name";
    const ORIGIN_INFO: &str = "origin_info";

    /// Creates a challenge of an issuer, for any origin and with empty contexts.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is longer than 255 bytes, or not a host with an optional port.
    pub fn new(profile: Profile, issuer_name: &str) -> Result<Self, MessageError> {
        Ok(Self {
            token_type: profile.token_type(),
            issuer_name: name(Self::ISSUER_NAME, issuer_name)?.into(),
            redemption_context: None,
            origin_info: "".into(),
            credential_context: None,
        })
    }

    /// Sets the origins: hosts, with a port unless it is the default port.
    ///
    /// # Errors
    ///
    /// Returns an error if a name is invalid, as in [`new`](Self::new), or all together exceed 4,096 bytes.
    pub fn with_origins<N: AsRef<str>>(self, origins: impl IntoIterator<Item = N>) -> Result<Self, MessageError> {
        let mut origin_info = String::new();
        for origin in origins {
            if !origin_info.is_empty() {
                origin_info.push(',');
            }
            origin_info += name(Self::ORIGIN_INFO, origin.as_ref())?;
            if origin_info.len() > 4_096 {
                return Err(MessageError::Length(Self::ORIGIN_INFO));
            }
        }
        Ok(Self {
            origin_info: origin_info.into(),
            ..self
        })
    }

    /// Sets the redemption context, which separates quotas of a credential, such as time windows.
    ///
    /// A context per request disables the limit; one per client lets the origin track that client.
    #[must_use]
    pub fn with_redemption_context(self, context: [u8; 32]) -> Self {
        Self {
            redemption_context: Some(context),
            ..self
        }
    }

    /// Sets the credential context, such as an epoch of the issuer. No effect with [`Profile::P384`].
    #[must_use]
    pub fn with_credential_context(self, context: [u8; 32]) -> Self {
        Self {
            credential_context: self.has_credential_context().then_some(context),
            ..self
        }
    }

    /// Changes the profile. [`Profile::P384`] removes the credential context.
    ///
    /// ```
    /// use arc_credentials::{Profile, TokenChallenge};
    ///
    /// let challenge = TokenChallenge::new(Profile::P256, "issuer.example")?.with_credential_context([7; 32]);
    /// let older = challenge.clone().with_profile(Profile::P384);
    /// assert_eq!((older.profile(), older.credential_context()), (Some(Profile::P384), None));
    /// assert_eq!(challenge.clone().with_profile(Profile::P256), challenge);
    /// # Ok::<_, arc_credentials::MessageError>(())
    /// ```
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.token_type = profile.token_type();
        self.credential_context = self.credential_context.filter(|_| self.has_credential_context());
        self
    }

    /// Parses the structure.
    ///
    /// # Errors
    ///
    /// Returns an error if `bytes` is malformed or exceeds [`MAX_LENGTH`](Self::MAX_LENGTH).
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() > Self::MAX_LENGTH {
            return Err(MessageError::Length("challenge"));
        }
        let mut reader = Reader(bytes);
        let token_type = reader.number16("token_type")?;
        let mut challenge = Self {
            token_type,
            issuer_name: name(Self::ISSUER_NAME, reader.text16(Self::ISSUER_NAME)?)?.into(),
            redemption_context: reader.context("redemption_context")?,
            origin_info: origin_info(reader.text16(Self::ORIGIN_INFO)?)?.into(),
            credential_context: None,
        };
        if challenge.has_credential_context() {
            challenge.credential_context = reader.context("credential_context")?;
        }
        reader.end("challenge")?;
        Ok(challenge)
    }

    /// Serializes the structure.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.token_type.to_be_bytes().to_vec();
        put_field16(&mut bytes, self.issuer_name.as_bytes());
        put_context(&mut bytes, self.redemption_context);
        put_field16(&mut bytes, self.origin_info.as_bytes());
        if self.has_credential_context() {
            put_context(&mut bytes, self.credential_context);
        }
        bytes
    }

    /// Returns the SHA-256 digest of the bytes: `challenge_digest` of RFC 9577, section 2.2.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_bytes()).into()
    }

    /// Returns the request context of a credential of this key (drafts, "Client-to-Issuer Request").
    ///
    /// ```
    /// use arc_credentials::{KeyId, Profile, TokenChallenge};
    ///
    /// let (challenge, key) = (TokenChallenge::new(Profile::P384, "issuer.example")?, KeyId::from_bytes([7; 32]));
    /// assert_eq!(challenge.request_context(&key), [b"issuer.example".as_slice(), &[7; 32]].concat());
    /// # Ok::<_, arc_credentials::MessageError>(())
    /// ```
    pub fn request_context(&self, key: &KeyId) -> Vec<u8> {
        match self.has_credential_context() {
            true => self.fields_context(self.credential_context, key),
            false => [self.issuer_name.as_bytes(), key.as_bytes()].concat(),
        }
    }

    /// Returns the presentation context, which all tokens of one quota share (drafts, "Token Creation").
    ///
    /// ```
    /// use arc_credentials::{KeyId, Profile, TokenChallenge};
    ///
    /// let (challenge, key) = (TokenChallenge::new(Profile::P384, "issuer.example")?, KeyId::from_bytes([7; 32]));
    /// assert_eq!(challenge.presentation_context(&key), [challenge.digest(), [7; 32]].concat());
    /// # Ok::<_, arc_credentials::MessageError>(())
    /// ```
    pub fn presentation_context(&self, key: &KeyId) -> Vec<u8> {
        match self.has_credential_context() {
            true => self.fields_context(self.redemption_context, key),
            false => [self.digest(), *key.as_bytes()].concat(),
        }
    }

    fn fields_context(&self, context: Option<[u8; 32]>, key: &KeyId) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_field16(&mut bytes, self.issuer_name.as_bytes());
        put_field16(&mut bytes, self.origin_info.as_bytes());
        put_field16(&mut bytes, context.as_ref().map_or(&[], |context| context));
        bytes.extend_from_slice(key.as_bytes());
        bytes
    }

    /// Returns `true` if the challenge lists `origin`, ignoring case, or no origins.
    pub fn is_for(&self, origin: &str) -> bool {
        self.origin_info.is_empty() || self.origins().any(|name| name.eq_ignore_ascii_case(origin))
    }

    /// Returns the [token type](Profile::token_type).
    pub fn token_type(&self) -> u16 {
        self.token_type
    }

    /// Returns the profile, or `None` for other token types.
    pub fn profile(&self) -> Option<Profile> {
        Profile::from_token_type(self.token_type)
    }

    /// Returns the name of the issuer.
    pub fn issuer_name(&self) -> &str {
        &self.issuer_name
    }

    /// Returns the origins. An empty list means any origin.
    pub fn origins(&self) -> impl Iterator<Item = &str> {
        self.origin_info.split(',').filter(|name| !name.is_empty())
    }

    /// Returns the redemption context.
    pub fn redemption_context(&self) -> Option<&[u8; 32]> {
        self.redemption_context.as_ref()
    }

    /// Returns the credential context.
    pub fn credential_context(&self) -> Option<&[u8; 32]> {
        self.credential_context.as_ref()
    }

    fn has_credential_context(&self) -> bool {
        self.profile() == Some(Profile::P256)
    }
}

fn put_context(bytes: &mut Vec<u8>, context: Option<[u8; 32]>) {
    let context = context.as_ref().map_or([].as_slice(), |context| context);
    bytes.push(context.len() as u8);
    bytes.extend_from_slice(context);
}

fn name<'a>(part: &'static str, name: &'a str) -> Result<&'a str, MessageError> {
    let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    match name.len() {
        1..=255 if name.bytes().all(is_of_host) => Ok(name),
        1..=255 => Err(MessageError::Malformed(part)),
        _ => Err(MessageError::Length(part)),
    }
}

fn origin_info(text: &str) -> Result<&str, MessageError> {
    if !text.is_empty() {
        let mut origins = text.split(',');
        origins.try_for_each(|origin| name(TokenChallenge::ORIGIN_INFO, origin).map(drop))?;
    }
    Ok(text)
}
