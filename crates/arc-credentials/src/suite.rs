use std::sync::OnceLock;

use hash2curve::{ExpandMsgXmd, GroupDigest, hash_to_scalar};
use p256::NistP256;
use p384::{
    NistP384,
    elliptic_curve::{
        CurveGroup, Group,
        consts::{U48, U72},
        ff::PrimeField,
        group::GroupEncoding,
        ops::{LinearCombination, MulByGeneratorVartime},
    },
};
use sha2::{Sha256, Sha384};
use zeroize::DefaultIsZeroes;

use super::Profile;

/// Public types are not generic over the suite.
pub(super) enum OfSuite<P384, P256> {
    P384(P384),
    P256(P256),
}

impl<P384, P256> OfSuite<P384, P256> {
    pub(super) fn profile(&self) -> Profile {
        match self {
            Self::P384(_) => Profile::P384,
            Self::P256(_) => Profile::P256,
        }
    }
}

macro_rules! with_suite {
    ($of_suite:expr, $value:pat => $result:expr) => {
        match $of_suite {
            OfSuite::P384($value) => $result,
            OfSuite::P256($value) => $result,
        }
    };
}
pub(super) use with_suite;

pub(super) trait Suite: Sized + 'static {
    const PROFILE: Profile;
    const CONTEXT: &'static [u8];

    type Scalar: PrimeField + DefaultIsZeroes;
    type Element: CurveGroup<Scalar = Self::Scalar>
        + Group<Scalar = Self::Scalar>
        + GroupEncoding
        + LinearCombination<[(Self::Element, Self::Scalar)]>
        + DefaultIsZeroes
        + MulByGeneratorVartime
        + Send
        + Sync;

    fn hash_to_group(message: &[u8], info: &[u8]) -> Self::Element;

    /// The domain separation tag ends with the parts of `info`.
    fn hash_to_scalar(message: &[u8], info: &[&[u8]]) -> Self::Scalar;

    /// Its discrete logarithm is unknown.
    fn generator_h() -> Self::Element;

    /// m2, to which a credential is bound.
    fn request_scalar(request_context: &[u8]) -> Self::Scalar {
        Self::hash_to_scalar(request_context, &[b"requestContext"])
    }

    /// T, from which all tags of a presentation context are derived.
    fn tag_base(presentation_context: &[u8]) -> Self::Element {
        Self::hash_to_group(presentation_context, b"Tag")
    }
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
                    let generator = Self::Element::generator().to_bytes();
                    Self::hash_to_group(&generator, b"generatorH")
                })
            }
        }
    };
}

suite!(NistP384, P384, b"ARCV1-P384", Sha384, U72);
suite!(NistP256, P256, b"ARCV1-P256", Sha256, U48);
