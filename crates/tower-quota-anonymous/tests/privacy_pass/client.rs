//! The client: which challenges it answers, what it requests from issuers, and that it uses no nonce twice.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use tokio::sync::{Notify, Semaphore};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_quota::{
    Algorithm, Exemption, MemoryStore, QuotaPolicy, RateLimitLayer,
    clock::{Clock, Timestamp},
    key::{self, PeerAddress},
};
use tower_quota_anonymous::{
    AcceptedToken, Challenge, ContextName, CredentialStorage, Directory, IssuerKey, MemoryCredentials, OriginLayer,
    Profile, Reserved, StorageFuture, Token, TokenChallenge, TokenClient, TokenClientError, TokenClientLayer,
    TokenClientLayerBuilder, TrustedIssuer, token_from_headers,
};

const MINUTE: Duration = Duration::from_secs(60);

/// A function from a request to the issuer to its answer.
type Answer = dyn Fn(&Request<Bytes>) -> Option<Response<Full<Bytes>>> + Send + Sync;

/// An issuer that issues a credential to every client, unless the test sets another response.
#[derive(Clone)]
struct Issuer(Arc<Inside>);

struct Inside {
    key: IssuerKey,
    directory: Mutex<String>,
    asked: Mutex<Vec<Request<Bytes>>>,
    answer: Mutex<Option<Box<Answer>>>,
}

impl Issuer {
    fn new(profile: Profile) -> Self {
        let key = IssuerKey::generate(profile).unwrap();
        let directory = Directory::new("/arc")
            .with_key(key.public_key().clone(), None)
            .to_json();
        Self(Arc::new(Inside {
            key,
            directory: directory.into(),
            asked: Mutex::default(),
            answer: Mutex::default(),
        }))
    }

    /// The request is answered like this, where there is an answer.
    fn answer(&self, answer: impl Fn(&Request<Bytes>) -> Option<Response<Full<Bytes>>> + Send + Sync + 'static) {
        *self.0.answer.lock().unwrap() = Some(Box::new(answer));
    }

    fn respond(&self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        let told = self
            .0
            .answer
            .lock()
            .unwrap()
            .as_ref()
            .and_then(|answer| answer(&request));
        let response = told.unwrap_or_else(|| match request.method() {
            &Method::GET => respond(Directory::MEDIA_TYPE, self.0.directory.lock().unwrap().clone()),
            _ => respond(
                "application/private-credential-response",
                self.0.key.issue(&request.body()[3..]).unwrap(),
            ),
        });
        self.0.asked.lock().unwrap().push(request);
        response
    }

    /// The requested paths and queries, each with its host.
    fn asked(&self) -> Vec<String> {
        self.0
            .asked
            .lock()
            .unwrap()
            .iter()
            .map(|request| request.uri().to_string())
            .collect()
    }

    fn issued(&self) -> usize {
        let asked = self.0.asked.lock().unwrap();
        asked.iter().filter(|request| request.method() == Method::POST).count()
    }

    /// For the origin of [`request`].
    fn trusted(&self, name: &str) -> TrustedIssuer {
        self.unbound(name).origin("api.example")
    }

    fn unbound(&self, name: &str) -> TrustedIssuer {
        let issuer = self.clone();
        let service = service_fn(move |request: Request<Bytes>| {
            let response = issuer.respond(request);
            async move { Ok::<_, Infallible>(response) }
        });
        TrustedIssuer::new(name, service)
    }
}

fn respond(content_type: &'static str, content: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let response = Response::builder().header(header::CONTENT_TYPE, content_type);
    response.body(Full::new(content.into())).unwrap()
}

/// An origin, and the tokens that were sent to it.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Option<Token>>>>);

impl Seen {
    fn note(&self, request: &Request<()>) {
        self.0
            .lock()
            .unwrap()
            .push(token_from_headers(request.headers()).unwrap());
    }

    fn requests(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn tokens(&self) -> Vec<Token> {
        self.0.lock().unwrap().iter().flatten().cloned().collect()
    }

    /// The nonces of all tokens, each key, context and credential apart; panics if one was used twice.
    fn nonces(&self) -> Vec<u32> {
        let tags: Vec<_> = self.tokens().iter().map(tag).collect();
        assert_eq!(
            tags.iter().collect::<BTreeSet<_>>().len(),
            tags.len(),
            "a tag was there twice"
        );
        self.tokens().iter().map(Token::nonce).collect()
    }
}

fn tag(token: &Token) -> Vec<u8> {
    let length = token.profile().tag_len();
    token.presentation()[3 * length..4 * length].to_vec()
}

/// The real origin, of this many tokens in a minute.
fn origin(key: &IssuerKey, limit: u32, clock: &Clock) -> OriginLayer {
    OriginLayer::builder("issuer.example", &[7; 32])
        .origin("api.example")
        .key(key.clone())
        .policy("anonymous", limit, MINUTE)
        .clock(clock.clone())
        .build()
        .unwrap()
}

type Sender = tower::util::BoxCloneSyncService<Request<()>, Response<()>, Infallible>;

/// The way to an origin.
fn to_origin(layer: OriginLayer, seen: &Seen) -> Sender {
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let (service, seen) = (layer.layer(inner), seen.clone());
    Sender::new(service_fn(move |request: Request<()>| {
        seen.note(&request);
        let response = service.clone().oneshot(request.map(|()| String::new()));
        async move { response.await.map(|response| response.map(drop)) }
    }))
}

/// The way to an origin that answers each request with this.
fn to_fake(seen: &Seen, answer: impl Fn(&Request<()>) -> Response<()> + Clone + Send + Sync + 'static) -> Sender {
    let seen = seen.clone();
    Sender::new(service_fn(move |request: Request<()>| {
        seen.note(&request);
        let response = answer(&request);
        async move { Ok(response) }
    }))
}

fn challenging(status: u16, challenge: &Challenge) -> Response<()> {
    let response = Response::builder().status(status);
    response
        .header(header::WWW_AUTHENTICATE, challenge.to_header_value())
        .body(())
        .unwrap()
}

fn challenge_of(issuer: &str, origins: &[&str]) -> TokenChallenge {
    TokenChallenge::new(Profile::P256, issuer)
        .unwrap()
        .with_origins(origins)
        .unwrap()
}

fn manual() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_040_000_000))
}

fn client(issuer: &Issuer, clock: &Clock) -> TokenClientLayerBuilder {
    TokenClientLayer::builder()
        .issuer(issuer.trusted("issuer.example"))
        .clock(clock.clone())
}

fn request() -> Request<()> {
    Request::get("https://api.example/").body(()).unwrap()
}

async fn send(client: &TokenClient<Sender>) -> Result<StatusCode, TokenClientError<Infallible>> {
    let response = client.clone().oneshot(request()).await;
    response.map(|response| response.status())
}

