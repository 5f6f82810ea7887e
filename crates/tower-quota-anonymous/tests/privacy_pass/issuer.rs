//! The issuer over HTTP: its directory, which clients get a credential, and the responses to all others.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use test_kit::TestStore;
use tower::ServiceExt;
use tower_quota::{
    Limiter, MemoryStore, MissingKey, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Store, StoreErrorKind,
    clock::{Clock, Timestamp},
    key,
};
use tower_quota_anonymous::{
    CredentialRequest, Directory, IssuanceDecision, IssuanceRequest, Issuer, IssuerBuilder, IssuerKey, KeyId, KeySet,
    Profile,
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
        assert_eq!(
            response.headers()["content-type"],
            "application/private-credential-response"
        );
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
    assert_eq!(
        response.headers()["content-type"],
        "application/private-token-issuer-directory"
    );
    assert_eq!(response.headers()["cache-control"], "public, max-age=3600");
    let directory = Directory::parse(&content(response).await).unwrap();
    assert_eq!(directory.request_uri(), "/arc/request");
    let listed = |directory: &Directory| {
        let keys = directory.keys();
        keys.map(|(key, not_before)| (key.key_id(), not_before))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        listed(&directory),
        [(ids[1], Some(noon())), (ids[0], None), (ids[2], None)]
    );

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
    let request = |method: Method, path: &str, media_type: Option<&str>| {
        let head = Request::builder().method(method).uri(path);
        let head = media_type
            .into_iter()
            .fold(head, |head, value| head.header(CONTENT_TYPE, value));
        head.body(Full::new(Bytes::from(message.clone()))).unwrap()
    };
    let status = async |method, path, media_type| send(&issuer, request(method, path, media_type)).await.status();
    let right = Some(Issuer::REQUEST_TYPE);
    for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let response = send(&issuer, request(method, "/arc/request", right)).await;
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()["allow"], "POST");
    }
    let response = send(&issuer, request(Method::POST, Directory::PATH, right)).await;
    assert_eq!(response.status(), 405);
    assert_eq!(response.headers()["allow"], "GET, HEAD");
    assert_eq!(status(Method::HEAD, Directory::PATH, None).await, 200);
    for media_type in [
        None,
        Some("application/octet-stream"),
        Some("application/private-token-request"),
        Some("application/private-credential-response"),
    ] {
        let response = send(&issuer, request(Method::POST, "/arc/request", media_type)).await;
        assert_eq!(response.status(), 415, "{media_type:?}");
        assert_eq!(response.headers()["accept"], Issuer::REQUEST_TYPE);
    }
    for media_type in [
        "Application/Private-Credential-Request",
        "application/private-credential-request; v=1",
    ] {
        assert_eq!(
            status(Method::POST, "/arc/request", Some(media_type)).await,
            200,
            "{media_type}"
        );
    }
    assert_eq!(status(Method::POST, "/", right).await, 404);
    assert_eq!(status(Method::GET, "/arc/request/", None).await, 404);
}

