use std::fmt;

use p384::elliptic_curve::{Group, ops::LinearCombination};

use super::{
    Profile,
    key::KeyPair,
    proof::{Equation, Relation, Transcript},
    suite::Suite,
    wire::Reader,
};

/// Scalars: m1, z, -r, nonce. Elements: G, H, U, U'Commit, m1Commit, V, X1, tag, T, m1Tag.
pub(super) static PRESENTATION: Relation = Relation {
    name: b"CredentialPresentation",
    scalars: 4,
    equations: &[
        Equation::new(4, &[(0, 2), (1, 1)]),
        // The origin computes V with its private key.
        Equation::new(5, &[(1, 6), (2, 0)]).keyed(),
        Equation::new(8, &[(0, 7), (3, 7)]),
        Equation::new(9, &[(0, 7)]),
    ],
};

/// The tag of a presentation, a compressed point, by which an origin detects a second use.
///
/// Tags are equal only if credential, presentation context and nonce are. Different tags cannot be linked.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    bytes: [u8; Profile::P384.tag_len()],
    length: u8,
}

impl Tag {
    /// Need not be valid.
    pub(super) fn of(profile: Profile, presentation: &[u8]) -> Option<Self> {
        let length = profile.tag_len();
        let tag = presentation.get(3 * length..4 * length)?;
        let mut bytes = [0; Profile::P384.tag_len()];
        bytes[..length].copy_from_slice(tag);
        Some(Self {
            bytes,
            length: length as u8,
        })
    }

    /// Returns the tag of [`tag_len`](Profile::tag_len) bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tag(")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

pub(super) struct Presented<'a> {
    pub(super) presentation: &'a [u8],
    pub(super) request_context: &'a [u8],
    pub(super) presentation_context: &'a [u8],
    pub(super) nonce: u32,
    pub(super) limit: u32,
}

pub(super) fn verify<S: Suite, T: Transcript<S>>(key: &KeyPair<S>, presented: &Presented<'_>) -> Option<Tag> {
    let (presentation, nonce) = (presented.presentation, presented.nonce);
    // The drafts reject only nonces above the limit, which allows one presentation too many.
    if nonce >= presented.limit || presentation.len() != S::PROFILE.presentation_len() {
        return None;
    }
    let mut reader = Reader::new(presentation);
    let [u, u_prime_commit, m1_commit, tag] = reader.elements::<S, 4>()?;
    let m2 = S::request_scalar(presented.request_context);
    let base = S::tag_base(presented.presentation_context);
    let [_, x1, _] = key.public;
    let keyed = [(u, *key.x0 + *key.x2 * m2), (m1_commit, *key.x1)];
    let v = S::Element::lincomb(&keyed[..]) - u_prime_commit;
    let m1_tag = base - times::<S>(tag, nonce);
    let (g, h) = (S::Element::generator(), S::generator_h());
    let elements = [g, h, u, u_prime_commit, m1_commit, v, x1, tag, base, m1_tag];
    PRESENTATION.verify::<S, T>(&elements, &mut reader)?;
    reader.end()?;
    Tag::of(S::PROFILE, presentation)
}

/// For small numbers, cheaper than a scalar multiplication.
fn times<S: Suite>(element: S::Element, factor: u32) -> S::Element {
    let bits = (0..u32::BITS - factor.leading_zeros()).rev();
    bits.fold(S::Element::identity(), |product, bit| {
        let doubled = product.double();
        match factor >> bit & 1 {
            0 => doubled,
            _ => doubled + element,
        }
    })
}
