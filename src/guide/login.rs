//! Stop password guessing without locking out users.
//!
//! The account in a login request is not verified. If failures were counted by account alone, any client could lock out
//! bob with a few wrong passwords. Count them by account *and* address: a guessing client then locks out only itself.
//! Wider limits stop distributed guesses. A middleware reads the body **once**, so that the limits and the handler use
//! the same account, even if the JSON contains two. As for all [attempts](super::failure), a login is charged before
//! the check, and refunded on success only.
//!
//! ```
//! use std::{error::Error, time::Duration};
//!
//! use axum::{
//!     Extension, Router,
//!     body::{Body, to_bytes},
//!     extract::Request,
//!     http::StatusCode,
//!     middleware,
//!     routing::post,
//! };
//! use serde_json::{Value, json};
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_quota::{
//!     FailureMode, MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer, ToPartitionKey,
//!     key::{self, KeyExtractor, PeerAddress},
//! };
//!
//! #[derive(Clone)]
//! struct Login {
//!     account: String,
//!     password: String,
//! }
//!
//! impl ToPartitionKey for Login {
//!     fn to_partition_key(&self) -> PartitionKey {
//!         PartitionKey::new("account", &self.account)
//!     }
//! }
//!
//! fn parse(content: &[u8]) -> Option<Login> {
//!     let content: Value = serde_json::from_slice(content).ok()?;
//!     // Normalized: otherwise, each spelling of an account would get its own quota.
//!     let account = content.get("account")?.as_str()?.trim().to_lowercase();
//!     let password = content.get("password")?.as_str()?.to_owned();
//!     Some(Login { account, password })
//! }
//!
//! /// Bounds the size and the time, because the client is not authenticated yet.
//! async fn read_login(request: Request) -> Result<Request, StatusCode> {
//!     let (mut parts, body) = request.into_parts();
//!     let content = tokio::time::timeout(Duration::from_secs(10), to_bytes(body, 4_096)).await;
//!     let content = content.map_err(|_| StatusCode::REQUEST_TIMEOUT)?.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
//!     parts.extensions.insert(parse(&content).ok_or(StatusCode::BAD_REQUEST)?);
//!     Ok(Request::from_parts(parts, Body::empty()))
//! }
//!
//! async fn log_in(Extension(login): Extension<Login>) -> StatusCode {
//!     if login.password == "secret" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let quarter = Duration::from_secs(15 * 60);
//!     let failures = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("failed logins")
//!         .key(key::extension::<Login>().and(key::client_ip()))
//!         .named_key("address", key::client_ip())
//!         .named_key("site", key::client_ip().ipv6_prefix(48))
//!         .named_key("account", key::extension::<Login>())
//!         .policy(QuotaPolicy::new("guesses", 5, quarter).with_lockout(quarter))
//!         .policy(QuotaPolicy::per_hour("address", 20).keyed_by("address"))
//!         .policy(QuotaPolicy::per_hour("site", 320).keyed_by("site"))
//!         .policy(QuotaPolicy::per_hour("account", 400).keyed_by("account").hidden())
//!         .on_missing_key(MissingKey::Reject)
//!         .actual_cost(|response| response.status.is_success().then_some(0))
//!         .failure_mode(FailureMode::Closed)
//!         .build()?;
//!     // In production, put a limit on all requests by address outside these layers.
//!     let layers = ServiceBuilder::new().layer(middleware::map_request(read_login)).layer(failures);
//!     let app: Router = Router::new().route("/login", post(log_in).layer(layers));
//!
//!     let send = async |address: [u8; 4], account: &str, password: &str| {
//!         let login = json!({"account": account, "password": password}).to_string();
//!         let request = Request::post("/login").extension(PeerAddress((address, 50_000).into()));
//!         Ok::<_, Box<dyn Error>>(app.clone().oneshot(request.body(Body::from(login))?).await?)
//!     };
//!     for _ in 0..5 {
//!         assert_eq!(send([203, 0, 113, 9], "bob", "wrong").await?.status(), 401);
//!     }
//!     let locked_out = send([203, 0, 113, 9], "Bob", "secret").await?;
//!     assert_eq!(locked_out.status(), 429);
//!     assert_eq!(locked_out.headers()["retry-after"], "900");
//!     assert_eq!(send([192, 0, 2, 1], "bob", "secret").await?.status(), 200); // bob, at home
//!     Ok(())
//! }
//! ```
//!
//! | failures | why |
//! |---|---|
//! | 5 by account *and* address, then [locked out](crate::QuotaPolicy::with_lockout) | strict, because the owner can log in from any other address |
//! | 20 an hour by address (IPv6: /64) | stops guesses of one password for many accounts |
//! | 320 an hour by site, the IPv6 /48 | a /48 is easy to get, and its 65,536 networks of size /64 would allow 1.3 million guesses an hour. An IPv4 address reaches the address limit first |
//! | 400 an hour by account | stops guesses from many sites. More than the site limit, so that an attacker with one site cannot lock the owner out. [Hidden](crate::QuotaPolicy::hidden): no response contains how many guesses others made |
//!
//! All are checked in one decision: a login that one of them rejects is charged to none. If even the account limit
//! could lock out owners, make it a [`shadow`](crate::QuotaPolicy::shadow), and let the handler require a second factor
//! while [`Decision::shadow_violated`](crate::Decision::shadow_violated) contains the policy. The example `login` adds
//! a server and the outer limit.
