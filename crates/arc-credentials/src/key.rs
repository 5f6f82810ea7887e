//! Keys: four secret scalars, three public points, and the id that both sides derive from the points.

use std::{fmt, sync::Arc};

use p256::NistP256;
use p384::{NistP384, elliptic_curve::Group};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::{
    Profile,
    error::{CredentialError, VerificationError},
    issuance::respond,
    presentation::{Presented, Tag, verify},
    proof::Labelled,
    randomness::{OperatingSystem, Random},
    suite::{OfSuite, Suite, with_suite},
    wire::{Reader, encode, encode_secrets},
};

/// The SHA-256 digest of a public key (`issuer_key_id`), for both profiles.
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
/// use arc_credentials::{CredentialError, IssuerKey, Profile, PublicKey};
///
/// let issuer = IssuerKey::generate(Profile::P256)?;
/// let public = PublicKey::from_bytes(Profile::P256, issuer.public_key().as_bytes())?;
/// assert_eq!(public.key_id(), issuer.key_id());
/// assert_eq!(&public, issuer.public_key());
///
/// // The identity is no valid part of a key.
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
    /// Reads a public key of this profile: three compressed points.
    ///
    /// # Errors
    ///
    /// [`CredentialError::Length`], and [`CredentialError::Malformed`] where a part is no point of the curve, or the identity.
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

    /// The bytes are those of the points.
    fn new(points: Points, bytes: &[u8]) -> Self {
        Self {
            profile: points.profile(),
            id: KeyId(Sha256::digest(bytes).into()),
            bytes: bytes.into(),
            points: Arc::new(points),
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

/// The private key, which makes credentials and verifies tokens.
///
/// Issuer and origin need the same one. Each holder of it can make any number of credentials, so keep it where you keep keys
/// of TLS. Clones share one copy of the secret, which is wiped when the last of them is dropped; `Debug` shows the key id
/// only.
///
/// ```
/// use arc_credentials::{IssuerKey, Profile};
///
/// let key = IssuerKey::generate(Profile::P256)?;
/// // Into a secret store, and from there into all instances:
/// let secret = key.to_bytes();
/// let loaded = IssuerKey::from_bytes(Profile::P256, &secret)?;
/// assert_eq!(loaded.key_id(), key.key_id());
/// assert!(format!("{key:?}").contains(&key.key_id().to_string()));
/// # Ok::<_, arc_credentials::CredentialError>(())
/// ```
#[derive(Clone)]
pub struct IssuerKey {
    public: PublicKey,
    pair: Arc<Pair>,
}

type Pair = OfSuite<KeyPair<NistP384>, KeyPair<NistP256>>;

impl IssuerKey {
    /// Draws a new key.
    ///
    /// # Errors
    ///
    /// [`CredentialError::Randomness`] where the operating system gives no random bytes.
    pub fn generate(profile: Profile) -> Result<Self, CredentialError> {
        Self::new(match profile {
            Profile::P384 => OfSuite::P384(KeyPair::generate(&mut OperatingSystem)?),
            Profile::P256 => OfSuite::P256(KeyPair::generate(&mut OperatingSystem)?),
        })
    }

    /// Reads a private key of this profile: the scalars x0, x1, x2 and x0Blinding, each of fixed width and big-endian. No
    /// draft says how a private key is stored; swift-crypto has the same format.
    ///
    /// # Errors
    ///
    /// [`CredentialError::Length`], and [`CredentialError::Malformed`] where a scalar is zero or not below the order of the group.
    pub fn from_bytes(profile: Profile, bytes: &[u8]) -> Result<Self, CredentialError> {
        CredentialError::check_length(profile.private_key_len(), bytes)?;
        Self::new(match profile {
            Profile::P384 => OfSuite::P384(KeyPair::read(bytes)?),
            Profile::P256 => OfSuite::P256(KeyPair::read(bytes)?),
        })
    }

    fn new(pair: Pair) -> Result<Self, CredentialError> {
        let (points, bytes) = match &pair {
            OfSuite::P384(pair) => (OfSuite::P384(pair.public), encode::<NistP384>(&pair.public)),
            OfSuite::P256(pair) => (OfSuite::P256(pair.public), encode::<NistP256>(&pair.public)),
        };
        // That X0 is the identity takes scalars chosen for it.
        let bytes = bytes.ok_or(CredentialError::Malformed)?;
        Ok(Self {
            public: PublicKey::new(points, &bytes),
            pair: Arc::new(pair),
        })
    }

    /// The private key in the format of [`from_bytes`](Self::from_bytes). The bytes are wiped when they are dropped.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        with_suite!(&*self.pair, pair => pair.to_bytes())
    }

    /// Answers a request for a credential, [`request_len`](Profile::request_len) bytes, with a response of
    /// [`response_len`](Profile::response_len) bytes. It takes milliseconds of a core, so call it on a thread that may
    /// block.
    ///
    /// The caller decides before about the client: this function gives a credential to any.
    ///
    /// # Errors
    ///
    /// [`CredentialError::InvalidRequest`] where the bytes are no request, or its proof does not verify, and
    /// [`CredentialError::Randomness`].
    pub fn issue(&self, request: &[u8]) -> Result<Vec<u8>, CredentialError> {
        with_suite!(&*self.pair, pair => respond::<_, Labelled>(pair, request, &mut OperatingSystem))
    }

    /// Verifies a presentation: that a credential of this key made it, for this request context, in this presentation
    /// context, with this nonce, which is below the limit. It takes milliseconds of a core, so call it on a thread
    /// that may block.
    ///
    /// The caller then has to reject a tag that it has seen before in this presentation context; until then the
    /// presentation says nothing about a limit.
    ///
    /// # Errors
    ///
    /// [`VerificationError`], whatever is wrong.
    pub fn verify(
        &self,
        presentation: &[u8],
        request_context: &[u8],
        presentation_context: &[u8],
        nonce: u32,
        limit: u32,
    ) -> Result<Tag, VerificationError> {
        let presented = Presented {
            presentation,
            request_context,
            presentation_context,
            nonce,
            limit,
        };
        let tag = with_suite!(&*self.pair, pair => verify::<_, Labelled>(pair, &presented));
        tag.ok_or(VerificationError)
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

/// The values x0, x1, x2 and x0Blinding, and X0, X1 and X2 of the drafts.
pub(super) struct KeyPair<S: Suite> {
    pub(super) x0: Zeroizing<S::Scalar>,
    pub(super) x1: Zeroizing<S::Scalar>,
    pub(super) x2: Zeroizing<S::Scalar>,
    pub(super) xb: Zeroizing<S::Scalar>,
    pub(super) public: [S::Element; 3],
}

impl<S: Suite> KeyPair<S> {
    fn generate(random: &mut impl Random<S>) -> Result<Self, CredentialError> {
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

    fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        encode_secrets::<S>(&[&self.x0, &self.x1, &self.x2, &self.xb], &[])
    }
}
