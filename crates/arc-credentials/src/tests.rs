//! The official test vectors. The tests set the random scalars, which requires access to private items.

use std::{collections::VecDeque, fs, path::Path};

use p256::NistP256;
use p384::{NistP384, elliptic_curve::Group};
use serde_json::Value;
use zeroize::Zeroizing;

use super::{
    credential::Held,
    error::RandomnessError,
    issuance::{Pending, respond},
    key::KeyPair,
    presentation::{Presented, Tag, verify},
    proof::{Labelled, Transcript, challenge_input},
    randomness::Random,
    suite::Suite,
    wire::{Reader, encode},
};

/// Returns the scalars of a list.
#[derive(Debug)]
struct Scripted(VecDeque<Vec<u8>>);

impl<S: Suite> Random<S> for Scripted {
    fn scalar(&mut self) -> Result<Zeroizing<S::Scalar>, RandomnessError> {
        let bytes = self.0.pop_front().unwrap();
        Ok(Reader::new(&bytes).secret::<S>().unwrap())
    }
}

/// The transcript of the published appendix of draft-yun-cfrg-arc-00, which contradicts the text: it has no label.
#[derive(Debug)]
struct Unlabelled;

impl<S: Suite> Transcript<S> for Unlabelled {
    fn challenge(_name: &[u8], elements: &[S::Element], commitments: &[S::Element]) -> Option<S::Scalar> {
        Some(S::hash_to_scalar(&challenge_input::<S>(elements, commitments)?, &[]))
    }
}

