//! Operators, clients and Redis see no secret: each of them is a text or an array of bytes that appears nowhere else, and is
//! looked for in all that a program writes.

mod anonymous;
mod debug;
mod detector;
mod faults;
mod fleet;
mod pages;
mod requests;

use std::{convert::Infallible, error::Error, fmt::Display, panic::AssertUnwindSafe, sync::Mutex, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, request::Parts};
use http_body_util::{BodyExt, Full};
use test_kit::{RedisServer, ScriptedServer, load::HANG};
use tower::{Layer, ServiceExt, service_fn};
use tower_quota::{
    AbnormalUsage, Access, AccessList, CallerQuotas, ChargeTime, CircuitState, Decision, FailureMode, LegacyReset,
    Limiter, LimiterBuilder, LimiterError, MemoryStore, MissingKey, PartitionKey, Plan, PolicySet, QuotaPolicy,
    RateLimitLayer, RateLimitLayerBuilder, RedisStore, RedisStoreBuilder, Refund, ResponseFields, Rules, Scope, Store,
    Tiers, ToPartitionKey,
    clock::{Clock, Timestamp},
    key::{self, KeyExtractor, PeerAddress},
    tier::TierLayer,
};
use tower_quota_anonymous::{
    CredentialRequest, IssuanceDecision, IssuanceRequest, Issuer, IssuerKey, KeySet, OriginLayer, OriginLayerBuilder,
    Profile, Token,
};
use tower_quota_fleet::{
    AccessEntry, Control, Publication, RedisRules, RulesDocument, RulesFollower, RulesPublisher, RulesSource,
    RulesVersion,
};
use tracing::{Instrument, field::Empty, info_span};

use self::detector::{Secret, Watch, assert_hidden, dump, forms, said_by};
use crate::{
    NO_SERVER,
    holder::{self, challenged, forged, with_token},
};

const API_KEY: &str = "qk-7Hw2mZ9xTf4LsB8vRc3NyK6d";
const AUTHORIZATION: &str = "tA5jQ8eWn2XrU7kGp4VhM9zCbY3s";
const COOKIE: &str = "Lf6yD3oRa8TwS5qJx9ZnE2mVhK7u";
const QUERY: &str = "gB4tP7cXk2MvH9sQw6LzR3yNdF8j";
const USER: &str = "uV8nC3hYr6KxT2wZm5QsJ9fLbG7p";
const REDIS_USER: &str = "rW2kS7vNq4HdX9tBz6YmF3cLpG8e";
const REDIS_PASSWORD: &str = "xJ9zG4bQf7RtM2nVw5KhD8sYcL3a";
const DIGEST_KEY: [u8; 32] = *b"\x9e\x13\xd7\x5a\xc8\xf1\x06\xbb\x71\xe4\x2f\x98\x0d\xa3\x56\xcf\x3b\x84\xe9\x12\x7d\xb0\xf6\x47\x91\x2c\xda\x65\x08\xbe\x53\xf9";
const ORIGIN_SECRET: [u8; 32] = *b"\x4f\xb2\x19\xe6\x8d\x03\xca\x75\xd0\x3e\xa7\x58\xf4\x8b\x21\xdc\x66\x97\x0a\xb9\x5d\xe2\x1c\x83\xfb\x34\xc1\x6e\x9a\x07\xd5\x48";

/// All but the keys and tokens that a test makes.
fn secrets() -> Vec<Secret> {
    let mut secrets = credentials();
    secrets.push(Secret::new("the user", USER));
    secrets
}

/// Secrets that not even a page about callers may show.
fn credentials() -> Vec<Secret> {
    vec![
        Secret::new("the API key", API_KEY),
        Secret::new("authorization", AUTHORIZATION),
        Secret::new("the cookie", COOKIE),
        Secret::new("the query", QUERY),
        Secret::new("the user of Redis", REDIS_USER),
        Secret::new("the password of Redis", REDIS_PASSWORD),
        Secret::new("the digest key", DIGEST_KEY),
        Secret::new("the secret of the origin", ORIGIN_SECRET),
    ]
}

/// The value that authentication leaves.
#[derive(Clone)]
struct User(&'static str);

impl ToPartitionKey for User {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("user", self.0)
    }
}

/// With a secret in each place that a request has for one.
fn request() -> Request<String> {
    Request::get(format!("/orders?key={QUERY}"))
        .header("x-api-key", API_KEY)
        .header("authorization", format!("Bearer {AUTHORIZATION}"))
        .header("cookie", format!("session={COOKIE}"))
        .header("x-user-id", USER)
        .extension(User(USER))
        .extension(PeerAddress(([192, 0, 2, 1], 4711).into()))
        .body(String::new())
        .unwrap()
}

/// A layer for each kind of key by which a service may distinguish its callers. Each key is a secret, and so is the
/// digest key.
fn by_each_key(server: &RedisServer) -> [RateLimitLayerBuilder; 4] {
    let limiter = || limiter(store(server)).digest_key(DIGEST_KEY);
    let query = |request: &Parts| Some(request.uri.query()?.to_partition_key());
    [
        builder_of(limiter(), key::header("x-api-key")),
        builder_of(limiter(), key::header("authorization").and(key::header("cookie"))),
        builder_of(limiter(), key::from_fn(query)),
        builder_of(limiter(), key::extension::<User>()),
    ]
}

fn builder(store: impl Store, key: impl KeyExtractor) -> RateLimitLayerBuilder {
    builder_of(limiter(store), key)
}

