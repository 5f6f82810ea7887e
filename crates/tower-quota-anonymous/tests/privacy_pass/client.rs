//! The client: which challenges it answers, what it requests from issuers, and that it uses no nonce twice.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use tokio::sync::{Notify, Semaphore};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_quota::clock::{Clock, Timestamp};
use tower_quota_anonymous::{
    Challenge, ContextName, CredentialStorage, Directory, IssuerKey, MemoryCredentials, Profile, Reserved,
    StorageFuture, Token, TokenChallenge, TokenClient, TokenClientError, TokenClientLayer, TokenClientLayerBuilder,
    TrustedIssuer, token_from_headers,
};

use crate::instances::origin;

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
    answer: Mutex<Box<Answer>>,
}

impl Issuer {
    fn new(profile: Profile) -> Self {
        let key = IssuerKey::generate(profile).unwrap();
        let directory = Directory::new("/arc").with_key(key.public_key().clone(), None);
        Self(Arc::new(Inside {
            key,
            directory: directory.to_json().into(),
            asked: Mutex::default(),
            answer: Mutex::new(Box::new(|_| None)),
        }))
    }

    /// The request is answered like this, where there is an answer.
    fn answer(&self, answer: impl Fn(&Request<Bytes>) -> Option<Response<Full<Bytes>>> + Send + Sync + 'static) {
        *self.0.answer.lock().unwrap() = Box::new(answer);
    }

    fn respond(&self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        let told = (self.0.answer.lock().unwrap())(&request);
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

    /// Requests with this method fail.
    fn fail(&self, method: Method, status: u16, retry_after: Option<&'static str>) {
        let failure = move || {
            let response = retry_after.into_iter().fold(Response::builder(), |response, wait| {
                response.header(header::RETRY_AFTER, wait)
            });
            response.status(status).body(Full::default()).unwrap()
        };
        self.answer(move |request| (*request.method() == method).then(failure));
    }

    /// The requested paths and queries, each with its host.
    fn asked(&self) -> Vec<String> {
        let asked = self.0.asked.lock().unwrap();
        asked.iter().map(|request| request.uri().to_string()).collect()
    }

    /// The requests for credentials.
    fn requested(&self) -> Vec<Bytes> {
        let asked = self.0.asked.lock().unwrap();
        let posted = asked.iter().filter(|request| request.method() == Method::POST);
        posted.map(|request| request.body().clone()).collect()
    }

    fn issued(&self) -> usize {
        self.requested().len()
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
        let token = token_from_headers(request.headers()).unwrap();
        self.0.lock().unwrap().push(token);
    }

    fn tokens(&self) -> Vec<Token> {
        self.0.lock().unwrap().iter().flatten().cloned().collect()
    }

    /// The number of requests, and of those with a token.
    fn counts(&self) -> (usize, usize) {
        let tokens = self.tokens().len();
        (self.0.lock().unwrap().len(), tokens)
    }

    /// The nonces of all tokens, each key, context and credential apart; panics if one was used twice.
    fn nonces(&self) -> Vec<u32> {
        let tokens = self.tokens();
        let tags: BTreeSet<_> = tokens.iter().map(Token::tag).collect();
        assert_eq!(tags.len(), tokens.len(), "a tag was there twice");
        tokens.iter().map(Token::nonce).collect()
    }
}

type Sender = tower::util::BoxCloneSyncService<Request<()>, Response<()>, Infallible>;

fn challenging(status: u16, challenge: &Challenge) -> Response<()> {
    let response = Response::builder().header(header::WWW_AUTHENTICATE, challenge.to_header_value());
    response.status(status).body(()).unwrap()
}

fn challenge_of(issuer: &str, origins: &[&str]) -> TokenChallenge {
    let challenge = TokenChallenge::new(Profile::P256, issuer).unwrap();
    challenge.with_origins(origins).unwrap()
}

/// A challenge of the issuer, for tokens of the origin of [`request`].
fn limited(limit: u32) -> Challenge {
    limited_by("issuer.example", "api.example", limit)
}

fn limited_by(issuer: &str, origin: &str, limit: u32) -> Challenge {
    Challenge::new(&challenge_of(issuer, &[origin])).with_rate_limit(limit)
}

/// The program's side: what it knows of its issuer, and what it has sent to origins.
struct Scene {
    issuer: Issuer,
    clock: Clock,
    seen: Seen,
    layer: TokenClientLayer,
}

impl Scene {
    fn new() -> Self {
        Self::of(&Issuer::new(Profile::P256))
    }

    fn of(issuer: &Issuer) -> Self {
        Self::with(issuer, builder(issuer))
    }

