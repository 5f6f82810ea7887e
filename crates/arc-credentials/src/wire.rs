//! Fixed-width: compressed points other than the identity, and scalars below the order.

use p384::elliptic_curve::{
    CurveGroup, Group,
    ff::{Field, PrimeField},
    group::{CurveAffine, GroupEncoding},
};

use zeroize::{Zeroize, Zeroizing};

use super::suite::Suite;

/// `None` if an element is the identity, whose encoding would be shorter.
pub(super) fn encode<S: Suite>(elements: &[S::Element]) -> Option<Vec<u8>> {
    if elements.iter().any(|element| element.is_identity().into()) {
        return None;
    }
    let mut affine = vec![<S::Element as CurveGroup>::Affine::identity(); elements.len()];
    // A single inversion for all elements.
    S::Element::batch_normalize(elements, &mut affine);
    let mut bytes = Vec::with_capacity(elements.len() * S::PROFILE.element_len());
    for element in affine {
        bytes.extend_from_slice(element.to_bytes().as_ref());
    }
    Some(bytes)
}

/// The scalar need not remain secret.
pub(super) fn put_scalar<S: Suite>(bytes: &mut Vec<u8>, scalar: &S::Scalar) {
    bytes.extend_from_slice(scalar.to_repr().as_ref());
}

pub(super) fn encode_secrets<S: Suite>(scalars: &[&Zeroizing<S::Scalar>], rest: &[u8]) -> Zeroizing<Vec<u8>> {
    // Allocated with its final capacity, because a reallocation would leave a copy of the secrets.
    let mut bytes = Vec::with_capacity(scalars.len() * S::PROFILE.scalar_len() + rest.len());
    for scalar in scalars {
        let mut repr = scalar.to_repr();
        bytes.extend_from_slice(repr.as_ref());
        repr.as_mut().zeroize();
    }
    bytes.extend_from_slice(rest);
    Zeroizing::new(bytes)
}

/// Parts are in order. Trailing bytes are errors.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn element<S: Suite>(&mut self) -> Option<S::Element> {
        let bytes = self.take(S::PROFILE.element_len())?;
        // Only compressed points, because the decoder below also accepts the identity.
        if !matches!(bytes.first(), Some(2 | 3)) {
            return None;
        }
        let mut repr = <S::Element as GroupEncoding>::Repr::default();
        repr.as_mut().copy_from_slice(bytes);
        S::Element::from_bytes(&repr).into()
    }

    pub(super) fn elements<S: Suite, const N: usize>(&mut self) -> Option<[S::Element; N]> {
        let mut elements = [S::Element::identity(); N];
        for element in &mut elements {
            *element = self.element::<S>()?;
        }
        Some(elements)
    }

    pub(super) fn scalar<S: Suite>(&mut self) -> Option<S::Scalar> {
        let mut repr = <S::Scalar as PrimeField>::Repr::default();
        repr.as_mut().copy_from_slice(self.take(S::PROFILE.scalar_len())?);
        S::Scalar::from_repr(repr).into()
    }

    /// A nonzero scalar, which is zeroed on drop.
    pub(super) fn secret<S: Suite>(&mut self) -> Option<Zeroizing<S::Scalar>> {
        let scalar = self.scalar::<S>().map(Zeroizing::new)?;
        (!bool::from(scalar.is_zero())).then_some(scalar)
    }

    pub(super) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
