//! Keys: four secret scalars, three public points, and the id that both sides derive from the points.

use std::{fmt, sync::Arc};

use p256::NistP256;
use p384::{
    NistP384,
    elliptic_curve::{
        Group,
        ff::{Field, PrimeField},
    },
};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use super::{
    Profile,
    error::{KeyError, RandomnessError},
    suite::{Suite, random_scalar},
    wire::{Reader, encode},
};

/// The SHA-256 digest of a public key (`issuer_key_id`), for both profiles.
///
/// ```
/// use tower_quota::privacy_pass::KeyId;
///
/// let id = KeyId::from_bytes([0x9f; 32]);
/// assert_eq!(id.truncated(), 0x9f);
/// assert_eq!(id.to_string(), "9f".repeat(32));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; 32]);

impl KeyId {
    /// The id with these bytes, as a token has it.
    #[inline]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest.
    #[inline]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The last byte, by which a request for a credential names the key.
    #[inline]
    pub const fn truncated(&self) -> u8 {
        self.0[31]
    }
}

/// In hexadecimal digits.
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

/// The public half of an issuer's key: what a client needs to get and to use a credential, and what the issuer's directory
/// and an origin's challenge show as `token-key`.
///
/// It verifies no token: that takes the [`IssuerKey`].
///
/// ```
/// use tower_quota::privacy_pass::{IssuerKey, KeyError, Profile, PublicKey};
///
/// let issuer = IssuerKey::generate(Profile::P256)?;
/// let public = PublicKey::from_bytes(Profile::P256, issuer.public_key().as_bytes())?;
/// assert_eq!(public.key_id(), issuer.key_id());
/// assert_eq!(&public, issuer.public_key());
///
/// // The identity is no valid part of a key.
/// assert_eq!(PublicKey::from_bytes(Profile::P256, &[0; 99]), Err(KeyError::Malformed));
/// # Ok::<_, KeyError>(())
/// ```
#[derive(Clone)]
pub struct PublicKey {
    profile: Profile,
    id: KeyId,
    bytes: Arc<[u8]>,
}

impl PublicKey {
    /// Reads a public key of this profile: three compressed points.
    ///
    /// # Errors
    ///
    /// [`KeyError::Length`], and [`KeyError::Malformed`] where a part is no point of the curve, or the identity.
    pub fn from_bytes(profile: Profile, bytes: &[u8]) -> Result<Self, KeyError> {
        KeyError::check_length(profile.public_key_len(), bytes)?;
        match profile {
            Profile::P384 => read_points::<NistP384>(bytes).map(|_| ()),
            Profile::P256 => read_points::<NistP256>(bytes).map(|_| ()),
        }
        .ok_or(KeyError::Malformed)?;
        Ok(Self::new(profile, bytes))
    }

    fn new(profile: Profile, bytes: &[u8]) -> Self {
        Self {
            profile,
            id: KeyId(Sha256::digest(bytes).into()),
            bytes: bytes.into(),
        }
    }

    /// The profile that the key is for.
    #[inline]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The digest of the serialized key.
    #[inline]
    pub fn key_id(&self) -> KeyId {
        self.id
    }

    /// The serialized key.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
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

/// The points of a public key: X0, X1 and X2.
pub(super) fn read_points<S: Suite>(bytes: &[u8]) -> Option<[S::Element; 3]> {
    let mut reader = Reader::new(bytes);
    let points = reader.elements::<S, 3>()?;
    reader.end()?;
    Some(points)
}

/// The private key, which makes credentials and verifies tokens.
///
/// Issuer and origin need the same one. Whoever has it can make any number of credentials, so keep it where you keep keys
/// of TLS. Clones share one copy of the secret, which is wiped when the last of them is dropped; `Debug` shows the key id
/// only.
///
/// ```
/// use tower_quota::privacy_pass::{IssuerKey, Profile};
///
/// let key = IssuerKey::generate(Profile::P256)?;
/// // Into a secret store, and from there into all instances:
/// let secret = key.to_bytes();
/// let loaded = IssuerKey::from_bytes(Profile::P256, &secret)?;
/// assert_eq!(loaded.key_id(), key.key_id());
/// assert!(format!("{key:?}").contains(&key.key_id().to_string()));
/// # Ok::<_, tower_quota::privacy_pass::KeyError>(())
/// ```
#[derive(Clone)]
pub struct IssuerKey {
    public: PublicKey,
    secrets: Arc<dyn Private>,
}

/// What a private key does, whatever its profile.
pub(super) trait Private: Send + Sync {
    fn to_bytes(&self) -> Zeroizing<Vec<u8>>;
}

impl IssuerKey {
    /// Draws a new key.
    ///
    /// # Errors
    ///
    /// [`KeyError::Randomness`] where the operating system gives no random bytes.
    pub fn generate(profile: Profile) -> Result<Self, KeyError> {
        match profile {
            Profile::P384 => Self::new(Secrets::<NistP384>::generate()?),
            Profile::P256 => Self::new(Secrets::<NistP256>::generate()?),
        }
    }

