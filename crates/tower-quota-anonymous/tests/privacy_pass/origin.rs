//! The answers of an origin to requests with and without tokens, in each profile, with the memory of one process.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use test_kit::call;
use tower::{Layer, service_fn};
use tower_quota::{
    Exemption, MemoryStore, QuotaPolicy, RateLimitLayer,
    clock::{Clock, Timestamp},
    key::{self, PeerAddress},
};
use tower_quota_anonymous::{
    AcceptedToken, EXPOSED, IssuerKey, OriginLayer, OriginLayerBuilder, Profile, Token, TokenChallenge,
};

use crate::{
    holder::{Holder, Issuer, challenge_in, challenged, forged, with_token},
    instances::origin,
};

const MINUTE: Duration = Duration::from_secs(60);

/// The middle of a window of a minute.
const MIDDLE: Timestamp = Timestamp::from_micros(1_700_000_070_000_000);

/// An issuer, and an origin that accepts its tokens: five in a minute.
pub(crate) struct Site {
    pub(crate) issuer: Issuer,
    pub(crate) clock: Clock,
    layer: OriginLayer,
}

impl Site {
    fn new(profile: Profile) -> Self {
        Self::with(profile, |builder| builder)
    }

    pub(crate) fn with(profile: Profile, set: impl FnOnce(OriginLayerBuilder) -> OriginLayerBuilder) -> Self {
        let key = IssuerKey::generate(profile).unwrap();
        let clock = Clock::manual(MIDDLE);
        let builder = builder(&key).clock(clock.clone());
        Self {
            layer: set(builder).build().unwrap(),
            issuer: Issuer(key),
            clock,
        }
    }

    pub(crate) async fn send(&self, request: Request<String>) -> Response<Bytes> {
        send(&self.layer, request).await
    }

    pub(crate) async fn status(&self, request: Request<String>) -> u16 {
        self.send(request).await.status().as_u16()
    }

    pub(crate) async fn with_token(&self, token: &Token) -> u16 {
        self.status(with_token(request(), token)).await
    }

    /// The challenge for requests of this moment.
    pub(crate) async fn challenge(&self) -> TokenChallenge {
        challenged(&self.send(with_token(request(), &self.nonsense())).await)
    }

    /// A client with a credential, and the challenge that it answers.
    pub(crate) async fn with_holder(self) -> (Self, TokenChallenge, Holder) {
        let challenge = self.challenge().await;
        let holder = self.issuer.holder(&challenge);
        (self, challenge, holder)
    }

    /// A token that is well-formed, and nothing else.
    fn nonsense(&self) -> Token {
        let challenge = TokenChallenge::new(self.issuer.0.profile(), "other.example").unwrap();
        let presentation = vec![2; self.issuer.0.profile().presentation_len()];
        Token::new(&challenge, self.issuer.0.key_id(), 0, presentation).unwrap()
    }
}

fn builder(key: &IssuerKey) -> OriginLayerBuilder {
    origin(key, 5, MINUTE).verifier_threads(1)
}

fn request() -> Request<String> {
    from([192, 0, 2, 1])
}

pub(crate) fn from(address: impl Into<IpAddr>) -> Request<String> {
    let mut request = Request::get("https://api.example/").body(String::new()).unwrap();
    request
        .extensions_mut()
        .insert(PeerAddress(SocketAddr::new(address.into(), 4_711)));
    request
}

/// Sends a request to a service inside of the layer that shows what it has got.
async fn send(layer: &OriginLayer, request: Request<String>) -> Response<Bytes> {
    let service = service_fn(async |request: Request<String>| {
        let accepted = request.extensions().get::<AcceptedToken>();
        let seen = accepted.map_or("nobody", AcceptedToken::policy).to_owned();
        let credentials = request.headers().get_all(header::AUTHORIZATION).iter();
        let credentials: Vec<_> = credentials.map(|value| value.to_str().unwrap().to_owned()).collect();
        let content = format!("{seen} {}", credentials.join(" "));
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(content))))
    });
    call(layer.layer(service), request).await
}

