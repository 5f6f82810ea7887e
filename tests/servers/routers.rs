//! axum: layers on routers and on single routes.

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    extract::{Path, Request},
    middleware,
    routing::{get, post},
};
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use tower_quota::{
    MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, Tiers, ToPartitionKey,
    key::{self, ForwardingField},
};

use crate::{Server, limits, limits_by, limits_of_both_kinds, listener, remaining};

async fn ok() -> &'static str {
    "ok"
}

/// L33
#[tokio::test]
async fn routes_under_one_layer_share_its_limit() {
    let app = Router::new()
        .route("/a", get(ok))
        .route("/b", get(ok))
        .layer(limits(MemoryStore::new(), "api", 3));
    let server = Server::axum(app).await;
    assert_eq!(server.statuses(["/a", "/b", "/a", "/b"]).await, [200, 200, 200, 429]);
}

/// L33
#[tokio::test]
async fn routes_with_scopes_of_their_own_do_not_share() {
    let store = MemoryStore::new();
    let app = Router::new()
        .route("/login", get(ok).layer(limits(store.clone(), "login", 1)))
        .route("/items", get(ok).route_layer(limits(store, "items", 2)));
    let server = Server::axum(app).await;
    let paths = ["/login", "/login", "/items", "/items", "/items", "/login"];
    assert_eq!(server.statuses(paths).await, [200, 429, 200, 200, 429, 429]);
}

/// L33
#[tokio::test]
async fn layers_with_the_same_scope_on_the_same_store_share() {
    let store = MemoryStore::new();
    let app = Router::new()
        .route("/a", get(ok).layer(limits(store.clone(), "api", 2)))
        .route("/b", get(ok).layer(limits(store, "api", 2)))
        .route("/c", get(ok).layer(limits(MemoryStore::new(), "api", 2)));
    let server = Server::axum(app).await;
    assert_eq!(
        server.statuses(["/a", "/b", "/a", "/b", "/c"]).await,
        [200, 200, 429, 429, 200]
    );
}

/// L33
#[tokio::test]
async fn a_route_without_a_layer_is_not_limited() {
    let app = Router::new()
        .route("/items", get(ok))
        .layer(limits(MemoryStore::new(), "api", 1))
        .route("/health", get(ok));
    let server = Server::axum(app).await;
    let paths = ["/items", "/items", "/health", "/health", "/health"];
    assert_eq!(server.statuses(paths).await, [200, 429, 200, 200, 200]);
    assert!(!server.get("/health").await.headers().contains_key("ratelimit"));
}

