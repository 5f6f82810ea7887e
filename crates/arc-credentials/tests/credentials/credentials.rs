//! The way of a credential, from the request to tokens, and everything that must not pass on it.

use std::collections::BTreeSet;

use arc_credentials::{
    Credential, CredentialError, CredentialRequest, IssuerKey, Profile, UsedNonces, VerificationError,
};
use proptest::prelude::*;

use crate::vectors;

const REQUEST_CONTEXT: &[u8] = b"issuer.example";
const PRESENTATION_CONTEXT: &[u8] = b"window 7";

fn credential(key: &IssuerKey, request_context: &[u8]) -> Credential {
    let request = CredentialRequest::new(key.public_key(), request_context).unwrap();
    let response = key.issue(request.as_bytes()).unwrap();
    request.finalize(&response).unwrap()
}

/// A key and a credential of it.
fn issued(profile: Profile) -> (IssuerKey, Credential) {
    let key = IssuerKey::generate(profile).unwrap();
    let credential = credential(&key, REQUEST_CONTEXT);
    (key, credential)
}

/// The same bytes with one bit of one byte changed, for each byte in turn.
fn flipped(bytes: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..bytes.len()).map(|index| {
        let mut changed = bytes.to_vec();
        changed[index] ^= 1 << (index % 8);
        (index, changed)
    })
}

/// Wrong lengths, and in place of each element: the identity in one byte and in all, other forms of points, and a point
/// that is none; in place of each scalar: numbers that are not below the order.
fn mutilated(profile: Profile, bytes: &[u8], elements: usize) -> Vec<Vec<u8>> {
    let (width, first_scalar) = (profile.element_len(), elements * profile.element_len());
    let mut all = vec![
        vec![],
        vec![0],
        bytes[1..].to_vec(),
        bytes[..bytes.len() - 1].to_vec(),
        [bytes, &[0]].concat(),
    ];
    for start in (0..first_scalar).step_by(width) {
        let with = |element: &[u8]| [&bytes[..start], element, &bytes[start + width..]].concat();
        all.push(with(&[0]));
        all.push(with(&vec![0; width]));
        all.push(with(&vec![255; width]));
        all.push(with(&[&[2], &vec![255; width - 1][..]].concat()));
        for tag in [0, 1, 4, 5, 6, 7] {
            all.push(with(&[&[tag], &bytes[start + 1..start + width]].concat()));
        }
    }
    for start in (first_scalar..bytes.len()).step_by(profile.scalar_len()) {
        let end = start + profile.scalar_len();
        all.push([&bytes[..start], &vec![255; end - start], &bytes[end..]].concat());
        all.push([&bytes[..start], &vec![0; end - start], &bytes[end..]].concat());
    }
    all
}

#[test]
fn an_honest_client_gets_a_credential_and_its_presentations_verify_up_to_the_limit() {
    for profile in Profile::ALL {
        let (key, credential) = issued(profile);
        let (mut used, mut tags) = (UsedNonces::default(), BTreeSet::new());
        for _ in 0..3 {
            let nonce = used.draw(3).unwrap();
            let presentation = credential.present(PRESENTATION_CONTEXT, nonce, 3).unwrap();
            let tag = key.verify(presentation.as_bytes(), REQUEST_CONTEXT, PRESENTATION_CONTEXT, nonce, 3);
            assert_eq!(tag, Ok(presentation.tag()));
            assert_eq!(presentation.tag().as_bytes().len(), profile.tag_len());
            tags.insert(presentation.tag().as_bytes().to_vec());
        }
        assert_eq!(tags.len(), 3);
        assert_eq!(used.draw(3), Err(CredentialError::LimitReached));
    }
}

#[test]
fn a_nonce_below_the_limit_passes_and_one_at_the_limit_does_not() {
    for profile in Profile::ALL {
        let (key, credential) = issued(profile);
        // The client takes the limit for a larger one than the origin does.
        let verify = |nonce, limit| {
            let presentation = credential.present(PRESENTATION_CONTEXT, nonce, u32::MAX).unwrap();
            key.verify(
                presentation.as_bytes(),
                REQUEST_CONTEXT,
                PRESENTATION_CONTEXT,
                nonce,
                limit,
            )
            .is_ok()
        };
        assert!(verify(9, 10));
        assert!(!verify(10, 10));
        assert!(!verify(11, 10));
        assert!(!verify(0, 0));
        assert!(verify(u32::MAX - 1, u32::MAX));
        assert_eq!(
            credential.present(PRESENTATION_CONTEXT, 10, 10),
            Err(CredentialError::Nonce)
        );
    }
}