#[tokio::test]
async fn the_policy_decides_who_gets_a_credential_and_what_others_are_told() {
    #[derive(Clone, Debug)]
    struct Account(&'static str);
    async fn decide(request: IssuanceRequest) -> IssuanceDecision {
        assert_eq!(request.parts().extensions.get(), Some(&request.key_id()));
        match request.parts().extensions.get().map(|Account(name)| *name) {
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
    let ask = async |account: Option<Account>| {
        let mut request = post(message.clone());
        if let Some(account) = account {
            request.extensions_mut().insert(account);
        }
        send(&issuer, request).await
    };
    assert_eq!(ask(Some(Account("alice"))).await.status(), 200);
    let later = ask(Some(Account("bob"))).await;
    assert_eq!(later.status(), 429);
    assert_eq!(later.headers()["retry-after"], "2");
    assert_eq!(ask(None).await.status(), 403);
    let other = ask(Some(Account("carol"))).await;
    assert_eq!(
        (other.status(), content(other).await),
        (StatusCode::PAYMENT_REQUIRED, "pay first".into())
    );
}

/// One credential a day for each account, and none without one.
fn ration(store: impl Store) -> RateLimitLayer {
    let layer = RateLimitLayerBuilder::from(
        Limiter::builder(store)
            .on_missing_key(MissingKey::Reject)
            .deadline(Duration::from_secs(60)),
    )
    .scope("credentials")
    .key(key::header("x-account"))
    .policy(QuotaPolicy::per_day("credentials", 1));
    layer.build().unwrap()
}

#[tokio::test]
async fn a_rate_limit_rations_by_account_so_that_two_accounts_behind_one_address_have_a_credential_each() {
    let issuer = Issuer::builder(ration(MemoryStore::new()))
        .keys(keys())
        .build()
        .unwrap();
    let messages = [(), ()].map(|()| message(issuer.keys().iter().next().unwrap()));
    let ask = async |account: &str, message: &[u8]| {
        let mut request = post(message.to_vec());
        request.headers_mut().insert("x-account", account.parse().unwrap());
        send(&issuer, request).await
    };
    for account in ["alice", "bob"] {
        let issued = ask(account, &messages[0]).await;
        assert_eq!(issued.status(), 200);
        assert_eq!(issued.headers()["ratelimit"], r#""credentials";r=0;t=86400"#);
        assert_eq!(issued.headers()["ratelimit-policy"], r#""credentials";q=1;w=86400"#);
        assert_eq!(content(issued).await.len(), Profile::P256.response_len());

        let rejected = ask(account, &messages[1]).await;
        assert_eq!(rejected.status(), 429);
        assert!(rejected.headers().contains_key("retry-after"));
        assert!(rejected.headers().contains_key("ratelimit"));
        let problem: serde_json::Value = serde_json::from_slice(&content(rejected).await).unwrap();
        assert_eq!(problem["violated-policies"][0], "credentials");
    }
    assert_eq!(send(&issuer, post(messages[0].clone())).await.status(), 403);
}

#[tokio::test]
async fn what_cannot_be_read_is_not_charged_and_what_fails_its_proof_is() {
    let issuer = Issuer::builder(ration(MemoryStore::new()))
        .keys(keys())
        .build()
        .unwrap();
    let good = message(issuer.keys().iter().next().unwrap());
    let ask = async |message: &[u8]| {
        let mut request = post(message.to_vec());
        request.headers_mut().insert("x-account", "alice".parse().unwrap());
        send(&issuer, request).await.status()
    };
    assert_eq!(ask(&good[1..]).await, 422);
    let mut forged = good.clone();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(ask(&forged).await, 422);
    assert_eq!(ask(&good).await, 429);
}

/// A credential outlasts an outage, so none is issued uncounted, regardless of the layer's failure mode.
#[tokio::test]
async fn nothing_is_issued_uncounted_while_the_store_is_unavailable() {
    let store = TestStore::failing(StoreErrorKind::Unreachable);
    let issuer = Issuer::builder(ration(store)).keys(keys()).build().unwrap();
    let mut request = post(message(issuer.keys().iter().next().unwrap()));
    request.headers_mut().insert("x-account", "alice".parse().unwrap());
    let response = send(&issuer, request).await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
}

/// Never ends.
struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0xe5; 100])))))
    }
}

#[tokio::test]
async fn content_is_read_no_further_than_a_request_is_long() {
    let head = Request::post("/arc/request").header(CONTENT_TYPE, Issuer::REQUEST_TYPE);
    assert_eq!(send(&issuer(), head.body(Endless).unwrap()).await.status(), 422);
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
    let status = async || send(&issuer, post(message(&key))).await.status();
    assert_eq!(status().await, 422);
    // The clock of a client may be a minute ahead.
    clock.advance(Duration::from_secs(3_540));
    assert_eq!(status().await, 200);
    clock.advance(hours(24));
    assert_eq!(status().await, 200);
    clock.advance(Duration::from_secs(60));
    assert_eq!(status().await, 422);
}

