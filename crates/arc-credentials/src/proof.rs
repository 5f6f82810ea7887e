//! Proofs of knowledge: that elements are linear combinations of others, with scalars that stay secret (Schnorr, made
//! non-interactive by Fiat and Shamir). The same compiler serves every statement of both profiles.

use p384::elliptic_curve::ops::LinearCombination;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    error::RandomnessError,
    randomness::Random,
    suite::Suite,
    wire::{Reader, encode, put_scalar},
};

/// The statement of a proof: equations between elements, in an order that the challenge depends on.
#[derive(Debug)]
pub(super) struct Relation {
    pub(super) name: &'static [u8],
    /// The number of secret scalars.
    pub(super) scalars: usize,
    pub(super) equations: &'static [Equation],
}

/// One element is the sum of the products of these scalars and elements, all by their places.
#[derive(Debug)]
pub(super) struct Equation {
    target: usize,
    terms: &'static [(usize, usize)],
    /// True if an element of it was computed with a private key and is not sent: its arithmetic is then in constant time
    /// in verification, too.
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

    /// The terms of the sum: each element once, with the sum of its scalars; the target, too, if it has a factor.
    fn products<S: Suite>(
        &self,
        elements: &[S::Element],
        scalars: &[S::Scalar],
        target: Option<S::Scalar>,
    ) -> Zeroizing<Vec<(S::Element, S::Scalar)>> {
        let mut places = Vec::with_capacity(1 + self.terms.len());
        // As long as it can become: a vector that moves leaves a copy behind.
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

/// Draws a challenge from all public values. The versions of the drafts differ in nothing else of a proof.
pub(super) trait Transcript<S: Suite> {
    /// `None` if the identity is among the elements, which no honest prover has there.
    fn challenge(name: &[u8], elements: &[S::Element], commitments: &[S::Element]) -> Option<S::Scalar>;
}

/// The transcript of draft-yun-cfrg-arc-00 and -01, and of draft-ietf-privacypass-arc-crypto-00: each element behind its
/// length. The context string is there twice, once from the label and once from the hash function.
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
    /// The challenge, then one response for each scalar. `None` if an element or a commitment is the identity.
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

    /// Reads a proof and says whether it is one for these elements.
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
