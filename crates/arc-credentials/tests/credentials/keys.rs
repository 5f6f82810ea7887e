//! Keys of the issuer: what is loaded, derived and shown.

use arc_credentials::{CredentialError, IssuerKey, KeyId, Profile, PublicKey};
use sha2::{Digest, Sha256};

use crate::vectors;

#[test]
fn the_public_key_follows_from_the_private_key_as_in_the_vectors() {
    for (profile, vectors) in vectors::of_the_scheme() {
        let key = vectors::issuer_key(profile, &vectors);
        let expected = vectors::concat(&vectors["ServerKey"], &["X0", "X1", "X2"]);
        assert_eq!(key.public_key().as_bytes(), expected);
        assert_eq!(key.public_key().as_bytes().len(), profile.public_key_len());
        assert_eq!(PublicKey::from_bytes(profile, &expected).as_ref(), Ok(key.public_key()));
    }
}

#[test]
fn the_id_of_a_key_is_the_digest_of_the_public_key_and_its_truncated_form_the_last_byte() {
    for (profile, vectors) in vectors::of_the_scheme() {
        let key = vectors::issuer_key(profile, &vectors);
        let digest: [u8; 32] = Sha256::digest(key.public_key().as_bytes()).into();
        assert_eq!(key.key_id(), KeyId::from_bytes(digest));
        assert_eq!(key.key_id().truncated(), digest[31]);
    }
    for case in vectors::read("token-level.json")["cases"].as_array().unwrap() {
        let profile = if case["token_type"] == "0xC7D3" {
            Profile::P384
        } else {
            Profile::P256
        };
        let key = PublicKey::from_bytes(profile, &vectors::bytes(&case["token_key"])).unwrap();
        assert_eq!(key.key_id().as_bytes()[..], vectors::bytes(&case["issuer_key_id"]));
    }
}

#[test]
fn token_types_and_lengths_are_those_of_the_drafts() {
    let lengths = |profile: Profile| {
        [
            profile.private_key_len(),
            profile.public_key_len(),
            profile.request_len(),
            profile.response_len(),
            profile.presentation_len(),
            profile.tag_len(),
        ]
    };
    assert_eq!(lengths(Profile::P384), [192, 147, 338, 678, 436, 49]);
    assert_eq!(lengths(Profile::P256), [128, 99, 226, 454, 292, 33]);
    assert_eq!(Profile::P384.token_type(), 0xc7d3);
    assert_eq!(Profile::P384.name(), "ARC (P-384)");
    assert_eq!(Profile::P256.token_type(), 0xe5ac);
    for profile in Profile::ALL {
        assert_eq!(Profile::from_token_type(profile.token_type()), Some(profile));
    }
    assert_eq!(Profile::from_token_type(0x0002), None);
}

#[test]
fn a_private_key_that_does_not_parse_is_an_error() {
    for profile in Profile::ALL {
        let width = profile.scalar_len();
        let good = IssuerKey::generate(profile).unwrap().to_bytes();
        for length in [0, 1, good.len() - 1, good.len() + 1] {
            let mut bytes = good.to_vec();
            bytes.resize(length, 1);
            let error = CredentialError::Length {
                expected: good.len(),
                actual: length,
            };
            assert_eq!(IssuerKey::from_bytes(profile, &bytes).unwrap_err(), error);
        }
        // Each scalar in turn: zero, and the largest number of this width, which is above the order.
        for (index, byte) in [0, 1, 2, 3].into_iter().flat_map(|index| [(index, 0), (index, 255)]) {
            let mut bytes = good.to_vec();
            bytes[index * width..(index + 1) * width].fill(byte);
            assert_eq!(
                IssuerKey::from_bytes(profile, &bytes).unwrap_err(),
                CredentialError::Malformed
            );
        }
    }
}

#[test]
fn a_public_key_that_does_not_parse_is_an_error() {
    for profile in Profile::ALL {
        let (width, key) = (profile.element_len(), IssuerKey::generate(profile).unwrap());
        let good = key.public_key().as_bytes();
        let malformed =
            |bytes: &[u8]| assert_eq!(PublicKey::from_bytes(profile, bytes), Err(CredentialError::Malformed));
        for start in [0, width, 2 * width] {
            // The identity, an uncompressed and a compact form, and an x that is not below the prime of the field.
            for tag in [0, 1, 4, 5, 6, 255] {
                let mut bytes = good.to_vec();
                bytes[start] = tag;
                malformed(&bytes);
            }
            let mut bytes = good.to_vec();
            bytes[start + 1..start + width].fill(255);
            malformed(&bytes);
            bytes[start..start + width].fill(0);
            malformed(&bytes);
        }
        let longer = [good, &[0]].concat();
        for bytes in [&[], &good[1..], &longer] {
            let error = CredentialError::Length {
                expected: good.len(),
                actual: bytes.len(),
            };
            assert_eq!(PublicKey::from_bytes(profile, bytes), Err(error));
        }
    }
}

#[test]
fn a_key_is_loaded_as_it_was_stored_and_each_one_that_is_drawn_is_another() {
    for profile in Profile::ALL {
        let [first, second] = [(); 2].map(|()| IssuerKey::generate(profile).unwrap());
        assert_ne!(first.key_id(), second.key_id());
        let loaded = IssuerKey::from_bytes(profile, &first.to_bytes()).unwrap();
        assert_eq!(loaded.public_key(), first.public_key());
        assert_eq!(loaded.to_bytes(), first.to_bytes());
        assert_eq!(loaded.profile(), profile);
    }
}

#[test]
fn a_private_key_shows_only_its_id() {
    for (profile, vectors) in vectors::of_the_scheme() {
        let key = vectors::issuer_key(profile, &vectors);
        let shown = format!("{key:?} {key:#?}").to_lowercase();
        assert!(shown.contains(&key.key_id().to_string()));
        for name in ["x0", "x1", "x2", "xb"] {
            let secret = vectors["ServerKey"][name].as_str().unwrap();
            assert!(!shown.contains(&secret[..16]), "{name}");
        }
    }
}