fn read(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

fn bytes(value: &Value) -> Vec<u8> {
    let digits = value.as_str().unwrap();
    let pairs = (0..digits.len()).step_by(2);
    pairs
        .map(|start| u8::from_str_radix(&digits[start..start + 2], 16).unwrap())
        .collect()
}

fn concat(object: &Value, names: &[&str]) -> Vec<u8> {
    names.iter().flat_map(|name| bytes(&object[name])).collect()
}

/// The named scalars of an object, followed by the blindings of a proof: 1, 2, 3 and so on.
fn scripted<S: Suite>(object: &Value, names: &[&str], blindings: u8) -> Scripted {
    let blinding = |number| {
        let mut bytes = vec![0; S::PROFILE.scalar_len()];
        bytes[S::PROFILE.scalar_len() - 1] = number;
        bytes
    };
    let named = names.iter().map(|name| bytes(&object[name]));
    Scripted(named.chain((1..=blindings).map(blinding)).collect())
}

fn key<S: Suite>(vectors: &Value) -> KeyPair<S> {
    KeyPair::read(&concat(&vectors["ServerKey"], &["x0", "x1", "x2", "xb"])).unwrap()
}

const REQUEST: [&str; 3] = ["m1_enc", "m2_enc", "proof"];
const RESPONSE: [&str; 7] = ["U", "enc_U_prime", "X0_aux", "X1_aux", "X2_aux", "H_aux", "proof"];
const PRESENTATION: [&str; 5] = ["U", "U_prime_commit", "m1_commit", "tag", "proof"];

/// The credential of the vectors, created from their request and response.
fn issued<S: Suite, T: Transcript<S>>(vectors: &Value) -> Held<S> {
    let key = key::<S>(vectors);
    let context = bytes(&vectors["request_context"]);

    let [expected, response] = [&vectors["CredentialRequest"], &vectors["CredentialResponse"]];
    let mut random = scripted::<S>(expected, &["m1", "r1", "r2"], 4);
    let pending = Pending::<S>::request::<T>(key.public, &context, &mut random)
        .unwrap()
        .unwrap();
    assert_eq!(pending.request, concat(expected, &REQUEST));

    let mut random = scripted::<S>(response, &["b"], 7);
    let responded = respond::<S, T>(&key, &pending.request, &mut random).unwrap();
    assert_eq!(responded, concat(response, &RESPONSE));

    let held = pending.held::<T>(&responded).unwrap();
    let stored = concat(&vectors["Credential"], &["m1", "U", "U_prime", "X1"]);
    assert_eq!(held.to_bytes().to_vec(), stored);
    *Held::read(&stored).unwrap()
}

fn vectors_hold<S: Suite, T: Transcript<S>>(vectors: &Value) {
    let (key, held) = (key::<S>(vectors), issued::<S, T>(vectors));
    let context = bytes(&vectors["request_context"]);
    let limit = vectors["presentation_limit"].as_u64().unwrap() as u32;
    for (nonce, name) in [(0, "Presentation1"), (1, "Presentation2")] {
        let expected = &vectors[name];
        assert_eq!(expected["nonce"], format!("{nonce:#x}"));
        let presented = bytes(&expected["presentation_context"]);
        let mut random = scripted::<S>(expected, &["a", "r", "z"], 4);
        let presentation = held.presentation::<T>(&presented, nonce, &mut random).unwrap().unwrap();
        assert_eq!(presentation, concat(expected, &PRESENTATION));

        let as_claimed = |nonce, limit| Presented {
            presentation: &presentation,
            request_context: &context,
            presentation_context: &presented,
            nonce,
            limit,
        };
        let tag = verify::<S, T>(&key, &as_claimed(nonce, limit));
        assert_eq!(tag.unwrap().as_bytes(), bytes(&expected["tag"]));
        assert_eq!(tag, Tag::of(S::PROFILE, &presentation));
        for (nonce, limit) in [(1 - nonce, limit), (nonce, nonce)] {
            assert_eq!(verify::<S, T>(&key, &as_claimed(nonce, limit)), None);
        }
    }
}

#[test]
fn the_official_vectors_of_p384_are_reproduced_byte_for_byte() {
    vectors_hold::<NistP384, Labelled>(&read("arc-P384.json"));
}

#[test]
fn the_official_vectors_of_p256_are_reproduced_byte_for_byte() {
    vectors_hold::<NistP256, Labelled>(&read("arc-P256-nonce-revealed.json"));
}

/// The published appendix contradicts the text of the draft. This crate implements the text.
#[test]
fn the_appendix_as_published_verifies_with_an_empty_label_only() {
    let vectors = read("arc-P384-draft00-as-published.json");
    vectors_hold::<NistP384, Unlabelled>(&vectors);

    let key = key::<NistP384>(&vectors);
    let context = bytes(&vectors["request_context"]);
    let published = &vectors["Presentation1"];
    let (presentation, presented) = (
        concat(published, &PRESENTATION),
        bytes(&published["presentation_context"]),
    );
    let claimed = Presented {
        presentation: &presentation,
        request_context: &context,
        presentation_context: &presented,
        nonce: 0,
        limit: 2,
    };
    assert_eq!(verify::<NistP384, Labelled>(&key, &claimed), None);
    let request = concat(&vectors["CredentialRequest"], &REQUEST);
    let mut random = scripted::<NistP384>(&vectors["CredentialResponse"], &["b"], 7);
    assert!(respond::<NistP384, Labelled>(&key, &request, &mut random).is_err());
}

#[test]
fn generators_hashes_and_tags_have_the_check_values_of_the_drafts() {
    fn check<S: Suite>(h: &str, base: &str, vectors: &Value) {
        let expected = |digits: &str| bytes(&Value::from(digits));
        assert_eq!(encode::<S>(&[S::generator_h()]).unwrap(), expected(h));
        let tag_base = S::tag_base(b"test presentation context");
        assert_eq!(encode::<S>(&[tag_base]).unwrap(), expected(base));
        let m2 = S::request_scalar(b"test request context");
        let request = &vectors["CredentialRequest"];
        assert_eq!(Reader::new(&bytes(&request["m2"])).scalar::<S>(), Some(m2));
    }
    check::<NistP384>(
        "03f3d24969e4ec3f6e48caad46ce5b0c41f7d108a5a798d32e7ad785ecc209741bec4ce613a21b94fd74904437df43d0cb",
        "038a7a8298b91ea5e300986cdd40d9892b39fb3bf0f24aabfb802924f0014e76d42272010fd79cffc0d506f5ca98a436b7",
        &read("arc-P384.json"),
    );
    check::<NistP256>(
        "022d47ce5f78092b3e2b057228f47692d54fb6b554b1c1b1d5c93ee383b78483db",
        "034889b013c58bd0c63e89d7c578b4131ff145e387a289941fd911b59eb6b4c68d",
        &read("arc-P256-nonce-revealed.json"),
    );
}

/// A client without randomness would use the identity as V, which has a shorter encoding.
#[test]
fn a_presentation_that_makes_an_element_the_identity_is_rejected() {
    fn check<S: Suite>(vectors: &Value) {
        let (key, held) = (key::<S>(vectors), issued::<S, Labelled>(vectors));
        let expected = &vectors["Presentation1"];
        let presented = bytes(&expected["presentation_context"]);
        let mut random = scripted::<S>(expected, &["a", "r", "z"], 4);
        let honest = held
            .presentation::<Labelled>(&presented, 0, &mut random)
            .unwrap()
            .unwrap();
        // z = r = 0 and a = 1 instead of random scalars, so that the presentation contains the bare credential.
        let credential = &vectors["Credential"];
        let m1 = Reader::new(&bytes(&credential["m1"])).scalar::<S>().unwrap();
        let [u, u_prime] = ["U", "U_prime"].map(|name| Reader::new(&bytes(&credential[name])).element::<S>().unwrap());
        let bare = encode::<S>(&[u, u_prime, u * m1]).unwrap();
        let context = bytes(&vectors["request_context"]);
        let v = u * (*key.x0 + *key.x2 * S::request_scalar(&context) + *key.x1 * m1) - u_prime;
        assert!(bool::from(v.is_identity()));
        let presentation = [&bare[..], &honest[bare.len()..]].concat();
        let claimed = Presented {
            presentation: &presentation,
            request_context: &context,
            presentation_context: &presented,
            nonce: 0,
            limit: 2,
        };
        assert_eq!(verify::<S, Labelled>(&key, &claimed), None);
        assert_eq!(encode::<S>(&[u, v]), None);
    }
    check::<NistP384>(&read("arc-P384.json"));
    check::<NistP256>(&read("arc-P256-nonce-revealed.json"));
}
