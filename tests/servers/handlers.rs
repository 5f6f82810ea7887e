//! The view that handlers of axum have of the layer: the decision, and rejections and keys that axum knows how to make.

use std::convert::Infallible;

use axum::{
    Json, Router,
    body::Body,
    extract::Path,
    response::{Html, IntoResponse},
    routing::get,
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json};
use tower_quota::{
    Decision, MemoryStore, RateLimitLayer, Rejection, Tiers,
    key::{self, KeyExtractor},
};

use crate::{RemoteStore, Server, limits, limits_by, remaining};

fn least(decision: &Decision) -> u64 {
    let left = decision.allowances().map(|allowance| allowance.remaining());
    left.min().unwrap()
}

async fn left(decision: Decision) -> String {
    least(&decision).to_string()
}

async fn maybe_left(decision: Option<Decision>) -> String {
    decision.map_or("nobody knows".to_owned(), |decision| least(&decision).to_string())
}

/// One layer for each way that a decision can go, which both show it to handlers.
fn limits_that_show(quota: u64) -> [RateLimitLayer; 2] {
    let by_user = || key::header("x-user-id").or_else(key::client_ip());
    [
        limits_by(by_user(), MemoryStore::new(), "api", quota),
        limits_by(by_user(), RemoteStore::<1>::default(), "api", quota),
    ]
    .map(|builder| builder.decision_in_request().build().unwrap())
}

#[tokio::test]
async fn a_handler_of_axum_knows_what_is_left_for_this_caller() {
    for limits in limits_that_show(9) {
        let app = Router::new().route("/", get(left)).route("/maybe", get(maybe_left));
        let server = Server::axum(app.layer(limits)).await;
        for (user, expected) in [("alice", "8"), ("alice", "7"), ("bob", "8")] {
            let response = server.get_as(user, "/").await;
            assert_eq!(response.body(), expected);
            assert_eq!(remaining(&response).to_string(), expected);
        }
        assert_eq!(server.get_as("bob", "/maybe").await.body(), "7");
    }
}

#[tokio::test]
async fn a_handler_is_told_about_requests_that_no_limit_applies_to() {
    let tiers = Tiers::from_fn(|_| None).unlimited("all");
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .decision_in_response()
        .scope("api")
        .key(key::client_ip())
        .tiers(tiers)
        .decision_in_request()
        .build()
        .unwrap();
    let outcome = get(async |decision: Decision| format!("{:?}", decision.outcome()));
    let server = Server::axum(Router::new().route("/", outcome).layer(limits)).await;
    assert_eq!(server.get("/").await.body(), "Unlimited");
}

#[tokio::test]
async fn without_the_setting_a_handler_has_no_decision() {
    let app = Router::new()
        .route("/", get(left))
        .route("/maybe", get(maybe_left))
        .layer(limits(MemoryStore::new(), "api", 9));
    let server = Server::axum(app).await;
    let response = server.get("/").await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        response.body(),
        "the request contains no decision of a rate limit layer; is `decision_in_request` missing?"
    );
    assert_eq!(server.get("/maybe").await.body(), "nobody knows");
}

#[tokio::test]
async fn of_two_layers_the_handler_sees_the_inner_one() {
    let showing = |scope, quota| {
        let builder = limits_by(key::client_ip(), MemoryStore::new(), scope, quota);
        builder.decision_in_request().build().unwrap()
    };
    let app = Router::new()
        .route("/both", get(left).layer(showing("route", 5)))
        .route("/one", get(left))
        .layer(showing("app", 9));
    let server = Server::axum(app).await;
    assert_eq!(server.get("/both").await.body(), "4");
    assert_eq!(server.get("/one").await.body(), "7");
}

/// E3
#[tokio::test]
async fn a_route_is_one_key_whatever_its_parameters_are() {
    let by_route = key::header("x-user-id").and(key::MatchedPath);
    let limits = limits_by(by_route, MemoryStore::new(), "api", 2).build().unwrap();
    let name = get(async |Path(name): Path<String>| name);
    let app = Router::new()
        .route("/users/{name}", name.clone())
        .nest("/v1", Router::new().route("/users/{name}", name))
        .route("/items", get(async || "items").post(async || "new"))
        .layer(limits);
    let server = Server::axum(app).await;
    for (path, status) in [
        ("/users/a", 200),
        ("/users/b", 200),
        ("/users/c", 429),
        ("/v1/users/a", 200),
        ("/v1/users/b", 200),
        ("/v1/users/c", 429),
        ("/items", 200),
        // No route, and so no key.
        ("/users", 403),
    ] {
        assert_eq!(server.get_as("alice", path).await.status(), status, "{path}");
    }
    let items = Request::post("/items").header("x-user-id", "alice").body(String::new());
    assert_eq!(remaining(&server.send(items.unwrap()).await), 0);
    assert_eq!(server.get_as("bob", "/users/d").await.status(), StatusCode::OK);
}

/// A server whose only unit is used up, and what it answers.
async fn rejected<R: IntoResponse>(respond: impl Fn(&Rejection<'_>) -> R + Send + Sync + 'static) -> Response<Bytes> {
    let limits = limits_by(key::client_ip(), MemoryStore::new(), "api", 1).respond_with_axum(respond);
    let app = Router::new().route("/", get(async || "ok"));
    let server = Server::axum(app.layer(limits.build().unwrap())).await;
    assert_eq!(server.get("/").await.status(), StatusCode::OK);
    server.get("/").await
}

#[tokio::test]
async fn a_rejection_is_whatever_axum_can_make_a_response_of() {
    let page = rejected(|rejection| {
        let mut headers = HeaderMap::new();
        headers.insert("x-reason", "quota".parse().unwrap());
        (rejection.status(), headers, Html("<p>Later."))
    });
    let page = page.await;
    assert_eq!(
        (page.status().as_u16(), page.body().as_ref()),
        (429, b"<p>Later.".as_slice())
    );
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers()["x-reason"], "quota");
    assert_eq!(page.headers()["content-length"], "9");
    assert_eq!(page.headers()["retry-after"], "86400");
    assert_eq!(page.headers()["ratelimit-policy"], r#""day";q=1;w=86400"#);

    let json = rejected(|_| (StatusCode::CONFLICT, Json(json!({"error": "later"})))).await;
    assert_eq!(json.status(), StatusCode::CONFLICT);
    assert_eq!(
        serde_json::from_slice::<Value>(json.body()).unwrap(),
        json!({"error": "later"})
    );

    let nothing = rejected(|rejection| rejection.status()).await;
    assert_eq!((nothing.status().as_u16(), nothing.body().len()), (429, 0));
}

/// A closure that rejects cannot wait.
#[tokio::test]
async fn a_rejection_that_would_be_a_stream_is_the_usual_one() {
    let usual = |rejected: &Response<Bytes>| {
        assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(rejected.headers()["content-type"], "application/problem+json");
        assert_eq!(rejected.headers()["retry-after"], "86400");
        assert!(rejected.body().starts_with(b"{"));
    };
    let never = || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    usual(&rejected(move |_| never()).await);
    let endless = || Body::from_stream(stream::repeat(Ok::<_, Infallible>(Bytes::from_static(b"more"))));
    usual(&rejected(move |_| endless()).await);
    let broken = || Body::from_stream(stream::iter([Err::<Bytes, _>(std::io::Error::other("broken"))]));
    usual(&rejected(move |_| broken()).await);
}
