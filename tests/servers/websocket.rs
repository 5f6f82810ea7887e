//! The example `websocket`, as its clients see it.

#[path = "../../examples/websocket/src/main.rs"]
#[allow(dead_code, reason = "its main function is not called here")]
mod example;

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use test_kit::load::until;
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Error, Message,
        client::IntoClientRequest,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};
use tower_quota::{
    MemoryStore,
    clock::{Clock, Timestamp},
};

use crate::Server;

/// The example with a manual clock.
struct Echo {
    clock: Clock,
    server: Server,
}

impl Echo {
    async fn start() -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let server = Server::axum(example::app(store).unwrap()).await;
        Self { clock, server }
    }

    /// The status of the response if it is not 101.
    async fn connect(&self, user: &str) -> Result<Connection, u16> {
        let address = self.server.address;
        let mut request = format!("ws://{address}/echo").into_client_request().unwrap();
        let credentials = format!("Bearer {user}").parse().unwrap();
        request.headers_mut().insert("authorization", credentials);
        let stream = TcpStream::connect(address).await.unwrap();
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(Connection(socket)),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }
}

struct Connection(WebSocketStream<TcpStream>);

impl Connection {
    async fn send(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    async fn next(&mut self) -> Message {
        self.0.next().await.unwrap().unwrap()
    }

    async fn assert_echo(&mut self, text: &str) {
        self.send(text).await;
        assert_eq!(self.next().await, Message::text(text));
    }

    /// Both close frames, and then the end of the TCP connection.
    async fn assert_closed(mut self, reason: &str) {
        let frame = CloseFrame {
            code: CloseCode::Policy,
            reason: reason.into(),
        };
        assert_eq!(self.next().await, Message::Close(Some(frame)));
        assert!(self.0.next().await.is_none());
    }

    async fn close(mut self) {
        self.0.close(None).await.unwrap();
        assert_eq!(self.next().await, Message::Close(None));
        assert!(self.0.next().await.is_none());
    }
}

const TOO_FAST: &str = "too many messages: 5 allowed in 1s, retry after 200ms";

#[tokio::test]
async fn a_third_connection_of_a_user_is_rejected_until_one_is_closed() {
    let echo = Echo::start().await;
    let mut first = echo.connect("alice").await.unwrap();
    let mut second = echo.connect("alice").await.unwrap();
    assert_eq!(echo.connect("alice").await.err(), Some(429));
    first.assert_echo("one").await;
    second.assert_echo("two").await;
    echo.connect("bob").await.unwrap().assert_echo("of another user").await;

    first.close().await;
    let _third = echo.connect("alice").await.unwrap();
    assert_eq!(echo.connect("alice").await.err(), Some(429));
}

#[tokio::test]
async fn a_client_that_disconnects_without_a_close_frame_releases_its_slot() {
    let echo = Echo::start().await;
    let _first = echo.connect("alice").await.unwrap();
    drop(echo.connect("alice").await.unwrap());
    until("the slot is released", async || echo.connect("alice").await.is_ok()).await;
}

#[tokio::test]
async fn a_request_that_does_not_become_a_websocket_releases_its_slot() {
    let echo = Echo::start().await;
    for _ in 0..3 {
        let request = http::Request::get("/echo").header("authorization", "Bearer alice");
        let response = echo.server.send(request.body(String::new()).unwrap()).await;
        assert_eq!(response.status(), 400);
    }
}

#[tokio::test]
async fn the_sixth_message_in_a_second_closes_the_connection_with_a_reason() {
    let echo = Echo::start().await;
    let mut first = echo.connect("alice").await.unwrap();
    let mut second = echo.connect("alice").await.unwrap();
    for text in ["1", "2", "3"] {
        first.assert_echo(text).await;
    }
    // Both connections share the quota.
    second.assert_echo("4").await;
    second.assert_echo("5").await;
    second.send("6").await;
    second.assert_closed(TOO_FAST).await;

    // The slot of the second one is released, and one message is restored.
    let _third = echo.connect("alice").await.unwrap();
    echo.clock.advance(Duration::from_millis(200));
    first.assert_echo("6").await;
    first.send("7").await;
    first.assert_closed(TOO_FAST).await;
}

/// A connection that is closed with unread data is reset, and the client loses what it has not read yet.
#[tokio::test]
async fn a_flood_does_not_hide_the_reason() {
    let echo = Echo::start().await;
    let mut flood = echo.connect("alice").await.unwrap();
    let long = "x".repeat(16_000);
    for _ in 0..200 {
        flood.0.feed(Message::text(long.as_str())).await.unwrap();
    }
    flood.0.flush().await.unwrap();
    for _ in 0..5 {
        assert_eq!(flood.next().await, Message::text(long.as_str()));
    }
    flood.assert_closed(TOO_FAST).await;
}

#[tokio::test]
async fn a_message_that_is_too_long_ends_the_connection() {
    let echo = Echo::start().await;
    let mut connection = echo.connect("alice").await.unwrap();
    connection.assert_echo(&"x".repeat(16 * 1_024)).await;
    connection.send(&"x".repeat(16 * 1_024 + 1)).await;
    assert!(!matches!(connection.0.next().await, Some(Ok(_))));
}

#[tokio::test]
async fn pings_count_as_messages() {
    let echo = Echo::start().await;
    let mut pinging = echo.connect("alice").await.unwrap();
    for _ in 0..6 {
        pinging.0.send(Message::Ping("".into())).await.unwrap();
    }
    pinging.send("not echoed").await;
    let closed = loop {
        match pinging.next().await {
            Message::Pong(_) => {}
            other => break other,
        }
    };
    assert!(matches!(closed, Message::Close(Some(frame)) if frame.code == CloseCode::Policy));
}

/// The example pings after 30 seconds of silence and waits 30 seconds for the pong.
#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "timers do not wait in real time")]
async fn a_client_that_does_not_respond_to_a_ping_releases_its_slot() {
    let echo = Echo::start().await;
    let first = echo.connect("alice").await.unwrap();
    let second = echo.connect("alice").await.unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(echo.connect("alice").await.is_ok());
    drop((first, second));
}
