//! The example `llm_gateway`, as a user meets it: over separate connections, with limits in memory and in Redis.

#[path = "../../examples/llm_gateway.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod example;

use std::{net::SocketAddr, time::Duration};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::{Value, json};
use test_kit::RedisServer;
use tower_quota::{
    Limiter, MemoryStore, RedisStore, Store,
    clock::{Clock, Timestamp},
};

use crate::listener;

/// Longer than a test takes: an answer that is being written.
const ENDLESS: Duration = Duration::from_secs(3_600);

/// A gateway with 2,000 tokens a minute and a manual clock.
struct Gateway(SocketAddr);

impl Gateway {
    async fn start(store: impl Store, pause: Duration) -> Self {
        let limits = example::limits(Limiter::builder(store).deadline(Duration::from_secs(60))).unwrap();
        let (listener, address) = listener().await;
        tokio::spawn(example::serve(listener, limits, pause));
        Self(address)
    }

    async fn send(&self, user: &str, path: &str, body: Option<Value>) -> Response<Incoming> {
        let request = Request::builder()
            .method(if body.is_some() { "POST" } else { "GET" })
            .uri(format!("http://{}/v1/{path}", self.0))
            .header("authorization", format!("Bearer {user}"));
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        // A connection for each request: a client that stops closes its own.
        let client = Client::builder(TokioExecutor::new()).build_http();
        client.request(request.body(body).unwrap()).await.unwrap()
    }

    /// A prompt of 6 tokens, whose answer has 7.
    async fn ask(&self, is_streamed: bool, max_tokens: u64) -> Response<Incoming> {
        let messages = json!([{"role": "user", "content": "Say a few words, please."}]);
        let body = json!({"stream": is_streamed, "max_tokens": max_tokens, "messages": messages});
        self.send("alice", "chat/completions", Some(body)).await
    }

    async fn left(&self, user: &str) -> String {
        text(self.send(user, "usage", None).await).await.replace('\n', " ")
    }

    /// Until the gateway has seen that clients have gone.
    async fn wait_for(&self, left: &str) {
        for _ in 0..10_000 {
            if self.left("alice").await == left {
                return;
            }
        }
        panic!("{} is not {left}", self.left("alice").await);
    }
}

async fn text(response: Response<Incoming>) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

fn rate_limit(response: &Response<Incoming>) -> &str {
    response.headers()["ratelimit"].to_str().unwrap()
}

fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_767_225_600_000_000))
}

fn memory() -> MemoryStore {
    MemoryStore::builder().clock(clock()).build().unwrap()
}

fn redis(server: &RedisServer) -> RedisStore {
    RedisStore::builder(server.url()).clock(clock()).build().unwrap()
}

/// The answer that server-sent events are.
fn words(events: &str) -> String {
    assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    let chunks = events
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
    let words = chunks.map(|chunk: Value| chunk["choices"][0]["delta"]["content"].as_str().unwrap().to_owned());
    words.collect()
}

