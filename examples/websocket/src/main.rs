//! WebSockets: two concurrent connections and five messages per second for each user.
//!
//! ```sh
//! cargo run -p example-websocket
//! ```
//!
//! The users of this example are `alice` and `bob`. Each line that you type is a message, which the server echoes:
//!
//! ```sh
//! websocat -H 'authorization: Bearer alice' ws://127.0.0.1:3000/echo
//! seq 20 | websocat -n -H 'authorization: Bearer alice' ws://127.0.0.1:3000/echo
//! ```
//!
//! The second command exceeds the limit: the server closes the connection with code 1008 and a reason. While alice has
//! two open connections, the server rejects a third with 429.
//!
//! With `REDIS_URL`, the limits are in Redis and apply to all processes together. `PORT` sets the port; 0 selects a
//! free one.

use std::{env, error::Error, fmt::Write, time::Duration};

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{
        Request, State,
        ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code},
    },
    http::{StatusCode, header},
    middleware::{self, Next},
    response::Response,
    routing::any,
};
use tokio::{net::TcpListener, time::timeout};
use tower_quota::{
    Caller, ConfigError, Decision, Limiter, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, RedisStore, Store,
    ToPartitionKey, WeakPermit, key,
};

/// The maximum length of a message in bytes.
const MAX_MESSAGE: usize = 16 * 1_024;
/// The server pings a client after this idle time, and disconnects the client if no response arrives within the same
/// time.
const SILENCE: Duration = Duration::from_secs(30);
/// The timeout of the close handshake.
const FAREWELL: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = match env::var("REDIS_URL") {
        Ok(url) => app(RedisStore::new(url)?)?,
        Err(_) => app(MemoryStore::new())?,
    };
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("ws://{}/echo", listener.local_addr()?);
    println!("Listening on {url}");
    println!();
    println!("The users are alice and bob; an echo of each line, and twenty messages at once:");
    println!("  websocat -H 'authorization: Bearer alice' {url}");
    println!("  seq 20 | websocat -n -H 'authorization: Bearer alice' {url}");
    axum::serve(listener, app).await?;
    Ok(())
}

pub(crate) fn app(store: impl Store + Clone) -> Result<Router, ConfigError> {
    let connections = RateLimitLayer::builder(store.clone())
        .scope("connections")
        .key(key::extension::<User>())
        .policy(QuotaPolicy::concurrent("open", 2))
        // Limits handshakes of clients that reconnect after each rejection.
        .policy(QuotaPolicy::per_minute("handshakes", 30))
        .build()?;
    let messages = Limiter::builder(store)
        .scope("messages")
        .policy(QuotaPolicy::per_second("messages", 5))
        .build()?;
    let echo = any(connect)
        .with_state(messages)
        .layer(connections)
        .layer(middleware::from_fn(authenticate));
    Ok(Router::new().route("/echo", echo))
}

#[derive(Clone)]
struct User(&'static str);

impl ToPartitionKey for User {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("user", self.0)
    }
}

/// Browsers cannot send this field with a WebSocket. For browsers, use a cookie and check `Origin`.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let field = request.headers().get(header::AUTHORIZATION);
    let user = match field.map(|field| field.as_bytes()) {
        Some(b"Bearer alice") => User("alice"),
        Some(b"Bearer bob") => User("bob"),
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(user);
    Ok(next.run(request).await)
}

async fn connect(
    upgrade: WebSocketUpgrade,
    permit: WeakPermit,
    Extension(user): Extension<User>,
    State(messages): State<Limiter>,
) -> Response {
    // The response with status 101 ends immediately, which would release the slot. Therefore, the permit holds the slot
    // for the duration of the connection. The permit is `None` if the request is uncounted because the store is
    // unavailable.
    let slot = permit.upgrade();
    // All connections of a user share the quota.
    let caller = messages.caller(&user);
    let upgrade = upgrade.max_frame_size(MAX_MESSAGE).max_message_size(MAX_MESSAGE);
    upgrade.on_upgrade(async move |mut socket| {
        converse(&mut socket, &caller).await;
        // Released before the socket closes, so that the client can reconnect as soon as it detects the close.
        drop(slot);
    })
}

/// Echoes messages until the client closes the connection or sends too fast.
async fn converse(socket: &mut WebSocket, caller: &Caller) {
    while let Some(message) = receive(socket).await {
        if matches!(message, Message::Close(_)) {
            // The next call sends the close frame of the server and returns `None`.
            continue;
        }
        // Pings count as well, because each requires a pong. To slow down a client instead, use `caller.wait(…)`: TCP
        // backpressure delays unread messages.
        let decision = caller.check().await;
        if !decision.outcome().is_admitted() {
            return close(socket, reason(&decision)).await;
        }
        if let Message::Text(_) | Message::Binary(_) = message {
            // A client that does not read its messages must not keep its slot.
            let Ok(Ok(())) = timeout(SILENCE, socket.send(message)).await else {
                return;
            };
        }
    }
}

/// Returns the next message, or `None` after the end of the connection or if the client does not respond to a ping.
async fn receive(socket: &mut WebSocket) -> Option<Message> {
    if let Ok(message) = timeout(SILENCE, socket.recv()).await {
        return message?.ok();
    }
    let ping = async {
        socket.send(Message::Ping(Bytes::new())).await.ok()?;
        socket.recv().await?.ok()
    };
    timeout(SILENCE, ping).await.ok()?
}

async fn close(socket: &mut WebSocket, reason: String) {
    let frame = CloseFrame {
        code: close_code::POLICY,
        reason: reason.into(),
    };
    let handshake = async {
        if socket.send(Message::Close(Some(frame))).await.is_ok() {
            // Reads messages that the client sent before it received the close frame. TCP resets a connection that is
            // closed with unread data, and the client would lose the reason.
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    let _ = timeout(FAREWELL, handshake).await;
}

/// A close frame can contain a reason of at most 123 bytes.
fn reason(rejected: &Decision) -> String {
    let mut reason = "too many messages".to_owned();
    let policies = rejected.violated().map(|allowance| allowance.policy());
    for policy in policies.filter(|policy| !policy.is_hidden()) {
        let window = policy.window().unwrap_or_default();
        let _ = write!(reason, ": {} allowed in {window:?}", policy.quota());
    }
    if let Some(wait) = rejected.retry_after() {
        let _ = write!(reason, ", retry after {wait:?}");
    }
    reason
}
