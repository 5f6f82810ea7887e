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

/// A private key, with which an issuer issues credentials and an origin verifies tokens.
///
/// Anyone who has it can issue any number of credentials: protect it like a TLS key. Clones share one copy of the
/// secret, which is zeroed when the last one is dropped. `Debug` omits it.
///
/// ```
/// use arc_credentials::{IssuerKey, Profile};
///
/// let key = IssuerKey::generate(Profile::P256)?;
/// // Save the secret in a secret store and load it in all instances.
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
    /// Generates a random key. Fails with [`CredentialError::Randomness`].
    pub fn generate(profile: Profile) -> Result<Self, CredentialError> {
        Self::new(match profile {
            Profile::P384 => OfSuite::P384(KeyPair::generate(&mut OperatingSystem)?),
            Profile::P256 => OfSuite::P256(KeyPair::generate(&mut OperatingSystem)?),
        })
    }

    /// Deserializes a private key: the fixed-width, big-endian scalars x0, x1, x2 and x0Blinding, as in swift-crypto.
    ///
    /// # Errors
    ///
    /// Returns [`CredentialError::Length`] or [`CredentialError::Malformed`].
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
        // X0 is the identity only if the scalars were chosen for that purpose.
        let bytes = bytes.ok_or(CredentialError::Malformed)?;
        Ok(Self {
            public: PublicKey::new(points, &bytes),
            pair: Arc::new(pair),
        })
    }

    /// Serializes the private key for [`from_bytes`](Self::from_bytes). The bytes are zeroed on drop.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        with_suite!(&*self.pair, pair => pair.to_bytes())
    }

    /// Issues a credential: returns the response to a request.
    ///
    /// Takes milliseconds of CPU time: call it on a thread for blocking work.
    ///
    /// # Security
    ///
    /// Every valid request is accepted. Check that the client is entitled to a credential first.
    ///
    /// # Errors
    ///
    /// Returns [`CredentialError::InvalidRequest`] or [`CredentialError::Randomness`].
    pub fn issue(&self, request: &[u8]) -> Result<Vec<u8>, CredentialError> {
        with_suite!(&*self.pair, pair => respond::<_, Labelled>(pair, request, &mut OperatingSystem))
    }

    /// Verifies a presentation and returns its tag.
    ///
    /// The presentation was created by a credential of this key, with these contexts and this nonce below `limit`.
    /// Takes milliseconds of CPU time, like [`issue`](Self::issue).
    ///
    /// # Security
    ///
    /// This does not enforce the limit: also reject tags that were already used in this presentation context.
    ///
    /// # Errors
    ///
    /// Returns [`VerificationError`] if the presentation is invalid.
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

    /// Returns the profile of the key.
    #[inline]
    pub fn profile(&self) -> Profile {
        self.public.profile()
    }

    /// Returns the digest of the public key.
    #[inline]
    pub fn key_id(&self) -> KeyId {
        self.public.key_id()
    }

    /// Returns the public key.
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
