//! What the guide describes, on real servers: a limit before authentication and after it, and who is charged for what a
//! client only claims.
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
use http::{HeaderMap, Response, StatusCode};
use tower_quota::{
    MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, ToPartitionKey,
    key::{self, ClientIp, ForwardingField, KeyExtractor},
};

use crate::{Server, limits_by, remaining};

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