/// M12, M19, M23: one issuance, many tokens, and nothing is sent when none is left.
#[tokio::test]
async fn a_credential_is_fetched_once_and_spent_to_the_limit() {
    for profile in Profile::ALL {
        let (issuer, clock, seen) = (Issuer::new(profile), manual(), Seen::default());
        let client = client(&issuer, &clock)
            .build()
            .unwrap()
            .layer(to_origin(origin(&issuer.0.key, 3, &clock), &seen));
        for _ in 0..3 {
            assert_eq!(send(&client).await.unwrap(), 200, "{profile}");
        }
        // The first request was challenged; later requests had a token immediately.
        assert_eq!(seen.requests(), 4);
        let error = send(&client).await.unwrap_err();
        let TokenClientError::LimitReached { retry_after } = error else {
            panic!("{error}")
        };
        assert_eq!(retry_after, Some(Duration::from_secs(75)));
        assert_eq!((seen.requests(), issuer.issued()), (4, 1));
        assert_eq!(BTreeSet::from_iter(seen.nonces()), BTreeSet::from([0, 1, 2]));

        // A new window is a new allowance of the same credential.
        clock.advance(Duration::from_secs(75));
        assert_eq!(send(&client).await.unwrap(), 200);
        assert_eq!((seen.requests(), issuer.issued()), (6, 1));
    }
}

/// M10, M11, M12
#[tokio::test]
async fn a_request_for_a_credential_has_the_form_of_the_drafts() {
    for (profile, length) in [(Profile::P384, 341), (Profile::P256, 229)] {
        let (issuer, clock, seen) = (Issuer::new(profile), manual(), Seen::default());
        let client = client(&issuer, &clock)
            .build()
            .unwrap()
            .layer(to_origin(origin(&issuer.0.key, 1, &clock), &seen));
        assert_eq!(send(&client).await.unwrap(), 200);
        let asked = issuer.0.asked.lock().unwrap();
        assert_eq!(
            asked[0].uri(),
            "https://issuer.example/.well-known/private-token-issuer-directory"
        );
        assert_eq!(asked[1].uri(), "https://issuer.example/arc");
        assert_eq!(asked[1].method(), Method::POST);
        assert_eq!(
            asked[1].headers()["content-type"],
            "application/private-credential-request"
        );
        assert_eq!(asked[1].headers()["accept"], "application/private-credential-response");
        assert_eq!(asked[1].body().len(), length);
        assert_eq!(asked[1].body()[..2], profile.token_type().to_be_bytes());
        assert_eq!(asked[1].body()[2], issuer.0.key.key_id().truncated());
    }
}

/// An origin with this challenge, which answers requests without a token with 429 while its limit is exceeded.
#[derive(Clone)]
struct Optional {
    challenge: Challenge,
    retry_after: Option<&'static str>,
    is_exceeded: Arc<AtomicBool>,
}

impl Optional {
    fn new(limit: u32) -> Self {
        let challenge = Challenge::new(&challenge_of("issuer.example", &["api.example"])).with_rate_limit(limit);
        Self {
            challenge: challenge.with_max_age(MINUTE),
            retry_after: None,
            is_exceeded: Arc::new(true.into()),
        }
    }

    fn sender(&self, seen: &Seen) -> Sender {
        let site = self.clone();
        to_fake(seen, move |request| {
            if request.headers().contains_key("authorization") || !site.is_exceeded.load(Ordering::SeqCst) {
                return Response::new(());
            }
            let mut response = challenging(429, &site.challenge);
            if let Some(wait) = site.retry_after {
                response
                    .headers_mut()
                    .insert(header::RETRY_AFTER, HeaderValue::from_static(wait));
            }
            response
        })
    }
}

/// M37: the client acts on a 429, too; and since only some requests need a token, it sends none before and after.
#[tokio::test]
async fn after_a_429_tokens_are_sent_at_once_until_its_retry_after_is_over() {
    let challenge = Optional::new(50).challenge;
    for (retry_after, challenge, seconds, rounds) in [
        (Some("20"), &challenge, 20, 2),
        (Some("90"), &challenge, 60, 2),
        (Some("soon"), &challenge, 60, 2),
        (Some("Tue, 14 Nov 2023 22:14:30 GMT"), &challenge, 30, 1),
        (None, &challenge, 60, 2),
        (
            Some("20"),
            &Challenge::new(&challenge_of("issuer.example", &["api.example"])).with_rate_limit(50),
            20,
            2,
        ),
    ] {
        let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
        let site = Optional {
            retry_after,
            challenge: challenge.clone(),
            ..Optional::new(50)
        };
        let client = client(&issuer, &clock).build().unwrap().layer(site.sender(&seen));
        for round in 0..rounds {
            let counts = || (seen.requests() - round * 6, seen.tokens().len() - round * 4);
            assert_eq!(send(&client).await.unwrap(), 200);
            assert_eq!(counts(), (2, 1), "{retry_after:?}");
            clock.advance(Duration::from_secs(seconds - 1));
            for _ in 0..3 {
                assert_eq!(send(&client).await.unwrap(), 200);
            }
            assert_eq!(counts(), (5, 4), "{retry_after:?}");
            // The limit is no longer exceeded, and no token is spent.
            clock.advance(Duration::from_secs(1));
            site.is_exceeded.store(false, Ordering::SeqCst);
            assert_eq!(send(&client).await.unwrap(), 200);
            assert_eq!(counts(), (6, 4), "{retry_after:?}");
            site.is_exceeded.store(true, Ordering::SeqCst);
        }
        assert_eq!(issuer.issued(), 1);
    }
}

#[tokio::test]
async fn a_429_without_a_time_or_without_a_challenge_is_not_remembered() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let layer = client(&issuer, &clock).build().unwrap();
    let challenge = Challenge::new(&challenge_of("issuer.example", &["api.example"])).with_rate_limit(5);
    let site = Optional {
        challenge,
        ..Optional::new(5)
    };
    let timeless = layer.layer(site.sender(&seen));
    for requests in [2, 4] {
        assert_eq!(send(&timeless).await.unwrap(), 200);
        assert_eq!((seen.requests(), seen.tokens().len()), (requests, requests / 2));
    }
    let plain = layer.layer(to_fake(&seen, |_| {
        let response = Response::builder().status(429).header("retry-after", "20");
        response.body(()).unwrap()
    }));
    for requests in [5, 6] {
        assert_eq!(send(&plain).await.unwrap(), 429);
        assert_eq!((seen.requests(), seen.tokens().len()), (requests, 2));
    }
}

#[tokio::test]
async fn requests_are_sent_without_a_token_when_those_for_a_429_are_used_up() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let site = Optional::new(2);
    let client = client(&issuer, &clock).build().unwrap().layer(site.sender(&seen));
    for _ in 0..2 {
        assert_eq!(send(&client).await.unwrap(), 200);
    }
    assert_eq!((seen.requests(), seen.tokens().len()), (3, 2));
    site.is_exceeded.store(false, Ordering::SeqCst);
    assert_eq!(send(&client).await.unwrap(), 200);
    site.is_exceeded.store(true, Ordering::SeqCst);
    let error = send(&client).await.unwrap_err();
    assert!(
        matches!(
            error,
            TokenClientError::LimitReached {
                retry_after: Some(MINUTE)
            }
        ),
        "{error}"
    );
    assert_eq!((seen.requests(), seen.tokens().len(), issuer.issued()), (5, 2, 1));
}

