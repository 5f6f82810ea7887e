//! The time of verifying one anonymous token over P-256, relative to the curve operations that it consists of.
//!
//!     cargo bench -p tower-quota-tests --bench verification
//!
//! Calls `IssuerKey::verify`, and each kind of operation alone with the inputs of the same presentation, in turns for
//! `ROUNDS` (201) rounds. The last line relates the verification to the sum of the operations, round by round. The sum
//! excludes parsing, memory allocation, and the arithmetic of scalars.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;

use std::{hint::black_box, time::Instant};

use p256::{
    NistP256, ProjectivePoint, Scalar,
    elliptic_curve::{
        BatchNormalize, Group, consts::U48, ff::PrimeField, group::GroupEncoding, ops::LinearCombination,
    },
    hash2curve::{ExpandMsgXmd, GroupDigest, hash_to_scalar},
};
use sha2::Sha256;
use tower_quota_anonymous::{CredentialRequest, IssuerKey, Profile};

use self::rounds::Side;

const REQUEST_CONTEXT: &[u8] = b"issuer.example";
const PRESENTATION_CONTEXT: &[u8] = b"window 7";
const LIMIT: u32 = 1_000;
const ELEMENT: usize = 33;
const SCALAR: usize = 32;
/// The elements of the proof and its commitments, all of which the challenge depends on.
const HASHED: usize = 14;
/// Verifications per round and side.
const TIMES: u32 = 20;

/// The parts of a presentation. Values that depend on the private key are replaced by random ones, which does not
/// change the times.
#[derive(Clone, Copy)]
struct Parts {
    elements: [[u8; ELEMENT]; 4],
    points: [ProjectivePoint; 4],
    /// The challenge, and the responses for m1, z, -r and the nonce.
    scalars: [Scalar; 5],
    secret: Scalar,
    random: ProjectivePoint,
}

impl Parts {
    fn of(presentation: &[u8]) -> Self {
        let (elements, scalars) = presentation.split_at(4 * ELEMENT);
        let elements = elements.as_chunks().0;
        let secret = scalar_of(b"secret");
        Self {
            elements: elements.try_into().expect("four elements"),
            points: [0, 1, 2, 3].map(|index| decompress(&elements[index])),
            scalars: [0, 1, 2, 3, 4].map(|index| {
                let bytes = scalars.as_chunks::<SCALAR>().0[index];
                Option::from(Scalar::from_repr(bytes.into())).expect("below the order")
            }),
            secret,
            random: ProjectivePoint::mul_by_generator(&secret),
        }
    }
}

fn decompress(bytes: &[u8; ELEMENT]) -> ProjectivePoint {
    Option::from(ProjectivePoint::from_bytes(&(*bytes).into())).expect("a point")
}

fn scalar_of(message: &[u8]) -> Scalar {
    let tag = b"HashToScalar-ARCV1-P256requestContext";
    hash_to_scalar::<NistP256, ExpandMsgXmd<Sha256>, U48>(&[message], &[tag]).expect("the tag is short")
}

/// Returns a side that measures the microseconds of an operation.
fn side<'a, T>(name: &str, mut operation: impl FnMut() -> T + 'a) -> Side<'a> {
    Side::new(name, move || {
        let start = Instant::now();
        for _ in 0..TIMES {
            black_box(operation());
        }
        start.elapsed().as_secs_f64() * 1e6 / f64::from(TIMES)
    })
}

/// All operations of a verification, in its order.
fn operations(parts: &Parts) -> Vec<Side<'_>> {
    let Parts { secret, random, .. } = *parts;
    let [u, _, m1_commit, tag] = parts.points;
    let [challenge, m1, z, r, nonce] = parts.scalars;
    let hashed = [random.double(); HASHED];
    let keyed = move || ProjectivePoint::lincomb(&black_box([(u, secret), (m1_commit, secret)])[..]);
    let constant = [(random, challenge), (random, z), (ProjectivePoint::GENERATOR, r)];
    let sum = |terms: &[_]| ProjectivePoint::lincomb_vartime(black_box(terms));
    let equations = [
        vec![(m1_commit, challenge), (u, m1), (random, z)],
        vec![(random, challenge), (tag, m1 + nonce)],
        vec![(random, challenge), (tag, m1)],
    ];
    vec![
        side("4 decompressions", move || {
            black_box(parts).elements.map(|bytes| decompress(&bytes))
        }),
        side("2 hashes to scalars", || {
            (
                scalar_of(black_box(REQUEST_CONTEXT)),
                scalar_of(black_box(&[0; HASHED * (2 + ELEMENT)])),
            )
        }),
        side("1 hash to the curve", || {
            NistP256::hash_from_bytes(&[black_box(PRESENTATION_CONTEXT)], &[b"HashToGroup-ARCV1-P256Tag"])
        }),
        side("1 sum of 2 products, constant time", keyed),
        side("1 product with the nonce", move || times(black_box(tag), LIMIT - 1)),
        side("1 sum of 3 products, constant time", move || {
            ProjectivePoint::lincomb(&black_box(constant)[..])
        }),
        side("3 sums of 3, 2 and 2 products", move || {
            equations.each_ref().map(|terms| sum(terms))
        }),
        side("14 compressions", move || {
            let affine = <ProjectivePoint as BatchNormalize<[_]>>::batch_normalize(&black_box(hashed)[..]);
            affine.iter().map(GroupEncoding::to_bytes).collect::<Vec<_>>()
        }),
    ]
}

fn times(point: ProjectivePoint, factor: u32) -> ProjectivePoint {
    let bits = (0..u32::BITS - factor.leading_zeros()).rev();
    bits.fold(ProjectivePoint::IDENTITY, |product, bit| match factor >> bit & 1 {
        0 => product.double(),
        _ => product.double() + point,
    })
}

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let key = IssuerKey::generate(Profile::P256).expect("there are random numbers");
    let request = CredentialRequest::new(key.public_key(), REQUEST_CONTEXT).expect("there are random numbers");
    let response = key.issue(request.as_bytes()).expect("the request is valid");
    let credential = request.finalize(&response).expect("the response is valid");
    let presentation = credential.present(PRESENTATION_CONTEXT, LIMIT - 1, LIMIT);
    let presentation = presentation.expect("the nonce is below the limit");
    let bytes = presentation.as_bytes();
    let verify = || key.verify(bytes, REQUEST_CONTEXT, PRESENTATION_CONTEXT, LIMIT - 1, LIMIT);
    assert!(verify().is_ok(), "the presentation is valid");

    let parts = Parts::of(bytes);
    let mut sides = vec![side("verification", verify)];
    sides.extend(operations(&parts));
    rounds::measure(1, &mut sides);
    let values = rounds::measure(rounds::setting("ROUNDS", 201), &mut sides);
    rounds::print("verification of one token, P-256", "us", &sides, &values);
    let sum = values[2..].iter().fold(values[1].clone(), |sum, own| sum.plus(own));
    println!(
        "  sum of the operations: {:.1} us; verification: {:.3} of it",
        sum.median(),
        values[0].ratio(&sum)
    );
}
