//! Tests the responses of the playground's server, and which clients may call it.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, body::Body};
use http::{Method, Request, Response, StatusCode, request::Builder};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    time::{interval, timeout},
};
use tower::ServiceExt;

use super::playground::app;

/// The timeout of each step. A step that takes longer hangs.
const HANG: Duration = Duration::from_secs(60);

/// The playground on a free port, so that its own requests reach it.
struct Server {
    address: SocketAddr,
    app: Router,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = app(address, None).unwrap();
        let served = app.clone();
        tokio::spawn(async move { axum::serve(listener, served).await });
        Self { address, app }
    }

    fn request(&self, method: Method, path: &str) -> Builder {
        let request = Request::builder().method(method).uri(path);
        request.header("host", self.address.to_string())
    }

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        let Ok(response) = self.app.clone().oneshot(request).await;
        response
    }

    async fn status(&self, request: Builder) -> StatusCode {
        self.send(request.body(Body::empty()).unwrap()).await.status()
    }

    /// Sends the same request as the page.
    async fn ask(&self, method: Method, path: &str, value: Value) -> (StatusCode, Value) {
        let request = self.request(method, path).header("content-type", "application/json");
        let response = self.send(request.body(Body::from(value.to_string())).unwrap()).await;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    async fn change(&self, change: impl FnOnce(&mut Value)) -> (StatusCode, Value) {
        let (_, mut description) = self.ask(Method::GET, "/api/setup", Value::Null).await;
        change(&mut description["setup"]);
        self.ask(Method::PUT, "/api/setup", description["setup"].take()).await
    }

    async fn limited(&self) -> Response<Body> {
        let request = self.request(Method::GET, "/try").header("x-user-id", "alice");
        self.send(request.body(Body::empty()).unwrap()).await
    }

    /// Waits for a tick for which `of` returns a value, and returns that value.
    async fn tick<T>(&self, of: impl Fn(&Value) -> Option<T>) -> T {
        let request = self.request(Method::GET, "/api/events").body(Body::empty()).unwrap();
        let mut body = self.send(request).await.into_body();
        loop {
            let frame = timeout(HANG, body.frame()).await.unwrap();
            let frame = frame.unwrap().unwrap().into_data().unwrap();
            let tick = frame.strip_prefix(b"data: ").unwrap_or(b"null");
            if let Some(found) = of(&serde_json::from_slice(tick).unwrap()) {
                return found;
            }
        }
    }
}

#[tokio::test]
async fn only_its_own_page_and_programs_of_this_machine_are_answered() {
    let server = Server::start().await;
    let port = server.address.port();
    for path in ["/", "/playground.js", "/api/setup", "/try"] {
        let request = || server.request(Method::GET, path);
        assert_eq!(server.status(request()).await, 200);
        for site in ["same-origin", "none"] {
            assert_eq!(server.status(request().header("sec-fetch-site", site)).await, 200);
        }
        let own = request().header("origin", format!("http://{}", server.address));
        assert_eq!(server.status(own).await, 200);
        let to = |host: &str| Request::get(path).header("host", host);
        assert_eq!(server.status(to(&format!("LOCALHOST:{port}"))).await, 200);

        for host in ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", ""] {
            assert_eq!(server.status(to(host)).await, 403, "{host}");
        }
        assert_eq!(server.status(Request::get(path)).await, 403);
        for site in ["cross-site", "same-site", ""] {
            let status = server.status(request().header("sec-fetch-site", site)).await;
            assert_eq!(status, 403, "{site}");
        }
        for origin in ["null", "https://evil.example", "http://127.0.0.1:1", ""] {
            assert_eq!(server.status(request().header("origin", origin)).await, 403, "{origin}");
        }
    }
}