#[tokio::test]
async fn requests_are_sent_without_a_token_when_the_issuer_gives_no_credential_for_a_429() {
    let (issuer, clock, seen, kept) = (
        Issuer::new(Profile::P256),
        manual(),
        Seen::default(),
        Forgetful::default(),
    );
    let site = Optional::new(5);
    let layer = client(&issuer, &clock).storage(kept.clone()).build().unwrap();
    let client = layer.layer(site.sender(&seen));
    assert_eq!(send(&client).await.unwrap(), 200);
    *kept.0.lock().unwrap() = Arc::default();
    issuer.answer(|request| {
        let unavailable = || Response::builder().status(503).body(Full::default()).unwrap();
        (request.method() == Method::POST).then(unavailable)
    });
    site.is_exceeded.store(false, Ordering::SeqCst);
    for _ in 0..5 {
        assert_eq!(send(&client).await.unwrap(), 200);
    }
    assert_eq!((seen.requests(), seen.tokens().len(), issuer.issued()), (7, 1, 2));
    site.is_exceeded.store(true, Ordering::SeqCst);
    assert_eq!(
        wait_of(&send(&client).await.unwrap_err()),
        Some(Duration::from_secs(10))
    );
    assert_eq!((seen.requests(), seen.tokens().len(), issuer.issued()), (8, 1, 2));
}

/// A token for the challenge of an earlier 429 can be too old. The resulting 401 does not mean that every request needs
/// a token.
#[tokio::test]
async fn a_401_for_a_token_that_a_429_has_asked_for_makes_tokens_no_requirement() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let site = Optional::new(50);
    let layer = client(&issuer, &clock).build().unwrap();
    assert_eq!(send(&layer.layer(site.sender(&seen))).await.unwrap(), 200);
    let next = challenge_of("issuer.example", &["api.example"]).with_redemption_context([1; 32]);
    let next = Challenge::new(&next).with_rate_limit(50).with_max_age(MINUTE);
    let expected = next.token_challenge().unwrap().digest();
    let changed = layer.layer(to_fake(&seen, move |request| {
        match token_from_headers(request.headers()).unwrap() {
            Some(token) if token.challenge_digest() != Some(&expected) => challenging(401, &next),
            _ => Response::new(()),
        }
    }));
    // With the old token, with a new one; then without one.
    for (requests, tokens) in [(4, 3), (5, 3), (6, 3)] {
        assert_eq!(send(&changed).await.unwrap(), 200);
        assert_eq!((seen.requests(), seen.tokens().len()), (requests, tokens));
    }
}

/// The whole of it: a limit by address, and tokens for those above it.
#[tokio::test]
async fn where_tokens_are_optional_each_request_is_sent_once() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let by_address = RateLimitLayer::builder(store)
        .scope("api")
        .key(key::client_ip())
        .policy(QuotaPolicy::new("address", 3, Duration::from_secs(30)).with_algorithm(Algorithm::FixedWindow))
        .exempt(Exemption::when(|request| {
            request.extensions.get::<AcceptedToken>().is_some()
        }))
        .build()
        .unwrap();
    let tokens = OriginLayer::builder("issuer.example", &[7; 32])
        .origin("api.example")
        .key(issuer.0.key.clone())
        .policy("anonymous", 10, MINUTE)
        .optional()
        .clock(clock.clone())
        .build()
        .unwrap();
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
    let (service, own) = (tokens.layer(by_address.layer(inner)), seen.clone());
    let sender = Sender::new(service_fn(move |mut request: Request<()>| {
        own.note(&request);
        request
            .extensions_mut()
            .insert(PeerAddress(([192, 0, 2, 1], 80).into()));
        let response = service.clone().oneshot(request.map(|()| String::new()));
        async move { response.await.map(|response| response.map(drop)) }
    }));
    let client = client(&issuer, &clock).build().unwrap().layer(sender);
    // Three requests without a token; the fourth is rejected, and sent again with a token; six more with tokens.
    for _ in 0..10 {
        assert_eq!(send(&client).await.unwrap(), 200);
    }
    assert_eq!((seen.requests(), seen.tokens().len()), (11, 7));
    // The limit is no longer exceeded.
    clock.advance(Duration::from_secs(30));
    for _ in 0..3 {
        assert_eq!(send(&client).await.unwrap(), 200);
    }
    assert_eq!((seen.requests(), seen.tokens().len()), (14, 7));
}

/// An origin responds to a gRPC call with status 200, and `grpc-status` contains the outcome.
#[tokio::test]
async fn challenges_in_a_grpc_status_are_answered() {
    for (code, requests) in [("16", 3), ("8", 3), ("0", 2), ("14", 2)] {
        let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
        let challenge = Challenge::new(&challenge_of("issuer.example", &["api.example"]))
            .with_rate_limit(5)
            .with_max_age(MINUTE);
        let answer = move |request: &Request<()>| {
            let mut response = challenging(200, &challenge);
            let status = match request.headers().contains_key("authorization") {
                true => "0",
                false => code,
            };
            response.headers_mut().insert("grpc-status", status.parse().unwrap());
            response
        };
        let client = client(&issuer, &clock).build().unwrap().layer(to_fake(&seen, answer));
        for _ in 0..2 {
            assert_eq!(send(&client).await.unwrap(), 200);
        }
        assert_eq!(seen.requests(), requests, "{code}");
    }
}

/// M22: two calls at once give two nonces, and one issuance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_the_same_time_share_a_credential_and_no_nonce() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let client = client(&issuer, &clock)
        .build()
        .unwrap()
        .layer(to_origin(origin(&issuer.0.key, 20, &clock), &seen));
    let tasks = (0..25).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { send(&client).await })
    });
    let results: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(
        results
            .iter()
            .filter(|result| matches!(result, Ok(status) if *status == 200))
            .count(),
        20
    );
    let is_limit = |result: &&Result<_, _>| matches!(result, Err(TokenClientError::LimitReached { .. }));
    assert_eq!(results.iter().filter(is_limit).count(), 5);
    assert_eq!(BTreeSet::from_iter(seen.nonces()).len(), 20);
    assert_eq!(issuer.issued(), 1);
}

/// A storage that outlives its client, as a file does.
#[derive(Clone, Default)]
struct Kept(Arc<MemoryCredentials>);

impl CredentialStorage for Kept {
    fn reserve(
        &self,
        credential: ContextName,
        context: ContextName,
        limit: u32,
    ) -> StorageFuture<'_, Option<Reserved>> {
        self.0.reserve(credential, context, limit)
    }

    fn save(&self, credential: ContextName, profile: Profile, bytes: &[u8]) -> StorageFuture<'_, ()> {
        self.0.save(credential, profile, bytes)
    }
}