async fn check_answers(gateway: &Gateway) {
    let streamed = gateway.ask(true, 500).await;
    assert_eq!(streamed.headers()["content-type"], "text/event-stream");
    assert!(
        rate_limit(&streamed).starts_with(r#""requests";r=19;"#),
        "{}",
        rate_limit(&streamed)
    );
    assert!(
        rate_limit(&streamed).contains(r#""tokens";r=1494;"#),
        "{}",
        rate_limit(&streamed)
    );
    assert_eq!(
        streamed.headers()["ratelimit-policy"],
        r#""requests";q=20;w=60, "at once";q=2;qu="concurrent-requests""#
    );
    assert_eq!(words(&text(streamed).await), "Say a few words, please.");
    assert_eq!(
        gateway.left("alice").await,
        "requests: 19 left tokens: 1987 left at once: 2 left "
    );

    // A response in one piece: its own fields show the actual usage, not the estimate.
    let whole = gateway.ask(false, 500).await;
    assert!(
        rate_limit(&whole).contains(r#""tokens";r=1974;"#),
        "{}",
        rate_limit(&whole)
    );
    assert!(text(whole).await.contains(r#""usage":{"total_tokens":13}"#));
    assert_eq!(
        gateway.left("alice").await,
        "requests: 18 left tokens: 1974 left at once: 2 left "
    );
    assert_eq!(
        gateway.left("bob").await,
        "requests: 20 left tokens: 2000 left at once: 2 left "
    );

    // As long as it may be, and no longer.
    assert!(
        text(gateway.ask(false, 3).await)
            .await
            .contains(r#""content":"Say a few ""#)
    );
}

#[tokio::test]
async fn answers_cost_what_they_were_and_not_what_was_expected() {
    check_answers(&Gateway::start(memory(), Duration::ZERO).await).await;
    let server = RedisServer::start();
    check_answers(&Gateway::start(redis(&server), Duration::ZERO).await).await;
}

/// Also where rejections are remembered, which is for up to a second.
async fn check_refund(gateway: &Gateway) {
    for stopped in 1..=4 {
        let open = gateway.ask(true, 1_200).await;
        assert_eq!(open.status(), StatusCode::OK);
        for _ in 0..3 {
            let rejected = gateway.ask(true, 1_200).await;
            assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
            assert!(rejected.headers().contains_key("retry-after"));
            assert!(text(rejected).await.contains(r#""violated-policies":["tokens"]"#));
        }
        drop(open);
        let (requests, tokens) = (20 - stopped, 2_000 - 6 * stopped);
        gateway
            .wait_for(&format!(
                "requests: {requests} left tokens: {tokens} left at once: 2 left "
            ))
            .await;
    }
}

#[tokio::test]
async fn tokens_that_come_back_are_there_for_the_next_request() {
    check_refund(&Gateway::start(memory(), ENDLESS).await).await;
    let server = RedisServer::start();
    check_refund(&Gateway::start(redis(&server), ENDLESS).await).await;
}

async fn check_stop(gateway: &Gateway) {
    let first = gateway.ask(true, 500).await;
    let second = gateway.ask(true, 500).await;
    let third = gateway.ask(true, 500).await;
    assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(text(third).await.contains(r#""violated-policies":["at once"]"#));
    assert_eq!(
        gateway.left("alice").await,
        "requests: 18 left tokens: 988 left at once: 0 left "
    );
    // Both clients stop before the first word.
    drop((first, second));
    gateway
        .wait_for("requests: 18 left tokens: 1988 left at once: 2 left ")
        .await;
}

#[tokio::test]
async fn two_answers_are_written_at_a_time_and_one_that_is_stopped_costs_what_was_written() {
    check_stop(&Gateway::start(memory(), ENDLESS).await).await;
    let server = RedisServer::start();
    check_stop(&Gateway::start(redis(&server), ENDLESS).await).await;
}

#[tokio::test]
async fn what_is_no_prompt_uses_nothing() {
    let gateway = Gateway::start(memory(), Duration::ZERO).await;
    let long = "word ".repeat(20_000);
    for (user, body, status) in [
        ("mallory", json!({"messages": []}), StatusCode::UNAUTHORIZED),
        ("alice", json!("hello"), StatusCode::BAD_REQUEST),
        ("alice", json!({"messages": [{"content": 5}]}), StatusCode::BAD_REQUEST),
        (
            "alice",
            json!({"messages": [{"content": long}]}),
            StatusCode::PAYLOAD_TOO_LARGE,
        ),
    ] {
        let response = gateway.send(user, "chat/completions", Some(body)).await;
        assert_eq!(response.status(), status);
        assert!(!response.headers().contains_key("ratelimit"));
    }
    assert_eq!(
        gateway.left("alice").await,
        "requests: 20 left tokens: 2000 left at once: 2 left "
    );
    // More than the bucket holds, and more than a number: neither overflows, and neither ever passes.
    for max_tokens in [2_000, u64::MAX] {
        let response = gateway.ask(false, max_tokens).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(!response.headers().contains_key("retry-after"));
    }
}
