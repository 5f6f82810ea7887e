//! Recipes for what people limit most often. Documentation only; every example is compiled and run.
//!
//! - [Per route and per method](#per-route-and-per-method)
//! - [GraphQL: what a query costs](#graphql-what-a-query-costs)
//! - [WebSocket messages](#websocket-messages)
//! - [Uploads](#uploads)
//! - [Background jobs on a store alone](#background-jobs-on-a-store-alone)
//! - [A webhook sender that is polite](#a-webhook-sender-that-is-polite)
//! - Tokens of language models: [in the guide](crate::guide#tokens), and the example `llm_gateway`
//! - Logins: [in the guide](crate::guide#logins-with-the-account-in-a-json-body), and the example `login`
//! - Plans that a database knows: [in the guide](crate::guide#plans-that-only-a-database-knows)
//!
//! They count in memory. With `RedisStore::new("redis://127.0.0.1/")?` in place of [`MemoryStore`](crate::MemoryStore), all
//! instances count together.
//!
//! # Per route and per method
//!
//! A layer around one route limits that route. Its scope is its own name space, so policies of the same name in other scopes
//! are other quotas; two routes with one layer, or with one scope, share theirs.
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
//!     // Reading and writing the same resource.
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
//! One layer around all routes can do the same: [`Tiers::from_fn`](crate::Tiers::from_fn) names the kind of a request, and policies of
//! different names count apart. It has one scope, one place for exemptions and failure modes, and its rules can be replaced
//! together.
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
//! For the same quota on each of many routes, count by caller and route: `key::client_ip().and(key::matched_path())`, with
//! the feature `axum`.
//!
//! # GraphQL: what a query costs
//!
//! All queries go to one path, and one may cost a thousand times as much as another. Estimate the cost from the query before
//! it runs, charge that, and correct the charge when the real cost is known. The body is read once and within a bound, by
//! a middleware outside of the limits; the handler takes the query from the extensions.
//!
//! A query that costs more than the policy can ever hold would be rejected each time, so tell its sender what is wrong
//! instead of "try again later".
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
//! /// A point for each pair of braces. Yours asks the schema, and multiplies by the `first` of lists.
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
//!         return Err(StatusCode::UNPROCESSABLE_ENTITY); // it is too complex, now and later
//!     }
//!     parts.extensions.insert(Query { text, cost });
//!     Ok(Request::from_parts(parts, Body::empty()))
//! }
//!
//! async fn run_query(Extension(query): Extension<Query>) -> impl IntoResponse {
//!     let rows = query.text.len() as u64 / 10; // what it has really cost
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
//! A layer sees the request that opens a connection, and nothing of what comes over it. Count messages on the store
//! itself: the layer and the loop of the connection can share one. Make the plan once for each connection; asking is then one
//! call for each message.
//!
//! A client that is a little too fast is slowed down: while its messages are not read, TCP holds them back. One that is
//! far too fast, or does not mind, is disconnected with close code 1008 (policy violation). If the store does not answer, messages
//! pass, as requests do by default. To limit how many connections a user has open, see
//! [`SlotHandle`](crate::SlotHandle), which keeps a slot after the upgrade.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use futures_util::{Stream, StreamExt, stream};
//! use tower_quota::{MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
//!
//! const PATIENCE: Duration = Duration::from_secs(2);
//!
//! /// Handles the messages of a connection. Returns the close code if it has to end.
//! async fn serve(
//!     mut messages: impl Stream<Item = String> + Unpin,
//!     message: Plan, // what one message of this user charges
//!     store: &impl Store,
//!     mut handle: impl FnMut(String),
//! ) -> Result<(), u16> {
//!     while let Some(text) = messages.next().await {
//!         // A deadline, because a store alone has none.
//!         while let Ok(Ok(decision)) = tokio::time::timeout(Duration::from_millis(50), store.decide(message.clone())).await {
//!             match decision.retry_after() {
//!                 None if decision.outcome().is_admitted() => break,
//!                 Some(wait) if wait <= PATIENCE => tokio::time::sleep(wait).await,
//!                 _ => return Err(1008),
//!             }
//!         }
//!         handle(text);
//!     }
//!     Ok(())
//! }
//!
//! # run(async {
//! # let store = MemoryStore::builder().clock(Clock::tokio()).build()?;
//! let policies = PolicySet::new([QuotaPolicy::per_second("second", 5), QuotaPolicy::per_minute("minute", 20)])?;
//! let user = |name: &str| Scope::new("chat messages").partition(&PartitionKey::new("user", name));
//! let messages = |count| stream::iter((0..count).map(|number: u32| number.to_string()));
//!
//! // Fifteen messages at once: five pass, the others wait for their turn.
//! let (start, mut handled) = (tokio::time::Instant::now(), 0);
//! let alice = Plan::new(policies.clone(), user("alice"), 1);
//! assert_eq!(serve(messages(15), alice, &store, |_| handled += 1).await, Ok(()));
//! assert_eq!((handled, start.elapsed().as_secs()), (15, 2));
//!
//! // A flood uses up the minute, too.
//! let mallory = Plan::new(policies, user("mallory"), 1);
//! assert_eq!(serve(messages(1_000), mallory, &store, |_| {}).await, Err(1008));
//! # Ok(()) });
//! ```
//!
//! # Uploads
//!
//! Three limits in one decision: requests, the bytes of their content, and how many are in progress. Bytes are charged by
//! what `Content-Length` announces, and by what is really read where
//! [`RequestContentLayer`](crate::RequestContentLayer) stands outside of the limits; without it, content of unknown length
//! counts as one byte. No quota of bytes bounds a single file: that is the server's own limit (413), such as
//! `DefaultBodyLimit` of axum.
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
//! assert_eq!(upload(550_000).await?.status(), 413); // too long for one file; what was read of it is charged
//! assert_eq!(upload(700_000).await?.status(), 429); // more than is left of the day; none of it was read
//! # Ok(()) });
//! ```
//!
//! # Background jobs on a store alone
//!
//! Limits need not be about requests: a store limits mails of a tenant, calls to a partner, rows of an export. A
//! [`Plan`](crate::Plan) says which policies, whose units and how many; [`Store::decide`](crate::Store::decide) charges
//! all of it or nothing. A job that is rejected sleeps until [`retry_after`](crate::Decision::retry_after) and asks
//! again: other workers may have been faster. A charge that turned out to be too high is [settled](crate::Settlement).
//!
//! Without the layer there is no deadline, no circuit breaker and no failure mode, so say what an error means. A job can
//! wait, and mails that are sent uncounted may break a contract: this one tries again.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use tower_quota::{Decision, MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Settlement, Store};
//!
//! /// Waits until the plan is charged; `None` if it never can be.
//! async fn charged(store: &impl Store, plan: &Plan) -> Option<Decision> {
//!     loop {
//!         let wait = match tokio::time::timeout(Duration::from_secs(1), store.decide(plan.clone())).await {
//!             Ok(Ok(decision)) if decision.outcome() == Outcome::Allowed => return Some(decision),
//!             Ok(Ok(decision)) => decision.retry_after()?,
//!             Ok(Err(_)) | Err(_) => Duration::from_secs(1), // unavailable, or too slow
//!         };
//!         tokio::time::sleep(wait).await;
//!     }
//! }
//!
//! # fn send_mails(recipients: u64) -> u64 { recipients.min(40) }
//! # run(async {
//! # let store = MemoryStore::builder().clock(Clock::tokio()).build()?;
//! let policies = PolicySet::new([QuotaPolicy::per_minute("minute", 60), QuotaPolicy::per_day("day", 1_000)])?;
//! let tenant = Scope::new("mails").partition(&PartitionKey::new("tenant", "acme"));
//!
//! let start = tokio::time::Instant::now();
//! for recipients in [50, 50] {
//!     let plan = Plan::new(policies.clone(), tenant, recipients);
//!     let decision = charged(&store, &plan).await.ok_or("more recipients than a minute has")?;
//!     let sent = send_mails(recipients); // ten addresses are wrong
//!     store.settle(Settlement::new(&decision, sent)).await?;
//! }
//! // The second job has waited until 50 units were there: 20 were left, and one comes each second.
//! assert_eq!(start.elapsed().as_secs(), 30);
//! assert!(charged(&store, &Plan::new(policies, tenant, 5_000)).await.is_none());
//! # Ok(()) });
//! ```
//!
//! # A webhook sender that is polite
//!
//! Thousands of receivers, each with limits of its own, of which most tell. The `client` layer (feature `client`) reads
//! `RateLimit` and `Retry-After` of each origin, holds deliveries back before they would be rejected, and sends a rejected one
//! again when its receiver says so. For receivers that say nothing there is a limit of your own, by origin, on a store that
//! all instances share. A delivery that waits too long fails, so that a queue can take it back.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # #[cfg(feature = "client")]
//! # run(async {
//! use tower::ServiceBuilder;
//! use tower_quota::{MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store, client::ClientLayer};
//! # let clock = Clock::tokio();
//! # let receiver = RateLimitLayer::builder(MemoryStore::builder().clock(clock.clone()).build()?)
//! #     .scope("receiver")
//! #     .key(key::header("x-sender"))
//! #     .on_missing_key(MissingKey::Share)
//! #     .policy(QuotaPolicy::per_second("second", 2))
//! #     .clock(clock.clone())
//! #     .build()?;
//! # static REJECTED: AtomicUsize = AtomicUsize::new(0);
//! # let http_client = ServiceBuilder::new()
//! #     .map_response(|response: Response<RateLimitBody<String>>| {
//! #         REJECTED.fetch_add(usize::from(response.status() == 429), Ordering::Relaxed);
//! #         response
//! #     })
//! #     .layer(receiver)
//! #     .service(service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new()))));
//! # let store = MemoryStore::builder().clock(clock).build()?;
//!
//! let polite = ClientLayer::builder()
//!     .queue_timeout(Duration::from_secs(60)) // then the delivery fails with `ClientError::Throttled`
//!     .retries(3, |body: &String| Some(body.clone())) // only after a rejection that says when
//!     .build()?;
//! let client = ServiceBuilder::new().layer(polite).service(http_client); // of hyper-util, say
//!
//! // At most 10 a second to each receiver, whatever it says, from all instances together.
//! let policies = PolicySet::new([QuotaPolicy::per_second("second", 10)])?;
//! let deliver = async |url: &str, event: &str| {
//!     let request = Request::post(url).body(event.to_owned())?;
//!     let origin = request.uri().authority().ok_or("no origin")?.as_str().to_owned();
//!     let origin = Scope::new("webhooks").partition(&PartitionKey::new("origin", origin));
//!     let plan = Plan::new(policies.clone(), origin, 1);
//!     // If the store is unavailable, the receiver's own limits are still obeyed.
//!     while let Ok(decision) = store.decide(plan.clone()).await {
//!         match decision.retry_after() {
//!             Some(wait) if decision.outcome() == Outcome::Rejected => tokio::time::sleep(wait).await,
//!             _ => break,
//!         }
//!     }
//!     let response = client.clone().oneshot(request).await?;
//!     Ok::<_, Box<dyn Error>>(response.status())
//! };
//!
//! // Twenty events at once for a receiver that allows two a second.
//! let events: Vec<_> = (0..20).map(|number| format!("event {number}")).collect();
//! let deliveries = events.iter().map(|event| deliver("http://shop.example/hooks", event));
//! for status in futures_util::future::join_all(deliveries).await {
//!     assert_eq!(status?, 200);
//! }
//! # assert!(REJECTED.load(Ordering::Relaxed) <= 19, "{}", REJECTED.load(Ordering::Relaxed));
//! # Ok(()) });
//! ```
