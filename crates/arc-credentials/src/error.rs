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

/// The reason why there is no key, credential, response or presentation. It never shows the bytes.
///
/// Each function says which of the variants it returns.
///
/// ```
/// use arc_credentials::{CredentialError, IssuerKey, Profile};
///
/// let error = IssuerKey::from_bytes(Profile::P256, &[7; 192]).unwrap_err();
/// assert_eq!(error, CredentialError::Length { expected: 128, actual: 192 });
/// assert_eq!(error.to_string(), "there are 192 bytes, the profile demands 128");
///
/// let error = IssuerKey::from_bytes(Profile::P256, &[255; 128]).unwrap_err();
/// assert_eq!(error, CredentialError::Malformed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CredentialError {
    /// The length is not that of the profile.
    Length {
        /// Bytes of such a key or credential of this profile.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A part is no scalar from 1 up to the order of the group, or no point in compressed form.
    Malformed,
    /// The bytes are no request, or its proof does not verify. HTTP says it with status 422.
    InvalidRequest,
    /// All nonces below the limit were used in this context. Nothing may be sent before the next context.
    LimitReached,
    /// The nonce is not below the limit. A credential also has one nonce that it can never use, which is below 2³² by a
    /// chance of 2⁻²²⁴.
    Nonce,
    /// Nothing was made. Try again later: a client can send the same request, and use the same nonce.
    Randomness(RandomnessError),
}

impl CredentialError {
    pub(super) fn check_length(expected: usize, bytes: &[u8]) -> Result<(), Self> {
        let actual = bytes.len();
        (actual == expected)
            .then_some(())
            .ok_or(Self::Length { expected, actual })
    }
}

impl From<RandomnessError> for CredentialError {
    fn from(error: RandomnessError) -> Self {
        Self::Randomness(error)
    }
}

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length { expected, actual } => {
                return write!(f, "there are {actual} bytes, the profile demands {expected}");
            }
            Self::Randomness(error) => return error.fmt(f),
            Self::Malformed => "a part is no valid scalar or point",
            Self::InvalidRequest => "not a valid request for a credential",
            Self::LimitReached => "all presentations of this context are used",
            Self::Nonce => "the nonce is not below the limit",
        })
    }
}

impl Error for CredentialError {}

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
