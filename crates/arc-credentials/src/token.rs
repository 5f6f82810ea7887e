use std::fmt;

use super::{
    KeyId, Profile,
    challenge::TokenChallenge,
    message::{MessageError, Reader},
};

/// A token, which responds to a challenge: a presentation with its claimed key and nonce.
///
/// A parsed token is not verified. The proof covers only the presentation: use the other fields only for lookups.
///
/// | profile | fields | length |
/// |---|---|---|
/// | [`Profile::P384`] | type, key id, nonce, presentation | 474 |
/// | [`Profile::P256`] | type, nonce, challenge digest, key id, presentation | 362 |
///
/// ```
/// use arc_credentials::{KeyId, Profile, Token, TokenChallenge};
///
/// let challenge = TokenChallenge::new(Profile::P256, "issuer.example")?;
/// let token = Token::new(&challenge, KeyId::from_bytes([7; 32]), 3, vec![2; 292])?;
/// assert_eq!(token.to_bytes().len(), 362);
/// assert_eq!((token.profile(), token.nonce()), (Profile::P256, 3));
/// assert_eq!(Token::parse(&token.to_bytes()), Ok(token));
/// # Ok::<_, arc_credentials::MessageError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    profile: Profile,
    key: KeyId,
    nonce: u32,
    challenge_digest: Option<[u8; 32]>,
    presentation: Box<[u8]>,
}

impl Token {
    /// The length of the longest token in bytes.
    pub const MAX_LENGTH: usize = 474;

    /// Creates a token that responds to a challenge.
    ///
    /// # Errors
    ///
    /// Returns an error if the token type is not supported, or the presentation has another length.
    pub fn new(
        challenge: &TokenChallenge,
        key: KeyId,
        nonce: u32,
        presentation: Vec<u8>,
    ) -> Result<Self, MessageError> {
        let profile = challenge
            .profile()
            .ok_or(MessageError::TokenType(challenge.token_type()))?;
        if presentation.len() != profile.presentation_len() {
            return Err(MessageError::Length("presentation"));
        }
        Ok(Self {
            profile,
            key,
            nonce,
            challenge_digest: (profile == Profile::P256).then(|| challenge.digest()),
            presentation: presentation.into(),
        })
    }

    /// Parses a token.
    ///
    /// # Errors
    ///
    /// Returns an error if the token type is not supported, or has another length.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut reader = Reader(bytes);
        let token_type = reader.number16("token_type")?;
        let profile = Profile::from_token_type(token_type).ok_or(MessageError::TokenType(token_type))?;
        let nonce = |reader: &mut Reader<'_>| reader.array("presentation_nonce").map(u32::from_be_bytes);
        let key = |reader: &mut Reader<'_>| reader.array("issuer_key_id").map(KeyId::from_bytes);
        let (nonce, challenge_digest, key) = match profile {
            Profile::P384 => {
                let key = key(&mut reader)?;
                (nonce(&mut reader)?, None, key)
            }
            Profile::P256 => {
                let nonce = nonce(&mut reader)?;
                let digest = reader.array("challenge_digest")?;
                (nonce, Some(digest), key(&mut reader)?)
            }
        };
        let presentation = reader.take("presentation", profile.presentation_len())?.into();
        reader.end("token")?;
        Ok(Self {
            profile,
            key,
            nonce,
            challenge_digest,
            presentation,
        })
    }

    /// Serializes the token.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.profile.token_type().to_be_bytes().to_vec();
        match self.profile {
            Profile::P384 => {
                bytes.extend_from_slice(self.key.as_bytes());
                bytes.extend_from_slice(&self.nonce.to_be_bytes());
            }
            Profile::P256 => {
                bytes.extend_from_slice(&self.nonce.to_be_bytes());
                bytes.extend_from_slice(&self.challenge_digest.unwrap_or_default());
                bytes.extend_from_slice(self.key.as_bytes());
            }
        }
        bytes.extend_from_slice(&self.presentation);
        bytes
    }

    /// Returns the profile.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns the claimed ID of the issuer's key.
    pub fn key(&self) -> &KeyId {
        &self.key
    }

    /// Returns the nonce.
    pub fn nonce(&self) -> u32 {
        self.nonce
    }

    /// Returns the digest of the challenge, or `None` for [`Profile::P384`].
    pub fn challenge_digest(&self) -> Option<&[u8; 32]> {
        self.challenge_digest.as_ref()
    }

    /// Returns the unverified tag, to look up spent tags before [`verify`](super::IssuerKey::verify), which returns the
    /// same tag.
    pub fn tag(&self) -> &[u8] {
        let length = self.profile.tag_len();
        &self.presentation[3 * length..4 * length]
    }

    /// Returns the unverified presentation.
    pub fn presentation(&self) -> &[u8] {
        &self.presentation
    }
}

/// Anyone who has the token can spend it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("profile", &self.profile)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