/// A storage that the test can empty.
#[derive(Clone, Default)]
struct Forgetful(Arc<Mutex<Arc<MemoryCredentials>>>);

impl CredentialStorage for Forgetful {
    fn reserve(
        &self,
        credential: ContextName,
        context: ContextName,
        limit: u32,
    ) -> StorageFuture<'_, Option<Reserved>> {
        let storage = Arc::clone(&self.0.lock().unwrap());
        Box::pin(async move { storage.reserve(credential, context, limit).await })
    }

    fn save(&self, credential: ContextName, profile: Profile, bytes: &[u8]) -> StorageFuture<'_, ()> {
        let (storage, bytes) = (Arc::clone(&self.0.lock().unwrap()), bytes.to_vec());
        Box::pin(async move { storage.save(credential, profile, &bytes).await })
    }
}

/// M22: a nonce is stored before it is sent, so the nonce of a lost request is not reused.
#[tokio::test]
async fn after_a_crash_a_client_goes_on_with_its_credential_and_repeats_no_nonce() {
    let (issuer, clock, seen, kept) = (Issuer::new(Profile::P256), manual(), Seen::default(), Kept::default());
    let sender = to_origin(origin(&issuer.0.key, 6, &clock), &seen);
    for _ in 0..3 {
        let client = client(&issuer, &clock)
            .storage(kept.clone())
            .build()
            .unwrap()
            .layer(sender.clone());
        assert_eq!(send(&client).await.unwrap(), 200);
        // The program ends while a request is in flight, so it cannot know whether the token arrived.
        let mut lost = client.clone();
        drop(lost.ready().await.unwrap().call(request()));
        let sent_and_lost = tokio::time::timeout(Duration::ZERO, client.oneshot(request()));
        drop(sent_and_lost.await);
    }
    let last = client(&issuer, &clock).storage(kept).build().unwrap().layer(sender);
    while send(&last).await.is_ok() {}
    assert!(seen.nonces().len() <= 6);
    assert_eq!(issuer.issued(), 1);
}

/// M24
#[tokio::test]
async fn a_limit_that_is_raised_does_not_give_used_nonces_back() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let asked = challenge_of("issuer.example", &["api.example"]);
    let limit = Arc::new(Mutex::new(2));
    let shown = Arc::clone(&limit);
    let answer = move |request: &Request<()>| match request.headers().contains_key("authorization") {
        true => Response::new(()),
        false => challenging(401, &Challenge::new(&asked).with_rate_limit(*shown.lock().unwrap())),
    };
    let client = client(&issuer, &clock).build().unwrap().layer(to_fake(&seen, answer));
    for (now, more) in [(2, 2), (5, 3), (1, 0)] {
        *limit.lock().unwrap() = now;
        for _ in 0..more {
            assert_eq!(send(&client).await.unwrap(), 200);
        }
        assert!(matches!(
            send(&client).await,
            Err(TokenClientError::LimitReached { retry_after: None })
        ));
    }
    assert_eq!(BTreeSet::from_iter(seen.nonces()), BTreeSet::from([0, 1, 2, 3, 4]));
}

/// M6, M8, M39, M40, M41: a response without an answerable challenge is returned unchanged, and no request is sent to
/// an issuer.
#[tokio::test]
async fn challenges_that_do_not_pass_the_checks_are_not_answered() {
    let own = challenge_of("issuer.example", &["api.example"]);
    let of = |challenge: &TokenChallenge| Challenge::new(challenge).with_rate_limit(5);
    let other_type = [&[0, 2], &own.to_bytes()[2..own.to_bytes().len() - 1]].concat();
    let other_type = TokenChallenge::parse(&other_type).unwrap();
    let stranger = IssuerKey::generate(Profile::P256).unwrap();
    for (what, challenge, is_asked) in [
        (
            "another origin",
            of(&challenge_of("issuer.example", &["www.example"])),
            false,
        ),
        ("any origin", of(&challenge_of("issuer.example", &[])), false),
        (
            "another port",
            of(&challenge_of("issuer.example", &["api.example:8443"])),
            false,
        ),
        (
            "another issuer",
            of(&challenge_of("other.example", &["api.example"])),
            false,
        ),
        ("another type", of(&other_type), false),
        ("no limit", Challenge::new(&own), false),
        ("a limit above the bound", of(&own).with_rate_limit(65_537), false),
        ("the largest limit", of(&own).with_rate_limit(u32::MAX), false),
        (
            "a key that the issuer does not list",
            of(&own).with_token_key(stranger.public_key().as_bytes()),
            true,
        ),
        ("a key that is none", of(&own).with_token_key([1, 2, 3]), true),
    ] {
        let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
        let client = client(&issuer, &clock).build().unwrap();
        let client = client.layer(to_fake(&seen, move |_| challenging(401, &challenge)));
        for _ in 0..20 {
            assert_eq!(send(&client).await.unwrap(), 401, "{what}");
        }
        assert_eq!((seen.requests(), seen.tokens().len()), (20, 0), "{what}");
        // However often an origin shows another key, the directory is read once.
        assert_eq!(issuer.asked().len(), usize::from(is_asked), "{what}");
    }
}

/// M6, M41
#[tokio::test]
async fn a_pinned_limit_stands_for_one_that_is_missing_and_keeps_others_out() {
    let own = challenge_of("issuer.example", &["api.example"]);
    for (limit, status) in [(None, 200), (Some(5), 200), (Some(6), 401)] {
        let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
        let challenge = Challenge::new(&own).with_rate_limit(limit.unwrap_or(0));
        let answer = move |request: &Request<()>| match request.headers().contains_key("authorization") {
            true => Response::new(()),
            false => challenging(401, &challenge),
        };
        let issuer = issuer.trusted("issuer.example").pin_limit(5);
        let layer = TokenClientLayer::builder().issuer(issuer).clock(clock).build().unwrap();
        assert_eq!(
            send(&layer.layer(to_fake(&seen, answer))).await.unwrap(),
            status,
            "{limit:?}"
        );
    }
}

