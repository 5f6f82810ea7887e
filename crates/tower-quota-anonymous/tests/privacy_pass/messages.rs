//! Challenges, tokens, header fields and directories, byte for byte as the vectors have them, and in all other forms.

use base64::{Engine, prelude::BASE64_URL_SAFE};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::Value;
use tower_quota_anonymous::{
    Challenge, Directory, KeyId, MessageError, Profile, Token, TokenChallenge, token_from_headers,
    token_to_header_value,
};

/// Cases that the two prototypes of the design have agreed on, of the profiles that the crate has.
fn cases() -> Vec<(Profile, Value)> {
    let vectors: Value =
        serde_json::from_str(include_str!("../../../arc-credentials/tests/vectors/token-level.json")).unwrap();
    let cases = vectors["cases"].as_array().unwrap().iter();
    let profile = |case: &Value| match case["profile"].as_str().unwrap().split(':').next() {
        Some("A") => Some(Profile::P384),
        Some("B2") => Some(Profile::P256),
        _ => None,
    };
    cases.filter_map(|case| Some((profile(case)?, case.clone()))).collect()
}

fn rfc9577() -> Value {
    serde_json::from_str(include_str!("../../../arc-credentials/tests/vectors/rfc9577.json")).unwrap()
}

fn hex(value: &Value) -> Vec<u8> {
    let digits = value.as_str().unwrap();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn array<const N: usize>(value: &Value) -> [u8; N] {
    hex(value).try_into().unwrap()
}

/// The challenge of a case, put together from its parts.
fn challenge(profile: Profile, case: &Value) -> TokenChallenge {
    let challenge = TokenChallenge::new(profile, case["issuer_name"].as_str().unwrap()).unwrap();
    let challenge = challenge
        .with_origins([case["origin_info"].as_str().unwrap()])
        .unwrap()
        .with_redemption_context(array(&case["redemption_context"]));
    match &case["credential_context"] {
        Value::Null => challenge,
        context => challenge.with_credential_context(array(context)),
    }
}

fn key_id(case: &Value) -> KeyId {
    KeyId::from_bytes(array(&case["issuer_key_id"]))
}

fn fields(name: HeaderName, values: &[&str]) -> HeaderMap {
    let values = values
        .iter()
        .map(|value| HeaderValue::from_bytes(value.as_bytes()).unwrap());
    values.map(|value| (name.clone(), value)).collect()
}

fn www_authenticate(values: &[&str]) -> Vec<Challenge> {
    Challenge::from_headers(&fields(header::WWW_AUTHENTICATE, values))
}

fn authorization(values: &[&str]) -> Result<Option<Token>, MessageError> {
    token_from_headers(&fields(header::AUTHORIZATION, values))
}

/// M7, M9, M20
#[test]
fn challenges_and_contexts_are_those_of_the_vectors() {
    for (profile, case) in cases() {
        let challenge = challenge(profile, &case);
        assert_eq!(challenge.to_bytes(), hex(&case["token_challenge"]), "{profile}");
        assert_eq!(challenge.digest().to_vec(), hex(&case["challenge_digest"]), "{profile}");
        let key = key_id(&case);
        assert_eq!(challenge.request_context(&key), hex(&case["request_context"]));
        assert_eq!(challenge.presentation_context(&key), hex(&case["presentation_context"]));
        assert_eq!(TokenChallenge::parse(&challenge.to_bytes()), Ok(challenge));
    }
    assert_eq!(cases().len(), 2);
}

/// M4, M5
#[test]
fn challenge_fields_are_written_and_read_as_in_the_vectors() {
    for (profile, case) in cases() {
        let limit = u32::try_from(case["presentation_limit"].as_u64().unwrap()).unwrap();
        let field = Challenge::new(&challenge(profile, &case))
            .with_token_key(hex(&case["token_key"]))
            .with_rate_limit(limit);
        let text = case["www_authenticate"].as_str().unwrap();
        assert_eq!(field.to_header_value(), text, "{profile}");
        assert_eq!(www_authenticate(&[text]), [field]);
    }
}

/// M25, M26, X20, X26
#[test]
fn tokens_are_those_of_the_vectors() {
    for (profile, case) in cases() {
        for token in case["tokens"].as_array().unwrap() {
            let nonce = u32::try_from(token["nonce"].as_u64().unwrap()).unwrap();
            let challenge = challenge(profile, &case);
            let made = Token::new(&challenge, key_id(&case), nonce, hex(&token["presentation"])).unwrap();
            let bytes = made.to_bytes();
            assert_eq!(bytes, hex(&token["token"]), "{profile}");
            let field = token["authorization"].as_str().unwrap();
            assert_eq!(token_to_header_value(&made), field);
            let read = authorization(&[field]).unwrap().unwrap();
            assert_eq!(read.challenge_digest().is_some(), profile == Profile::P256);
            assert_eq!(read, made);
            assert_eq!(bytes.len(), if profile == Profile::P384 { 474 } else { 362 });
        }
    }
}

/// M27: no length but the right one, and no type but the known ones.
#[test]
fn tokens_of_other_lengths_and_types_are_not_read() {
    for (_, case) in cases() {
        let token = hex(&case["tokens"][0]["token"]);
        for length in 0..token.len() {
            assert!(Token::parse(&token[..length]).is_err());
        }
        assert!(Token::parse(&[token.clone(), vec![0]].concat()).is_err());
        let other = [&[0, 2], &token[2..]].concat();
        assert_eq!(Token::parse(&other), Err(MessageError::TokenType(2)));
    }
}

#[test]
fn structures_of_rfc_9577_are_read_and_written_and_have_its_digests() {
    let vectors = rfc9577();
    let vectors = vectors["challenge_and_token"].as_array().unwrap().iter();
    let vectors: Vec<_> = vectors.filter(|vector| vector.get("issuer_name").is_some()).collect();
    assert_eq!(vectors.len(), 5);
    for vector in vectors {
        let bytes = hex(&vector["token_challenge"]);
        let challenge = TokenChallenge::parse(&bytes).unwrap();
        assert_eq!(challenge.token_type(), 2);
        assert_eq!(challenge.profile(), None);
        assert_eq!(challenge.issuer_name().as_bytes(), hex(&vector["issuer_name"]));
        let context = challenge.redemption_context().map_or([].as_slice(), |context| context);
        assert_eq!(context, hex(&vector["redemption_context"]));
        let origins = challenge.origins().collect::<Vec<_>>().join(",");
        assert_eq!(origins.as_bytes(), hex(&vector["origin_info"]));
        assert_eq!(challenge.to_bytes(), bytes);
        assert_eq!(challenge.digest().to_vec(), hex(&vector["challenge_digest"]));
    }
}

#[test]
fn challenge_fields_of_rfc_9577_are_read_beside_other_schemes_and_made_up_types() {
    for vector in rfc9577()["www_authenticate"].as_array().unwrap() {
        let challenges = www_authenticate(&[vector["www_authenticate"].as_str().unwrap()]);
        let expected = vector["challenges"].as_array().unwrap();
        assert_eq!(challenges.len(), expected.len());
        for (challenge, expected) in challenges.iter().zip(expected) {
            assert_eq!(challenge.as_bytes(), hex(&expected["token_challenge"]));
            assert_eq!(challenge.token_key(), Some(&*hex(&expected["token_key"])));
            let max_age = challenge.max_age().map(|age| age.as_secs().to_string());
            assert_eq!(max_age.as_deref(), expected["max_age"].as_str());
            let token_type = u16::from_str_radix(&expected["token_type"].as_str().unwrap()[2..], 16).unwrap();
            // The synthetic challenge, of type 0, cannot be parsed.
            let read = challenge.token_challenge().map(|challenge| challenge.token_type());
            assert_eq!(read.ok(), Some(token_type).filter(|token_type| *token_type > 0));
        }
    }
}

/// Senders write one challenge in several forms.
#[test]
fn challenges_are_read_in_any_form_of_the_field() {
    let same = [
        r#"PrivateToken challenge="AAEC_w==", token-key="AQI=", rate-limit=3, max-age=9"#,
        r#"privatetoken   Challenge=AAEC_w==,Token-Key=AQI=,RATE-LIMIT="3",max-age="9""#,
        r#"PrivateToken challenge = AAEC_w , token-key	=	"AQI" ,, rate-limit = 3, max-age=9 ,"#,
        r#", PRIVATETOKEN max-age=9, rate-limit=3, x="a, b\"c", token-key=AQI, challenge="AAEC\_w""#,
        r#"Basic realm="a, PrivateToken challenge=AAAA", Bearer, PrivateToken challenge=AAEC_w, token-key=AQI, rate-limit=3, max-age=9, Negotiate abc=="#,
        r#"Negotiate abc==, PrivateToken challenge=AAEC_w, token-key=AQI, rate-limit=3, max-age=9, Digest qop="auth", algorithm=MD5"#,
    ];
    let [expected] = &*www_authenticate(&[same[0]]) else {
        panic!("one challenge")
    };
    assert_eq!(expected.as_bytes(), [0, 1, 2, 255]);
    assert_eq!(expected.token_key(), Some(&[1, 2][..]));
    assert_eq!(expected.rate_limit(), Some(3));
    assert_eq!(expected.max_age().map(|age| age.as_secs()), Some(9));
    for form in same {
        assert_eq!(www_authenticate(&[form]), std::slice::from_ref(expected), "{form}");
    }
    let on_several_lines = www_authenticate(&[r#"Basic realm="x""#, same[0], "nonsense", same[1]]);
    assert_eq!(on_several_lines, [expected.clone(), expected.clone()]);
}

/// M5: `"abc"`, `-1`, `1.5` and `0` are rejected.
#[test]
fn challenges_that_are_malformed_are_left_out_and_the_others_stay() {
    let good = r#"PrivateToken challenge="AAEC""#;
    let malformed = [
        "PrivateToken",
        "PrivateToken AAEC",
        "PrivateToken challenge",
        "PrivateToken challenge=",
        r#"PrivateToken challenge="AAEC"#,
        r#"PrivateToken challenge="AA+C""#,
        "PrivateToken challenge=AAECx",
        "PrivateToken rate-limit=3",
        "PrivateToken challenge=AAEC, challenge=AAEC",
        "PrivateToken challenge=AAEC, Rate-Limit=3, rate-limit=3",
        "PrivateToken challenge=AAEC, rate-limit=abc",
        r#"PrivateToken challenge=AAEC, rate-limit="abc""#,
        "PrivateToken challenge=AAEC, rate-limit=-1",
        "PrivateToken challenge=AAEC, rate-limit=1.5",
        "PrivateToken challenge=AAEC, rate-limit=0",
        "PrivateToken challenge=AAEC, rate-limit=4294967296",
        "PrivateToken challenge=AAEC, max-age=-1",
        r#"PrivateToken challenge=AAEC, token-key="?""#,
    ];
    for value in malformed {
        assert!(www_authenticate(&[value]).is_empty(), "{value}");
        assert_eq!(www_authenticate(&[value, good]).len(), 1, "{value}");
    }
    let many = vec![good; 100];
    assert_eq!(www_authenticate(&many).len(), Challenge::MAX_COUNT);
    assert_eq!(www_authenticate(&[&many.join(", ")]).len(), Challenge::MAX_COUNT);
    let long = format!("Basic realm=\"{}\"", "x".repeat(Challenge::MAX_LENGTH));
    assert!(www_authenticate(&[&long, good]).is_empty());
}

#[test]
fn tokens_are_found_in_any_form_of_the_field_and_other_schemes_are_no_token() {
    let (_, case) = &cases()[0];
    let field = case["tokens"][0]["authorization"].as_str().unwrap();
    let token = field.split('"').nth(1).unwrap();
    let expected = Token::parse(&hex(&case["tokens"][0]["token"])).unwrap();
    for form in [
        format!("privatetoken Token={token}"),
        format!("PrivateToken x=1, token = \"{}\"", token.trim_end_matches('=')),
        format!("PrivateToken token={}, later=\"thing\"", token.trim_end_matches('=')),
    ] {
        assert_eq!(authorization(&[&form]), Ok(Some(expected.clone())), "{form}");
        assert_eq!(authorization(&["Bearer abc", &form]), Ok(Some(expected.clone())));
        assert!(authorization(&[&form, &form]).is_err());
    }
    for other in [
        "",
        "Basic YWxpY2U6cGFzcw==",
        "Bearer PrivateToken",
        "PrivateTokens token=AAAA",
    ] {
        assert_eq!(authorization(&[other]), Ok(None), "{other}");
    }
    for malformed in [
        "PrivateToken".to_owned(),
        "PrivateToken token".to_owned(),
        "PrivateToken token=".to_owned(),
        format!("PrivateToken {token}"),
        format!("PrivateToken token=\"{token}"),
        format!("PrivateToken token={token}, token={token}"),
        format!("PrivateToken token={token}, Basic abc"),
        format!("PrivateToken token={}", "A".repeat(1_000)),
        format!("PrivateToken token={token}, x={}", "A".repeat(40_000)),
    ] {
        assert!(authorization(&[&malformed]).is_err(), "{malformed}");
    }
}

#[test]
fn names_are_hosts_and_contexts_have_32_bytes_or_none() {
    let new = |name: &str| TokenChallenge::new(Profile::P384, name);
    for name in [
        "issuer.example",
        "issuer.example:8443",
        "[2001:db8::1]:443",
        "xn--bcher-kva.example",
    ] {
        assert!(new(name).is_ok(), "{name}");
        assert!(new("i").unwrap().with_origins([name]).is_ok(), "{name}");
    }
    let long = "a".repeat(256);
    for name in [
        "",
        "a b",
        "a,b",
        "https://a",
        "a/b",
        "größe.example",
        "a\0",
        "\"",
        &long,
    ] {
        assert!(new(name).is_err(), "{name:?}");
        assert!(new("i").unwrap().with_origins([name]).is_err(), "{name:?}");
    }
    assert!(new("i").unwrap().with_origins(vec!["a".repeat(250); 20]).is_err());

    let valid = new("i").unwrap().with_redemption_context([1; 32]).to_bytes();
    assert!(TokenChallenge::parse(&valid).is_ok());
    for length in 0..valid.len() {
        assert!(TokenChallenge::parse(&valid[..length]).is_err());
    }
    assert!(TokenChallenge::parse(&[&*valid, &[0]].concat()).is_err());
    // A context of one byte, and a context longer than the message.
    assert!(TokenChallenge::parse(&[0xc7, 0xd3, 0, 1, b'i', 1, 7, 0, 0]).is_err());
    assert!(TokenChallenge::parse(&[0xc7, 0xd3, 0, 1, b'i', 33, 7, 0, 0]).is_err());
    assert!(TokenChallenge::parse(&vec![0; TokenChallenge::MAX_LENGTH + 1]).is_err());
}

#[test]
fn a_challenge_of_the_older_profile_has_no_credential_context() {
    let older = TokenChallenge::new(Profile::P384, "issuer.example").unwrap();
    assert_eq!(older.clone().with_credential_context([7; 32]), older);
    let challenge = TokenChallenge::new(Profile::P256, "issuer.example").unwrap();
    let renewed = challenge.clone().with_credential_context([7; 32]);
    let key = KeyId::from_bytes([9; 32]);
    assert_ne!(renewed.request_context(&key), challenge.request_context(&key));
    // A renewed credential starts with a full allowance in a context of the same name, and the limit applies to that
    // context.
    assert_eq!(renewed.presentation_context(&key), challenge.presentation_context(&key));
    assert_eq!(renewed.clone().with_profile(Profile::P256), renewed);
    assert_eq!(renewed.with_profile(Profile::P384), older);
    assert_eq!(TokenChallenge::parse(&older.to_bytes()), Ok(older));
}

#[test]
fn a_directory_is_read_for_the_keys_in_it_that_can_be_used() {
    let key = |profile: &str| {
        let case = cases()
            .into_iter()
            .find(|(_, case)| case["profile"].as_str().unwrap().starts_with(profile));
        hex(&case.unwrap().1["token_key"])
    };
    let base64 = |bytes: &[u8]| BASE64_URL_SAFE.encode(bytes);
    let (a, b) = (key("A"), key("B2"));
    let json = serde_json::json!({
        "issuer-request-uri": "https://issuer.example/arc",
        "new-thing": [1, {"deep": null}],
        "token-keys": [
            "no object",
            {"token-type": 2, "token-key": "AAAA"},
            {"token-type": 51155, "token-key": "not base64!"},
            {"token-type": 51155, "token-key": base64(&b)},
            {"token-type": 51155, "token-key": base64(&a), "not-before": "soon"},
            {"token-type": 4_000_000_000_u64, "token-key": base64(&a)},
            {"token-type": 58796, "token-key": base64(&b), "not-before": 1_700_000_000, "more": true},
            {"token-type": 51155, "token-key": base64(&a)},
        ],
    });
    let directory = Directory::parse(json.to_string().as_bytes()).unwrap();
    let keys: Vec<_> = directory
        .keys()
        .map(|(key, from)| (key.as_bytes().to_vec(), from.is_some()))
        .collect();
    assert_eq!(keys, [(b, true), (a, false)]);
    assert_eq!(Directory::parse(directory.to_json().as_bytes()), Ok(directory));
}

#[test]
fn a_directory_without_its_members_or_longer_than_the_bound_is_not_read() {
    for malformed in [
        "",
        "[]",
        "{}",
        r#"{"issuer-request-uri": "/arc"}"#,
        r#"{"issuer-request-uri": 7, "token-keys": []}"#,
        r#"{"issuer-request-uri": "/arc", "token-keys": {}}"#,
    ] {
        assert!(Directory::parse(malformed.as_bytes()).is_err(), "{malformed}");
    }
    let long = " ".repeat(Directory::MAX_LENGTH + 1);
    let too_long = Err(MessageError::Length("directory"));
    assert_eq!(Directory::parse(long.as_bytes()), too_long);
    assert!(Directory::parse("[".repeat(10_000).as_bytes()).is_err());
}