/// M4, M5, X24
#[tokio::test]
async fn a_request_without_a_token_is_challenged() {
    for profile in Profile::ALL {
        let site = Site::new(profile);
        let response = site.send(request()).await;
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert_eq!(response.headers()["ratelimit-policy"], r#""anonymous";q=5;w=60"#);
        assert!(!response.headers().contains_key("ratelimit"));
        let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(
            (&problem["type"], &problem["status"]),
            (&"about:blank".into(), &401.into())
        );

        let challenge = challenge_in(response.headers());
        assert_eq!(challenge.token_key(), Some(site.issuer.0.public_key().as_bytes()));
        assert_eq!(challenge.rate_limit(), Some(5));
        // Half of the window, and a quarter of grace.
        assert_eq!(challenge.max_age(), Some(Duration::from_secs(45)));
        let asked = challenge.token_challenge().unwrap();
        assert_eq!(asked.profile(), Some(profile));
        assert_eq!(asked.issuer_name(), "issuer.example");
        assert!(asked.is_for("api.example") && !asked.is_for("www.example"));
        assert!(asked.redemption_context().is_some());
    }
}

/// M28, M29, X21: a limit of five is five tokens, the nonces 0 to 4.
#[tokio::test]
async fn each_nonce_below_the_limit_passes_once_and_the_limit_itself_does_not() {
    for profile in Profile::ALL {
        let (site, challenge, holder) = Site::new(profile).with_holder().await;
        for nonce in 0..5 {
            let accepted = site.send(with_token(request(), &holder.token(&challenge, nonce))).await;
            assert_eq!(accepted.status(), 200, "{profile} {nonce}");
            assert_eq!(accepted.headers()["ratelimit-policy"], r#""anonymous";q=5;w=60"#);
            assert_eq!(accepted.body(), "anonymous ");
        }
        assert_eq!(site.with_token(&holder.token(&challenge, 5)).await, 401, "{profile}");
        // Another client has as many.
        let other = site.issuer.holder(&challenge);
        assert_eq!(site.with_token(&other.token(&challenge, 4)).await, 200);
    }
}

/// M30, X23
#[tokio::test]
async fn a_spent_token_is_rejected_until_the_window_ends_also_with_another_proof() {
    for profile in Profile::ALL {
        let (site, challenge, holder) = Site::new(profile).with_holder().await;
        assert_eq!(site.with_token(&holder.token(&challenge, 3)).await, 200);
        // Made once more: other bytes, and the same tag.
        let again = holder.token(&challenge, 3);
        for _ in 0..2 {
            let rejected = site.send(with_token(request(), &again)).await;
            assert_eq!(rejected.status(), 429);
            assert_eq!(rejected.headers()["retry-after"], "30");
            let problem: serde_json::Value = serde_json::from_slice(rejected.body()).unwrap();
            let exceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded";
            assert_eq!(problem["type"], exceeded);
            assert_eq!(problem["violated-policies"], serde_json::json!(["anonymous"]));
        }
        assert_eq!(site.with_token(&holder.token(&challenge, 2)).await, 200);
    }
}

/// M27, M28: all invalid tokens get the same response.
#[tokio::test]
async fn tokens_that_are_not_valid_are_challenged_alike() {
    for profile in Profile::ALL {
        let site = Site::new(profile);
        let without = site.send(request()).await;
        let challenge = site.challenge().await;
        let holder = site.issuer.holder(&challenge);
        let good = holder.token(&challenge, 0);
        let stranger = Issuer(IssuerKey::generate(profile).unwrap()).holder(&challenge);
        let elsewhere = TokenChallenge::new(profile, "issuer.example").unwrap();
        let elsewhere = elsewhere
            .with_origins(["www.example"])
            .unwrap()
            .with_redemption_context([9; 32]);
        let of_other_issuer = TokenChallenge::new(profile, "elsewhere.example").unwrap();
        let changed = |at: usize| {
            let mut bytes = good.to_bytes();
            bytes[at] ^= 1;
            Token::parse(&bytes).unwrap()
        };
        let (key_at, nonce_at) = if profile == Profile::P384 { (2, 37) } else { (38, 5) };
        assert_eq!(good.to_bytes()[key_at..][..32], *good.key().as_bytes());
        for token in [
            forged(&good),
            stranger.token(&challenge, 0),
            holder.token(&elsewhere, 0),
            site.issuer.holder(&of_other_issuer).token(&challenge, 0),
            changed(nonce_at),
            changed(key_at),
            site.nonsense(),
        ] {
            let rejected = site.send(with_token(request(), &token)).await;
            assert_eq!((rejected.status(), rejected.body()), (without.status(), without.body()));
            assert_eq!(rejected.headers(), without.headers());
        }
        let malformed = HeaderValue::from_static("PrivateToken token=\"AAAA\"");
        let mut request = request();
        request.headers_mut().insert(header::AUTHORIZATION, malformed);
        assert_eq!(site.send(request).await.headers(), without.headers());
        // None of them has spent the tag.
        assert_eq!(site.with_token(&good).await, 200);
    }
}

/// X22, section 5.6 of the design: all instances send the same challenge to all clients for the whole window.
#[tokio::test]
async fn a_challenge_is_the_same_for_all_and_changes_with_the_window_and_the_policy() {
    let site = Site::new(Profile::P256);
    let key = &site.issuer.0;
    let challenge = async |layer: &OriginLayer, address: [u8; 4]| challenged(&send(layer, from(address)).await);
    let first = challenge(&site.layer, [192, 0, 2, 1]).await;
    let instance = builder(key).clock(site.clock.clone()).build().unwrap();
    site.clock.advance(Duration::from_secs(29));
    assert_eq!(challenge(&instance, [198, 51, 100, 7]).await, first);
    site.clock.advance(Duration::from_secs(1));
    assert_ne!(challenge(&site.layer, [192, 0, 2, 1]).await, first);

    site.clock.set(MIDDLE);
    let others = [
        builder(key).policy("another", 5, MINUTE),
        builder(key).policy("anonymous", 5, MINUTE * 2),
        OriginLayer::builder("issuer.example", &[8; 32])
            .origin("api.example")
            .key(key.clone())
            .policy("anonymous", 5, MINUTE),
    ];
    for other in others {
        let layer = other.clock(site.clock.clone()).build().unwrap();
        assert_ne!(
            challenge(&layer, [192, 0, 2, 1]).await.redemption_context(),
            first.redemption_context()
        );
    }
}

/// M24: a new window is a new allowance. Grace moves tokens in time, and adds none.
#[tokio::test]
async fn the_last_window_is_accepted_within_grace_and_the_next_one_within_skew() {
    for profile in Profile::ALL {
        let (site, old, holder) = Site::new(profile).with_holder().await;
        let token = |challenge: &TokenChallenge, nonce| holder.token(challenge, nonce);
        assert_eq!(site.with_token(&token(&old, 0)).await, 200);

        // The next window, known to a client from an instance whose clock is ahead.
        site.clock.advance(Duration::from_secs(30));
        let new = site.challenge().await;
        site.clock.set(MIDDLE);
        site.clock.advance(Duration::from_micros(24_999_999));
        assert_eq!(site.with_token(&token(&new, 0)).await, 401);
        site.clock.advance(Duration::from_micros(1));
        assert_eq!(site.with_token(&token(&new, 0)).await, 200);
        assert_eq!(site.with_token(&token(&new, 0)).await, 429);

        // Behind the border, what was spent before it stays spent.
        site.clock.advance(Duration::from_secs(5));
        assert_eq!(site.with_token(&token(&new, 0)).await, 429);
        assert_eq!(site.with_token(&token(&new, 1)).await, 200);
        assert_eq!(site.with_token(&token(&old, 0)).await, 429);
        assert_eq!(site.with_token(&token(&old, 1)).await, 200);
        site.clock.advance(Duration::from_micros(14_999_999));
        assert_eq!(site.with_token(&token(&old, 2)).await, 200);
        site.clock.advance(Duration::from_micros(1));
        assert_eq!(site.with_token(&token(&old, 3)).await, 401);
        assert_eq!(site.with_token(&token(&new, 2)).await, 200);
    }
}

/// With a lifetime of credentials, what was issued for one epoch is of no use in the next.
#[tokio::test]
async fn credentials_of_an_epoch_end_with_a_window() {
    let site = Site::with(Profile::P256, |builder| builder.credential_lifetime(MINUTE * 2));
    let (site, first, holder) = site.with_holder().await;
    assert_eq!(site.with_token(&holder.token(&first, 0)).await, 200);
    let mut contexts = vec![*first.credential_context().unwrap()];
    for _ in 0..3 {
        site.clock.advance(MINUTE);
        let challenge = site.challenge().await;
        let context = *challenge.credential_context().unwrap();
        let is_of_first_epoch = context == contexts[0];
        let status = site.with_token(&holder.token(&challenge, 0)).await;
        assert_eq!(status, if is_of_first_epoch { 200 } else { 401 });
        contexts.push(context);
    }
    contexts.dedup();
    assert!((2..=3).contains(&contexts.len()));
    let renewed = site.issuer.holder(&site.challenge().await);
    assert_eq!(site.with_token(&renewed.token(&site.challenge().await, 0)).await, 200);
}

#[tokio::test]
async fn tokens_of_all_keys_and_profiles_are_accepted_and_the_first_of_each_profile_is_shown() {
    let mut keys = [Profile::P256, Profile::P384, Profile::P256].map(|profile| IssuerKey::generate(profile).unwrap());
    while keys[0].key_id().truncated() == keys[2].key_id().truncated() {
        keys[2] = IssuerKey::generate(Profile::P256).unwrap();
    }
    let layer = builder(&keys[0])
        .key(keys[1].clone())
        .key(keys[2].clone())
        .build()
        .unwrap();
    let response = send(&layer, request()).await;
    let challenges = tower_quota_anonymous::Challenge::from_headers(response.headers());
    let shown: Vec<_> = challenges
        .iter()
        .map(|challenge| challenge.token_key().unwrap())
        .collect();
    let [first, second] = [0, 1].map(|key: usize| keys[key].public_key().as_bytes());
    assert_eq!(shown, [first, second]);
    for (key, challenge) in [(0, 0), (1, 1), (2, 0)] {
        let challenge = challenges[challenge].token_challenge().unwrap();
        let token = Issuer(keys[key].clone()).holder(&challenge).token(&challenge, 0);
        assert_eq!(send(&layer, with_token(request(), &token)).await.status(), 200);
    }
}

#[tokio::test]
async fn where_tokens_are_optional_other_requests_pass_and_bad_tokens_do_not() {
    let site = Site::with(Profile::P256, OriginLayerBuilder::optional);
    let passed = site.send(request()).await;
    assert_eq!(passed.status(), 200);
    assert_eq!(passed.body()[..], b"nobody "[..]);
    assert!(!passed.headers().contains_key("ratelimit-policy"));
    let challenge = site.challenge().await;
    let token = site.issuer.holder(&challenge).token(&challenge, 0);
    assert_eq!(site.with_token(&forged(&token)).await, 401);
    let mut malformed = request();
    malformed
        .headers_mut()
        .insert(header::AUTHORIZATION, HeaderValue::from_static("PrivateToken"));
    assert_eq!(site.status(malformed).await, 401);

    // Credentials of another scheme are no token; beside a token, they stay in the request.
    let mut other = request();
    other
        .headers_mut()
        .insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
    let both = with_token(other.clone(), &token);
    assert_eq!(site.send(other).await.body(), "nobody Bearer abc");
    assert_eq!(site.send(both).await.body(), "anonymous Bearer abc");
}

#[tokio::test]
async fn preflights_need_no_token_if_they_are_let_pass() {
    let preflight = || {
        let request = Request::options("/").header("origin", "https://www.example");
        request
            .header("access-control-request-method", "PUT")
            .body(String::new())
            .unwrap()
    };
    assert_eq!(Site::new(Profile::P256).status(preflight()).await, 401);
    let site = Site::with(Profile::P256, OriginLayerBuilder::skip_cors_preflight);
    assert_eq!(site.status(preflight()).await, 200);
    assert_eq!(
        site.status(Request::options("/").body(String::new()).unwrap()).await,
        401
    );
}

#[test]
fn scripts_may_read_the_challenge_and_all_other_fields_of_the_crate() {
    let [challenge, others @ ..] = EXPOSED;
    assert_eq!(challenge, header::WWW_AUTHENTICATE);
    assert_eq!(others, tower_quota::fields::EXPOSED);
}

/// M37: a user behind a shared address can continue with a token.
#[tokio::test]
async fn whom_the_limit_by_address_rejects_is_challenged_and_passes_with_a_token() {
    let site = Site::with(Profile::P256, OriginLayerBuilder::optional);
    let by_address = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        .key(key::client_ip())
        .policy(QuotaPolicy::per_hour("address", 2))
        .exempt(Exemption::when(|request| {
            request.extensions.get::<AcceptedToken>().is_some()
        }))
        .build()
        .unwrap();
    let inner = service_fn(async |request: Request<String>| {
        let mut response = Response::new(Full::<Bytes>::default());
        if request.uri().path() == "/busy" {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        Ok::<_, Infallible>(response)
    });
    let service = site.layer.layer(by_address.layer(inner));
    let send = |request| call(service.clone(), request);

    assert_eq!(send(request()).await.status(), 200);
    // That is no rejection of a limit.
    let mut busy = request();
    *busy.uri_mut() = "/busy".parse().unwrap();
    let busy = send(busy).await;
    assert_eq!(busy.status(), 429);
    assert!(!busy.headers().contains_key("www-authenticate"));

    let rejected = send(request()).await;
    assert_eq!(rejected.status(), 429);
    assert_eq!(rejected.headers()["cache-control"], "no-store");
    assert_eq!(
        rejected.headers()["ratelimit-policy"],
        r#""address";q=2;w=3600, "anonymous";q=5;w=60"#
    );
    assert!(rejected.headers().contains_key("retry-after"));
    let challenge = challenged(&rejected);
    let holder = site.issuer.holder(&challenge);
    for nonce in 0..5 {
        let accepted = send(with_token(request(), &holder.token(&challenge, nonce))).await;
        assert_eq!(accepted.status(), 200);
        assert!(!accepted.headers().contains_key("ratelimit"));
    }
    assert_eq!(send(request()).await.status(), 429);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_equal_tokens_at_once_one_passes() {
    let site = Site::with(Profile::P256, |builder| builder.verifier_threads(2).max_queued(100));
    let challenge = site.challenge().await;
    let (token, site) = (site.issuer.holder(&challenge).token(&challenge, 0), Arc::new(site));
    let tasks = (0..50).map(|_| {
        let (site, token) = (Arc::clone(&site), token.clone());
        tokio::spawn(async move { site.with_token(&token).await })
    });
    let statuses: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
    let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!((count(200), count(429)), (1, 49));
}

/// A tag is never evicted while its window may be accepted: at the cap, the origin responds with 503, because it cannot
/// decide.
#[tokio::test]
async fn a_full_memory_rejects_tokens_and_forgets_none_that_is_accepted() {
    let site = Site::with(Profile::P256, |builder| builder.max_tags(3));
    let (site, challenge, holder) = site.with_holder().await;
    let tokens: Vec<_> = (0..5).map(|nonce| holder.token(&challenge, nonce)).collect();
    for (token, status) in tokens.iter().zip([200, 200, 200, 503, 503]) {
        assert_eq!(site.with_token(token).await, status);
    }
    for token in &tokens[..3] {
        assert_eq!(site.with_token(token).await, 429);
    }
    // Two windows later they are of no use.
    site.clock.advance(MINUTE * 2);
    let challenge = site.challenge().await;
    for nonce in 0..3 {
        assert_eq!(site.with_token(&holder.token(&challenge, nonce)).await, 200);
    }
}
