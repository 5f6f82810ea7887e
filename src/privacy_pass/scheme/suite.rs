//! Group, hash functions and encodings of one profile. Everything else in the scheme is generic over them.

use std::sync::OnceLock;

use hash2curve::{ExpandMsgXmd, GroupDigest, hash_to_scalar};
use p256::NistP256;
use p384::{
    NistP384,
    elliptic_curve::{
        CurveGroup, Group,
        consts::{U48, U72},
        ff::{Field, PrimeField},
        group::GroupEncoding,
        ops::{LinearCombination, MulByGeneratorVartime},
    },
};
use sha2::{Sha256, Sha384};
use zeroize::{DefaultIsZeroes, Zeroize, Zeroizing};

use super::{Profile, error::RandomnessError, wire};

/// What the drafts call a ciphersuite.
pub(super) trait Suite: Sized + 'static {
    const PROFILE: Profile;
    /// The `contextString`, a part of every domain separation tag.
    const CONTEXT: &'static [u8];

    type Scalar: PrimeField + DefaultIsZeroes;
    type Element: CurveGroup<Scalar = Self::Scalar>
        + Group<Scalar = Self::Scalar>
        + GroupEncoding
        + LinearCombination<[(Self::Element, Self::Scalar)]>
        + MulByGeneratorVartime
        + Send
        + Sync;

    fn hash_to_group(message: &[u8], info: &[u8]) -> Self::Element;

    #[allow(dead_code, reason = "until proofs are there")]
    /// The domain separation tag ends in all of `info`, one after the other.
    fn hash_to_scalar(message: &[u8], info: &[&[u8]]) -> Self::Scalar;

    /// The second generator, whose discrete logarithm is unknown.
    fn generator_h() -> Self::Element;
}

const NOT_TOO_LONG: &str = "the domain separation tag is neither empty nor too long for RFC 9380";

macro_rules! suite {
    ($curve:ident, $profile:ident, $context:literal, $hash:ty, $field_length:ty) => {
        impl Suite for $curve {
            const PROFILE: Profile = Profile::$profile;
            const CONTEXT: &'static [u8] = $context;

            type Scalar = p384::elliptic_curve::Scalar<$curve>;
            type Element = p384::elliptic_curve::ProjectivePoint<$curve>;

            fn hash_to_group(message: &[u8], info: &[u8]) -> Self::Element {
                Self::hash_from_bytes(&[message], &[b"HashToGroup-", Self::CONTEXT, info]).expect(NOT_TOO_LONG)
            }

            fn hash_to_scalar(message: &[u8], info: &[&[u8]]) -> Self::Scalar {
                let tag = [&[b"HashToScalar-", Self::CONTEXT], info].concat();
                hash_to_scalar::<Self, ExpandMsgXmd<$hash>, $field_length>(&[message], &tag).expect(NOT_TOO_LONG)
            }

            fn generator_h() -> Self::Element {
                static H: OnceLock<p384::elliptic_curve::ProjectivePoint<$curve>> = OnceLock::new();
                *H.get_or_init(|| {
                    let generator = wire::encode::<Self>(&[Self::Element::generator()]);
                    Self::hash_to_group(&generator.expect("no identity"), b"generatorH")
                })
            }
        }
    };
}

suite!(NistP384, P384, b"ARCV1-P384", Sha384, U72);
suite!(NistP256, P256, b"ARCV1-P256", Sha256, U48);

/// A random scalar from 1 up to the order.
pub(super) fn random_scalar<S: Suite>() -> Result<Zeroizing<S::Scalar>, RandomnessError> {
    loop {
        let mut repr = <S::Scalar as PrimeField>::Repr::default();
        getrandom::fill(repr.as_mut()).map_err(RandomnessError::new)?;
        let scalar = Option::<S::Scalar>::from(S::Scalar::from_repr(repr));
        let scalar = scalar
            .filter(|scalar| !bool::from(scalar.is_zero()))
            .map(Zeroizing::new);
        repr.as_mut().zeroize();
        if let Some(scalar) = scalar {
            return Ok(scalar);
        }
    }
}
