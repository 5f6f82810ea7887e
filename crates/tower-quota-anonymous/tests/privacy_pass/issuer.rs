//! The issuer over HTTP: its directory, which clients get a credential, and the responses to all others.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use tower::ServiceExt;
use tower_quota::clock::{Clock, Timestamp};
use tower_quota_anonymous::{
    CredentialRequest, Directory, IssuanceDecision, IssuanceRequest, Issuer, IssuerBuilder, IssuerKey, KeySet, Profile,
};

/// Gives a credential to everybody.
async fn anybody(_: IssuanceRequest) -> IssuanceDecision {
    IssuanceDecision::issue()
}

/// One key of each profile.
pub(crate) fn keys() -> KeySet {
    let mut keys = KeySet::new();
    for profile in Profile::ALL {
        keys.insert(keys.generate(profile).unwrap(), ..);
    }
    keys
}

fn issuer() -> Issuer {
    Issuer::builder(anybody).keys(keys()).build().unwrap()
}

pub(crate) fn noon() -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000)
}

pub(crate) fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3_600)
}

pub(crate) async fn send<B>(issuer: &Issuer, request: Request<B>) -> Response<Full<Bytes>>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<tower::BoxError>,
{
    issuer.clone().oneshot(request).await.unwrap()
}

pub(crate) async fn content(response: Response<Full<Bytes>>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

pub(crate) fn post(message: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let head = Request::post("/arc/request").header(CONTENT_TYPE, Issuer::REQUEST_TYPE);
    head.body(Full::new(message.into())).unwrap()
}

/// A message that requests a credential of this key.
pub(crate) fn message(key: &IssuerKey) -> Vec<u8> {
    CredentialRequest::new(key.public_key(), b"context")
        .unwrap()
        .to_message()
}

/// Another key, whose ID ends with the same byte.
pub(crate) fn twin(key: &IssuerKey) -> IssuerKey {
    let mut drawn = std::iter::repeat_with(|| IssuerKey::generate(key.profile()).unwrap());
    let is_like = |other: &IssuerKey| other.key_id().truncated() == key.key_id().truncated();
    drawn.find(is_like).unwrap()
}

async fn directory_of(issuer: &Issuer) -> Directory {
    let response = send(issuer, Request::get(Directory::PATH).body(String::new()).unwrap()).await;
    Directory::parse(&content(response).await).unwrap()
}

#[tokio::test]
async fn a_credential_is_issued_over_http_and_its_presentations_verify() {
    let issuer = issuer();
    for key in issuer.keys().iter() {
        let request = CredentialRequest::new(key.public_key(), b"context").unwrap();
        assert_eq!(request.to_message().len(), 3 + key.profile().request_len());
        assert_eq!(request.to_message()[..2], key.profile().token_type().to_be_bytes());
        assert_eq!(request.to_message()[2], key.key_id().truncated());
        let response = send(&issuer, post(request.to_message())).await;
        assert_eq!(response.status(), 200);
        let media_type = "application/private-credential-response";
        assert_eq!(response.headers()["content-type"], media_type);
        assert_eq!(response.headers()["cache-control"], "no-store");
        let content = content(response).await;
        assert_eq!(content.len(), key.profile().response_len());
        let credential = request.finalize(&content).unwrap();
        let presentation = credential.present(b"window", 1, 2).unwrap();
        assert!(key.verify(presentation.as_bytes(), b"context", b"window", 1, 2).is_ok());
    }
}

#[tokio::test]
async fn the_directory_lists_the_keys_with_their_times_the_latest_first() {
    let mut keys = KeySet::new();
    keys.insert(keys.generate(Profile::P256).unwrap(), ..noon().saturating_add(hours(2)));
    keys.insert(keys.generate(Profile::P256).unwrap(), noon()..);
    keys.insert(keys.generate(Profile::P384).unwrap(), ..);
    let ids: Vec<_> = keys.iter().map(IssuerKey::key_id).collect();
    let clock = Clock::manual(noon());
    let issuer = Issuer::builder(anybody)
        .keys(keys)
        .clock(clock.clone())
        .build()
        .unwrap();

    let response = send(&issuer, Request::get(Directory::PATH).body(String::new()).unwrap()).await;
    assert_eq!(response.status(), 200);
    let media_type = "application/private-token-issuer-directory";
    assert_eq!(response.headers()["content-type"], media_type);
    assert_eq!(response.headers()["cache-control"], "public, max-age=3600");
    let directory = Directory::parse(&content(response).await).unwrap();
    assert_eq!(directory.request_uri(), "/arc/request");
    let listed = |directory: &Directory| {
        let keys = directory.keys();
        keys.map(|(key, not_before)| (key.key_id(), not_before))
            .collect::<Vec<_>>()
    };
    let expected = [(ids[1], Some(noon())), (ids[0], None), (ids[2], None)];
    assert_eq!(listed(&directory), expected);

    clock.advance(hours(2));
    let directory = directory_of(&issuer).await;
    assert_eq!(listed(&directory), [(ids[1], Some(noon())), (ids[2], None)]);
}

#[tokio::test]
async fn a_request_that_cannot_be_read_or_names_no_key_is_answered_with_422() {
    let issuer = issuer();
    for key in issuer.keys().iter() {
        let good = message(key);
        let with = |index: usize, byte: u8| {
            let mut message = good.clone();
            message[index] = byte;
            message
        };
        let other_profile = Profile::ALL
            .into_iter()
            .find(|profile| *profile != key.profile())
            .unwrap();
        let unknown = (0..=255).find(|byte| issuer.keys().iter().all(|key| key.key_id().truncated() != *byte));
        let messages = [
            vec![],
            good[..3].to_vec(),
            good[..good.len() - 1].to_vec(),
            [&good[..], &[0]].concat(),
            // Longer than any request.
            vec![0; 100_000],
            // Blind RSA, and the other profile.
            [&[0, 2], &good[2..]].concat(),
            [&other_profile.token_type().to_be_bytes(), &good[2..]].concat(),
            with(2, unknown.unwrap()),
            // No point, and a proof that fails.
            with(3, 4),
            with(good.len() - 1, good[good.len() - 1] ^ 1),
        ];
        for message in messages {
            let length = message.len();
            let response = send(&issuer, post(message)).await;
            assert_eq!(response.status(), 422, "{length} bytes");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            assert_eq!(response.headers()["cache-control"], "no-store");
        }
        assert_eq!(send(&issuer, post(good)).await.status(), 200);
    }
}

#[tokio::test]
async fn methods_types_and_paths_that_there_are_not_have_their_own_answers() {
    let issuer = issuer();
    let message = message(issuer.keys().iter().next().unwrap());
    let ask = async |method: Method, path: &str, media_type: Option<&str>| {
        let head = Request::builder().method(method).uri(path);
        let head = media_type
            .iter()
            .fold(head, |head, value| head.header(CONTENT_TYPE, *value));
        send(&issuer, head.body(Full::new(Bytes::from(message.clone()))).unwrap()).await
    };
    let right = Some(Issuer::REQUEST_TYPE);
    for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let response = ask(method, "/arc/request", right).await;
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()["allow"], "POST");
    }
    let response = ask(Method::POST, Directory::PATH, right).await;
    assert_eq!(response.status(), 405);
    assert_eq!(response.headers()["allow"], "GET, HEAD");
    assert_eq!(ask(Method::HEAD, Directory::PATH, None).await.status(), 200);
    for media_type in [
        None,
        Some("application/octet-stream"),
        Some("application/private-token-request"),
        Some("application/private-credential-response"),
    ] {
        let response = ask(Method::POST, "/arc/request", media_type).await;
        assert_eq!(response.status(), 415, "{media_type:?}");
        assert_eq!(response.headers()["accept"], Issuer::REQUEST_TYPE);
    }
    for media_type in [
        "Application/Private-Credential-Request",
        "application/private-credential-request; v=1",
    ] {
        let response = ask(Method::POST, "/arc/request", Some(media_type)).await;
        assert_eq!(response.status(), 200, "{media_type}");
    }
    assert_eq!(ask(Method::POST, "/", right).await.status(), 404);
    assert_eq!(ask(Method::GET, "/arc/request/", None).await.status(), 404);
}