    /// Reads a private key of this profile: the scalars x0, x1, x2 and x0Blinding, each of fixed width and big-endian. No
    /// draft says how a private key is stored; swift-crypto has the same format.
    ///
    /// # Errors
    ///
    /// [`KeyError::Length`], and [`KeyError::Malformed`] where a scalar is zero or not below the order of the group.
    pub fn from_bytes(profile: Profile, bytes: &[u8]) -> Result<Self, KeyError> {
        KeyError::check_length(profile.private_key_len(), bytes)?;
        match profile {
            Profile::P384 => Self::new(Secrets::<NistP384>::read(bytes)?),
            Profile::P256 => Self::new(Secrets::<NistP256>::read(bytes)?),
        }
    }

    fn new<S: Suite>(secrets: Secrets<S>) -> Result<Self, KeyError> {
        Ok(Self {
            public: PublicKey::new(S::PROFILE, &secrets.public_bytes()?),
            secrets: Arc::new(secrets),
        })
    }

    /// The private key in the format of [`from_bytes`](Self::from_bytes). The bytes are wiped when they are dropped.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        self.secrets.to_bytes()
    }

    /// The profile that the key is for.
    #[inline]
    pub fn profile(&self) -> Profile {
        self.public.profile
    }

    /// The digest of the public key.
    #[inline]
    pub fn key_id(&self) -> KeyId {
        self.public.id
    }

    /// The public half.
    #[inline]
    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }
}

impl fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerKey")
            .field("profile", &self.public.profile)
            .field("key_id", &self.public.id)
            .finish_non_exhaustive()
    }
}

/// What the drafts call x0, x1, x2 and x0Blinding.
pub(super) struct Secrets<S: Suite> {
    pub(super) x0: Zeroizing<S::Scalar>,
    pub(super) x1: Zeroizing<S::Scalar>,
    pub(super) x2: Zeroizing<S::Scalar>,
    pub(super) xb: Zeroizing<S::Scalar>,
}

impl<S: Suite> Secrets<S> {
    fn generate() -> Result<Self, RandomnessError> {
        Ok(Self {
            x0: random_scalar::<S>()?,
            x1: random_scalar::<S>()?,
            x2: random_scalar::<S>()?,
            xb: random_scalar::<S>()?,
        })
    }

    fn read(bytes: &[u8]) -> Result<Self, KeyError> {
        let mut reader = Reader::new(bytes);
        let mut scalar = || {
            let scalar = reader.scalar::<S>().map(Zeroizing::new).ok_or(KeyError::Malformed)?;
            (!bool::from(scalar.is_zero()))
                .then_some(scalar)
                .ok_or(KeyError::Malformed)
        };
        Ok(Self {
            x0: scalar()?,
            x1: scalar()?,
            x2: scalar()?,
            xb: scalar()?,
        })
    }

    /// The serialized public key. That X0 is the identity takes scalars chosen for it.
    fn public_bytes(&self) -> Result<Vec<u8>, KeyError> {
        let h = S::generator_h();
        let x0 = S::Element::mul_by_generator(&self.x0) + h * *self.xb;
        encode::<S>(&[x0, h * *self.x1, h * *self.x2]).ok_or(KeyError::Malformed)
    }
}

impl<S: Suite> Private for Secrets<S> {
    fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(S::PROFILE.private_key_len()));
        for scalar in [&self.x0, &self.x1, &self.x2, &self.xb] {
            let mut repr = scalar.to_repr();
            bytes.extend_from_slice(repr.as_ref());
            repr.as_mut().zeroize();
        }
        bytes
    }
}