fn limiter(store: impl Store) -> LimiterBuilder {
    Limiter::builder(store).deadline(HANG)
}

fn builder_of(limiter: LimiterBuilder, key: impl KeyExtractor) -> RateLimitLayerBuilder {
    RateLimitLayerBuilder::from(limiter)
        .scope("secrets")
        .decision_in_response()
        .key(key)
        .policy(QuotaPolicy::per_day("day", 2).show_partition_key())
        .policy(QuotaPolicy::concurrent("slots", 9))
}

/// A server with a user who may do everything; `None` if it is too old to have users.
fn server() -> Option<RedisServer> {
    let server = RedisServer::start();
    let has_users = server.has_users();
    if has_users {
        may(&server, &["~*", "+@all"]);
    }
    has_users.then_some(server)
}

fn may(server: &RedisServer, rules: &[&str]) {
    let password = format!(">{REDIS_PASSWORD}");
    server.set_user(REDIS_USER, &[&["reset", "on", &password], rules].concat());
}

fn url(password: impl Display, port: u16) -> String {
    format!("redis://{REDIS_USER}:{password}@127.0.0.1:{port}/")
}

fn login(server: &RedisServer) -> RedisStoreBuilder {
    RedisStore::builder(url(REDIS_PASSWORD, server.port()))
}

fn store(server: &RedisServer) -> RedisStore {
    login(server).build().unwrap()
}

fn day(quota: u64) -> Rules {
    Rules::new().policy(QuotaPolicy::per_day("day", quota))
}

/// Sends a request in a span that takes up the decision, and returns the status and all that the client or the program
/// sees of the response.
async fn send(layer: &RateLimitLayer, request: Request<String>) -> (u16, String) {
    let handler = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(Body::from("hello"))));
    let span = info_span!(
        "request",
        quota.scope = Empty,
        quota.tier = Empty,
        quota.policy = Empty,
        quota.outcome = Empty
    );
    let response = layer.layer(handler).oneshot(request).instrument(span).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    let decision = format!("{:?}", head.extensions.get::<Decision>());
    let shown = format!("{} {} {decision}", fields(&head.headers), fields(&trailers));
    let bytes = String::from_utf8(body.to_bytes().into()).unwrap();
    (head.status.as_u16(), format!("{shown} {bytes}"))
}

/// As they are sent, marked as sensitive or not.
fn fields(headers: &HeaderMap) -> String {
    let fields = headers.iter();
    let fields = fields.map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    fields.collect()
}

/// Sends as many requests as it takes for all outcomes, and returns their status codes.
async fn statuses(layer: &RateLimitLayer, requests: usize) -> Vec<u16> {
    let secrets = secrets();
    let mut statuses = Vec::new();
    for _ in 0..requests {
        let (status, shown) = send(layer, request()).await;
        assert_hidden(&secrets, &format!("the response with status {status}"), shown);
        statuses.push(status);
    }
    statuses
}

/// The detector is no use if it finds nothing.
#[tokio::test]
async fn a_leak_is_found_in_each_form_and_each_place() {
    let secret = [Secret::new("the password", REDIS_PASSWORD)];
    let is_found = |shown: &[u8]| {
        let shown = || assert_hidden(&secret, "this", shown);
        std::panic::catch_unwind(AssertUnwindSafe(shown)).is_err()
    };
    let bytes = [Secret::new("the key", DIGEST_KEY)];
    for form in DIGEST_KEY.chunks_exact(12).flat_map(forms) {
        let around: Vec<u8> = format!("a=1 {form}, b").chars().map(|letter| letter as u8).collect();
        assert!(bytes[0].is_in(&around), "{form}");
    }
    assert!(bytes[0].is_in(format!("{DIGEST_KEY:?}").as_bytes()));
    assert!(bytes[0].is_in(format!("{:?}", Bytes::from_static(&DIGEST_KEY)).as_bytes()));
    assert!(!bytes[0].is_in(&ORIGIN_SECRET));
    assert!(is_found(
        format!("redis://limits:{REDIS_PASSWORD}@localhost/").as_bytes()
    ));
    assert!(is_found(&REDIS_PASSWORD.as_bytes()[12..]), "a part of it");
    assert!(!is_found(b"redis://limits@localhost/"));

    let watch = Watch::start();
    watch.assert_hidden(&secret);
    let span = info_span!(target: "tower_quota", "call", url = REDIS_PASSWORD);
    drop(span);
    assert!(is_found(watch.log().as_bytes()));
    let watch = Watch::start();
    tracing::trace!(target: "tower_quota", error = %said_by(&std::io::Error::other(REDIS_PASSWORD)), "failed");
    assert!(is_found(watch.log().as_bytes()));
    metrics::counter!("tower_quota_failed_total", "scope" => REDIS_PASSWORD).increment(1);
    assert!(is_found(watch.page().as_bytes()));

    let server = RedisServer::start();
    for command in [
        &["SET", REDIS_PASSWORD, "1"][..],
        &["SET", "a", REDIS_PASSWORD],
        &["RPUSH", "a", "1", REDIS_PASSWORD],
        &["SADD", "a", REDIS_PASSWORD],
        &["HSET", "a", REDIS_PASSWORD, "1"],
        &["ZADD", "a", "1", REDIS_PASSWORD],
    ] {
        assert!(!is_found(&dump(&server)));
        server.command(command);
        assert!(is_found(&dump(&server)), "{command:?}");
        server.command(&["FLUSHALL"]);
    }
}