#[tokio::test]
async fn the_policy_decides_who_gets_a_credential_and_what_others_are_told() {
    #[derive(Clone)]
    struct Account(Option<&'static str>);
    async fn decide(request: IssuanceRequest) -> IssuanceDecision {
        assert_eq!(request.parts().extensions.get(), Some(&request.key_id()));
        match request.parts().extensions.get::<Account>().unwrap().0 {
            Some("alice") => IssuanceDecision::issue(),
            Some("bob") => IssuanceDecision::retry_after(Duration::from_millis(1_500)),
            Some(_) => {
                let mut response = Response::new(Bytes::from("pay first"));
                *response.status_mut() = StatusCode::PAYMENT_REQUIRED;
                IssuanceDecision::respond_with(response)
            }
            None => IssuanceDecision::reject(),
        }
    }
    let issuer = Issuer::builder(decide).keys(keys()).build().unwrap();
    let message = message(issuer.keys().iter().next().unwrap());
    let ask = async |account: Option<&'static str>| {
        let mut request = post(message.clone());
        request.extensions_mut().insert(Account(account));
        send(&issuer, request).await
    };
    assert_eq!(ask(Some("alice")).await.status(), 200);
    let later = ask(Some("bob")).await;
    assert_eq!(later.status(), 429);
    assert_eq!(later.headers()["retry-after"], "2");
    assert_eq!(ask(None).await.status(), 403);
    let other = ask(Some("carol")).await;
    assert_eq!(other.status(), StatusCode::PAYMENT_REQUIRED);
    assert_eq!(content(other).await, "pay first");
}

