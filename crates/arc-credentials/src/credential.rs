use std::fmt;

use p256::NistP256;
use p384::{
    NistP384,
    elliptic_curve::{Group, ff::Field, ops::LinearCombination},
};
use zeroize::Zeroizing;

use super::{
    Profile,
    error::{CredentialError, RandomnessError},
    presentation::{PRESENTATION, Tag},
    proof::{Labelled, Transcript},
    randomness::{OperatingSystem, Random},
    suite::{OfSuite, Suite, with_suite},
    wire::{Reader, encode, encode_secrets},
};

/// A credential: the secret from which a client creates its tokens.
///
/// A credential does not track nonces: use one [`UsedNonces`](super::UsedNonces) for each presentation context. **Using
/// a nonce twice in one context produces two equal tags**, and the origin rejects the second. The secrets are zeroed on
/// drop.
pub struct Credential(pub(super) OfSuite<Box<Held<NistP384>>, Box<Held<NistP256>>>);

impl Credential {
    /// Deserializes the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// Returns [`CredentialError::Length`] or [`CredentialError::Malformed`].
    pub fn from_bytes(profile: Profile, bytes: &[u8]) -> Result<Self, CredentialError> {
        CredentialError::check_length(profile.scalar_len() + 3 * profile.element_len(), bytes)?;
        let held = match profile {
            Profile::P384 => Held::read(bytes).map(OfSuite::P384),
            Profile::P256 => Held::read(bytes).map(OfSuite::P256),
        };
        held.map(Self).ok_or(CredentialError::Malformed)
    }

    /// Serializes the values m1, U, U' and X1 of the drafts, in a format of this crate.
    ///
    /// The bytes are as secret as the credential, and are zeroed on drop.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        with_suite!(&self.0, held => held.to_bytes())
    }

    /// Returns the profile.
    pub fn profile(&self) -> Profile {
        self.0.profile()
    }

    /// Creates a presentation with a nonce below `limit`.
    ///
    /// # Errors
    ///
    /// Returns [`CredentialError::Nonce`] or [`CredentialError::Randomness`].
    pub fn present(
        &self,
        presentation_context: &[u8],
        nonce: u32,
        limit: u32,
    ) -> Result<Presentation, CredentialError> {
        match nonce < limit {
            true => with_suite!(&self.0, held => held.present(presentation_context, nonce)),
            false => Err(CredentialError::Nonce),
        }
    }
}

/// Omits secrets.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("profile", &self.profile())
            .finish_non_exhaustive()
    }
}

/// A single use of a credential, which a token carries with its nonce.
#[derive(Clone, PartialEq, Eq)]
pub struct Presentation {
    bytes: Vec<u8>,
    tag: Tag,
}

impl Presentation {
    /// Returns the presentation, of [`presentation_len`](Profile::presentation_len) bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the tag, by which the origin detects a second use.
    #[inline]
    pub fn tag(&self) -> Tag {
        self.tag
    }
}

impl fmt::Debug for Presentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presentation")
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

pub(super) struct Held<S: Suite> {
    m1: Zeroizing<S::Scalar>,
    u: S::Element,
    u_prime: S::Element,
    x1: S::Element,
}

impl<S: Suite> Held<S> {
    /// `None` if U' is the identity, which allows no presentations.
    pub(super) fn new(
        m1: Zeroizing<S::Scalar>,
        u: S::Element,
        u_prime: S::Element,
        x1: S::Element,
    ) -> Option<Box<Self>> {
        (!bool::from(u_prime.is_identity())).then(|| Box::new(Self { m1, u, u_prime, x1 }))
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Box<Self>> {
        let mut reader = Reader::new(bytes);
        let m1 = reader.secret::<S>()?;
        let [u, u_prime, x1] = reader.elements::<S, 3>()?;
        reader.end()?;
        Some(Box::new(Self { m1, u, u_prime, x1 }))
    }

    /// `None` with negligible probability: if an element becomes the identity, or the nonce is the one that the
    /// credential cannot use.
    pub(super) fn presentation<T: Transcript<S>>(
        &self,
        presentation_context: &[u8],
        nonce: u32,
        random: &mut impl Random<S>,
    ) -> Result<Option<Vec<u8>>, RandomnessError> {
        let (a, r, z) = (random.scalar()?, random.scalar()?, random.scalar()?);
        let (g, h) = (S::Element::generator(), S::generator_h());
        let nonce = S::Scalar::from(nonce.into());
        let Some(inverse) = Option::from((*self.m1 + nonce).invert()).map(Zeroizing::<S::Scalar>::new) else {
            return Ok(None);
        };
        let u = self.u * *a;
        let u_prime_commit = self.u_prime * *a + S::Element::mul_by_generator(&r);
        let m1_commit = S::Element::lincomb(&[(u, *self.m1), (h, *z)][..]);
        let base = S::tag_base(presentation_context);
        let tag = base * *inverse;
        let v = self.x1 * *z - S::Element::mul_by_generator(&r);
        let m1_tag = tag * *self.m1;
        let elements = [g, h, u, u_prime_commit, m1_commit, v, self.x1, tag, base, m1_tag];
        let secrets = Zeroizing::new([*self.m1, *z, -*r, nonce]);
        let proof = PRESENTATION.prove::<S, T>(&elements, &*secrets, random)?;
        let enc = encode::<S>(&[u, u_prime_commit, m1_commit, tag]);
        Ok(enc.zip(proof).map(|(enc, proof)| [enc, proof].concat()))
    }

    fn present(&self, presentation_context: &[u8], nonce: u32) -> Result<Presentation, CredentialError> {
        let bytes = self.presentation::<Labelled>(presentation_context, nonce, &mut OperatingSystem)?;
        let bytes = bytes.ok_or(CredentialError::Nonce)?;
        let tag = Tag::of(S::PROFILE, &bytes).ok_or(CredentialError::Nonce)?;
        Ok(Presentation { bytes, tag })
    }

    pub(super) fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let points = encode::<S>(&[self.u, self.u_prime, self.x1]).unwrap_or_default();
        encode_secrets::<S>(&[&self.m1], &points)
    }
}
