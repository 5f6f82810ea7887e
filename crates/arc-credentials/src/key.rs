use std::{fmt, sync::Arc};

use p256::NistP256;
use p384::{NistP384, elliptic_curve::Group};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{
    Profile,
    error::CredentialError,
    randomness::Random,
    suite::{OfSuite, Suite},
    wire::{Reader, encode_secrets},
};

/// The SHA-256 digest of a public key (`issuer_key_id`).
///
/// ```
/// use arc_credentials::KeyId;
///
/// let id = KeyId::from_bytes([0x9f; 32]);
/// assert_eq!(id.truncated(), 0x9f);
/// assert_eq!(id.to_string(), "9f".repeat(32));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; 32]);

impl KeyId {
    /// Creates a key ID from the bytes in a token.
    #[inline]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the digest.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the last byte, which identifies the key in a request.
    #[inline]
    pub const fn truncated(&self) -> u8 {
        self.0[31]
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// The public key of an issuer, with which clients request and use credentials: `token-key` in directories and
/// challenges.
///
/// ```
/// use arc_credentials::{CredentialError, IssuerKey, Profile, PublicKey};
///
/// let issuer = IssuerKey::generate(Profile::P256)?;
/// let public = PublicKey::from_bytes(Profile::P256, issuer.public_key().as_bytes())?;
/// assert_eq!(public.key_id(), issuer.key_id());
/// assert_eq!(&public, issuer.public_key());
///
/// // The identity is not a valid part of a key.
/// assert_eq!(PublicKey::from_bytes(Profile::P256, &[0; 99]), Err(CredentialError::Malformed));
/// # Ok::<_, CredentialError>(())
/// ```
#[derive(Clone)]
pub struct PublicKey {
    profile: Profile,
    id: KeyId,
    bytes: Arc<[u8]>,
    points: Arc<Points>,
}

/// X0, X1 and X2.
pub(super) type Points = OfSuite<[<NistP384 as Suite>::Element; 3], [<NistP256 as Suite>::Element; 3]>;

impl PublicKey {
    /// Deserializes a public key: three compressed points, none of which is the identity.
    ///
    /// # Errors
    ///
    /// Returns [`CredentialError::Length`] or [`CredentialError::Malformed`].
    pub fn from_bytes(profile: Profile, bytes: &[u8]) -> Result<Self, CredentialError> {
        CredentialError::check_length(profile.public_key_len(), bytes)?;
        let mut reader = Reader::new(bytes);
        let points = match profile {
            Profile::P384 => reader.elements::<NistP384, 3>().map(OfSuite::P384),
            Profile::P256 => reader.elements::<NistP256, 3>().map(OfSuite::P256),
        };
        let points = points.ok_or(CredentialError::Malformed)?;
        Ok(Self::new(points, bytes))
    }

    pub(super) fn new(points: Points, bytes: &[u8]) -> Self {
        Self {
            profile: points.profile(),
            id: KeyId(Sha256::digest(bytes).into()),
            bytes: bytes.into(),
            points: Arc::new(points),
        }
    }

    /// Returns the profile of the key.
    #[inline]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Returns the digest of the serialized key.
    #[inline]
    pub fn key_id(&self) -> KeyId {
        self.id
    }

    /// Returns the serialized key.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn points(&self) -> &Points {
        &self.points
    }
}

impl PartialEq for PublicKey {
    fn eq(&self, other: &Self) -> bool {
        (self.profile, &self.bytes) == (other.profile, &other.bytes)
    }
}

impl Eq for PublicKey {}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey")
            .field("profile", &self.profile)
            .field("key_id", &self.id)
            .finish_non_exhaustive()
    }
}

pub(super) struct KeyPair<S: Suite> {
    pub(super) x0: Zeroizing<S::Scalar>,
    pub(super) x1: Zeroizing<S::Scalar>,
    pub(super) x2: Zeroizing<S::Scalar>,
    pub(super) xb: Zeroizing<S::Scalar>,
    pub(super) public: [S::Element; 3],
}

impl<S: Suite> KeyPair<S> {
    pub(super) fn generate(random: &mut impl Random<S>) -> Result<Self, CredentialError> {
        Self::try_new(|| Ok(random.scalar()?))
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, CredentialError> {
        let mut reader = Reader::new(bytes);
        Self::try_new(|| reader.secret::<S>().ok_or(CredentialError::Malformed))
    }

    fn try_new(
        mut scalar: impl FnMut() -> Result<Zeroizing<S::Scalar>, CredentialError>,
    ) -> Result<Self, CredentialError> {
        let (x0, x1, x2, xb) = (scalar()?, scalar()?, scalar()?, scalar()?);
        let h = S::generator_h();
        let public = [S::Element::mul_by_generator(&x0) + h * *xb, h * *x1, h * *x2];
        Ok(Self { x0, x1, x2, xb, public })
    }

    pub(super) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        encode_secrets::<S>(&[&self.x0, &self.x1, &self.x2, &self.xb], &[])
    }
}
