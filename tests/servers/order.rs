//! What the guide describes, on real servers: a limit before authentication, after it, around logins; and who is charged
//! for what a client only claims.
//!
//! Each request comes from the address in `x-forwarded-for`: the peer is a trusted proxy.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    extract::{Request, State},
    middleware,
    routing::post,
};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Response, StatusCode};
use tower_quota::{
    MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, ToPartitionKey,
    key::{self, ClientIp, ForwardingField, KeyExtractor},
};

use crate::{RemoteStore, Server, limits_by, remaining};

#[derive(Clone)]
struct User(String);

impl ToPartitionKey for User {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("user", &self.0)
    }
}

/// Checks passwords, and counts how often.
#[derive(Clone, Default)]
struct Passwords(Arc<AtomicUsize>);

impl Passwords {
    fn checked(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn verified(&self, fields: &HeaderMap) -> Option<User> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let is_right = fields.get("x-password").is_some_and(|password| password == "right");
        let name = fields.get("x-user-id")?.to_str().ok()?;
        is_right.then(|| User(name.to_owned()))
    }
}

/// Authentication as a layer.
async fn authenticate(State(passwords): State<Passwords>, mut request: Request) -> Result<Request, StatusCode> {
    let user = passwords.verified(request.headers()).ok_or(StatusCode::UNAUTHORIZED)?;
    request.extensions_mut().insert(user);
    Ok(request)
}

/// Authentication as a handler, which may be broken.
async fn login(State(passwords): State<Passwords>, fields: HeaderMap) -> StatusCode {
    match passwords.verified(&fields) {
        _ if fields.contains_key("x-broken") => StatusCode::INTERNAL_SERVER_ERROR,
        Some(_) => StatusCode::NO_CONTENT,
        None => StatusCode::UNAUTHORIZED,
    }
}

fn by_address() -> ClientIp {
    key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["127.0.0.1"])
}

/// A client that sends from an address.
struct Caller<'a> {
    server: &'a Server,
    address: &'a str,
}

impl Caller<'_> {
    async fn send(&self, user: &str, password: &str) -> Response<Bytes> {
        self.send_with(user, password, ("x-nothing", "")).await
    }

    async fn send_with(&self, user: &str, password: &str, field: (&str, &str)) -> Response<Bytes> {
        let request = http::Request::post("/")
            .header("x-forwarded-for", self.address)
            .header("x-user-id", user)
            .header("x-password", password)
            .header(field.0, field.1);
        self.server.send(request.body(String::new()).unwrap()).await
    }

    /// The status codes of the same request again and again.
    async fn statuses<const N: usize>(&self, user: &str, password: &str) -> [u16; N] {
        let mut statuses = [0; N];
        for status in &mut statuses {
            *status = self.send(user, password).await.status().as_u16();
        }
        statuses
    }
}

/// The address of an attacker, and the address of all others.
fn callers(server: &Server) -> (Caller<'_>, Caller<'_>) {
    let from = |address| Caller { server, address };
    (from("203.0.113.9"), from("192.0.2.1"))
}

/// I3, E7
#[tokio::test]
async fn a_limit_before_authentication_counts_addresses_whatever_name_is_claimed() {
    let passwords = Passwords::default();
    let limits = limits_by(by_address(), MemoryStore::new(), "addresses", 3);
    let app = Router::new()
        .route("/", post(async || "hello"))
        .layer(middleware::map_request_with_state(passwords.clone(), authenticate))
        .layer(limits.build().unwrap());
    let server = Server::axum(app).await;
    let (attacker, bob) = callers(&server);

    for (claimed, status) in [
        ("alice", 401),
        ("bob", 401),
        ("carol", 401),
        ("bob", 429),
        ("dave", 429),
    ] {
        assert_eq!(attacker.send(claimed, "wrong").await.status(), status, "{claimed}");
    }
    assert_eq!(passwords.checked(), 3, "what is rejected is not even looked at");
    assert_eq!(attacker.statuses("alice", "right").await, [429]);
    assert_eq!(remaining(&bob.send("bob", "right").await), 2);
}

/// I3, I5
#[tokio::test]
async fn a_limit_after_authentication_counts_users_wherever_they_are_and_nobody_who_only_claims_to_be_one() {
    let passwords = Passwords::default();
    let limits = limits_by(key::extension::<User>(), MemoryStore::new(), "users", 3);
    let app = Router::new()
        .route("/", post(async || "hello"))
        .layer(limits.build().unwrap())
        .layer(middleware::map_request_with_state(passwords, authenticate));
    let server = Server::axum(app).await;
    let (attacker, bob) = callers(&server);

    assert_eq!(remaining(&bob.send("bob", "right").await), 2);
    assert_eq!(attacker.statuses("bob", "wrong").await, [401; 9]);
    assert_eq!(remaining(&bob.send("bob", "right").await), 1);
    let elsewhere = attacker.send("bob", "right").await;
    assert_eq!(remaining(&elsewhere), 0);
    assert_eq!(bob.statuses("bob", "right").await, [429]);
    assert_eq!(bob.statuses("alice", "right").await, [200]);
}

