//! Logins with the account in a JSON body. Failed logins are limited by account and address, by address, and by
//! account.
//!
//! ```sh
//! cargo run --example login --features axum
//! ```
//!
//! Send the right password of `alice`, then six wrong passwords. The sixth wrong password is rejected, and so is the
//! right password for the next 15 minutes. Other accounts can still log in from the same address, and alice from other
//! addresses:
//!
//! ```sh
//! curl -i --json '{"account": "alice", "password": "correct horse"}' http://127.0.0.1:3000/login
//! for i in 1 2 3 4 5 6; do curl -i --json '{"account": "alice", "password": "guess"}' http://127.0.0.1:3000/login; done
//! curl -i --json '{"account": "alice", "password": "correct horse"}' http://127.0.0.1:3000/login
//! curl -i --json '{"account": "bob", "password": "battery staple"}' http://127.0.0.1:3000/login
//! curl -i --interface 127.0.0.2 --json '{"account": "alice", "password": "correct horse"}' http://127.0.0.1:3000/login
//! ```
//!
//! `PORT` sets the port; 0 selects a free one.
//!
//! ```toml
//! [dependencies]
//! axum = "0.8"
//! serde_json = "1.0"
//! tokio = { version = "1.47", features = ["macros", "net", "rt-multi-thread"] }
//! tower = "0.5"
//! tower-quota = { version = "0.1.0", default-features = false, features = ["axum"] }
//! ```

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    extract::Request,
    http::StatusCode,
    middleware,
    routing::post,
};
use serde_json::Value;
use tokio::{net::TcpListener, time::timeout};
use tower::ServiceBuilder;
use tower_quota::{
    ConfigError, FailureMode, MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer, Store,
    ToPartitionKey,
    key::{self, KeyExtractor},
};

/// The maximum length of a login in bytes, and the maximum time for receiving it.
const LONGEST_LOGIN: usize = 4 * 1_024;
const LONGEST_UPLOAD: Duration = Duration::from_secs(10);

/// The unverified account of a login.
#[derive(Clone, PartialEq, Eq)]
struct Account(String);

impl ToPartitionKey for Account {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("account", &self.0)
    }
}

#[derive(Clone)]
struct Login {
    account: Account,
    password: String,
}

impl Login {
    fn parse(content: &[u8]) -> Option<Self> {
        let content: Value = serde_json::from_slice(content).ok()?;
        let text = |name| content.get(name)?.as_str();
        // Normalized as in the database. Otherwise, each spelling would get a separate quota.
        let account = text("account")?.trim().to_lowercase();
        (!account.is_empty()).then_some(Self {
            account: Account(account),
            password: text("password")?.to_owned(),
        })
    }

    /// Replaces a table of slow password hashes. In production, also hash the password for nonexistent accounts, so
    /// that the response time does not reveal which accounts exist.
    fn is_right(&self) -> bool {
        matches!(
            (&*self.account.0, &*self.password),
            ("alice", "correct horse") | ("bob", "battery staple")
        )
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app(MemoryStore::new())?; // `RedisStore` for several instances

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.map_err(|error| format!("port {port}: {error}; PORT sets another one"))?;
    let url = format!("http://{}/login", listener.local_addr()?);
    println!("Listening on {url}");
    println!();
    println!("Five wrong passwords, and one more:");
    println!(
        "  for i in 1 2 3 4 5 6; do curl -i --json '{{\"account\": \"alice\", \"password\": \"guess\"}}' {url}; done"
    );
    // The limits need connect info for the client address.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

pub(crate) fn app<S: Store + Clone>(store: S) -> Result<Router, ConfigError> {
    // The first layer runs first.
    let layers = ServiceBuilder::new()
        .layer(attempts(store.clone())?)
        .layer(middleware::map_request(read_login))
        .layer(failures(store)?);
    Ok(Router::new().route("/login", post(log_in).layer(layers)))
}

/// Limits all requests before their bodies are read, including invalid logins and those that the inner layer rejects.
fn attempts(store: impl Store) -> Result<RateLimitLayer, ConfigError> {
    RateLimitLayer::builder(store)
        .scope("login attempts")
        .key(key::client_ip())
        .policy(QuotaPolicy::per_minute("attempts", 60))
        .build()
}

/// Limits failed logins. Each attempt is charged before its password is checked, so that concurrent guesses cannot
/// exceed the limit, and refunded if it succeeds.
fn failures(store: impl Store) -> Result<RateLimitLayer, ConfigError> {
    const QUARTER: Duration = Duration::from_secs(15 * 60);

    RateLimitLayer::builder(store)
        .scope("failed logins")
        .key(key::extension::<Account>().and(key::client_ip()))
        .named_key("address", key::client_ip())
        .named_key("site", key::client_ip().ipv6_prefix(48))
        .named_key("account", key::extension::<Account>())
        // A strict limit by account and address, so that a guessing client locks out only itself.
        .policy(QuotaPolicy::new("guesses", 5, QUARTER).with_lockout(QUARTER))
        // Against password spraying: one password for many accounts.
        .policy(QuotaPolicy::per_hour("address", 20).keyed_by("address"))
        // IPv6 addresses are counted by /64. A /48, which is easy to obtain, contains 65,536 such networks, so all of
        // them together get the quota of only sixteen. An IPv4 address is a separate site.
        .policy(QuotaPolicy::per_hour("site", 16 * 20).keyed_by("site"))
        // A generous limit by account, against guesses from many sites. It is larger than the limit of a site, so that a
        // single site cannot lock the owner out. Hidden: no response contains how many guesses others made.
        .policy(QuotaPolicy::per_hour("account", 400).keyed_by("account").hidden())
        .on_missing_key(MissingKey::Reject)
        .actual_cost(|response| response.status.is_success().then_some(0))
        // An uncounted guess is worse than an unavailable login.
        .failure_mode(FailureMode::Closed)
        .build()
}

/// Parses the login once, with bounds, so that the limits and the handler see the same account even if the JSON is
/// ambiguous.
async fn read_login(request: Request) -> Result<Request, StatusCode> {
    let (mut parts, body) = request.into_parts();
    let content = timeout(LONGEST_UPLOAD, to_bytes(body, LONGEST_LOGIN)).await;
    let content = content.map_err(|_| StatusCode::REQUEST_TIMEOUT)?;
    let content = content.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    let login = Login::parse(&content).ok_or(StatusCode::BAD_REQUEST)?;
    parts.extensions.insert(login.account.clone());
    parts.extensions.insert(login);
    Ok(Request::from_parts(parts, Body::empty()))
}

async fn log_in(Extension(login): Extension<Login>) -> (StatusCode, &'static str) {
    match login.is_right() {
        true => (StatusCode::OK, "Welcome!\n"),
        // This response is the same as for a nonexistent account.
        false => (StatusCode::UNAUTHORIZED, "The account or the password is wrong.\n"),
    }
}