#[test]
fn a_presentation_verifies_with_its_own_contexts_nonce_and_key_only() {
    for profile in Profile::ALL {
        let (key, credential) = issued(profile);
        let presentation = credential.present(PRESENTATION_CONTEXT, 1, 4).unwrap();
        let verify = |key: &IssuerKey, request_context: &[u8], context: &[u8], nonce, limit| {
            key.verify(presentation.as_bytes(), request_context, context, nonce, limit)
        };
        assert!(verify(&key, REQUEST_CONTEXT, PRESENTATION_CONTEXT, 1, 4).is_ok());
        let failed = Err(VerificationError);
        assert_eq!(verify(&key, b"", PRESENTATION_CONTEXT, 1, 4), failed);
        assert_eq!(verify(&key, b"issuer.example2", PRESENTATION_CONTEXT, 1, 4), failed);
        assert_eq!(verify(&key, REQUEST_CONTEXT, b"window 8", 1, 4), failed);
        assert_eq!(verify(&key, REQUEST_CONTEXT, PRESENTATION_CONTEXT, 0, 4), failed);
        assert_eq!(verify(&key, REQUEST_CONTEXT, PRESENTATION_CONTEXT, 2, 4), failed);
        assert_eq!(verify(&key, REQUEST_CONTEXT, PRESENTATION_CONTEXT, 1, 1), failed);
        let other = IssuerKey::generate(profile).unwrap();
        assert_eq!(verify(&other, REQUEST_CONTEXT, PRESENTATION_CONTEXT, 1, 4), failed);
        let [p256, p384] = Profile::ALL;
        let other_profile = if profile == p256 { p384 } else { p256 };
        let other = IssuerKey::generate(other_profile).unwrap();
        assert_eq!(verify(&other, REQUEST_CONTEXT, PRESENTATION_CONTEXT, 1, 4), failed);
    }
}

/// The issuer cannot see it, and need not: the credential that comes of it is of no use.
#[test]
fn a_credential_for_another_request_context_never_verifies() {
    for profile in Profile::ALL {
        let key = IssuerKey::generate(profile).unwrap();
        let credential = credential(&key, b"another issuer");
        let presentation = credential.present(PRESENTATION_CONTEXT, 0, 2).unwrap();
        let verify = |context| key.verify(presentation.as_bytes(), context, PRESENTATION_CONTEXT, 0, 2);
        assert_eq!(verify(REQUEST_CONTEXT), Err(VerificationError));
        assert!(verify(b"another issuer").is_ok());
    }
}

#[test]
fn a_presentation_with_any_byte_changed_is_rejected() {
    for profile in Profile::ALL {
        let (key, credential) = issued(profile);
        let presentation = credential.present(PRESENTATION_CONTEXT, 1, 2).unwrap();
        for (index, changed) in flipped(presentation.as_bytes()) {
            let verified = key.verify(&changed, REQUEST_CONTEXT, PRESENTATION_CONTEXT, 1, 2);
            assert_eq!(verified, Err(VerificationError), "{profile}, byte {index}");
        }
        for changed in mutilated(profile, presentation.as_bytes(), 4) {
            let verified = key.verify(&changed, REQUEST_CONTEXT, PRESENTATION_CONTEXT, 1, 2);
            assert_eq!(verified, Err(VerificationError), "{profile}, {changed:?}");
        }
    }
}

#[test]
fn a_request_with_any_byte_changed_is_rejected() {
    for profile in Profile::ALL {
        let key = IssuerKey::generate(profile).unwrap();
        let request = CredentialRequest::new(key.public_key(), REQUEST_CONTEXT).unwrap();
        for (index, changed) in flipped(request.as_bytes()) {
            assert_eq!(
                key.issue(&changed),
                Err(CredentialError::InvalidRequest),
                "{profile}, byte {index}"
            );
        }
        for changed in mutilated(profile, request.as_bytes(), 2) {
            assert_eq!(
                key.issue(&changed),
                Err(CredentialError::InvalidRequest),
                "{profile}, {changed:?}"
            );
        }
    }
}