/// I3
#[tokio::test]
async fn around_authentication_and_inside_of_it_each_request_is_charged_where_it_belongs() {
    let (store, passwords) = (MemoryStore::new(), Passwords::default());
    let addresses = limits_by(by_address(), store.clone(), "addresses", 4);
    let users = limits_by(key::extension::<User>(), store, "users", 2);
    let app = Router::new()
        .route("/", post(async || "hello"))
        .layer(users.build().unwrap())
        .layer(middleware::map_request_with_state(passwords.clone(), authenticate))
        .layer(addresses.build().unwrap());
    let server = Server::axum(app).await;
    let (attacker, bob) = callers(&server);

    assert_eq!(attacker.statuses("bob", "wrong").await, [401, 401, 401, 401, 429]);
    // The third request is rejected for bob, but still counts against the address.
    assert_eq!(bob.statuses("bob", "right").await, [200, 200, 429]);
    assert_eq!(bob.statuses("alice", "right").await, [200, 429]);
    assert_eq!(passwords.checked(), 4 + 4, "no more often than the addresses may send");
}

/// A server that counts failed logins only.
async fn failed_logins(limits: RateLimitLayerBuilder) -> (Passwords, Server) {
    let passwords = Passwords::default();
    let limits = limits.actual_cost(|response| response.status.is_success().then_some(0));
    let login = post(login).layer(limits.build().unwrap());
    let app = Router::new().route("/", login).with_state(passwords.clone());
    (passwords, Server::axum(app).await)
}

/// D17: a request that fails for any reason stays charged.
#[tokio::test]
async fn only_failed_logins_are_counted() {
    let limits = limits_by(by_address(), MemoryStore::new(), "failed logins", 3);
    let (passwords, server) = failed_logins(limits).await;
    let (attacker, bob) = callers(&server);

    assert_eq!(attacker.statuses("mallory", "right").await, [204; 9]);
    assert_eq!(attacker.statuses("bob", "wrong").await, [401]);
    let broken = attacker.send_with("bob", "wrong", ("x-broken", "1")).await;
    assert_eq!((broken.status().as_u16(), remaining(&broken)), (500, 1));
    assert_eq!(attacker.statuses("alice", "wrong").await, [401, 429, 429]);
    let checked = passwords.checked();
    assert_eq!(attacker.statuses("mallory", "right").await, [429]);
    assert_eq!(passwords.checked(), checked);
    assert_eq!(bob.statuses("bob", "right").await, [204]);
}

/// A count that is only made afterwards would let them all through.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_guesses_at_the_same_moment_no_more_than_the_limit_are_looked_at() {
    for limits in [
        limits_by(by_address(), MemoryStore::new(), "failed logins", 5),
        limits_by(by_address(), RemoteStore::<1>::default(), "failed logins", 5),
    ] {
        let (passwords, server) = failed_logins(limits).await;
        let (attacker, _) = callers(&server);
        let guesses = join_all((0..60).map(|_| attacker.send("bob", "wrong"))).await;
        let rejected = guesses.iter().filter(|guess| guess.status() == 429).count();
        assert_eq!((rejected, passwords.checked()), (55, 5));
    }
}

/// I3, I5
#[tokio::test]
async fn guesses_at_a_name_lock_out_nobody_but_the_guesser() {
    let by_claim = by_address().and(key::header("x-user-id"));
    let limits = limits_by(by_claim, MemoryStore::new(), "guesses", 2);
    let (_, server) = failed_logins(limits).await;
    let (attacker, bob) = callers(&server);

    assert_eq!(attacker.statuses("bob", "wrong").await, [401, 401, 429]);
    assert_eq!(bob.statuses("bob", "right").await, [204]);
    assert_eq!(remaining(&bob.send("bob", "wrong").await), 1);
}

/// A client with the right password is known by name, all others by their address.
async fn identify(State(passwords): State<Passwords>, mut request: Request) -> Request {
    if let Some(user) = passwords.verified(request.headers()) {
        request.extensions_mut().insert(user);
    }
    request
}

/// E7, I5: neither the partition key that bob's responses show, nor anything else in a request.
#[tokio::test]
async fn nothing_that_a_request_says_charges_somebody_else() {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("users")
        .key(key::extension::<User>().or_else(by_address()))
        .policy(QuotaPolicy::per_day("day", 9).show_partition_key())
        .build()
        .unwrap();
    let app = Router::new()
        .route("/", post(async || "hello"))
        .layer(limits)
        .layer(middleware::map_request_with_state(Passwords::default(), identify));
    let server = Server::axum(app).await;
    let (attacker, bob) = callers(&server);

    let first = bob.send("bob", "right").await;
    assert_eq!(remaining(&first), 8);
    let shown = |name| first.headers()[name].to_str().unwrap();
    assert!(shown("ratelimit").contains(";pk=:"));
    let claims = [
        ("x-user", "bob"),
        ("ratelimit", shown("ratelimit")),
        ("ratelimit-policy", shown("ratelimit-policy")),
        ("forwarded", "for=192.0.2.1"),
        ("x-real-ip", "192.0.2.1"),
    ];
    for (claim, left) in claims.into_iter().zip((0..9).rev()) {
        let response = attacker.send_with("bob", "wrong", claim).await;
        assert_eq!(
            (response.status().as_u16(), remaining(&response)),
            (200, left),
            "{claim:?}"
        );
    }
    assert_eq!(remaining(&bob.send("bob", "right").await), 7);
    assert_eq!(
        remaining(&bob.send("bob", "wrong").await),
        8,
        "his address is another caller"
    );
}
