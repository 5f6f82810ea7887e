//! Recipes for common use cases.
//!
//! This module contains only documentation. Every example is compiled and run.
//!
//! - [Per route and per method](#per-route-and-per-method)
//! - [Only failures, only some requests, other answers](#only-failures-only-some-requests-other-answers)
//! - [GraphQL: what a query costs](#graphql-what-a-query-costs)
//! - [WebSocket messages](#websocket-messages)
//! - [Uploads](#uploads)
//! - [Background jobs](#background-jobs)
//! - Tokens of language models: [in the guide](crate::guide#tokens), and the example `llm_gateway`
//! - Logins: [in the guide](crate::guide#logins-with-the-account-in-a-json-body), and the example `login`
//! - Plans that a database knows: [in the guide](crate::guide#plans-that-only-a-database-knows)
//!
//! The examples count in memory. To share the limits between instances, replace [`MemoryStore`](crate::MemoryStore)
//! with `RedisStore::new("redis://127.0.0.1/")?`.
//!
//! # Per route and per method
//!
//! A layer around a route limits that route. Scopes are namespaces: policies with the same name in different scopes are
//! different quotas. Routes with the same layer, or with the same scope and store, share their quotas.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use axum::{Router, routing::{get, post}};
//! use tower_quota::{ConfigError, MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! # run(async {
//! let store = MemoryStore::new();
//! let per_minute = |scope: &str, quota| -> Result<RateLimitLayer, ConfigError> {
//!     RateLimitLayer::builder(store.clone())
//!         .scope(scope)
//!         .key(key::client_ip())
//!         .policy(QuotaPolicy::per_minute("minute", quota))
//!         .build()
//! };
//!
//! let app: Router = Router::new()
//!     .route("/search", get(|| async { "found" }).layer(per_minute("search", 10)?))
//!     // Separate quotas for reading and for writing.
//!     .route(
//!         "/items",
//!         get(|| async { "items" })
//!             .layer(per_minute("read items", 100)?)
//!             .merge(post(|| async { "created" }).layer(per_minute("write items", 5)?)),
//!     );
//!
//! # let send = |method: &str, path: &str| {
//! #     let mut request = http::Request::builder().method(method).uri(path).body(String::new()).unwrap();
//! #     request.extensions_mut().insert(PeerAddress("192.0.2.1:50000".parse().unwrap()));
//! #     app.clone().oneshot(request)
//! # };
//! for (method, path, policy) in [
//!     ("GET", "/search", r#""minute";q=10;w=60"#),
//!     ("GET", "/items", r#""minute";q=100;w=60"#),
//!     ("POST", "/items", r#""minute";q=5;w=60"#),
//! ] {
//!     assert_eq!(send(method, path).await?.headers()["ratelimit-policy"], policy);
//! }
//! # Ok(()) });
//! ```
//!
//! A single layer around all routes can do the same: [`Tiers::from_fn`](crate::Tiers::from_fn) returns the kind of a
//! request, and policies with different names count separately. Exemptions and the failure mode are then configured
//! once, and the rules can be replaced together.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Tiers, key};
//!
//! # run(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("api")
//!     .key(key::header("x-user-id"))
//!     .tiers(
//!         Tiers::from_fn(|request| match (request.method.is_safe(), request.uri.path()) {
//!             (true, "/search") => Some("searches"),
//!             (true, _) => Some("reads"),
//!             (false, _) => Some("writes"),
//!         })
//!         .tier("writes", [QuotaPolicy::per_minute("writes", 5)])
//!         .tier("searches", [QuotaPolicy::per_minute("searches", 10)])
//!         .tier("reads", [QuotaPolicy::per_minute("reads", 100)]),
//!     )
//!     .build()?;
//!
//! let response = send(&limits, Request::post("/items")).await;
//! assert_eq!(response.headers()["ratelimit"], r#""writes";r=4;t=48"#);
//! let response = send(&limits, Request::get("/search")).await;
//! assert_eq!(response.headers()["ratelimit"], r#""searches";r=9;t=54"#);
//! # Ok(()) });
//! ```
//!
//! To give each route the same quota, count by caller and route: `key::client_ip().and(key::matched_path())`, with the
//! feature `axum`.
//!
//! # Only failures, only some requests, other answers
//!
//! Each of these requirements is one setting of the builder. Attempts are charged on arrival and refunded on success,
//! so that concurrent attempts cannot exceed the limit. A rejection by an inner layer counts as a failure.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use axum::{Router, http::header::ACCEPT, response::Html, routing::post};
//! use tower_quota::{Exemption, MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! # run(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("login")
//!     .key(key::header("x-user-id"))
//!     .policy(QuotaPolicy::per_hour("failures", 3))
//!     // Only failures count.
//!     .actual_cost(|response| (response.status.as_u16() < 400).then_some(0))
//!     // Some requests do not count.
//!     .exempt(Exemption::when(|request| request.headers.contains_key("x-health-check")))
//!     // A page for browsers, and the problem document for programs.
//!     .respond_with_axum(|rejection| {
//!         let accept = rejection.request().headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
//!         match accept.is_some_and(|accept| accept.contains("text/html")) {
//!             true => (rejection.status(), Html("<h1>Please try again later</h1>")).into_response(),
//!             false => rejection.to_response().map(Body::from),
//!         }
//!     })
//!     .build()?;
//! # use axum::{body::Body, response::IntoResponse};
//! let check = async |password: String| if password == "secret" { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
//! let app: Router = Router::new().route("/login", post(check).layer(limits));
//!
//! # let login = |password: &str, field: (&'static str, &'static str)| {
//! #     let request = http::Request::post("/login").header("x-user-id", "alice").header(field.0, field.1);
//! #     app.clone().oneshot(request.body(password.to_owned()).unwrap())
//! # };
//! let (program, browser) = (("accept", "application/json"), ("accept", "text/html,*/*"));
//! for _ in 0..5 {
//!     assert_eq!(login("secret", program).await?.status(), 200);
//! }
//! for _ in 0..3 {
//!     assert_eq!(login("guess", program).await?.status(), 401);
//! }
//! assert_eq!(login("guess", program).await?.headers()["content-type"], "application/problem+json");
//! assert_eq!(login("guess", browser).await?.headers()["content-type"], "text/html; charset=utf-8");
//! assert_eq!(login("guess", ("x-health-check", "1")).await?.status(), 401);
//! # Ok(()) });
//! ```
//!
//! # GraphQL: what a query costs
//!
//! All queries use the same path, but one query can cost a thousand times as much as another. Estimate the cost before
//! the query runs, charge the estimate, and correct the charge when the actual cost is known. A middleware outside the
//! limits reads the body once, up to a bound, and the handler extracts the query from the extensions.
//!
//! A query whose cost exceeds the capacity of the policy would always be rejected with 429. Return an error that
//! explains the reason instead.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use axum::{Extension, Router, body::{Body, to_bytes}, extract::Request, middleware, response::IntoResponse, routing::post};
//! use tower::ServiceBuilder;
//! use tower_quota::{ActualCost, MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! const MOST: u64 = 100;
//!
//! #[derive(Clone)]
//! struct Query {
//!     text: String,
//!     cost: u64,
//! }
//!
//! /// Counts one point per pair of braces. Use the schema in production, and multiply by the `first` of lists.
//! fn estimate(text: &str) -> u64 {
//!     text.matches('{').count() as u64
//! }
//!
//! async fn read_query(request: Request) -> Result<Request, StatusCode> {
//!     let (mut parts, body) = request.into_parts();
//!     let content = to_bytes(body, 64 * 1_024).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
//!     let content: serde_json::Value = serde_json::from_slice(&content).map_err(|_| StatusCode::BAD_REQUEST)?;
//!     let text = content["query"].as_str().ok_or(StatusCode::BAD_REQUEST)?.to_owned();
//!     let cost = estimate(&text);
//!     if cost > MOST {
//!         return Err(StatusCode::UNPROCESSABLE_ENTITY); // always too complex, so a retry would not help
//!     }
//!     parts.extensions.insert(Query { text, cost });
//!     Ok(Request::from_parts(parts, Body::empty()))
//! }
//!
//! async fn run_query(Extension(query): Extension<Query>) -> impl IntoResponse {
//!     let rows = query.text.len() as u64 / 10; // the actual cost
//!     (Extension(ActualCost(rows)), "{}")
//! }
//!
//! # run(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("graphql")
//!     .key(key::header("x-user-id"))
//!     .policy(QuotaPolicy::per_hour("points", MOST))
//!     .cost_by(|request| request.extensions.get::<Query>().map_or(1, |query| query.cost))
//!     .build()?;
//! let layers = ServiceBuilder::new().layer(middleware::map_request(read_query)).layer(limits);
//! let app: Router = Router::new().route("/graphql", post(run_query).layer(layers));
//!
//! # let ask = |query: &str| {
//! #     let content = serde_json::json!({"query": query}).to_string();
//! #     let request = http::Request::post("/graphql").header("x-user-id", "alice").body(content).unwrap();
//! #     app.clone().oneshot(request)
//! # };
//! let response = ask("{ user(id: 7) { name orders(first: 5) { total } } }").await?; // 3 points, and then 5
//! assert!(response.headers()["ratelimit"].to_str()?.starts_with(r#""points";r=95;"#));
//! assert_eq!(ask(&"{".repeat(101)).await?.status(), 422);
//! # Ok(()) });
//! ```
//!
//! # WebSocket messages
//!
//! A layer processes the request that opens a connection, but not the messages. A [`Limiter`](crate::Limiter) limits
//! the messages, with a separate deadline, circuit breaker and metrics. Keep a [`Caller`](crate::Caller) for each
//! connection.
//!
//! Clients slightly over the limit are slowed down: the server stops reading, and TCP backpressure does the rest.
//! Clients far over the limit are disconnected with close code 1008 (policy violation). If the store does not respond,
//! messages pass uncounted by default, like requests. To limit the open connections of a user, see
//! [`WeakPermit`](crate::WeakPermit), whose permit keeps a slot after the upgrade. The example `websocket` combines
//! both.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use futures_util::{Stream, StreamExt, stream};
//! use tower_quota::{Caller, Limiter, MemoryStore, QuotaPolicy};
//!
//! /// Handles the messages of a connection. Returns the close code if the server must close it.
//! async fn serve(
//!     mut messages: impl Stream<Item = String> + Unpin,
//!     user: Caller,
//!     mut handle: impl FnMut(String),
//! ) -> Result<(), u16> {
//!     while let Some(text) = messages.next().await {
//!         drop(user.wait(Duration::from_secs(2)).await.map_err(|_| 1008_u16)?);
//!         handle(text);
//!     }
//!     Ok(())
//! }
//!
//! # run(async {
//! # let store = MemoryStore::builder().clock(Clock::tokio()).build()?;
//! let limiter = Limiter::builder(store)
//!     .scope("chat messages")
//!     .policy(QuotaPolicy::per_second("second", 5))
//!     .policy(QuotaPolicy::per_minute("minute", 20))
//! #   .clock(Clock::tokio())
//!     .build()?;
//! let messages = |count| stream::iter((0..count).map(|number: u32| number.to_string()));
//!
//! // Fifteen messages at once: five pass immediately, the others are delayed.
//! let (start, mut handled) = (tokio::time::Instant::now(), 0);
//! assert_eq!(serve(messages(15), limiter.caller("alice"), |_| handled += 1).await, Ok(()));
//! assert_eq!((handled, start.elapsed().as_secs()), (15, 2));
//!
//! // A flood also exhausts the quota of the minute.
//! assert_eq!(serve(messages(1_000), limiter.caller("mallory"), |_| {}).await, Err(1008));
//! # Ok(()) });
//! ```
//!
//! # Uploads
//!
//! One decision checks three limits: requests, bytes of content, and concurrent uploads. The charge for bytes is the
//! `Content-Length`. With a [`RequestContentLayer`](crate::RequestContentLayer) outside the limits, the charge is
//! corrected to the number of bytes that were read. Without such a layer, content of unknown length counts as one byte.
//! A byte quota does not bound the size of a single file; for this, use the limit of the server (413), such as axum's
//! `DefaultBodyLimit`.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use axum::{Router, body::Bytes, extract::DefaultBodyLimit, routing::put};
//! use tower::ServiceBuilder;
//! use tower_quota::{Direction, MemoryStore, QuotaPolicy, RateLimitLayer, RequestContentLayer, key};
//!
//! # run(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("uploads")
//!     .key(key::header("x-user-id"))
//!     .policy(QuotaPolicy::per_minute("requests", 30))
//!     .policy(QuotaPolicy::per_day("bytes", 1_000_000).with_content_bytes(Direction::Request))
//!     .policy(QuotaPolicy::concurrent("at once", 2))
//!     .build()?;
//! let layers = ServiceBuilder::new().layer(RequestContentLayer::new()).layer(limits).layer(DefaultBodyLimit::max(500_000));
//! let app: Router = Router::new().route("/files", put(|file: Bytes| async move { file.len().to_string() }).layer(layers));
//!
//! # let upload = |size: usize| {
//! #     let request = http::Request::put("/files").header("x-user-id", "alice").header("content-length", size);
//! #     app.clone().oneshot(request.body("x".repeat(size)).unwrap())
//! # };
//! assert_eq!(upload(400_000).await?.status(), 200);
//! assert_eq!(upload(550_000).await?.status(), 413); // too large for a single file; the bytes that were read are charged
//! assert_eq!(upload(700_000).await?.status(), 429); // exceeds the remaining units of the day; nothing was read
//! # Ok(()) });
//! ```
//!
//! # Background jobs
//!
//! A [`Limiter`](crate::Limiter) can limit more than requests: the mails of a tenant, calls to a partner, or the rows
//! of an export. [`Caller::wait`](crate::Caller::wait) charges the whole cost or nothing, and waits until the cost is
//! admitted. The [`Permit`](crate::Permit) corrects the charge afterwards. With a shared store, workers on other
//! machines share the quota.
//!
//! If the store makes no decision, work is admitted uncounted by default. If uncounted mails could violate a contract,
//! use [`FailureMode::Closed`](crate::FailureMode::Closed): the jobs are then rejected, and can be retried later.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use tower_quota::{FailureMode, Limiter, MemoryStore, QuotaPolicy};
//!
//! # fn send_mails(recipients: u64) -> u64 { recipients.min(40) }
//! # run(async {
//! # let store = MemoryStore::builder().clock(Clock::tokio()).build()?;
//! let limiter = Limiter::builder(store)
//!     .scope("mails")
//!     .policy(QuotaPolicy::per_minute("minute", 60))
//!     .policy(QuotaPolicy::per_day("day", 1_000))
//!     .failure_mode(FailureMode::Closed)
//! #   .clock(Clock::tokio())
//!     .build()?;
//! let tenant = limiter.caller("acme");
//!
//! let start = tokio::time::Instant::now();
//! for recipients in [50, 50] {
//!     let job = tenant.clone().cost(recipients).wait(Duration::from_secs(3_600)).await;
//!     let permit = job.map_err(|rejected| format!("{recipients} mails: {:?}", rejected.outcome()))?;
//!     permit.settle(send_mails(recipients)); // ten addresses are invalid
//! }
//! // The second job waited until 50 units were available: 20 remained, and one is restored each second.
//! assert_eq!(start.elapsed().as_secs(), 30);
//! // A cost above the capacity of the minute is rejected immediately.
//! assert!(tenant.cost(5_000).wait(Duration::MAX).await.is_err());
//! # Ok(()) });
//! ```