#[test]
fn a_response_with_any_byte_changed_makes_no_credential() {
    for profile in Profile::ALL {
        let key = IssuerKey::generate(profile).unwrap();
        let request = CredentialRequest::new(key.public_key(), REQUEST_CONTEXT).unwrap();
        let response = key.issue(request.as_bytes()).unwrap();
        assert!(request.finalize(&response).is_ok());
        // A response of P-384 takes long without optimization: every fifth byte, of each element and scalar some.
        let step = if profile == Profile::P384 { 5 } else { 1 };
        for (index, changed) in flipped(&response).step_by(step) {
            let error = request.finalize(&changed).map(drop);
            assert_eq!(error, Err(VerificationError), "{profile}, byte {index}");
        }
        for changed in mutilated(profile, &response, 6) {
            let error = request.finalize(&changed).map(drop);
            assert_eq!(error, Err(VerificationError), "{profile}, {changed:?}");
        }
    }
}

#[test]
fn a_response_to_another_request_or_of_another_key_makes_no_credential() {
    for profile in Profile::ALL {
        let [key, other] = [(); 2].map(|()| IssuerKey::generate(profile).unwrap());
        let [request, second] = [(); 2].map(|()| CredentialRequest::new(key.public_key(), REQUEST_CONTEXT).unwrap());
        for response in [key.issue(second.as_bytes()), other.issue(request.as_bytes())] {
            assert_eq!(request.finalize(&response.unwrap()).map(drop), Err(VerificationError));
        }
    }
}