    /// With an issuer for two origins.
    fn of_two_origins(profile: Profile) -> Self {
        let issuer = Issuer::new(profile);
        let trusted = issuer.trusted("issuer.example").origin("Evil.example:8443");
        Self::with(&issuer, TokenClientLayer::builder().issuer(trusted))
    }

    fn with(issuer: &Issuer, builder: TokenClientLayerBuilder) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_040_000_000));
        Self {
            issuer: issuer.clone(),
            layer: builder.clock(clock.clone()).build().unwrap(),
            seen: Seen::default(),
            clock,
        }
    }

    /// A client of the real origin, of this many tokens in a minute.
    fn to_origin(&self, limit: u32) -> TokenClient<Sender> {
        let layer = origin(&self.issuer.0.key, limit, MINUTE).clock(self.clock.clone());
        let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
        let (service, seen) = (layer.build().unwrap().layer(inner), self.seen.clone());
        self.layer.layer(Sender::new(service_fn(move |request: Request<()>| {
            seen.note(&request);
            let response = service.clone().oneshot(request.map(|()| String::new()));
            async move { response.await.map(|response| response.map(drop)) }
        })))
    }

    /// A client of an origin that answers each request with this.
    fn to_fake(
        &self,
        answer: impl Fn(&Request<()>) -> Response<()> + Clone + Send + Sync + 'static,
    ) -> TokenClient<Sender> {
        let seen = self.seen.clone();
        self.layer.layer(Sender::new(service_fn(move |request: Request<()>| {
            seen.note(&request);
            let response = answer(&request);
            async move { Ok(response) }
        })))
    }

    /// A client of an origin that takes any token, and sends this challenge to requests without one.
    fn demanding(&self, challenge: Challenge) -> TokenClient<Sender> {
        self.demanding_each(move || challenge.clone())
    }

    fn demanding_each(&self, challenge: impl Fn() -> Challenge + Clone + Send + Sync + 'static) -> TokenClient<Sender> {
        self.to_fake(move |request| match request.headers().contains_key("authorization") {
            true => Response::new(()),
            false => challenging(401, &challenge()),
        })
    }

    /// A client of an origin that wants another credential for each request without a token.
    fn greedy(&self, name: &'static str) -> TokenClient<Sender> {
        let number = Arc::new(AtomicU8::new(0));
        self.demanding_each(move || {
            let context = [number.fetch_add(1, Ordering::SeqCst); 32];
            let challenge = challenge_of("issuer.example", &[name]).with_credential_context(context);
            Challenge::new(&challenge).with_rate_limit(5)
        })
    }

    fn counts(&self) -> (usize, usize) {
        self.seen.counts()
    }
}

fn builder(issuer: &Issuer) -> TokenClientLayerBuilder {
    TokenClientLayer::builder().issuer(issuer.trusted("issuer.example"))
}

fn request() -> Request<()> {
    Request::get("https://api.example/").body(()).unwrap()
}

async fn send(client: &TokenClient<Sender>) -> Result<StatusCode, TokenClientError<Infallible>> {
    let response = client.clone().oneshot(request()).await;
    response.map(|response| response.status())
}

