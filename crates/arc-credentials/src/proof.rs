//! Schnorr proofs that elements are linear combinations of others with secret scalars, made non-interactive with the
//! Fiat–Shamir transform.

use p384::elliptic_curve::ops::LinearCombination;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    error::RandomnessError,
    randomness::Random,
    suite::Suite,
    wire::{Reader, encode, put_scalar},
};

/// The challenge depends on the order of the equations.
#[derive(Debug)]
pub(super) struct Relation {
    pub(super) name: &'static [u8],
    pub(super) scalars: usize,
    pub(super) equations: &'static [Equation],
}

/// A sum of products of scalars and elements, all given by index.
#[derive(Debug)]
pub(super) struct Equation {
    target: usize,
    terms: &'static [(usize, usize)],
    /// Computed with a private key and not sent. Verification then runs in constant time, too.
    is_keyed: bool,
}

impl Equation {
    pub(super) const fn new(target: usize, terms: &'static [(usize, usize)]) -> Self {
        Self {
            target,
            terms,
            is_keyed: false,
        }
    }

    pub(super) const fn keyed(self) -> Self {
        Self { is_keyed: true, ..self }
    }

    /// Each element once, with the sum of its scalars. Includes the target if it has a factor.
    fn products<S: Suite>(
        &self,
        elements: &[S::Element],
        scalars: &[S::Scalar],
        target: Option<S::Scalar>,
    ) -> Zeroizing<Vec<(S::Element, S::Scalar)>> {
        let mut places = Vec::with_capacity(1 + self.terms.len());
        // Allocated with its final capacity, because a reallocation would leave a copy of the secrets.
        let mut products = Zeroizing::new(Vec::with_capacity(1 + self.terms.len()));
        let target = target.map(|factor| (factor, self.target));
        let terms = self.terms.iter().map(|&(scalar, element)| (scalars[scalar], element));
        for (scalar, element) in target.into_iter().chain(terms) {
            match places.iter().position(|place| *place == element) {
                Some(place) => {
                    let (_, sum): &mut (S::Element, S::Scalar) = &mut products[place];
                    *sum += scalar;
                }
                None => {
                    places.push(element);
                    products.push((elements[element], scalar));
                }
            }
        }
        products
    }
}

/// The only part of a proof that differs between draft versions.
pub(super) trait Transcript<S: Suite> {
    /// `None` if an element is the identity, which an honest prover never sends.
    fn challenge(name: &[u8], elements: &[S::Element], commitments: &[S::Element]) -> Option<S::Scalar>;
}

/// The transcript of draft-yun-cfrg-arc-00 and -01 and of draft-ietf-privacypass-arc-crypto-00, whose elements have a
/// length prefix. The input contains the context string twice: from the label and from the hash function.
#[derive(Debug)]
pub(super) struct Labelled;

impl<S: Suite> Transcript<S> for Labelled {
    fn challenge(name: &[u8], elements: &[S::Element], commitments: &[S::Element]) -> Option<S::Scalar> {
        let input = challenge_input::<S>(elements, commitments)?;
        Some(S::hash_to_scalar(&input, &[S::CONTEXT, name]))
    }
}

pub(super) fn challenge_input<S: Suite>(elements: &[S::Element], commitments: &[S::Element]) -> Option<Vec<u8>> {
    let encoded = encode::<S>(&[elements, commitments].concat())?;
    let length = S::PROFILE.element_len();
    let mut input = Vec::with_capacity(encoded.len() / length * (length + 2));
    for element in encoded.chunks_exact(length) {
        input.extend_from_slice(&[0, length as u8]);
        input.extend_from_slice(element);
    }
    Some(input)
}

impl Relation {
    /// The challenge, followed by one response for each scalar.
    pub(super) fn prove<S: Suite, T: Transcript<S>>(
        &self,
        elements: &[S::Element],
        secrets: &[S::Scalar],
        random: &mut impl Random<S>,
    ) -> Result<Option<Vec<u8>>, RandomnessError> {
        let mut blindings = Zeroizing::new(Vec::with_capacity(self.scalars));
        for _ in 0..self.scalars {
            blindings.push(*random.scalar()?);
        }
        let commitments: Vec<_> = self
            .equations
            .iter()
            .map(|equation| S::Element::lincomb(&equation.products::<S>(elements, &blindings, None)))
            .collect();
        let Some(challenge) = T::challenge(self.name, elements, &commitments) else {
            return Ok(None);
        };
        let mut proof = Vec::with_capacity((1 + self.scalars) * S::PROFILE.scalar_len());
        put_scalar::<S>(&mut proof, &challenge);
        for (blinding, secret) in blindings.iter().zip(secrets) {
            put_scalar::<S>(&mut proof, &(*blinding - challenge * secret));
        }
        Ok(Some(proof))
    }

    pub(super) fn verify<S: Suite, T: Transcript<S>>(
        &self,
        elements: &[S::Element],
        proof: &mut Reader<'_>,
    ) -> Option<()> {
        let challenge = proof.scalar::<S>()?;
        let responses: Option<Vec<_>> = (0..self.scalars).map(|_| proof.scalar::<S>()).collect();
        let responses = responses?;
        let commitments: Vec<_> = self
            .equations
            .iter()
            .map(|equation| {
                let products = equation.products::<S>(elements, &responses, Some(challenge));
                match equation.is_keyed {
                    true => S::Element::lincomb(&products),
                    false => S::Element::lincomb_vartime(&products),
                }
            })
            .collect();
        let expected = T::challenge(self.name, elements, &commitments)?;
        bool::from(expected.ct_eq(&challenge)).then_some(())
    }
}