#[tokio::test]
async fn content_is_read_no_further_than_a_request_is_long() {
    let head = Request::post("/arc/request").header(CONTENT_TYPE, Issuer::REQUEST_TYPE);
    let endless = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[0xe5; 100]))));
    let request = head.body(StreamBody::new(endless)).unwrap();
    assert_eq!(send(&issuer(), request).await.status(), 422);
}

#[tokio::test]
async fn a_key_issues_from_its_first_moment_up_to_its_last_one() {
    let key = IssuerKey::generate(Profile::P256).unwrap();
    let mut keys = KeySet::new();
    keys.insert(key.clone(), noon()..noon().saturating_add(hours(24)));
    let clock = Clock::manual(Timestamp::from_micros(noon().as_micros() - 3_600_000_000));
    let issuer = Issuer::builder(anybody)
        .keys(keys)
        .clock(clock.clone())
        .build()
        .unwrap();
    // The clock of a client may be a minute ahead.
    for (passed, status) in [(0, 422), (3_540, 200), (86_400, 200), (60, 422)] {
        clock.advance(Duration::from_secs(passed));
        assert_eq!(send(&issuer, post(message(&key))).await.status(), status);
    }
}

#[test]
fn two_keys_of_one_profile_whose_ids_end_in_one_byte_are_an_error() {
    let (first, mut keys) = (IssuerKey::generate(Profile::P256).unwrap(), KeySet::new());
    keys.insert(first.clone(), ..);
    keys.insert(twin(&first), ..);
    let error = Issuer::builder(anybody).keys(keys.clone()).build().unwrap_err();
    assert!(error.config_error().is_none());
    let byte = first.key_id().truncated();
    let message = format!("issuer: the IDs of two keys of ARC (P-256) end with {byte:02x}");
    assert_eq!(error.to_string(), message);

    // An issuer that runs keeps the keys that it has.
    let issuer = issuer();
    let before: Vec<_> = issuer.keys().iter().map(IssuerKey::key_id).collect();
    assert!(issuer.replace_keys(keys).is_err());
    assert_eq!(issuer.keys().iter().map(IssuerKey::key_id).collect::<Vec<_>>(), before);
}

/// Sixty that were drawn without looking would all differ by a chance of one in a thousand.
#[test]
fn keys_for_a_set_are_drawn_again_until_their_ids_end_in_different_bytes() {
    let mut keys = KeySet::new();
    for _ in 0..60 {
        keys.insert(keys.generate(Profile::P256).unwrap(), ..);
    }
    assert!(Issuer::builder(anybody).keys(keys).build().is_ok());
}