/// M10, M11, M12, M19, M23: one issuance, many tokens, and nothing is sent when none is left.
#[tokio::test]
async fn a_credential_is_fetched_once_and_spent_to_the_limit() {
    for (profile, length) in [(Profile::P384, 341), (Profile::P256, 229)] {
        let scene = Scene::of(&Issuer::new(profile));
        let client = scene.to_origin(3);
        for _ in 0..3 {
            assert_eq!(send(&client).await.unwrap(), 200, "{profile}");
        }
        // The first request was challenged; later requests had a token immediately.
        assert_eq!(scene.counts(), (4, 3));
        let error = send(&client).await.unwrap_err();
        let TokenClientError::LimitReached { retry_after } = error else {
            panic!("{error}")
        };
        assert_eq!(retry_after, Some(Duration::from_secs(75)));
        assert_eq!(BTreeSet::from_iter(scene.seen.nonces()), BTreeSet::from([0, 1, 2]));

        // A new window is a new allowance of the same credential.
        scene.clock.advance(Duration::from_secs(75));
        assert_eq!(send(&client).await.unwrap(), 200);
        assert_eq!(scene.counts(), (6, 4));

        let asked = scene.issuer.0.asked.lock().unwrap();
        let [directory, request] = &**asked else {
            panic!("{asked:?}")
        };
        let directory_url = "https://issuer.example/.well-known/private-token-issuer-directory";
        assert_eq!(directory.uri(), directory_url);
        assert_eq!(request.uri(), "https://issuer.example/arc");
        assert_eq!(request.method(), Method::POST);
        let (sent, accepted) = (
            "application/private-credential-request",
            "application/private-credential-response",
        );
        assert_eq!(request.headers()["content-type"], sent);
        assert_eq!(request.headers()["accept"], accepted);
        assert_eq!(request.body().len(), length);
        assert_eq!(request.body()[..2], profile.token_type().to_be_bytes());
        assert_eq!(request.body()[2], scene.issuer.0.key.key_id().truncated());
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
        Self {
            challenge: limited(limit).with_max_age(MINUTE),
            retry_after: None,
            is_exceeded: Arc::new(true.into()),
        }
    }

    fn client(&self, scene: &Scene) -> TokenClient<Sender> {
        let site = self.clone();
        scene.to_fake(move |request| {
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
    let challenge = limited(50).with_max_age(MINUTE);
    for (retry_after, challenge, seconds, rounds) in [
        (Some("20"), &challenge, 20, 2),
        (Some("90"), &challenge, 60, 2),
        (Some("soon"), &challenge, 60, 2),
        (Some("Tue, 14 Nov 2023 22:14:30 GMT"), &challenge, 30, 1),
        (None, &challenge, 60, 2),
        (Some("20"), &limited(50), 20, 2),
    ] {
        let scene = Scene::new();
        let site = Optional {
            retry_after,
            challenge: challenge.clone(),
            ..Optional::new(50)
        };
        let client = site.client(&scene);
        for round in 0..rounds {
            let counts = |requests: usize, tokens: usize| (requests + round * 6, tokens + round * 4);
            assert_eq!(send(&client).await.unwrap(), 200);
            assert_eq!(scene.counts(), counts(2, 1), "{retry_after:?}");
            scene.clock.advance(Duration::from_secs(seconds - 1));
            for _ in 0..3 {
                assert_eq!(send(&client).await.unwrap(), 200);
            }
            assert_eq!(scene.counts(), counts(5, 4), "{retry_after:?}");
            // The limit is no longer exceeded, and no token is spent.
            scene.clock.advance(Duration::from_secs(1));
            site.is_exceeded.store(false, Ordering::SeqCst);
            assert_eq!(send(&client).await.unwrap(), 200);
            assert_eq!(scene.counts(), counts(6, 4), "{retry_after:?}");
            site.is_exceeded.store(true, Ordering::SeqCst);
        }
        assert_eq!(scene.issuer.issued(), 1);
    }
}

#[tokio::test]
async fn a_429_without_a_time_or_without_a_challenge_is_not_remembered() {
    let scene = Scene::new();
    let site = Optional {
        challenge: limited(5),
        ..Optional::new(5)
    };
    let timeless = site.client(&scene);
    for requests in [2, 4] {
        assert_eq!(send(&timeless).await.unwrap(), 200);
        assert_eq!(scene.counts(), (requests, requests / 2));
    }
    let plain = scene.to_fake(|_| {
        let response = Response::builder().status(429).header("retry-after", "20");
        response.body(()).unwrap()
    });
    for requests in [5, 6] {
        assert_eq!(send(&plain).await.unwrap(), 429);
        assert_eq!(scene.counts(), (requests, 2));
    }
}

#[tokio::test]
async fn requests_are_sent_without_a_token_when_the_issuer_gives_no_credential_for_a_429() {
    let issuer = Issuer::new(Profile::P256);
    let trusted = issuer.trusted("issuer.example").origin("evil.example:8443");
    // A storage that keeps one credential.
    let builder = TokenClientLayer::builder()
        .issuer(trusted)
        .storage(MemoryCredentials::new(1, 1));
    let (scene, site) = (Scene::with(&issuer, builder), Optional::new(5));
    let client = site.client(&scene);
    assert_eq!(send(&client).await.unwrap(), 200);
    let evil = scene.greedy("evil.example:8443");
    assert_eq!(send_to_evil(&evil).await.unwrap(), 200);
    issuer.fail(Method::POST, 503, None);
    site.is_exceeded.store(false, Ordering::SeqCst);
    for _ in 0..5 {
        assert_eq!(send(&client).await.unwrap(), 200);
    }
    assert_eq!((scene.counts(), issuer.issued()), ((9, 2), 3));
    site.is_exceeded.store(true, Ordering::SeqCst);
    let error = send(&client).await.unwrap_err();
    assert_eq!(wait_of(&error), Some(Duration::from_secs(10)));
    assert_eq!((scene.counts(), issuer.issued()), ((10, 2), 3));
}

/// A token for the challenge of an earlier 429 can be too old. The resulting 401 does not mean that every request needs
/// a token.
#[tokio::test]
async fn a_401_for_a_token_that_a_429_has_asked_for_makes_tokens_no_requirement() {
    let scene = Scene::new();
    assert_eq!(send(&Optional::new(50).client(&scene)).await.unwrap(), 200);
    let next = challenge_of("issuer.example", &["api.example"]).with_redemption_context([1; 32]);
    let expected = next.digest();
    let next = Challenge::new(&next).with_rate_limit(50).with_max_age(MINUTE);
    let changed = scene.to_fake(move |request| match token_from_headers(request.headers()).unwrap() {
        Some(token) if token.challenge_digest() != Some(&expected) => challenging(401, &next),
        _ => Response::new(()),
    });
    // With the old token, with a new one; then without one.
    for counts in [(4, 3), (5, 3), (6, 3)] {
        assert_eq!(send(&changed).await.unwrap(), 200);
        assert_eq!(scene.counts(), counts);
    }
}

/// An origin responds to a gRPC call with status 200, and `grpc-status` contains the outcome.
#[tokio::test]
async fn challenges_in_a_grpc_status_are_answered() {
    for (code, requests) in [("16", 3), ("8", 3), ("0", 2), ("14", 2)] {
        let scene = Scene::new();
        let challenge = limited(5).with_max_age(MINUTE);
        let client = scene.to_fake(move |request| {
            let mut response = challenging(200, &challenge);
            let status = match request.headers().contains_key("authorization") {
                true => "0",
                false => code,
            };
            response.headers_mut().insert("grpc-status", status.parse().unwrap());
            response
        });
        for _ in 0..2 {
            assert_eq!(send(&client).await.unwrap(), 200);
        }
        assert_eq!(scene.counts().0, requests, "{code}");
    }
}

/// M22: two calls at once give two nonces, and one issuance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_the_same_time_share_a_credential_and_no_nonce() {
    let scene = Scene::new();
    let client = scene.to_origin(20);
    let tasks = (0..25).map(|_| {
        let client = client.clone();
        tokio::spawn(async move { send(&client).await })
    });
    let results: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    let passed = results.iter().filter_map(|result| result.as_ref().ok());
    assert_eq!(passed.filter(|status| **status == 200).count(), 20);
    let is_limit = |result: &&Result<_, _>| matches!(result, Err(TokenClientError::LimitReached { .. }));
    assert_eq!(results.iter().filter(is_limit).count(), 5);
    assert_eq!(BTreeSet::from_iter(scene.seen.nonces()).len(), 20);
    assert_eq!(scene.issuer.issued(), 1);
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

/// M22: a nonce is stored before it is sent, so the nonce of a lost request is not reused.
#[tokio::test]
async fn after_a_crash_a_client_goes_on_with_its_credential_and_repeats_no_nonce() {
    let (first, kept) = (Scene::new(), Kept::default());
    let sender = first.to_origin(6).into_inner();
    let restarted = || {
        let layer = builder(&first.issuer).storage(kept.clone()).clock(first.clock.clone());
        layer.build().unwrap().layer(sender.clone())
    };
    for _ in 0..3 {
        let client = restarted();
        assert_eq!(send(&client).await.unwrap(), 200);
        // The program ends while a request is in flight, so it cannot know whether the token arrived.
        let mut lost = client.clone();
        drop(lost.ready().await.unwrap().call(request()));
        let sent_and_lost = tokio::time::timeout(Duration::ZERO, client.oneshot(request()));
        drop(sent_and_lost.await);
    }
    let last = restarted();
    while send(&last).await.is_ok() {}
    assert!(first.seen.nonces().len() <= 6);
    assert_eq!(first.issuer.issued(), 1);
}

/// M24
#[tokio::test]
async fn a_limit_that_is_raised_does_not_give_used_nonces_back() {
    let scene = Scene::new();
    for (limit, more) in [(2, 2), (5, 3), (1, 0)] {
        let client = scene.demanding(limited(limit));
        for _ in 0..more {
            assert_eq!(send(&client).await.unwrap(), 200);
        }
        assert!(matches!(
            send(&client).await,
            Err(TokenClientError::LimitReached { retry_after: None })
        ));
    }
    assert_eq!(BTreeSet::from_iter(scene.seen.nonces()), BTreeSet::from_iter(0..5));
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
    let stranger = stranger.public_key().as_bytes();
    for (what, challenge, is_asked) in [
        ("another origin", limited_by("issuer.example", "www.example", 5), false),
        ("any origin", of(&challenge_of("issuer.example", &[])), false),
        (
            "another port",
            limited_by("issuer.example", "api.example:8443", 5),
            false,
        ),
        ("another issuer", limited_by("other.example", "api.example", 5), false),
        ("another type", of(&other_type), false),
        ("no limit", Challenge::new(&own), false),
        ("a limit above the bound", limited(65_537), false),
        ("the largest limit", limited(u32::MAX), false),
        ("a key that is not listed", limited(5).with_token_key(stranger), true),
        ("a key that is none", limited(5).with_token_key([1, 2, 3]), true),
    ] {
        let scene = Scene::new();
        let client = scene.to_fake(move |_| challenging(401, &challenge));
        // However often an origin shows another key, the directory is read once a minute.
        for minutes in 1..=2 {
            for _ in 0..20 {
                assert_eq!(send(&client).await.unwrap(), 401, "{what}");
            }
            assert_eq!(scene.counts(), (20 * minutes, 0), "{what}");
            let read = if is_asked { minutes } else { 0 };
            assert_eq!(scene.issuer.asked().len(), read, "{what}");
            scene.clock.advance(MINUTE);
        }
    }
}

/// M6, M41
#[tokio::test]
async fn a_pinned_limit_stands_for_one_that_is_missing_and_keeps_others_out() {
    let issuer = Issuer::new(Profile::P256);
    let trusted = issuer.trusted("issuer.example").pin_limit(5);
    let scene = Scene::with(&issuer, TokenClientLayer::builder().issuer(trusted));
    // A limit of 0 counts as a missing one.
    for (limit, status) in [(0, 200), (5, 200), (6, 401)] {
        assert_eq!(send(&scene.demanding(limited(limit))).await.unwrap(), status, "{limit}");
    }
}

/// M21, M40
#[tokio::test]
async fn each_issuer_has_its_own_credential_and_a_pinned_key_is_the_only_one_believed() {
    let [first, second, third] = [(); 3].map(|()| Issuer::new(Profile::P256));
    let pinned = second.trusted("second.example");
    let pinned = pinned.pin_key(first.0.key.public_key().clone());
    let builder = builder(&first).issuer(pinned).issuer(third.trusted("third.example"));
    let scene = Scene::with(&first, builder);
    let to = |name: &str, issuer: &Issuer| {
        let key = issuer.0.key.public_key().as_bytes();
        scene.demanding(limited_by(name, "api.example", 5).with_token_key(key))
    };
    let (to_first, to_third) = (to("issuer.example", &first), to("third.example", &third));
    let both = [(&to_first, &first), (&to_third, &third)].repeat(2);
    for (number, (client, issuer)) in both.into_iter().enumerate() {
        assert_eq!(send(client).await.unwrap(), 200);
        assert_eq!(*scene.seen.tokens()[number].key(), issuer.0.key.key_id());
    }
    assert_eq!((first.issued(), third.issued()), (1, 1));
    // The second one lists its key, and the program knows another.
    assert_eq!(send(&to("second.example", &second)).await.unwrap(), 401);
    assert_eq!((second.issued(), scene.seen.tokens().len()), (0, 4));
}

/// M13, M40
#[tokio::test]
async fn an_issuer_is_asked_at_its_own_host_or_a_configured_url_and_by_https_unless_it_is_local() {
    let own = [
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
    ];
    let own = own.map(|(uri, asked)| ("issuer.example", uri, None, asked));
    let others = [
        ("localhost:8080", "http://localhost:8080/arc"),
        ("127.0.0.1", "http://127.0.0.1/arc"),
        ("[::1]:99", "http://[::1]:99/arc"),
        ("localhost.example", "https://localhost.example/arc"),
    ];
    let others = others.map(|(name, asked)| (name, "/arc", None, Some(asked)));
    let relay = Some("https://attester.example/x");
    let relayed = ("issuer.example", "/arc", relay, relay);
    for (name, uri, relay, asked) in own.into_iter().chain(others).chain([relayed]) {
        let issuer = Issuer::new(Profile::P256);
        let directory = Directory::new(uri).with_key(issuer.0.key.public_key().clone(), None);
        *issuer.0.directory.lock().unwrap() = directory.to_json();
        let trusted = relay.into_iter().fold(issuer.trusted(name), TrustedIssuer::request_url);
        let scene = Scene::with(&issuer, TokenClientLayer::builder().issuer(trusted));
        let result = send(&scene.demanding(limited_by(name, "api.example", 5))).await;
        match asked {
            Some(_) => assert_eq!(result.unwrap(), 200, "{uri}"),
            None => assert!(matches!(result, Err(TokenClientError::Issuer { .. })), "{uri}"),
        }
        let is_local = asked.is_some_and(|url| url.starts_with("http:"));
        let scheme = if is_local { "http" } else { "https" };
        let read = format!("{scheme}://{name}{}", Directory::PATH);
        let expected: Vec<_> = [Some(&*read), asked].into_iter().flatten().collect();
        assert_eq!(issuer.asked(), expected, "{name} {uri}");
        assert_eq!(scene.counts().0, expected.len());
    }
}

/// M18: unless the issuer sends a valid response, the client gets no credential, and sends no request after the
/// challenge.
#[tokio::test]
async fn answers_of_an_issuer_that_are_no_credential_are_errors() {
    let credential = "application/private-credential-response";
    for case in 0..6 {
        let scene = Scene::new();
        let key = scene.issuer.0.key.clone();
        let issued = move |request: &Request<Bytes>| key.issue(&request.body()[3..]).unwrap();
        let issuer = &scene.issuer;
        issuer.answer(move |request| match (request.method() == Method::POST, case) {
            (true, 0) => {
                let mut response = issued(request);
                response[100] ^= 1;
                Some(respond(credential, response))
            }
            (true, 1) => Some(respond(credential, vec![2; 453])),
            (true, 2) => Some(respond(credential, vec![2; 100_000])),
            (true, 3) => Some(respond("text/html", issued(request))),
            (_, 4) => {
                let redirect = Response::builder().header("location", "https://elsewhere.example/");
                Some(redirect.status(302).body(Full::default()).unwrap())
            }
            (false, 5) => Some(respond(Directory::MEDIA_TYPE, vec![b' '; 1 << 20])),
            _ => None,
        });
        let error = send(&scene.to_origin(5)).await.unwrap_err();
        let seconds = if case < 4 { 300 } else { 10 };
        assert_eq!(wait_of(&error), Some(Duration::from_secs(seconds)), "{case}: {error}");
        assert_eq!(scene.counts().0, 1);
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
    let scene = Scene::of_two_origins(Profile::P256);
    let issuer = &scene.issuer;
    // A second key, the credentials of which are valid.
    let keys = [issuer.0.key.clone(), IssuerKey::generate(Profile::P256).unwrap()];
    let directory = Directory::new("/arc")
        .with_key(keys[0].public_key().clone(), None)
        .with_key(keys[1].public_key().clone(), None);
    *issuer.0.directory.lock().unwrap() = directory.to_json();
    let issuing = keys.clone();
    issuer.answer(move |request| {
        let is_second = *request.body().get(2)? == issuing[1].key_id().truncated();
        let mut response = issuing[usize::from(is_second)].issue(&request.body()[3..]).unwrap();
        response[100] ^= u8::from(!is_second);
        Some(respond("application/private-credential-response", response))
    });
    let to = |origin: &str, key: usize| {
        let challenge = limited_by("issuer.example", origin, 5);
        scene.demanding(challenge.with_token_key(keys[key].public_key().as_bytes()))
    };
    let (bad, good, evil) = (to("api.example", 0), to("api.example", 1), to("evil.example:8443", 0));
    for (passed, left) in [(0, 300), (0, 300), (100, 200), (199, 1)] {
        scene.clock.advance(Duration::from_secs(passed));
        assert_eq!(wait_of(&send(&bad).await.unwrap_err()), Some(Duration::from_secs(left)));
        assert_eq!(issuer.issued(), 1);
    }
    // Neither another key nor another origin has anything to do with it.
    assert_eq!(send(&good).await.unwrap(), 200);
    assert!(send_to_evil(&evil).await.is_err());
    assert_eq!(issuer.issued(), 3);
    issuer.answer(|_| None);
    scene.clock.advance(Duration::from_secs(1));
    assert_eq!(send(&bad).await.unwrap(), 200);
    assert!(send_to_evil(&evil).await.is_err());
    assert_eq!(issuer.issued(), 4);
}

/// Otherwise, an outage of one second would use up the issuances of an hour. The issuer may have charged a request whose
/// response was lost, and answers the same one without a charge.
#[tokio::test]
async fn a_request_that_fails_is_sent_again_as_it_was_after_waits_that_grow() {
    let scene = Scene::new();
    let client = scene.to_origin(50);
    scene.issuer.fail(Method::POST, 502, None);
    let mut issued = 0;
    for wait in [10, 20, 40, 80, 160, 300, 300].map(Duration::from_secs) {
        issued += 1;
        for _ in 0..20 {
            assert_eq!(wait_of(&send(&client).await.unwrap_err()), Some(wait));
        }
        assert_eq!(scene.issuer.issued(), issued);
        scene.clock.advance(wait);
    }
    scene.issuer.answer(|_| None);
    assert_eq!(send(&client).await.unwrap(), 200);
    let requested = scene.issuer.requested();
    assert_eq!(requested, vec![requested[0].clone(); issued + 1]);
}

/// Origins can make up contexts for which credentials are needed; the issuer is not to notice much of it.
#[tokio::test]
async fn an_origin_that_always_wants_another_credential_gets_twelve_in_an_hour_and_others_have_theirs() {
    let issuer = Issuer::new(Profile::P256);
    let unbound = TokenClientLayer::builder().issuer(issuer.unbound("issuer.example").any_origin());
    for (scene, most) in [
        (Scene::of_two_origins(Profile::P256), 12),
        (Scene::with(&issuer, unbound), 60),
    ] {
        let client = scene.greedy("api.example");
        for _ in 0..most {
            assert_eq!(send(&client).await.unwrap(), 200);
        }
        assert_eq!(wait_of(&send(&client).await.unwrap_err()), Some(MINUTE * 60));
        assert_eq!(scene.issuer.issued(), most);
        let other = send_to_evil(&scene.greedy("evil.EXAMPLE:8443")).await;
        assert_eq!(other.is_ok(), most == 12);
        scene.clock.advance(MINUTE * 60);
        assert_eq!(send(&client).await.unwrap(), 200);
    }
}

async fn send_to_evil(client: &TokenClient<Sender>) -> Result<StatusCode, TokenClientError<Infallible>> {
    let request = Request::get("https://EVIL.example:8443/").body(()).unwrap();
    let response = client.clone().oneshot(request).await;
    response.map(|response| response.status())
}

#[tokio::test]
async fn an_origin_that_is_not_named_gets_no_token_and_the_issuer_no_request() {
    let (first, second) = (Issuer::new(Profile::P256), Issuer::new(Profile::P256));
    let second_of_evil = second.unbound("second.example").origin("evil.example");
    let scene = Scene::with(&first, builder(&first).issuer(second_of_evil));
    // Neither another host nor another port of a named one.
    for (name, url) in [
        ("evil.example", "https://evil.example/"),
        ("api.example:8443", "https://api.example:8443/"),
        ("api.example:80", "https://api.example:80/"),
    ] {
        let evil = scene.greedy(name);
        for _ in 0..15 {
            let response = evil.clone().oneshot(Request::get(url).body(()).unwrap()).await;
            assert_eq!(response.unwrap().status(), 401);
        }
    }
    // The name of the issuer decides, and each issuer has its own origins.
    let wrong = scene.demanding(limited_by("second.example", "api.example", 5));
    assert_eq!(send(&wrong).await.unwrap(), 401);
    assert_eq!(scene.counts(), (46, 0));
    assert_eq!((first.asked().len(), second.asked().len()), (0, 0));
}

/// The issuer has counted the credential, although the request for it was cancelled.
#[tokio::test]
async fn a_credential_is_kept_although_the_request_that_needed_it_is_cancelled() {
    let issuer = Issuer::new(Profile::P256);
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
    let scene = Scene::with(&issuer, TokenClientLayer::builder().issuer(trusted));
    let client = scene.to_origin(5);
    let sending = || {
        let client = client.clone();
        tokio::spawn(async move { send(&client).await })
    };
    let first = sending();
    arrived.notified().await;
    let second = sending();
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    released.add_permits(1);
    // Of the two requests after it, one has waited for the credential.
    assert_eq!(second.await.unwrap().unwrap(), 200);
    assert_eq!(send(&client).await.unwrap(), 200);
    assert_eq!((issuer.issued(), scene.seen.nonces().len()), (1, 2));
}

/// Neither a wait of the issuer, nor a directory that cannot be read, nor one that was read for an unknown key.
#[tokio::test]
async fn waits_and_directories_that_one_origin_has_caused_do_not_touch_another() {
    let stranger = IssuerKey::generate(Profile::P256).unwrap();
    for case in 0..3 {
        let scene = Scene::of_two_origins(Profile::P256);
        let mut evil = limited_by("issuer.example", "evil.example:8443", 5);
        match case {
            0 => scene.issuer.fail(Method::POST, 429, Some("300")),
            1 => scene.issuer.fail(Method::GET, 503, Some("300")),
            _ => evil = evil.with_token_key(stranger.public_key().as_bytes()),
        }
        let result = send_to_evil(&scene.demanding(evil)).await;
        match case {
            2 => assert_eq!(result.unwrap(), 401),
            _ => assert!(matches!(result, Err(TokenClientError::Issuer { .. })), "{case}"),
        }
        scene.issuer.answer(|_| None);
        let asked = scene.issuer.asked().len();
        assert_eq!(send(&scene.to_origin(5)).await.unwrap(), 200, "{case}");
        // As if there were no other origin: a directory and a credential.
        assert_eq!(scene.issuer.asked().len() - asked, 2, "{case}");
    }
}

/// A credential of P-384 is not bound to an origin. Its tokens are: each origin has the whole limit.
#[tokio::test]
async fn origins_share_a_credential_where_its_context_is_the_same_and_no_allowance() {
    let scene = Scene::of_two_origins(Profile::P384);
    let to = |origin| {
        let challenge = challenge_of("issuer.example", &[origin]).with_profile(Profile::P384);
        scene.demanding(Challenge::new(&challenge).with_rate_limit(2))
    };
    let (evil, honest) = (to("evil.example:8443"), to("api.example"));
    while send_to_evil(&evil).await.is_ok() {}
    for _ in 0..2 {
        assert_eq!(send(&honest).await.unwrap(), 200);
    }
    assert_eq!((scene.issuer.issued(), scene.seen.nonces().len()), (1, 4));
}

/// Only what is sent counts: with a bound of twelve, a wait would otherwise become one of an hour.
#[tokio::test]
async fn a_retry_after_of_the_issuer_is_obeyed_and_what_is_not_sent_does_not_count_as_an_issuance() {
    let issuer = Issuer::new(Profile::P256);
    // The key is known without the directory, and the URL is not.
    let trusted = issuer.trusted("issuer.example");
    let trusted = trusted.pin_key(issuer.0.key.public_key().clone());
    let scene = Scene::with(&issuer, TokenClientLayer::builder().issuer(trusted));
    let client = scene.to_origin(5);
    for method in [Method::GET, Method::POST] {
        issuer.fail(method, 503, Some("30"));
        for left in [30, 29, 28] {
            for _ in 0..10 {
                let error = send(&client).await.unwrap_err();
                assert_eq!(wait_of(&error), Some(Duration::from_secs(left)));
            }
            scene.clock.advance(Duration::from_secs(1));
        }
        scene.clock.advance(Duration::from_secs(27));
    }
    assert_eq!(issuer.issued(), 1);
    issuer.answer(|_| None);
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
    let no_origins = "issuer \"issuer.example\" has no origins: call TrustedIssuer::origin for each origin that it \
                      serves, or TrustedIssuer::any_origin to answer challenges of all origins";
    let both = "issuer \"issuer.example\": origin \"api.example\" and any_origin cannot be combined";
    let not_https = issuer.trusted("issuer.example").request_url("http://attester.example/");
    for (trusted, message) in [
        (unbound(), no_origins),
        (unbound().any_origin().origin("api.example"), both),
        (
            issuer.trusted("no host"),
            r#"issuer "no host" is not a host with an optional port"#,
        ),
        (not_https, r#"request URL of issuer "issuer.example": not an https URL"#),
    ] {
        assert_eq!(build_error(trusted), format!("token client: {message}"));
    }
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
        let message = format!("token client: origin {name:?} of issuer \"issuer.example\" is not a host");
        let port = " with an optional port, such as \"api.example\" or \"api.example:8443\"";
        assert_eq!(build_error(with(name)), message + port);
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
    let scene = Scene::new();
    let client = scene.to_fake(|_| challenging(401, &limited(100)));
    for requests in [2, 4, 6] {
        assert_eq!(send(&client).await.unwrap(), 401);
        assert_eq!(scene.counts(), (requests, requests / 2));
    }
}

#[tokio::test]
async fn a_request_with_credentials_of_its_own_or_without_an_origin_is_left_alone() {
    let scene = Scene::new();
    let client = scene.to_origin(5);
    let mut own = request();
    own.headers_mut()
        .insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
    for request in [own, Request::get("/").body(()).unwrap()] {
        assert_eq!(client.clone().oneshot(request).await.unwrap().status(), 401);
    }
    assert_eq!((scene.counts().0, scene.issuer.asked().len()), (2, 0));
    // The origin may be in the field Host, as requests of HTTP/1.1 have it.
    let request = Request::get("/").header("host", "API.example").body(()).unwrap();
    assert_eq!(client.oneshot(request).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_directory_is_kept_for_the_time_that_it_says() {
    let scene = Scene::new();
    let (issuer, client) = (&scene.issuer, scene.to_origin(50));
    let directory = issuer.0.directory.lock().unwrap().clone();
    issuer.answer(move |request| {
        let mut response = respond(Directory::MEDIA_TYPE, directory.clone());
        response
            .headers_mut()
            .insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=100"));
        (request.method() == Method::GET).then_some(response)
    });
    for (passed, read) in [(0, 1), (99, 1), (1, 2), (50, 2)] {
        scene.clock.advance(Duration::from_secs(passed));
        assert_eq!(send(&client).await.unwrap(), 200);
        assert_eq!(issuer.asked().len() - issuer.issued(), read);
    }
}

/// M41: memory has a bound, and what is forgotten is a whole credential, so that no nonce of it can come again.
#[tokio::test]
async fn a_credential_of_too_many_contexts_is_renewed() {
    let issuer = Issuer::new(Profile::P256);
    let scene = Scene::with(&issuer, builder(&issuer).storage(MemoryCredentials::new(1, 2)));
    let client = scene.to_origin(5);
    for (window, issued) in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)] {
        assert_eq!(send(&client).await.unwrap(), 200, "{window}");
        assert_eq!(issuer.issued(), issued, "{window}");
        scene.clock.advance(MINUTE * 2);
    }
    assert_eq!(scene.seen.nonces().len(), 5);
}
