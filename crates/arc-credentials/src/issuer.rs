//! The key of an issuer and its origins, and what it is for.

use std::{fmt, sync::Arc};

use p256::NistP256;
use p384::NistP384;
use zeroize::Zeroizing;

use super::{
    Profile,
    error::{CredentialError, VerificationError},
    issuance::respond,
    key::{KeyId, KeyPair, PublicKey},
    presentation::{Presented, Tag, verify},
    proof::Labelled,
    randomness::OperatingSystem,
    suite::{OfSuite, with_suite},
    wire::encode,
};

/// The private key, which makes credentials and verifies tokens.
///
/// The issuer and the origin use the same key. Anyone who has it can issue any number of credentials, so protect it like a
/// TLS key. Clones share one copy of the secret, which is zeroed when the last clone is dropped. `Debug` shows only the key
/// ID.
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
        // X0 is the identity only if the scalars were chosen to make it so.
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
    /// context, with this nonce, which is below the limit. Verification takes milliseconds of CPU time: call it on a
    /// thread for blocking work.
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
        self.public.profile()
    }

    /// The digest of the public key.
    #[inline]
    pub fn key_id(&self) -> KeyId {
        self.public.key_id()
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
            .field("profile", &self.profile())
            .field("key_id", &self.key_id())
            .finish_non_exhaustive()
    }
}
