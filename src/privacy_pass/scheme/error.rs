//! Errors: typed where a caller can mend it, and one error without a reason where a stranger would learn from it.

use std::{error::Error, fmt};

/// The operating system gave no random bytes. Nothing was made; try again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomnessError(getrandom::Error);

impl RandomnessError {
    pub(super) fn new(cause: getrandom::Error) -> Self {
        Self(cause)
    }
}

impl fmt::Display for RandomnessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the operating system gave no random bytes: {}", self.0)
    }
}

impl Error for RandomnessError {}

/// The reason why bytes are no key, or none was generated. It never shows the bytes.
///
/// ```
/// use tower_quota::privacy_pass::{IssuerKey, KeyError, Profile};
///
/// let error = IssuerKey::from_bytes(Profile::P256, &[7; 192]).unwrap_err();
/// assert_eq!(error, KeyError::Length { expected: 128, actual: 192 });
/// assert_eq!(error.to_string(), "the key has 192 bytes, its profile demands 128");
///
/// let error = IssuerKey::from_bytes(Profile::P256, &[255; 128]).unwrap_err();
/// assert_eq!(error, KeyError::Malformed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The length is not that of the profile.
    Length {
        /// Bytes of such a key of this profile.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A part is no scalar from 1 up to the order of the group, or no point in compressed form.
    Malformed,
    /// No key was generated.
    Randomness(RandomnessError),
}

impl KeyError {
    pub(super) fn check_length(expected: usize, bytes: &[u8]) -> Result<(), Self> {
        let actual = bytes.len();
        (actual == expected)
            .then_some(())
            .ok_or(Self::Length { expected, actual })
    }
}

impl From<RandomnessError> for KeyError {
    fn from(error: RandomnessError) -> Self {
        Self::Randomness(error)
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { expected, actual } => {
                write!(f, "the key has {actual} bytes, its profile demands {expected}")
            }
            Self::Malformed => f.write_str("the key has a part that is no valid scalar or point"),
            Self::Randomness(error) => error.fmt(f),
        }
    }
}

impl Error for KeyError {}

/// The reason why no credential was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IssuanceError {
    /// The bytes are no request, or its proof does not verify. HTTP says it with status 422.
    Invalid,
    /// No credential was made; the client can send the same request again later.
    Randomness(RandomnessError),
}

impl From<RandomnessError> for IssuanceError {
    fn from(error: RandomnessError) -> Self {
        Self::Randomness(error)
    }
}

impl fmt::Display for IssuanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str("not a valid request for a credential"),
            Self::Randomness(error) => error.fmt(f),
        }
    }
}

impl Error for IssuanceError {}

/// A presentation or a response does not verify.
///
/// It does not say why, on purpose: whether the length, a point, the context, the nonce or the proof is wrong is something
/// that only a forger would want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationError;

impl fmt::Display for VerificationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("verification failed")
    }
}

impl Error for VerificationError {}

/// The reason why a client cannot present its credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PresentationError {
    /// All nonces below the limit were used in this context. Nothing may be sent before the next context.
    LimitReached,
    /// The nonce is not below the limit. A credential also has one nonce that it can never use, which is below 2³² by a
    /// chance of 2⁻²²⁴.
    Nonce,
    /// No presentation was made; the same nonce can be used later.
    Randomness(RandomnessError),
}

impl From<RandomnessError> for PresentationError {
    fn from(error: RandomnessError) -> Self {
        Self::Randomness(error)
    }
}

impl fmt::Display for PresentationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LimitReached => f.write_str("all presentations of this context are used"),
            Self::Nonce => f.write_str("the nonce is not below the limit"),
            Self::Randomness(error) => error.fmt(f),
        }
    }
}

impl Error for PresentationError {}