#[test]
fn settings_that_cannot_work_are_errors() {
    type Change = fn(IssuerBuilder) -> IssuerBuilder;
    let zero = "issuer: cache_lifetime 0ns is not a whole number of seconds in 1s..=2678400s";
    let fraction = "issuer: cache_lifetime 1.5s is not a whole number of seconds in 1s..=2678400s";
    let cases: [(Change, &str); 5] = [
        (
            |builder| builder.keys(KeySet::new()),
            "issuer: number of keys 0 is outside 1..=64",
        ),
        (|builder| builder.threads(0), "issuer: threads 0 is outside 1..=1024"),
        (
            |builder| builder.max_queued(70_000),
            "issuer: max_queued 70000 is outside 0..=65536",
        ),
        (|builder| builder.cache_lifetime(Duration::ZERO), zero),
        (|builder| builder.cache_lifetime(Duration::from_millis(1_500)), fraction),
    ];
    for (change, expected) in cases {
        let error = change(Issuer::builder(anybody).keys(keys())).build().unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    let of_uri = |uri: &str| Issuer::builder(anybody).keys(keys()).request_uri(uri).build();
    for uri in ["", "/a b", Directory::PATH] {
        let expected = format!("issuer: request_uri {uri:?} is not a valid path or URL");
        assert_eq!(of_uri(uri).unwrap_err().to_string(), expected);
    }
    let issuer = of_uri("https://issuer.example/v1/credentials").unwrap();
    assert_eq!(issuer.request_path(), "/v1/credentials");
}

#[test]
fn a_key_that_ends_overlaps_with_the_next_one_for_longer_than_caches_keep_the_directory() {
    let build = |ends_after: Duration, lifetime: Duration| {
        let mut keys = KeySet::new();
        keys.insert(
            keys.generate(Profile::P256).unwrap(),
            ..noon().saturating_add(ends_after),
        );
        keys.insert(keys.generate(Profile::P256).unwrap(), noon()..);
        Issuer::builder(anybody).keys(keys).cache_lifetime(lifetime).build()
    };
    assert!(build(hours(1), hours(1)).is_err());
    assert!(build(hours(1) + Duration::from_secs(1), hours(1)).is_ok());
    assert!(build(hours(3), hours(2)).is_ok());
    assert!(build(hours(1), hours(2)).is_err());

    // A key that nothing follows may end, and so may one of another profile.
    let mut keys = KeySet::new();
    keys.insert(keys.generate(Profile::P256).unwrap(), ..noon());
    keys.insert(keys.generate(Profile::P384).unwrap(), noon()..);
    assert!(Issuer::builder(anybody).keys(keys).build().is_ok());

    let mut keys = KeySet::new();
    keys.insert(keys.generate(Profile::P256).unwrap(), noon()..noon());
    let error = Issuer::builder(anybody).keys(keys).build().unwrap_err().to_string();
    assert!(error.ends_with("expires before it becomes valid"), "{error}");
}

#[tokio::test]
async fn keys_are_rotated_without_a_request_that_fails() {
    let (clock, mut keys) = (Clock::manual(noon()), KeySet::new());
    let mut all = vec![keys.generate(Profile::P256).unwrap()];
    keys.insert(all[0].clone(), ..);
    let issuer = Issuer::builder(anybody).keys(keys).clock(clock.clone());
    let issuer = issuer.build().unwrap();
    let mut begins = Timestamp::default();
    // Three clients, the directories that they keep, and the keys that they have used.
    let mut clients = [(); 3].map(|()| (None, Vec::new()));
    for step in 0..27 {
        let now = clock.now();
        // A key becomes current every three hours. It is announced two hours earlier, and the previous key remains
        // valid for two hours more.
        if step % 9 == 0 {
            let (last, next) = (all[step / 9].clone(), issuer.keys().generate(Profile::P256).unwrap());
            let begin = now.saturating_add(hours(2));
            let mut keys = KeySet::new();
            keys.insert(last, begins..begin.saturating_add(hours(2)));
            keys.insert(next.clone(), begin..);
            issuer.replace_keys(keys).unwrap();
            all.push(next);
            begins = begin;
        }
        for (number, (known, used)) in clients.iter_mut().enumerate() {
            // A client keeps the directory for as long as it may, and takes the key that it prefers.
            if step % 3 == number {
                *known = Some(directory_of(&issuer).await);
            }
            let Some(directory) = known else { continue };
            let key = directory.preferred_key(Profile::P256, now).unwrap();
            let request = CredentialRequest::new(key, b"context").unwrap();
            let response = send(&issuer, post(request.to_message())).await;
            assert_eq!(response.status(), 200, "key {} at {now:?}", key.key_id());
            assert!(request.finalize(&content(response).await).is_ok());
            used.push(key.key_id());
        }
        clock.advance(Duration::from_secs(1_200));
    }
    let all: Vec<_> = all.iter().map(IssuerKey::key_id).collect();
    for (_, mut used) in clients {
        used.dedup();
        assert_eq!(used, all, "each key has its time");
    }
}