/// M21, M40
#[tokio::test]
async fn each_issuer_has_its_own_credential_and_a_pinned_key_is_the_only_one_believed() {
    let [first, second, third] = [(); 3].map(|()| Issuer::new(Profile::P256));
    let (clock, seen) = (manual(), Seen::default());
    let layer = TokenClientLayer::builder()
        .issuer(first.trusted("issuer.example"))
        .issuer(
            second
                .trusted("second.example")
                .pin_key(first.0.key.public_key().clone()),
        )
        .issuer(third.trusted("third.example"))
        .clock(clock)
        .build()
        .unwrap();
    let answer = |name: &'static str, key: &IssuerKey| {
        let challenge = challenge_of(name, &["api.example"]);
        let challenge = Challenge::new(&challenge)
            .with_rate_limit(5)
            .with_token_key(key.public_key().as_bytes());
        move |request: &Request<()>| match request.headers().contains_key("authorization") {
            true => Response::new(()),
            false => challenging(401, &challenge),
        }
    };
    let to_first = layer.layer(to_fake(&seen, answer("issuer.example", &first.0.key)));
    let to_third = layer.layer(to_fake(&seen, answer("third.example", &third.0.key)));
    for (number, (client, issuer)) in [(&to_first, &first), (&to_third, &third)]
        .repeat(2)
        .into_iter()
        .enumerate()
    {
        assert_eq!(send(client).await.unwrap(), 200);
        assert_eq!(*seen.tokens()[number].key(), issuer.0.key.key_id());
    }
    assert_eq!((first.issued(), third.issued()), (1, 1));
    // The second one lists its key, and the program knows another.
    let to_second = layer.layer(to_fake(&seen, answer("second.example", &second.0.key)));
    assert_eq!(send(&to_second).await.unwrap(), 401);
    assert_eq!((second.issued(), seen.tokens().len()), (0, 4));
}

/// M40
#[tokio::test]
async fn only_the_issuers_own_host_is_asked_and_only_by_https() {
    let clock = manual();
    for (uri, asked) in [
        ("/arc?a=b", Some("https://issuer.example/arc?a=b")),
        ("request", Some("https://issuer.example/.well-known/request")),
        ("https://issuer.example/x", Some("https://issuer.example/x")),
        ("https://ISSUER.example:443/x", Some("https://ISSUER.example:443/x")),
        ("http://issuer.example/x", None),
        ("https://issuer.example:444/x", None),
        ("https://elsewhere.example/x", None),
        ("https://issuer.example@elsewhere.example/x", None),
        ("//elsewhere.example/x", None),
        ("ftp://issuer.example/x", None),
        ("https://", None),
    ] {
        let (issuer, seen) = (Issuer::new(Profile::P256), Seen::default());
        let directory = Directory::new(uri).with_key(issuer.0.key.public_key().clone(), None);
        *issuer.0.directory.lock().unwrap() = directory.to_json();
        let client = client(&issuer, &clock)
            .build()
            .unwrap()
            .layer(to_origin(origin(&issuer.0.key, 5, &clock), &seen));
        let result = send(&client).await;
        match asked {
            Some(_) => assert_eq!(result.unwrap(), 200, "{uri}"),
            None => assert!(matches!(result, Err(TokenClientError::Issuer { .. })), "{uri}"),
        }
        assert_eq!(issuer.asked().get(1).map(String::as_str), asked, "{uri}");
        assert_eq!(seen.requests(), 1 + usize::from(asked.is_some()));
    }
}

#[tokio::test]
async fn an_issuer_on_this_computer_is_asked_by_http_and_a_configured_url_wins() {
    let clock = manual();
    for (name, relay, asked) in [
        (
            "localhost:8080",
            None,
            ["http://localhost:8080", "http://localhost:8080/arc"],
        ),
        ("127.0.0.1", None, ["http://127.0.0.1", "http://127.0.0.1/arc"]),
        ("[::1]:99", None, ["http://[::1]:99", "http://[::1]:99/arc"]),
        (
            "localhost.example",
            None,
            ["https://localhost.example", "https://localhost.example/arc"],
        ),
        (
            "issuer.example",
            Some("https://attester.example/relay"),
            ["https://issuer.example", "https://attester.example/relay"],
        ),
    ] {
        let (issuer, seen) = (Issuer::new(Profile::P256), Seen::default());
        let trusted = issuer.trusted(name);
        let trusted = match relay {
            None => trusted,
            Some(url) => trusted.request_url(url),
        };
        let challenge = Challenge::new(&challenge_of(name, &["api.example"])).with_rate_limit(5);
        let answer = move |request: &Request<()>| match request.headers().contains_key("authorization") {
            true => Response::new(()),
            false => challenging(401, &challenge),
        };
        let layer = TokenClientLayer::builder()
            .issuer(trusted)
            .clock(clock.clone())
            .build()
            .unwrap();
        assert_eq!(send(&layer.layer(to_fake(&seen, answer))).await.unwrap(), 200, "{name}");
        assert_eq!(
            issuer.asked(),
            [format!("{}{}", asked[0], Directory::PATH), asked[1].to_owned()]
        );
    }
}

#[test]
fn a_configured_url_of_an_issuer_is_one_of_https() {
    let insecure = Issuer::new(Profile::P256)
        .trusted("issuer.example")
        .request_url("http://attester.example/");
    let error = TokenClientLayer::builder().issuer(insecure).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"token client: request URL of issuer "issuer.example": not an https URL"#
    );
}

/// M18: unless the issuer sends a valid response, the client gets no credential, and sends no request after the
/// challenge.
#[tokio::test]
async fn answers_of_an_issuer_that_are_no_credential_are_errors() {
    let credential = "application/private-credential-response";
    let clock = manual();
    let flipped = |issuer: &Issuer, request: &Request<Bytes>| {
        let mut response = issuer.0.key.issue(&request.body()[3..]).unwrap();
        response[100] ^= 1;
        response
    };
    for case in 0..6 {
        let (issuer, seen) = (Issuer::new(Profile::P256), Seen::default());
        let own = issuer.clone();
        issuer.answer(move |request| match (request.method() == Method::POST, case) {
            (true, 0) => Some(respond(credential, flipped(&own, request))),
            (true, 1) => Some(respond(credential, vec![2; 453])),
            (true, 2) => Some(respond(credential, vec![2; 100_000])),
            (true, 3) => Some(respond("text/html", own.0.key.issue(&request.body()[3..]).unwrap())),
            (_, 4) => {
                let redirect = Response::builder()
                    .status(302)
                    .header("location", "https://elsewhere.example/");
                Some(redirect.body(Full::default()).unwrap())
            }
            (false, 5) => Some(respond(Directory::MEDIA_TYPE, vec![b' '; 1 << 20])),
            _ => None,
        });
        let client = client(&issuer, &clock)
            .build()
            .unwrap()
            .layer(to_origin(origin(&issuer.0.key, 5, &clock), &seen));
        let error = send(&client).await.unwrap_err();
        let seconds = if case < 4 { 300 } else { 10 };
        assert_eq!(wait_of(&error), Some(Duration::from_secs(seconds)), "{case}: {error}");
        assert_eq!(seen.requests(), 1);
    }
}

fn wait_of<E>(error: &TokenClientError<E>) -> Option<Duration> {
    match error {
        TokenClientError::Issuer { retry_after, .. } => *retry_after,
        _ => None,
    }
}

