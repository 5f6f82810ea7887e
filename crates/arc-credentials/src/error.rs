use std::{error::Error, fmt};

/// The error of an operating system that provides no random bytes. Retry later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomnessError(getrandom::Error);

impl RandomnessError {
    pub(super) fn new(cause: getrandom::Error) -> Self {
        Self(cause)
    }
}

impl fmt::Display for RandomnessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operating system returned no random bytes: {}", self.0)
    }
}

impl Error for RandomnessError {}

/// An error of keys, credentials, responses and presentations, without the invalid bytes.
///
/// ```
/// use arc_credentials::{CredentialError, IssuerKey, Profile};
///
/// let error = IssuerKey::from_bytes(Profile::P256, &[7; 192]).unwrap_err();
/// assert_eq!(error, CredentialError::Length { expected: 128, actual: 192 });
/// assert_eq!(error.to_string(), "invalid length: 192 bytes instead of 128");
///
/// let error = IssuerKey::from_bytes(Profile::P256, &[255; 128]).unwrap_err();
/// assert_eq!(error, CredentialError::Malformed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CredentialError {
    /// The length does not match the profile.
    Length {
        /// The expected length in bytes.
        expected: usize,
        /// The actual length in bytes.
        actual: usize,
    },
    /// A part is not a compressed point, or not a nonzero scalar below the order of the group.
    Malformed,
    /// The bytes are not a request, or its proof is invalid: status 422 over HTTP.
    InvalidRequest,
    /// All nonces below the limit are used. Wait for the next context.
    LimitReached,
    /// The nonce is not below the limit, or is the random one that the credential cannot use (below 2³² with a
    /// probability of 2⁻²²⁴).
    Nonce,
    /// No random bytes are available. Retry later, with the same request and the same nonce.
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
                return write!(f, "invalid length: {actual} bytes instead of {expected}");
            }
            Self::Randomness(error) => return error.fmt(f),
            Self::Malformed => "invalid scalar or point",
            Self::InvalidRequest => "invalid credential request",
            Self::LimitReached => "all presentations for this context are used up",
            Self::Nonce => "nonce is not below the limit",
        })
    }
}

impl Error for CredentialError {}

/// The error of a presentation or response that does not verify, without a reason, which only a forger would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerificationError;

impl fmt::Display for VerificationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("verification failed")
    }
}

impl Error for VerificationError {}
