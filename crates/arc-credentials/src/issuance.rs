use std::fmt;

use p256::NistP256;
use p384::{
    NistP384,
    elliptic_curve::{Group, ops::LinearCombination},
};
use zeroize::Zeroizing;

use super::{
    credential::{Credential, Held},
    error::{CredentialError, RandomnessError, VerificationError},
    key::{KeyPair, PublicKey},
    proof::{Equation, Labelled, Relation, Transcript},
    randomness::{OperatingSystem, Random},
    suite::{OfSuite, Suite, with_suite},
    wire::{Reader, encode},
};

/// Scalars: m1, m2, r1, r2. Elements: G, H, m1Enc, m2Enc.
static REQUEST: Relation = Relation {
    name: b"CredentialRequest",
    scalars: 4,
    equations: &[Equation::new(2, &[(0, 0), (2, 1)]), Equation::new(3, &[(1, 0), (3, 1)])],
};

/// Scalars: x0, x1, x2, xb, b, b·x1, b·x2. Elements: G, H, m1Enc, m2Enc, U, encU', X0, X1, X2, X0Aux, X1Aux, X2Aux,
/// HAux.
static RESPONSE: Relation = Relation {
    name: b"CredentialResponse",
    scalars: 7,
    equations: &[
        Equation::new(6, &[(0, 0), (3, 1)]),
        Equation::new(7, &[(1, 1)]),
        Equation::new(8, &[(2, 1)]),
        Equation::new(12, &[(4, 1)]),
        Equation::new(9, &[(3, 12)]),
        Equation::new(10, &[(5, 1)]),
        Equation::new(10, &[(4, 7)]),
        Equation::new(11, &[(4, 8)]),
        Equation::new(11, &[(6, 1)]),
        Equation::new(4, &[(4, 0)]),
        Equation::new(5, &[(4, 6), (5, 2), (6, 3)]),
    ],
};

/// A client's request for one credential, with its secrets.
///
/// ```
/// use arc_credentials::{CredentialRequest, IssuerKey, Profile};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let issuer = IssuerKey::generate(Profile::P256)?;
///
/// let request = CredentialRequest::new(issuer.public_key(), b"request context")?;
/// // The bytes reveal nothing to the issuer except that they are a request.
/// let response = issuer.issue(request.as_bytes())?;
/// let credential = request.finalize(&response)?;
///
/// let presentation = credential.present(b"presentation context", 7, 10)?;
/// let verify = |nonce| issuer.verify(presentation.as_bytes(), b"request context", b"presentation context", nonce, 10);
/// assert_eq!(verify(7)?, presentation.tag());
/// assert!(verify(8).is_err());
/// # Ok(())
/// # }
/// ```
pub struct CredentialRequest {
    head: [u8; 3],
    pending: OfSuite<Box<Pending<NistP384>>, Box<Pending<NistP256>>>,
}

impl CredentialRequest {
    /// Creates a request with random secrets. Fails without random bytes.
    ///
    /// The origin must pass the same `request_context` to [`verify`](super::IssuerKey::verify).
    pub fn new(public_key: &PublicKey, request_context: &[u8]) -> Result<Self, RandomnessError> {
        let [first, second] = public_key.profile().token_type().to_be_bytes();
        Ok(Self {
            head: [first, second, public_key.key_id().truncated()],
            pending: match public_key.points() {
                OfSuite::P384(points) => OfSuite::P384(Pending::new(*points, request_context)?),
                OfSuite::P256(points) => OfSuite::P256(Pending::new(*points, request_context)?),
            },
        })
    }

    /// Returns the request, of [`request_len`](super::Profile::request_len) bytes.
    pub fn as_bytes(&self) -> &[u8] {
        with_suite!(&self.pending, pending => &pending.request)
    }

    /// Returns the message to send over HTTP, `TokenRequest` of the drafts: token type, last byte of the key ID,
    /// request.
    pub fn to_message(&self) -> Vec<u8> {
        [&self.head, self.as_bytes()].concat()
    }

    /// Creates the credential from the issuer's response.
    ///
    /// Two credentials of one request have the same tags, so they allow no more presentations than one.
    ///
    /// # Errors
    ///
    /// Returns [`VerificationError`] if the response does not belong to this request and key. The request can be sent
    /// again.
    pub fn finalize(&self, response: &[u8]) -> Result<Credential, VerificationError> {
        let held = match &self.pending {
            OfSuite::P384(pending) => pending.held::<Labelled>(response).map(OfSuite::P384),
            OfSuite::P256(pending) => pending.held::<Labelled>(response).map(OfSuite::P256),
        };
        held.map(Credential).ok_or(VerificationError)
    }
}

/// Omits secrets.
impl fmt::Debug for CredentialRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialRequest").finish_non_exhaustive()
    }
}

pub(super) struct Pending<S: Suite> {
    pub(super) request: Vec<u8>,
    public: [S::Element; 3],
    m1_enc: S::Element,
    m2_enc: S::Element,
    m1: Zeroizing<S::Scalar>,
    r1: Zeroizing<S::Scalar>,
    r2: Zeroizing<S::Scalar>,
}