/// An issuance may have used up a ration, although its response is of no use.
#[tokio::test]
async fn after_a_failed_proof_no_credential_of_that_key_is_requested_for_five_minutes() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    // A second key, the credentials of which are valid.
    let other = Issuer::new(Profile::P256);
    let keys = [&issuer, &other].map(|issuer| issuer.0.key.public_key().clone());
    let directory = Directory::new("/arc")
        .with_key(keys[0].clone(), None)
        .with_key(keys[1].clone(), None);
    *issuer.0.directory.lock().unwrap() = directory.to_json();
    let (own, id) = (issuer.clone(), other.0.key.key_id().truncated());
    issuer.answer(move |request| {
        let key = if *request.body().get(2)? == id {
            &other.0.key
        } else {
            &own.0.key
        };
        let mut response = key.issue(&request.body()[3..]).unwrap();
        response[100] ^= u8::from(*key.key_id().as_bytes() == *own.0.key.key_id().as_bytes());
        Some(respond("application/private-credential-response", response))
    });
    let layer = two_origins(&issuer, &clock);
    let to = |origin: &str, key: usize| {
        let challenge = Challenge::new(&challenge_of("issuer.example", &[origin])).with_rate_limit(5);
        let challenge = challenge.with_token_key(keys[key].as_bytes());
        layer.layer(to_fake(&seen, move |request| {
            match request.headers().contains_key("authorization") {
                true => Response::new(()),
                false => challenging(401, &challenge),
            }
        }))
    };
    let (bad, good, evil) = (to("api.example", 0), to("api.example", 1), to("evil.example:8443", 0));
    for (passed, left) in [(0, 300), (0, 300), (100, 200), (199, 1)] {
        clock.advance(Duration::from_secs(passed));
        assert_eq!(wait_of(&send(&bad).await.unwrap_err()), Some(Duration::from_secs(left)));
        assert_eq!(issuer.issued(), 1);
    }
    // Neither another key nor another origin has anything to do with it.
    assert_eq!(send(&good).await.unwrap(), 200);
    assert!(send_to_evil(&evil).await.is_err());
    assert_eq!(issuer.issued(), 3);
    issuer.answer(|_| None);
    clock.advance(Duration::from_secs(1));
    assert_eq!(send(&bad).await.unwrap(), 200);
    assert!(send_to_evil(&evil).await.is_err());
    assert_eq!(issuer.issued(), 4);
}

/// Otherwise, an outage of one second would use up the issuances of an hour.
#[tokio::test]
async fn after_failed_requests_the_issuer_is_left_alone_for_longer_and_longer() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let unavailable = |request: &Request<Bytes>| {
        let response = Response::builder().status(502).body(Full::default()).unwrap();
        (request.method() == Method::POST).then_some(response)
    };
    issuer.answer(unavailable);
    let client = client(&issuer, &clock)
        .build()
        .unwrap()
        .layer(to_origin(origin(&issuer.0.key, 50, &clock), &seen));
    let mut issued = 0;
    for wait in [10, 20, 40, 80, 160, 300, 300].map(Duration::from_secs) {
        issued += 1;
        for _ in 0..20 {
            assert_eq!(wait_of(&send(&client).await.unwrap_err()), Some(wait));
        }
        assert_eq!(issuer.issued(), issued);
        clock.advance(wait);
    }
    issuer.answer(|_| None);
    assert_eq!(send(&client).await.unwrap(), 200);
    assert_eq!(issuer.issued(), issued + 1);
}

/// The issuer may have charged a request whose response was lost, and answers the same one without a charge.
#[tokio::test]
async fn a_request_for_a_credential_is_sent_again_as_it_was_until_it_is_answered() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let unavailable = |request: &Request<Bytes>| {
        let response = Response::builder().status(503).body(Full::default()).unwrap();
        (request.method() == Method::POST).then_some(response)
    };
    let client = client(&issuer, &clock)
        .build()
        .unwrap()
        .layer(to_origin(origin(&issuer.0.key, 1, &clock), &seen));
    issuer.answer(unavailable);
    for _ in 0..3 {
        assert!(send(&client).await.is_err());
    }
    issuer.answer(|_| None);
    clock.advance(Duration::from_secs(10));
    assert_eq!(send(&client).await.unwrap(), 200);
    let asked = issuer.0.asked.lock().unwrap();
    let bodies: Vec<_> = asked
        .iter()
        .filter(|request| request.method() == Method::POST)
        .map(Request::body)
        .collect();
    assert_eq!(bodies.len(), 2);
    assert_eq!(bodies[0], bodies[1]);
}

#[tokio::test]
async fn a_retry_after_of_the_issuer_is_obeyed() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    issuer.answer(|request| {
        let is_rejected = request.method() == Method::POST;
        let rejected = || {
            Response::builder()
                .status(429)
                .header("retry-after", "30")
                .body(Full::default())
                .unwrap()
        };
        is_rejected.then(rejected)
    });
    let client = client(&issuer, &clock)
        .build()
        .unwrap()
        .layer(to_origin(origin(&issuer.0.key, 5, &clock), &seen));
    for (passed, left) in [(0, 30), (10, 20), (19, 1)] {
        clock.advance(Duration::from_secs(passed));
        let error = send(&client).await.unwrap_err();
        let TokenClientError::Issuer { retry_after, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(retry_after, Some(Duration::from_secs(left)));
        assert_eq!(issuer.issued(), 1);
    }
    issuer.answer(|_| None);
    clock.advance(Duration::from_secs(1));
    assert_eq!(send(&client).await.unwrap(), 200);
}

/// An origin that wants another credential for each request without a token.
fn greedy(seen: &Seen, name: &'static str) -> Sender {
    let number = Arc::new(Mutex::new(0_u8));
    to_fake(seen, move |request| {
        if request.headers().contains_key("authorization") {
            return Response::new(());
        }
        let mut number = number.lock().unwrap();
        *number += 1;
        let challenge = challenge_of("issuer.example", &[name]).with_credential_context([*number; 32]);
        challenging(401, &Challenge::new(&challenge).with_rate_limit(5))
    })
}

/// Origins can make up contexts for which credentials are needed; the issuer is not to notice much of it.
#[tokio::test]
async fn an_origin_that_always_wants_another_credential_gets_twelve_in_an_hour() {
    for is_named in [true, false] {
        let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
        let (trusted, most) = match is_named {
            true => (issuer.trusted("issuer.example"), 12),
            false => (issuer.unbound("issuer.example").any_origin(), 60),
        };
        let layer = TokenClientLayer::builder().issuer(trusted).clock(clock.clone()).build();
        let client = layer.unwrap().layer(greedy(&seen, "api.example"));
        for _ in 0..most {
            assert_eq!(send(&client).await.unwrap(), 200);
        }
        let error = send(&client).await.unwrap_err();
        assert!(
            matches!(error, TokenClientError::Issuer { retry_after: Some(wait), .. } if wait == MINUTE * 60),
            "{error}"
        );
        assert_eq!(issuer.issued(), most);
        clock.advance(MINUTE * 60);
        assert_eq!(send(&client).await.unwrap(), 200);
    }
}

/// A client that trusts one issuer for two origins.
fn two_origins(issuer: &Issuer, clock: &Clock) -> TokenClientLayer {
    let trusted = issuer.trusted("issuer.example").origin("Evil.example:8443");
    let layer = TokenClientLayer::builder().issuer(trusted).clock(clock.clone());
    layer.build().unwrap()
}

