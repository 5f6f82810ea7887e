//! The pages of the example `platform`, which operators look at.

use std::{env, net::SocketAddr, path::Path};

use axum::{Router, extract::ConnectInfo};
use http::StatusCode;

use super::*;

#[path = "../../../apps/platform/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod platform;

const ADMIN_TOKEN: &str = "mT6wX9rKb3ZcJ8vQh5LnD2yFgS7u";
const GUESS: &str = "eK4pN7yVt2GxB9wCq6RmZ3hJsL8d";

async fn answer(app: &Router, method: &str, path: &str, token: &str, body: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(format!(
        "{path}{}key={QUERY}",
        if path.contains('?') { '&' } else { '?' }
    ));
    let request = request
        .header("authorization", format!("Bearer {token}"))
        .header("x-api-key", API_KEY)
        .header("cookie", format!("session={COOKIE}"))
        .header("x-user-id", USER)
        .header("content-type", "application/json")
        .extension(ConnectInfo(SocketAddr::from(([192, 0, 2, 9], 50_000))));
    let response = app
        .clone()
        .oneshot(request.body(Body::from(body.to_owned())).unwrap())
        .await
        .unwrap();
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (
        head.status,
        format!("{} {}", fields(&head.headers), String::from_utf8_lossy(&bytes)),
    )
}

const PAGES: [&str; 5] = [
    "/operators",
    "/operators/",
    "/operators/operators.js",
    "/operators/fleet.js",
    "/health",
];

const RULES: &str =
    r#"{"tiers": [{"name": "free", "policies": [{"name": "day", "quota": 9, "window_seconds": 86400}]}]}"#;

/// The work of an operator, done well or badly.
const ADMIN: [(&str, &str, &str); 21] = [
    ("POST", "/admin/rules?by=alice&confirmed=true", RULES),
    (
        "POST",
        "/admin/rules?by=alice",
        r#"{"policies": [{"name": "day", "quota": -1, "window_seconds": 1}]}"#,
    ),
    ("POST", "/admin/rules", "no JSON"),
    ("PUT", "/admin/roll-out/10?by=alice&confirmed=true", RULES),
    ("POST", "/admin/roll-out", ""),
    ("DELETE", "/admin/roll-out", ""),
    ("POST", "/admin/roll-back", ""),
    ("POST", "/admin/switch/off?seconds=60&by=alice&because=incident", ""),
    ("POST", "/admin/switch/on", ""),
    ("POST", "/admin/switch/sideways", ""),
    ("POST", "/admin/block", r#"{"network": "203.0.113.9", "seconds": 600}"#),
    ("POST", "/admin/block", r#"{"network": "no network", "seconds": 600}"#),
    ("DELETE", "/admin/block", r#"{"network": "198.51.100.9"}"#),
    ("GET", "/admin/state", ""),
    ("GET", "/admin/history", ""),
    ("GET", "/admin/fleet", ""),
    ("GET", "/admin/document", ""),
    ("GET", "/admin/rules", ""),
    ("GET", "/admin/nothing", ""),
    (
        "POST",
        "/admin/caller/give-back?user=alice",
        r#"{"units": 1, "id": "job 7"}"#,
    ),
    (
        "POST",
        "/admin/caller/top-up?user=alice",
        r#"{"id": "a", "policy": "day", "units": 1, "seconds": 60}"#,
    ),
];

/// Opens all pages as an operator, and one as someone who guesses.
async fn open_all(app: &Router, secrets: &[Secret]) -> usize {
    let mut ended_well = 0;
    for path in PAGES {
        let (_, shown) = answer(app, "GET", path, ADMIN_TOKEN, "").await;
        assert_hidden(secrets, path, shown);
    }
    for (method, path, body) in ADMIN {
        let (status, shown) = answer(app, method, path, ADMIN_TOKEN, body).await;
        assert_hidden(secrets, &format!("{method} {path}"), shown);
        ended_well += usize::from(status.is_success());
    }
    let caller = format!("/admin/caller?user={USER}");
    for method in ["GET", "DELETE"] {
        let (_, shown) = answer(app, method, &caller, ADMIN_TOKEN, "").await;
        assert_hidden(secrets, &caller, shown);
    }
    let (status, shown) = answer(app, "GET", "/admin/state", GUESS, "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_hidden(secrets, "a wrong token", shown);
    ended_well
}

/// These pages show callers, but neither their credentials nor the credentials of the service.
#[tokio::test]
async fn the_pages_of_operators_show_callers_without_their_credentials() {
    let (watch, Some(server)) = (Watch::start(), server()) else {
        return;
    };
    let (recorder, page) = crate::metrics::recorder();
    drop(recorder);
    let settings = platform::Settings {
        redis_url: format!("redis://{REDIS_USER}:{REDIS_PASSWORD}@127.0.0.1:{}/", server.port()),
        rule_set: Some("platform".to_owned()),
        rules: Path::new(env!("CARGO_MANIFEST_DIR")).join("../apps/platform/rules.json"),
        admin_token: Some(ADMIN_TOKEN.to_owned()),
        client_ip: key::client_ip(),
        deadline: HANG,
        tier_wait: HANG,
    };
    let app = platform::app(settings, page).await.unwrap();
    let mut secrets = credentials();
    secrets.push(Secret::new("the token of administrators", ADMIN_TOKEN));
    secrets.push(Secret::new("a wrong token", GUESS));
    let callers = || [Secret::new("the user", USER)];

    let mut was_rejected = false;
    for _ in 0..30 {
        let (status, shown) = answer(&app, "GET", "/", AUTHORIZATION, "").await;
        was_rejected |= status == StatusCode::TOO_MANY_REQUESTS;
        assert_hidden(&secrets, "a response", &shown);
        assert_hidden(&callers(), "a response", shown);
    }
    assert!(was_rejected);
    let done = open_all(&app, &secrets).await;
    assert!(done >= 10, "{done}");
    let (_, state) = answer(&app, "GET", "/admin/state", ADMIN_TOKEN, "").await;
    assert!(callers()[0].is_in(state.as_bytes()), "those who are rejected: {state}");

    may(&server, &["~other:*", "+@all", "-mget", "-evalsha"]);
    answer(&app, "GET", "/", AUTHORIZATION, "").await;
    open_all(&app, &secrets).await;
    server.kill();
    open_all(&app, &secrets).await;
    let (status, metrics) = answer(&app, "GET", "/metrics", ADMIN_TOKEN, "").await;
    assert_eq!(status, StatusCode::OK);
    for secrets in [&secrets[..], &callers()] {
        assert_hidden(secrets, "the page for Prometheus", &metrics);
        watch.assert_hidden(secrets);
    }
}