/// L33, G3, G4: of one name the stricter numbers are shown.
#[tokio::test]
async fn layers_around_each_other_are_both_enforced_and_the_stricter_one_of_a_name_is_shown() {
    let store = MemoryStore::new();
    let app = Router::new()
        .route("/login", post(ok).layer(limits(store.clone(), "login", 9)))
        .route("/items", get(ok))
        .layer(limits(store, "all", 2));
    let server = Server::axum(app).await;
    let login = || http::Request::post("/login").body(String::new()).unwrap();

    let response = server.send(login()).await;
    let fields: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(fields, [r#""day";r=1;t=76800"#]);
    assert_eq!(server.statuses(["/items"]).await, [200]);
    assert_eq!(server.send(login()).await.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// L25, L28: two servers with clones of one layer, many connections, decisions at once and later.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_parallel_requests_as_many_as_the_limit_reach_the_handler() {
    for limits in limits_of_both_kinds(10) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let handler = get(async move || counted.fetch_add(1, Ordering::SeqCst).to_string());
        let app = Router::new().route("/", handler);
        let servers = [
            Server::axum(app.clone().layer(limits.clone())).await,
            Server::axum(app.layer(limits)).await,
        ];

        let requests = (0..100).map(|number| servers[number % 2].get_as("alice", "/"));
        let responses = join_all(requests).await;
        let count = |status| responses.iter().filter(|response| response.status() == status).count();
        assert_eq!((count(StatusCode::OK), count(StatusCode::TOO_MANY_REQUESTS)), (10, 90));
        assert_eq!(calls.load(Ordering::SeqCst), 10);
    }
}

/// L3, L4, C1, C2, C3, C5
#[tokio::test]
async fn a_rejection_says_why_and_for_how_long() {
    let app = Router::new()
        .route("/", get(ok))
        .layer(limits(MemoryStore::new(), "api", 1));
    let server = Server::axum(app).await;
    assert_eq!(server.get("/").await.body(), "ok");

    let rejection = server.get("/").await;
    assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejection.headers()["content-type"], "application/problem+json");
    assert_eq!(rejection.headers()["retry-after"], "86400");
    assert_eq!(rejection.headers()["ratelimit-policy"], r#""day";q=1;w=86400"#);
    let problem: Value = serde_json::from_slice(rejection.body()).unwrap();
    assert_eq!(
        (&problem["status"], &problem["violated-policies"]),
        (&json!(429), &json!(["day"]))
    );
}

/// D1
#[tokio::test]
async fn responses_of_every_status_carry_the_fields() {
    let answer = async |Path(status): Path<u16>| StatusCode::from_u16(status).unwrap();
    let app = Router::new()
        .route("/{status}", get(answer))
        .layer(limits(MemoryStore::new(), "api", 1_000));
    let server = Server::axum(app).await;
    for (status, left) in (200..600).zip((0..1_000).rev()) {
        let response = server.get(&format!("/{status}")).await;
        assert_eq!((response.status().as_u16(), remaining(&response)), (status, left));
        assert!(response.headers().contains_key("ratelimit-policy"));
    }
    let unknown = server.get("/un/known").await;
    assert_eq!((unknown.status(), remaining(&unknown)), (StatusCode::NOT_FOUND, 599));
}

/// The promise of axum about `route_layer`.
#[tokio::test]
async fn a_route_layer_counts_no_requests_for_unknown_paths() {
    let app = Router::new()
        .route("/", get(ok))
        .route_layer(limits(MemoryStore::new(), "api", 1));
    let server = Server::axum(app).await;
    assert_eq!(
        server.statuses(["/unknown", "/unknown", "/", "/"]).await,
        [404, 404, 200, 429]
    );
}

/// L1
#[tokio::test]
async fn each_user_has_a_quota_and_those_without_a_name_have_that_of_their_address() {
    let app = Router::new()
        .route("/", get(ok))
        .layer(limits(MemoryStore::new(), "api", 1));
    let server = Server::axum(app).await;
    assert_eq!(server.statuses(["/", "/"]).await, [200, 429]);
    for user in ["alice", "bob"] {
        assert_eq!(server.get_as(user, "/").await.status(), StatusCode::OK);
        assert_eq!(server.get_as(user, "/").await.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}

/// L1, L31: only a peer that was found, and is 127.0.0.1, makes the forwarded addresses count.
#[tokio::test]
async fn the_peer_address_is_that_of_connect_info() {
    let by_address = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["127.0.0.1"]);
    let limits = limits_by(by_address, MemoryStore::new(), "api", 1).build().unwrap();
    let server = Server::axum(Router::new().route("/", get(ok)).layer(limits)).await;
    for (client, status) in [("192.0.2.1", 200), ("192.0.2.2", 200), ("192.0.2.1", 429)] {
        let request = http::Request::get("/").header("x-forwarded-for", client);
        let response = server.send(request.body(String::new()).unwrap()).await;
        assert_eq!(response.status(), status, "{client}");
    }
}

/// L1: `MissingKey::Reject`.
#[tokio::test]
async fn a_server_that_does_not_show_the_peer_needs_a_user_id() {
    let app = Router::new()
        .route("/", get(ok))
        .layer(limits(MemoryStore::new(), "api", 1));
    let (listener, address) = listener().await;
    tokio::spawn(axum::serve(listener, app).into_future());
    let server = Server::at(address);
    assert_eq!(server.get("/").await.status(), StatusCode::FORBIDDEN);
    assert_eq!(server.get_as("alice", "/").await.status(), StatusCode::OK);
}

/// The identity that authentication knows.
#[derive(Clone)]
struct Account(String);

impl ToPartitionKey for Account {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("account", &self.0)
    }
}

async fn authenticate(mut request: Request) -> Result<Request, StatusCode> {
    let name = request.headers().get("x-user-id").ok_or(StatusCode::UNAUTHORIZED)?;
    let account = Account(name.to_str().unwrap().to_owned());
    request.extensions_mut().insert(account);
    Ok(request)
}

/// L1, L5, I3
#[tokio::test]
async fn what_authentication_leaves_in_a_request_names_the_caller_and_the_tier() {
    let tiers = Tiers::from_fn(|request| request.extensions.get().map(|Account(name)| name.as_str()))
        .tier("free", [QuotaPolicy::per_day("day", 1)])
        .tier("premium", [QuotaPolicy::per_day("day", 2)])
        .unlimited("admin");
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("api")
        .key(key::extension::<Account>())
        .tiers(tiers)
        .build()
        .unwrap();
    let app = Router::new()
        .route("/", get(ok))
        .layer(limits)
        .layer(middleware::map_request(authenticate));
    let server = Server::axum(app).await;

    assert_eq!(server.get("/").await.status(), StatusCode::UNAUTHORIZED);
    for (account, statuses) in [
        ("free", [200, 429, 429]),
        ("premium", [200, 200, 429]),
        ("admin", [200, 200, 200]),
        ("someone else", [200, 429, 429]),
    ] {
        for status in statuses {
            assert_eq!(server.get_as(account, "/").await.status(), status, "{account}");
        }
    }
}

/// I3: a client that does not authenticate as bob uses none of bob's quota.
#[tokio::test]
async fn a_wrong_password_uses_nothing_of_an_accounts_quota() {
    async fn check_password(request: Request) -> Result<Request, StatusCode> {
        if request
            .headers()
            .get("x-password")
            .is_some_and(|password| password != "right")
        {
            return Err(StatusCode::FORBIDDEN);
        }
        authenticate(request).await
    }
    let by_account = key::extension::<Account>();
    let limits = limits_by(by_account, MemoryStore::new(), "api", 9).build().unwrap();
    let app = Router::new()
        .route("/", get(ok))
        .layer(limits)
        .layer(middleware::map_request(check_password));
    let server = Server::axum(app).await;
    assert_eq!(remaining(&server.get_as("bob", "/").await), 8);
    for _ in 0..5 {
        let request = http::Request::get("/")
            .header("x-user-id", "bob")
            .header("x-password", "wrong");
        let response = server.send(request.body(String::new()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        assert!(!response.headers().contains_key("ratelimit"));
    }
    assert_eq!(remaining(&server.get_as("bob", "/").await), 7);
}