async fn send_to_evil(client: &TokenClient<Sender>) -> Result<StatusCode, TokenClientError<Infallible>> {
    let request = Request::get("https://EVIL.example:8443/").body(()).unwrap();
    let response = client.clone().oneshot(request).await;
    response.map(|response| response.status())
}

#[tokio::test]
async fn a_hostile_origin_uses_up_its_own_issuances_and_those_of_no_other_origin() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let layer = two_origins(&issuer, &clock);
    let to_evil = layer.layer(greedy(&seen, "evil.EXAMPLE:8443"));
    let mut passed = 0;
    for _ in 0..15 {
        passed += usize::from(send_to_evil(&to_evil).await.is_ok());
    }
    assert_eq!((passed, issuer.issued()), (12, 12));
    let honest = layer.layer(to_origin(origin(&issuer.0.key, 5, &clock), &Seen::default()));
    for _ in 0..5 {
        assert_eq!(send(&honest).await.unwrap(), 200);
    }
    assert_eq!(issuer.issued(), 13);
}

#[tokio::test]
async fn an_origin_that_is_not_named_gets_no_token_and_the_issuer_no_request() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let layer = client(&issuer, &clock).build().unwrap();
    // Neither another host nor another port of a named one.
    for (name, url) in [
        ("evil.example", "https://evil.example/"),
        ("api.example:8443", "https://api.example:8443/"),
        ("api.example:80", "https://api.example:80/"),
    ] {
        let evil = layer.layer(greedy(&seen, name));
        for _ in 0..15 {
            let response = evil.clone().oneshot(Request::get(url).body(()).unwrap()).await;
            assert_eq!(response.unwrap().status(), 401);
        }
    }
    assert_eq!((seen.requests(), seen.tokens().len(), issuer.asked().len()), (45, 0, 0));
    // The name of the issuer decides, and each issuer has its own origins.
    let second = Issuer::new(Profile::P256);
    let layer = client(&issuer, &clock)
        .issuer(second.unbound("second.example").origin("evil.example"))
        .build()
        .unwrap();
    let challenge = Challenge::new(&challenge_of("second.example", &["api.example"])).with_rate_limit(5);
    let wrong = layer.layer(to_fake(&seen, move |_| challenging(401, &challenge)));
    assert_eq!(send(&wrong).await.unwrap(), 401);
    assert_eq!((issuer.asked().len(), second.asked().len()), (0, 0));
}

#[tokio::test]
async fn two_issuers_of_one_origin_are_bounded_apart() {
    let (first, second, clock, seen) = (
        Issuer::new(Profile::P256),
        Issuer::new(Profile::P256),
        manual(),
        Seen::default(),
    );
    let layer = client(&first, &clock)
        .issuer(second.trusted("second.example"))
        .build()
        .unwrap();
    let to_first = layer.layer(greedy(&seen, "api.example"));
    while send(&to_first).await.is_ok() {}
    let challenge = Challenge::new(&challenge_of("second.example", &["api.example"])).with_rate_limit(5);
    let to_second = layer.layer(to_fake(&seen, move |request| {
        match request.headers().contains_key("authorization") {
            true => Response::new(()),
            false => challenging(401, &challenge),
        }
    }));
    assert_eq!(send(&to_second).await.unwrap(), 200);
    assert_eq!((first.issued(), second.issued()), (12, 1));
}

/// The issuer has counted the credential, although the request for it was cancelled.
#[tokio::test]
async fn a_credential_is_kept_although_the_request_that_needed_it_is_cancelled() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let (arrived, released) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let service = {
        let (issuer, arrived, released) = (issuer.clone(), Arc::clone(&arrived), Arc::clone(&released));
        service_fn(move |request: Request<Bytes>| {
            let (issuer, arrived, released) = (issuer.clone(), Arc::clone(&arrived), Arc::clone(&released));
            async move {
                let response = issuer.respond(request.clone());
                if request.method() == Method::POST {
                    arrived.notify_one();
                    drop(released.acquire().await);
                }
                Ok::<_, Infallible>(response)
            }
        })
    };
    let trusted = TrustedIssuer::new("issuer.example", service).origin("api.example");
    let layer = TokenClientLayer::builder().issuer(trusted).clock(clock.clone()).build();
    let client = layer.unwrap().layer(to_origin(origin(&issuer.0.key, 5, &clock), &seen));
    let own = client.clone();
    let first = tokio::spawn(async move { send(&own).await });
    let second = tokio::spawn({
        arrived.notified().await;
        let own = client.clone();
        async move { send(&own).await }
    });
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    released.add_permits(1);
    // Of the two requests after it, one has waited for the credential.
    assert_eq!(second.await.unwrap().unwrap(), 200);
    assert_eq!(send(&client).await.unwrap(), 200);
    assert_eq!((issuer.issued(), seen.nonces().len()), (1, 2));
}

/// Neither a wait of the issuer, nor a directory that cannot be read, nor one that was read for an unknown key.
#[tokio::test]
async fn waits_and_directories_that_one_origin_has_caused_do_not_touch_another() {
    let status = |status: u16| {
        let response = Response::builder().status(status).header("retry-after", "300");
        response.body(Full::default()).unwrap()
    };
    for case in 0..3 {
        let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
        let layer = two_origins(&issuer, &clock);
        let stranger = IssuerKey::generate(Profile::P256).unwrap();
        let evil = challenge_of("issuer.example", &["evil.example:8443"]);
        let evil = Challenge::new(&evil).with_rate_limit(5);
        let evil = match case {
            2 => evil.with_token_key(stranger.public_key().as_bytes()),
            _ => evil,
        };
        let to_evil = layer.layer(to_fake(&seen, move |_| challenging(401, &evil)));
        issuer.answer(move |request| match (request.method() == Method::POST, case) {
            (true, 0) => Some(status(429)),
            (false, 1) => Some(status(503)),
            _ => None,
        });
        let result = send_to_evil(&to_evil).await;
        match case {
            2 => assert_eq!(result.unwrap(), 401),
            _ => assert!(matches!(result, Err(TokenClientError::Issuer { .. })), "{case}"),
        }
        issuer.answer(|_| None);
        let asked = issuer.asked().len();
        let honest = layer.layer(to_origin(origin(&issuer.0.key, 5, &clock), &seen));
        assert_eq!(send(&honest).await.unwrap(), 200, "{case}");
        // As if there were no other origin: a directory and a credential.
        assert_eq!(issuer.asked().len() - asked, 2, "{case}");
    }
}