impl<S: Suite> Pending<S> {
    fn new(public: [S::Element; 3], request_context: &[u8]) -> Result<Box<Self>, RandomnessError> {
        loop {
            let made = Self::request::<Labelled>(public, request_context, &mut OperatingSystem)?;
            if let Some(pending) = made {
                return Ok(pending);
            }
        }
    }

    /// `None` if a random scalar makes an element the identity: retry.
    pub(super) fn request<T: Transcript<S>>(
        public: [S::Element; 3],
        request_context: &[u8],
        random: &mut impl Random<S>,
    ) -> Result<Option<Box<Self>>, RandomnessError> {
        let (m1, r1, r2) = (random.scalar()?, random.scalar()?, random.scalar()?);
        let m2 = Zeroizing::new(S::request_scalar(request_context));
        let h = S::generator_h();
        let m1_enc = S::Element::mul_by_generator(&m1) + h * *r1;
        let m2_enc = S::Element::mul_by_generator(&m2) + h * *r2;
        let elements = [S::Element::generator(), h, m1_enc, m2_enc];
        let secrets = Zeroizing::new([*m1, *m2, *r1, *r2]);
        let proof = REQUEST.prove::<S, T>(&elements, &*secrets, random)?;
        Ok(encode::<S>(&[m1_enc, m2_enc]).zip(proof).map(|(enc, proof)| {
            Box::new(Self {
                request: [enc, proof].concat(),
                public,
                m1_enc,
                m2_enc,
                m1,
                r1,
                r2,
            })
        }))
    }

    pub(super) fn held<T: Transcript<S>>(&self, response: &[u8]) -> Option<Box<Held<S>>> {
        let mut reader = Reader::new(response);
        let parts = reader.elements::<S, 6>()?;
        let elements = statement::<S>([self.m1_enc, self.m2_enc], self.public, parts);
        RESPONSE.verify::<S, T>(&elements, &mut reader)?;
        reader.end()?;
        let [u, enc_u_prime, x0_aux, x1_aux, x2_aux, _] = parts;
        let [_, x1, _] = self.public;
        let blinding = S::Element::lincomb(&[(x1_aux, *self.r1), (x2_aux, *self.r2)][..]);
        Held::new(self.m1.clone(), u, enc_u_prime - x0_aux - blinding, x1)
    }
}

pub(super) fn respond<S: Suite, T: Transcript<S>>(
    key: &KeyPair<S>,
    request: &[u8],
    random: &mut impl Random<S>,
) -> Result<Vec<u8>, CredentialError> {
    let [m1_enc, m2_enc] = read_request::<S, T>(request).ok_or(CredentialError::InvalidRequest)?;
    let b = random.scalar()?;
    let [x0, x1, x2] = key.public;
    let [t1, t2, bxb] = [&key.x1, &key.x2, &key.xb].map(|x| Zeroizing::new(*b * **x));
    let h = S::generator_h();
    let u = S::Element::mul_by_generator(&b);
    let enc_u_prime = S::Element::lincomb(&[(x0, *b), (m1_enc, *t1), (m2_enc, *t2)][..]);
    let (x0_aux, x1_aux, x2_aux, h_aux) = (h * *bxb, x1 * *b, x2 * *b, h * *b);
    let parts = [u, enc_u_prime, x0_aux, x1_aux, x2_aux, h_aux];
    let elements = statement::<S>([m1_enc, m2_enc], key.public, parts);
    let secrets = Zeroizing::new([*key.x0, *key.x1, *key.x2, *key.xb, *b, *t1, *t2]);
    let proof = RESPONSE.prove::<S, T>(&elements, &*secrets, random)?;
    let enc = encode::<S>(&parts);
    let (enc, proof) = enc.zip(proof).ok_or(CredentialError::InvalidRequest)?;
    Ok([enc, proof].concat())
}

/// Request, key, response.
fn statement<S: Suite>(
    [m1_enc, m2_enc]: [S::Element; 2],
    [x0, x1, x2]: [S::Element; 3],
    [u, enc_u_prime, x0_aux, x1_aux, x2_aux, h_aux]: [S::Element; 6],
) -> [S::Element; 13] {
    let (g, h) = (S::Element::generator(), S::generator_h());
    [
        g,
        h,
        m1_enc,
        m2_enc,
        u,
        enc_u_prime,
        x0,
        x1,
        x2,
        x0_aux,
        x1_aux,
        x2_aux,
        h_aux,
    ]
}

fn read_request<S: Suite, T: Transcript<S>>(request: &[u8]) -> Option<[S::Element; 2]> {
    let mut reader = Reader::new(request);
    let [m1_enc, m2_enc] = reader.elements::<S, 2>()?;
    let elements = [S::Element::generator(), S::generator_h(), m1_enc, m2_enc];
    REQUEST.verify::<S, T>(&elements, &mut reader)?;
    reader.end()?;
    Some([m1_enc, m2_enc])
}
