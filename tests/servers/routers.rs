//! axum: layers on routers and on single routes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    extract::{Path, Request},
    middleware,
    routing::get,
};
use futures_util::future::join_all;
use http::StatusCode;
use tower_quota::{MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, Tiers, ToPartitionKey, key};

use crate::{Server, limits, limits_of_both_kinds, remaining};

async fn ok() -> &'static str {
    "ok"
}

/// L33
#[tokio::test]
async fn routes_share_a_limit_have_their_own_or_have_none() {
    let store = MemoryStore::new();
    let app = Router::new()
        .route("/a", get(ok))
        .route("/b", get(ok))
        .layer(limits(store.clone(), "api", 3))
        .route("/login", get(ok).layer(limits(store.clone(), "login", 1)))
        .route("/sign-in", get(ok).route_layer(limits(store, "login", 1)))
        .route("/elsewhere", get(ok).layer(limits(MemoryStore::new(), "login", 1)))
        .route("/health", get(ok));
    let server = Server::axum(app).await;
    for (paths, statuses) in [
        (["/a", "/b", "/a", "/b"], [200, 200, 200, 429]),
        // Of one scope on the same store, and on another one.
        (["/login", "/login", "/sign-in", "/elsewhere"], [200, 429, 429, 200]),
        (["/health"; 4], [200; 4]),
    ] {
        assert_eq!(server.statuses(paths).await, statuses, "{paths:?}");
    }
    assert!(!server.get("/health").await.headers().contains_key("ratelimit"));
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

/// L1: also users whose names are long or not UTF-8.
#[tokio::test]
async fn each_user_has_a_quota_and_those_without_a_name_have_that_of_their_address() {
    let app = Router::new()
        .route("/", get(ok))
        .layer(limits(MemoryStore::new(), "api", 1));
    let server = Server::axum(app).await;
    assert_eq!(server.statuses(["/", "/"]).await, [200, 429]);
    let long = |last: u8| [vec![b'a'; 10_000], vec![last]].concat();
    let users = [
        b"alice".to_vec(),
        b"bob".to_vec(),
        long(b'1'),
        long(b'2'),
        b"\xff\xfe".to_vec(),
        b"\xff\xff".to_vec(),
    ];
    for user in users {
        for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let request = http::Request::get("/").header("x-user-id", &*user);
            let response = server.send(request.body(String::new()).unwrap()).await;
            assert_eq!(response.status(), status, "{}", user.escape_ascii());
        }
    }
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