#[test]
fn two_keys_of_one_profile_whose_ids_end_in_one_byte_are_an_error() {
    let mut drawn: Vec<IssuerKey> = Vec::new();
    let (first, second) = loop {
        let key = IssuerKey::generate(Profile::P256).unwrap();
        let like = |other: &&IssuerKey| other.key_id().truncated() == key.key_id().truncated();
        if let Some(other) = drawn.iter().find(like) {
            break (other.clone(), key);
        }
        drawn.push(key);
    };
    let mut keys = KeySet::new();
    keys.insert(first.clone(), ..);
    keys.insert(second, ..);
    let error = Issuer::builder(anybody).keys(keys.clone()).build().unwrap_err();
    assert!(error.config_error().is_none());
    let byte = first.key_id().truncated();
    assert_eq!(
        error.to_string(),
        format!("issuer: the IDs of two keys of ARC (P-256) end with {byte:02x}")
    );

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
    let error = |change: Change| {
        let builder = Issuer::builder(anybody).keys(keys());
        change(builder).build().unwrap_err().to_string()
    };
    let cases: [(Change, &str); 8] = [
        (
            |builder| builder.keys(KeySet::new()),
            "issuer: number of keys 0 is outside 1..=64",
        ),
        (|builder| builder.threads(0), "issuer: threads 0 is outside 1..=1024"),
        (
            |builder| builder.max_queued(70_000),
            "issuer: max_queued 70000 is outside 0..=65536",
        ),
        (
            |builder| builder.cache_lifetime(Duration::ZERO),
            "issuer: cache_lifetime 0ns is not a whole number of seconds in 1s..=2678400s",
        ),
        (
            |builder| builder.cache_lifetime(Duration::from_millis(1_500)),
            "issuer: cache_lifetime 1.5s is not a whole number of seconds in 1s..=2678400s",
        ),
        (
            |builder| builder.request_uri(""),
            "issuer: request_uri \"\" is not a valid path or URL",
        ),
        (
            |builder| builder.request_uri("/a b"),
            "issuer: request_uri \"/a b\" is not a valid path or URL",
        ),
        (
            |builder| builder.request_uri(Directory::PATH),
            "issuer: request_uri \"/.well-known/private-token-issuer-directory\" is not a valid path or URL",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(error(change), expected);
    }
    let url = "https://issuer.example/v1/credentials";
    let issuer = Issuer::builder(anybody).keys(keys()).request_uri(url).build().unwrap();
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

/// An issuer whose keys change, and every key that it has had.
#[derive(Clone)]
struct Rotation {
    issuer: Issuer,
    clock: Clock,
    keys: Arc<Mutex<Vec<IssuerKey>>>,
}

/// The directory that a client knows, and since when.
type Known = Option<(Directory, Timestamp)>;

impl Rotation {
    /// A client keeps the directory for as long as it may, and takes the key that it prefers. Which key made its token?
    async fn token(&self, known: &mut Known) -> KeyId {
        loop {
            let now = self.clock.now();
            let is_stale = |fetched: Timestamp| now.micros_since(fetched) >= 3_600_000_000;
            if known.as_ref().is_none_or(|(_, fetched)| is_stale(*fetched)) {
                *known = Some((directory_of(&self.issuer).await, now));
            }
            let (directory, _) = known.as_ref().unwrap();
            let key = directory.preferred_key(Profile::P256, now).unwrap();
            let request = CredentialRequest::new(key, b"context").unwrap();
            let response = send(&self.issuer, post(request.to_message())).await;
            // The clock may have advanced by hours while the thread was paused.
            if response.status() == 422 && self.clock.now().micros_since(now) > 3_600_000_000 {
                continue;
            }
            assert_eq!(response.status(), 200, "key {} at {now:?}", key.key_id());
            let credential = request.finalize(&content(response).await).unwrap();
            let presentation = credential.present(b"window", 0, 1).unwrap();
            let keys = self.keys.lock().unwrap().clone();
            let verified = |key: &&IssuerKey| key.verify(presentation.as_bytes(), b"context", b"window", 0, 1).is_ok();
            return keys.iter().find(verified).unwrap().key_id();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_rotated_under_load_without_a_request_that_fails() {
    let (clock, mut keys) = (Clock::manual(noon()), KeySet::new());
    let first = keys.generate(Profile::P256).unwrap();
    keys.insert(first.clone(), ..);
    let builder = Issuer::builder(anybody).keys(keys).clock(clock.clone());
    let rotation = Rotation {
        issuer: builder.build().unwrap(),
        clock: clock.clone(),
        keys: Arc::new(Mutex::new(vec![first.clone()])),
    };
    let end = noon().saturating_add(hours(9));
    let load: Vec<_> = (0..2)
        .map(|_| {
            let rotation = rotation.clone();
            tokio::spawn(async move {
                let mut known = None;
                while rotation.clock.now() < end {
                    rotation.token(&mut known).await;
                }
            })
        })
        .collect();

    // A key becomes current every three hours. It is announced two hours earlier, and the previous key remains valid
    // for two hours more.
    let (mut current, mut begins) = (first, Timestamp::default());
    let (mut known, mut used) = (None, Vec::new());
    for round in 1..=3 {
        let next = rotation.issuer.keys().generate(Profile::P256).unwrap();
        rotation.keys.lock().unwrap().push(next.clone());
        let begin = noon().saturating_add(hours(3 * round - 1));
        let mut keys = KeySet::new();
        keys.insert(current, begins..begin.saturating_add(hours(2)));
        keys.insert(next.clone(), begin..);
        rotation.issuer.replace_keys(keys).unwrap();
        for _ in 0..9 {
            used.push(rotation.token(&mut known).await);
            clock.advance(Duration::from_secs(1_200));
        }
        (current, begins) = (next, begin);
    }
    for client in load {
        client.await.unwrap();
    }
    used.dedup();
    let all: Vec<_> = rotation.keys.lock().unwrap().iter().map(IssuerKey::key_id).collect();
    assert_eq!(used, all, "each key has its time");
}