/// A credential of P-384 is not bound to an origin. Its tokens are: each origin has the whole limit.
#[tokio::test]
async fn origins_share_a_credential_where_its_context_is_the_same_and_no_allowance() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P384), manual(), Seen::default());
    let layer = two_origins(&issuer, &clock);
    let challenge = |origin| {
        let challenge = TokenChallenge::new(Profile::P384, "issuer.example").unwrap();
        let challenge = challenge.with_origins([origin]).unwrap();
        Challenge::new(&challenge).with_rate_limit(2)
    };
    let answer = |challenge: Challenge| {
        to_fake(&seen, move |request| {
            match request.headers().contains_key("authorization") {
                true => Response::new(()),
                false => challenging(401, &challenge),
            }
        })
    };
    let evil = layer.layer(answer(challenge("evil.example:8443")));
    let honest = layer.layer(answer(challenge("api.example")));
    while send_to_evil(&evil).await.is_ok() {}
    for _ in 0..2 {
        assert_eq!(send(&honest).await.unwrap(), 200);
    }
    assert_eq!((issuer.issued(), seen.nonces().len()), (1, 4));
}

/// Only what is sent counts: with a bound of twelve, a wait would otherwise become one of an hour.
#[tokio::test]
async fn requests_that_are_not_sent_to_the_issuer_do_not_count_as_issuances() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let unavailable = || {
        let response = Response::builder().status(503).header("retry-after", "30");
        response.body(Full::default()).unwrap()
    };
    issuer.answer(move |request| (request.method() == Method::GET).then(unavailable));
    // The key is known without the directory, and the URL is not.
    let trusted = issuer
        .trusted("issuer.example")
        .pin_key(issuer.0.key.public_key().clone());
    let layer = TokenClientLayer::builder()
        .issuer(trusted)
        .clock(clock.clone())
        .build()
        .unwrap();
    let client = layer.layer(to_origin(origin(&issuer.0.key, 5, &clock), &seen));
    for _ in 0..30 {
        assert!(matches!(send(&client).await, Err(TokenClientError::Issuer { .. })));
    }
    issuer.answer(move |request| (request.method() == Method::POST).then(unavailable));
    clock.advance(Duration::from_secs(30));
    for _ in 0..30 {
        assert!(matches!(send(&client).await, Err(TokenClientError::Issuer { .. })));
    }
    assert_eq!(issuer.issued(), 1);
    issuer.answer(|_| None);
    clock.advance(Duration::from_secs(30));
    assert_eq!(send(&client).await.unwrap(), 200);
}

/// The error of a client with this issuer.
fn build_error(trusted: TrustedIssuer) -> String {
    let error = TokenClientLayer::builder().issuer(trusted).build().unwrap_err();
    error.to_string()
}

#[test]
fn an_issuer_without_origins_is_a_mistake_that_is_named_with_the_way_out() {
    let issuer = Issuer::new(Profile::P256);
    let unbound = || issuer.unbound("issuer.example");
    assert_eq!(
        build_error(unbound()),
        "token client: issuer \"issuer.example\" has no origins: call TrustedIssuer::origin for each origin that it \
         serves, or TrustedIssuer::any_origin to answer challenges of all origins"
    );
    assert_eq!(
        build_error(unbound().any_origin().origin("api.example")),
        "token client: issuer \"issuer.example\": origin \"api.example\" and any_origin cannot be combined"
    );
    assert_eq!(
        build_error(issuer.trusted("no host")),
        r#"token client: issuer "no host" is not a host with an optional port"#
    );
}

#[test]
fn an_origin_that_no_request_can_have_is_a_mistake() {
    let issuer = Issuer::new(Profile::P256);
    let with = |name: &str| issuer.trusted("issuer.example").origin(name);
    let long = "a".repeat(256);
    for name in [
        "",
        ":443",
        "no host",
        "https://api.example",
        "api.example/",
        "api.example:",
        "api.example:https",
        "api.example:70000",
        "me@api.example",
        "a.example,b.example",
        "*.example",
        &long,
    ] {
        assert_eq!(
            build_error(with(name)),
            format!(
                "token client: origin {name:?} of issuer \"issuer.example\" is not a host with an optional port, such \
                 as \"api.example\" or \"api.example:8443\""
            )
        );
    }
    for name in [
        "localhost",
        "API.example",
        "api.example:8443",
        "127.0.0.1:80",
        "[::1]:8080",
        "a_b.example",
    ] {
        assert!(TokenClientLayer::builder().issuer(with(name)).build().is_ok(), "{name}");
    }
}

#[tokio::test]
async fn one_challenge_is_answered_for_each_request() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let challenge = Challenge::new(&challenge_of("issuer.example", &["api.example"])).with_rate_limit(100);
    let client = client(&issuer, &clock)
        .build()
        .unwrap()
        .layer(to_fake(&seen, move |_| challenging(401, &challenge)));
    for requests in [2, 4, 6] {
        assert_eq!(send(&client).await.unwrap(), 401);
        assert_eq!((seen.requests(), seen.tokens().len()), (requests, requests / 2));
    }
}

#[tokio::test]
async fn a_request_with_credentials_of_its_own_or_without_an_origin_is_left_alone() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let client = client(&issuer, &clock)
        .build()
        .unwrap()
        .layer(to_origin(origin(&issuer.0.key, 5, &clock), &seen));
    let mut own = request();
    own.headers_mut()
        .insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
    for request in [own, Request::get("/").body(()).unwrap()] {
        assert_eq!(client.clone().oneshot(request).await.unwrap().status(), 401);
    }
    assert_eq!((seen.requests(), issuer.asked().len()), (2, 0));
    // The origin may be in the field Host, as requests of HTTP/1.1 have it.
    let request = Request::get("/").header("host", "API.example").body(()).unwrap();
    assert_eq!(client.oneshot(request).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_directory_is_kept_for_the_time_that_it_says() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let directory = issuer.0.directory.lock().unwrap().clone();
    issuer.answer(move |request| {
        let mut response = respond(Directory::MEDIA_TYPE, directory.clone());
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=100"));
        (request.method() == Method::GET).then_some(response)
    });
    let client = client(&issuer, &clock)
        .build()
        .unwrap()
        .layer(to_origin(origin(&issuer.0.key, 50, &clock), &seen));
    for (passed, read) in [(0, 1), (99, 1), (1, 2), (50, 2)] {
        clock.advance(Duration::from_secs(passed));
        assert_eq!(send(&client).await.unwrap(), 200);
        assert_eq!(issuer.asked().len() - issuer.issued(), read);
    }
}

/// M41: memory has a bound, and what is forgotten is a whole credential, so that no nonce of it can come again.
#[tokio::test]
async fn a_credential_of_too_many_contexts_is_renewed() {
    let (issuer, clock, seen) = (Issuer::new(Profile::P256), manual(), Seen::default());
    let layer = client(&issuer, &clock)
        .storage(MemoryCredentials::new(1, 2))
        .build()
        .unwrap();
    let client = layer.layer(to_origin(origin(&issuer.0.key, 5, &clock), &seen));
    for (window, issued) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)] {
        assert_eq!(send(&client).await.unwrap(), 200, "{window}");
        assert_eq!(issuer.issued(), issued, "{window}");
        clock.advance(MINUTE * 2);
    }
    assert_eq!(seen.nonces().len(), 5);
}