#[test]
fn two_presentations_of_one_credential_share_no_value() {
    for profile in Profile::ALL {
        let (_, credential) = issued(profile);
        let presentations = [0, 1].map(|nonce| credential.present(PRESENTATION_CONTEXT, nonce, 2).unwrap());
        // With another context, even the nonce may be the same.
        let other = credential.present(b"window 8", 0, 2).unwrap();
        let parts = |bytes: &[u8]| {
            let (elements, scalars) = bytes.split_at(4 * profile.element_len());
            let elements = elements.chunks(profile.element_len());
            let parts = elements.chain(scalars.chunks(profile.scalar_len()));
            parts.map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let all = [&presentations[0], &presentations[1], &other].map(|presentation| parts(presentation.as_bytes()));
        let distinct: BTreeSet<_> = all.iter().flatten().collect();
        assert_eq!(distinct.len(), 3 * 9);
    }
}

#[test]
fn one_nonce_used_twice_in_one_context_gives_equal_tags() {
    for profile in Profile::ALL {
        let (_, credential) = issued(profile);
        let [first, second] = [(); 2].map(|()| credential.present(PRESENTATION_CONTEXT, 1, 2).unwrap());
        assert_ne!(first.as_bytes(), second.as_bytes());
        assert_eq!(first.tag(), second.tag());
    }
}

#[test]
fn a_credential_is_loaded_as_it_was_stored() {
    for profile in Profile::ALL {
        let (key, credential) = issued(profile);
        let stored = credential.to_bytes();
        let loaded = Credential::from_bytes(profile, &stored).unwrap();
        assert_eq!(loaded.to_bytes(), stored);
        assert_eq!(loaded.profile(), profile);
        let presentation = loaded.present(PRESENTATION_CONTEXT, 0, 1).unwrap();
        let tag = key.verify(presentation.as_bytes(), REQUEST_CONTEXT, PRESENTATION_CONTEXT, 0, 1);
        assert_eq!(tag, Ok(presentation.tag()));

        let error = CredentialError::Length {
            expected: stored.len(),
            actual: stored.len() - 1,
        };
        assert_eq!(Credential::from_bytes(profile, &stored[1..]).unwrap_err(), error);
        for part in [0..profile.scalar_len(), profile.scalar_len()..stored.len()] {
            let mut bytes = stored.to_vec();
            bytes[part].fill(255);
            assert_eq!(
                Credential::from_bytes(profile, &bytes).unwrap_err(),
                CredentialError::Malformed
            );
        }
    }
}

#[test]
fn credentials_requests_and_presentations_show_no_secret() {
    for (profile, vectors) in vectors::of_the_scheme() {
        let stored = vectors::concat(&vectors["Credential"], &["m1", "U", "U_prime", "X1"]);
        let credential = Credential::from_bytes(profile, &stored).unwrap();
        let key = vectors::issuer_key(profile, &vectors);
        let request = CredentialRequest::new(key.public_key(), REQUEST_CONTEXT).unwrap();
        let presentation = credential.present(PRESENTATION_CONTEXT, 0, 1).unwrap();
        assert_eq!(
            format!("{credential:?}"),
            format!("Credential {{ profile: {profile:?}, .. }}")
        );
        assert_eq!(format!("{request:?}"), "CredentialRequest { .. }");
        let tag = presentation.tag();
        assert_eq!(
            format!("{presentation:?}"),
            format!("Presentation {{ tag: {tag:?}, .. }}")
        );
    }
}

#[test]
fn nonces_are_drawn_at_random_and_not_counted_up() {
    let drawn = |limit: u32| {
        let mut used = UsedNonces::default();
        let nonces: Vec<u32> = (0..limit).map(|_| used.draw(limit).unwrap()).collect();
        assert_eq!(used.iter().collect::<Vec<_>>(), (0..limit).collect::<Vec<_>>());
        nonces
    };
    // Equal or in order by a chance of one in 40!.
    let [first, second] = [drawn(40), drawn(40)];
    assert_ne!(first, second);
    assert!(!first.is_sorted());
    // The first of two is each of them about as often.
    let zeros = (0..2_000).filter(|_| drawn(2)[0] == 0).count();
    assert!((800..1_200).contains(&zeros), "{zeros}");
}

#[test]
fn a_changed_limit_gives_no_nonce_back() {
    let mut used = UsedNonces::default();
    let first: BTreeSet<u32> = (0..5).map(|_| used.draw(5).unwrap()).collect();
    assert_eq!(used.left(5), 0);
    assert_eq!(used.left(10), 5);
    let second: BTreeSet<u32> = (0..5).map(|_| used.draw(10).unwrap()).collect();
    assert!(first.is_disjoint(&second));
    assert_eq!(used.draw(3), Err(CredentialError::LimitReached));
    assert_eq!(used.draw(0), Err(CredentialError::LimitReached));
    // A limit that is beyond belief takes no memory.
    assert!(used.draw(u32::MAX).unwrap() >= 10);
    assert_eq!(used.iter().len(), 11);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn what_is_issued_honestly_verifies_for_every_context_and_limit(
        is_p384: bool,
        contexts in any::<[Vec<u8>; 2]>(),
        limit in prop_oneof![1..10_u32, 1..=u32::MAX],
    ) {
        let profile = if is_p384 { Profile::P384 } else { Profile::P256 };
        let key = IssuerKey::generate(profile).unwrap();
        let [request_context, presentation_context] = contexts;
        let credential = credential(&key, &request_context);
        let nonce = UsedNonces::default().draw(limit).unwrap();
        for nonce in [nonce, limit - 1] {
            let presentation = credential.present(&presentation_context, nonce, limit).unwrap();
            let tag = key.verify(presentation.as_bytes(), &request_context, &presentation_context, nonce, limit);
            prop_assert_eq!(tag, Ok(presentation.tag()));
        }
    }

    #[test]
    fn bytes_that_nobody_has_made_are_no_message_and_no_credential(bytes in proptest::collection::vec(any::<u8>(), 0..700)) {
        for (profile, vectors) in vectors::of_the_scheme() {
            let key = vectors::issuer_key(profile, &vectors);
            prop_assert_eq!(key.issue(&bytes), Err(CredentialError::InvalidRequest));
            prop_assert_eq!(key.verify(&bytes, b"", b"", 0, 1), Err(VerificationError));
            // Nearly any scalars are a private key, so bytes of the right length can be one.
            if let Ok(key) = IssuerKey::from_bytes(profile, &bytes) {
                prop_assert_eq!(&**key.to_bytes(), &*bytes);
            }
            prop_assert!(Credential::from_bytes(profile, &bytes).is_err());
        }
    }
}