/// A page of another site cannot send JSON without a preflight request.
#[tokio::test]
async fn what_changes_something_has_to_be_json() {
    let server = Server::start().await;
    for (method, path) in [
        (Method::PUT, "/api/setup"),
        (Method::POST, "/api/send"),
        (Method::PUT, "/api/load"),
        (Method::PUT, "/api/store"),
        (Method::POST, "/api/refill"),
    ] {
        let request = server
            .request(method.clone(), path)
            .header("content-type", "text/plain");
        let text = server.send(request.body(Body::from("{}")).unwrap()).await;
        assert_eq!(text.status(), 415, "{path}");
        let read = server.status(server.request(Method::GET, path)).await;
        assert_eq!(read.is_success(), path == "/api/setup");
        let (status, _) = server.ask(method, path, json!("x".repeat(20_000))).await;
        assert_eq!(status, 413, "{path}");
    }
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere_and_cannot_be_framed() {
    let server = Server::start().await;
    let request = server.request(Method::GET, "/").body(Body::empty()).unwrap();
    let page = server.send(request).await;
    let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    let page = page.into_body().collect().await.unwrap().to_bytes();
    let page = std::str::from_utf8(&page).unwrap();
    assert!(!page.contains("http://") || page.matches("http://").count() == page.matches("http://www.w3.org").count());
    assert!(!page.contains("https://") && !page.contains(" style=") && !page.contains("onclick"));
}

#[tokio::test]
async fn an_unknown_or_impossible_set_up_is_rejected_with_its_reason() {
    let server = Server::start().await;
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 10] = [
        (|setup| *setup = json!([1]), "policies: a list is needed"),
        (
            |setup| setup["policies"] = json!([]),
            "policies: 0 of them; 1 to 3 have room here",
        ),
        (|setup| setup["dialect"] = json!("x"), "dialect: it is unknown"),
        (
            |setup| setup["cost"] = json!(-1),
            "cost: a whole number of 0 or more is needed",
        ),
        (
            |setup| setup["cost"] = json!(1.5),
            "cost: a whole number of 0 or more is needed",
        ),
        (
            |setup| setup["policies"][0]["algorithm"] = json!("magic"),
            r#"algorithm: "magic" is unknown"#,
        ),
        (
            |setup| setup["policies"][0]["quota"] = json!(10_u64.pow(15)),
            "quota 1000000000000000 is outside",
        ),
        (
            |setup| setup["policies"][0]["name"] = json!("ä"),
            "only printable ASCII",
        ),
        (|setup| setup["policies"][0]["name"] = json!("x".repeat(25)), "25 bytes"),
        (|setup| setup["policies"][0]["window"] = json!(u64::MAX), "window"),
    ];
    for (change, reason) in changes {
        let (status, answer) = server.change(change).await;
        assert_eq!(status, 422, "{reason}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(reason), "{error}");
    }
    // The limits have not changed.
    let policies = r#""burst";q=5;w=10, "minute";q=20;w=60"#;
    assert_eq!(server.limited().await.headers()["ratelimit-policy"], policies);
}

#[tokio::test]
async fn a_set_up_comes_back_as_it_was_sent() {
    let server = Server::start().await;
    let policy = |algorithm: &str, burst: Value, max_waiting: Value, capacity: u64| {
        json!({
            "name": "one", "algorithm": algorithm, "quota": 10, "window": 60, "burst": burst,
            "max_waiting": max_waiting, "capacity": capacity,
        })
    };
    for policy in [
        policy("token-bucket", json!(30), json!(null), 30),
        policy("strict-token-bucket", json!(4), json!(null), 4),
        policy("leaky-bucket-queue", json!(null), json!(7), 8),
        policy("sliding-window-log", json!(null), json!(null), 10),
    ] {
        let sent = json!({ "policies": [policy], "cost": 1, "outage": "closed", "dialect": "in-between" });
        let (status, answer) = server.ask(Method::PUT, "/api/setup", sent.clone()).await;
        assert_eq!((status, &answer["setup"]), (StatusCode::OK, &sent));
    }
}

#[tokio::test]
async fn what_the_page_shows_as_left_is_what_the_fields_say() {
    let server = Server::start().await;
    server
        .change(|setup| setup["policies"][0]["window"] = json!(86_400))
        .await;
    server.limited().await;
    let response = server.limited().await;
    assert!(
        response.headers()["ratelimit"]
            .as_bytes()
            .starts_with(br#""burst";r=3;"#)
    );
    let left = server.tick(|tick| tick["left"]["alice"][0].as_u64()).await;
    assert_eq!(left, 3);
    server.ask(Method::POST, "/api/refill", json!({})).await;
    assert_eq!(server.tick(|tick| tick["left"]["alice"][0].as_u64()).await, 5);
}

#[tokio::test]
async fn a_response_is_shown_with_the_bytes_that_came() {
    let server = Server::start().await;
    let one_of_two = json!({ "callers": ["bob", "mallory"], "count": 1 });
    server.ask(Method::POST, "/api/send", one_of_two).await;
    let last = |tick: &Value| tick["last"].as_object().filter(|last| !last.is_empty()).cloned();
    let last = server.tick(last).await;
    assert_eq!(last.keys().collect::<Vec<_>>(), ["bob"]);
    let [request, response] = ["request", "response"].map(|part| last["bob"][part].as_str().unwrap());
    assert!(
        request.starts_with("GET /try HTTP/1.1\r\nhost: 127.0.0.1:"),
        "{request}"
    );
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(response.ends_with("\r\n\r\nHello!\n"), "{response}");
    let field = "\r\nratelimit: \"burst\";r=4;t=8, \"minute\";r=19;t=57\r\n";
    assert!(response.contains(field), "{response}");
}

#[tokio::test]
async fn without_its_store_the_layer_does_what_the_failure_mode_says() {
    let server = Server::start().await;
    let set_available = async |is_available: bool| {
        let store = json!({ "is_available": is_available });
        server.ask(Method::PUT, "/api/store", store).await
    };
    set_available(false).await;
    let open = server.limited().await;
    assert!(open.status() == 200 && !open.headers().contains_key("ratelimit"));
    server.change(|setup| setup["outage"] = json!("closed")).await;
    assert_eq!(server.limited().await.status(), 503);
    server.change(|setup| setup["outage"] = json!("fallback")).await;
    assert!(server.limited().await.headers().contains_key("ratelimit"));
    assert_eq!(server.tick(|tick| tick["left"]["alice"][0].as_u64()).await, 4);
    set_available(true).await;
    assert_eq!(server.tick(|tick| tick["left"]["alice"][0].as_u64()).await, 5);
}

#[tokio::test]
async fn load_is_bounded_and_ends_with_the_last_page() {
    let server = Server::start().await;
    let load = |rate: u64| json!({ "rate": rate, "callers": ["alice", "bob"] });
    assert_eq!(server.ask(Method::PUT, "/api/load", load(1_001)).await.0, 422);
    let send = json!({ "callers": [], "count": 101 });
    assert_eq!(server.ask(Method::POST, "/api/send", send).await.0, 422);
    let request = server.request(Method::GET, "/api/events").body(Body::empty()).unwrap();
    let page = server.send(request).await;
    server.ask(Method::PUT, "/api/load", load(200)).await;
    server
        .tick(|tick| tick["load"]["sent"].as_u64().filter(|sent| *sent > 0))
        .await;
    drop(page);
    let mut looks = interval(Duration::from_millis(10));
    let ended = async {
        while server.ask(Method::GET, "/api/setup", Value::Null).await.1["rate"] != 0 {
            looks.tick().await;
        }
    };
    timeout(HANG, ended).await.unwrap();
}
