//! Recipes: where to place the layer, and which caller to charge.
//!
//! This module contains only documentation. Every example is compiled and run.
//!
//! - [Before authentication, by address](#before-authentication-by-address)
//! - [After authentication, by user](#after-authentication-by-user)
//! - [Both](#both)
//! - [Plans that only a database knows](#plans-that-only-a-database-knows)
//! - [Failed logins only](#failed-logins-only)
//! - [Guesses that lock no user out](#guesses-that-lock-no-user-out)
//! - [Logins with the account in a JSON body](#logins-with-the-account-in-a-json-body)
//! - [Tokens](#tokens)
//! - [What must not be a key](#what-must-not-be-a-key)
//! - [In an app of axum](#in-an-app-of-axum)
//! - [Shutdown](#shutdown)
//!
//! The outer layer processes a request first. In `.layer(a).layer(b)` on an axum router, the outer layer is `b`; in
//! `ServiceBuilder::new().layer(a).layer(b)`, it is `a`.
//!
//! # Before authentication, by address
//!
//! Put the layer *outside* authentication to protect authentication itself, because password checks are slow and token
//! checks require a lookup. At this point, only the address of a caller is known. Every request is charged to its
//! source address, even if the client claims to be another user. Make this quota larger than the quota of a single
//! user, because [many users may share an address](#inner-rejections-stay-charged).
//!
//! Behind a proxy, configure the proxy as [trusted](crate::key::ClientIp::trusted_proxies). Otherwise, all clients
//! share one quota. [`docs::proxies`](crate::docs::proxies) has the configuration.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use axum::{Router, extract::Request, http::StatusCode, middleware, routing::get};
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! async fn authenticate(request: Request) -> Result<Request, StatusCode> {
//!     // … takes long …
//! #   let _ = request;
//!     Err(StatusCode::UNAUTHORIZED)
//! }
//!
//! # run(async {
//! let by_address = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("before authentication")
//!     .key(key::client_ip())
//!     .policy(QuotaPolicy::per_minute("minute", 2))
//!     .build()?;
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(middleware::map_request(authenticate))
//!     .layer(by_address); // outermost
//!
//! # let request = |peer: &str, claimed: &str| {
//! #     let mut request = http::Request::get("/").header("x-user", claimed).body(String::new()).unwrap();
//! #     request.extensions_mut().insert(PeerAddress(format!("{peer}:50000").parse().unwrap()));
//! #     request
//! # };
//! for (address, claimed, status) in [
//!     ("203.0.113.9", "alice", 401),
//!     ("203.0.113.9", "bob", 401),
//!     ("203.0.113.9", "carol", 429), // rejected before authentication
//!     ("192.0.2.1", "alice", 401),   // other clients are not affected
//! ] {
//!     assert_eq!(app.clone().oneshot(request(address, claimed)).await?.status(), status);
//! }
//! # Ok(()) });
//! ```
//!
//! # After authentication, by user
//!
//! Put the layer *inside* authentication to give each user a quota, regardless of the address. After authentication has
//! verified the user, it inserts a value of your type into the request extensions, from which
//! [`key::extension`](crate::key::extension) reads the user. A request that fails authentication never reaches the
//! layer, so it cannot be charged to the claimed user.
//!
//! ```
//! use axum::{Router, extract::Request, http::StatusCode, middleware, routing::get};
//! use tower_quota::{MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer, ToPartitionKey, key};
//! # use tower::ServiceExt;
//!
//! #[derive(Clone)]
//! struct User(String);
//!
//! impl ToPartitionKey for User {
//!     fn to_partition_key(&self) -> PartitionKey {
//!         PartitionKey::new("user", &self.0)
//!     }
//! }
//!
//! /// Returns the user if the password is correct.
//! fn verified(request: &Request) -> Option<User> {
//!     let field = |name| request.headers().get(name)?.to_str().ok();
//!     (field("x-password")? == "secret").then_some(User(field("x-user")?.to_owned()))
//! }
//!
//! async fn authenticate(mut request: Request) -> Result<Request, StatusCode> {
//!     let user = verified(&request).ok_or(StatusCode::UNAUTHORIZED)?;
//!     request.extensions_mut().insert(user);
//!     Ok(request)
//! }
//!
//! # tokio_test::block_on(async {
//! let by_user = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("after authentication")
//!     .key(key::extension::<User>())
//!     .on_missing_key(MissingKey::Reject) // if a route lacks authentication
//!     .policy(QuotaPolicy::per_day("day", 100))
//!     .build()?;
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(by_user)
//!     .layer(middleware::map_request(authenticate)); // outermost
//!
//! # let request = |password| {
//! #     let request = http::Request::get("/").header("x-user", "bob").header("x-password", password);
//! #     request.body(String::new()).unwrap()
//! # };
//! let first = app.clone().oneshot(request("secret")).await?;
//! assert!(first.headers()["ratelimit"].to_str()?.starts_with(r#""day";r=99"#));
//!
//! // An attacker claims to be bob. Bob's quota does not change.
//! let guess = app.clone().oneshot(request("wrong")).await?;
//! assert_eq!(guess.status(), StatusCode::UNAUTHORIZED);
//! assert!(!guess.headers().contains_key("ratelimit"));
//! let second = app.oneshot(request("secret")).await?;
//! assert!(second.headers()["ratelimit"].to_str()?.starts_with(r#""day";r=98"#));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Both
//!
//! Most services need both: a generous limit by address outside authentication, and limits by user inside. Give the
//! layers different scopes, and their policies different names, because the response contains the policies of both.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # use axum::{Router, extract::Request, http::StatusCode, middleware, routing::get};
//! # async fn authenticate(mut request: Request) -> Result<Request, StatusCode> {
//! #     request.extensions_mut().insert("bob".to_owned());
//! #     Ok(request)
//! # }
//! # type User = String;
//! # run(async {
//! let store = MemoryStore::new();
//! let by_address = RateLimitLayer::builder(store.clone())
//!     .scope("addresses")
//!     .key(key::client_ip())
//!     .policy(QuotaPolicy::per_minute("address", 600))
//!     .build()?;
//! let by_user = RateLimitLayer::builder(store)
//!     .scope("users")
//!     .key(key::extension::<User>())
//!     .on_missing_key(MissingKey::Reject)
//!     .policy(QuotaPolicy::per_minute("user", 60))
//!     .build()?;
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(by_user) // innermost
//!     .layer(middleware::map_request(authenticate))
//!     .layer(by_address); // outermost
//! # let mut request = http::Request::get("/").body(String::new())?;
//! # request.extensions_mut().insert(PeerAddress("192.0.2.1:50000".parse()?));
//! let response = app.oneshot(request).await?;
//! assert_eq!(response.headers()["ratelimit-policy"], r#""user";q=60;w=60, "address";q=600;w=60"#);
//! # Ok(()) });
//! ```
//!
//! ## Inner rejections stay charged
//!
//! A request that the inner layer rejects stays charged in the outer layer. Otherwise, a user beyond the inner limit
//! would never exhaust the outer limit, and authentication would run for each of their requests. The outer layer
//! releases the slot, counts the transferred bytes, and refunds estimates of [custom
//! units](crate::QuotaPolicy::with_unit) without a report. Therefore:
//!
//! - **Size the address limit for shared addresses.** Users behind one address share it, and their rejected requests
//!   count. Ten busy users, or a single user who ignores 429, exhaust a limit of ten users' quotas, as above.
//! - **Or put both keys into one layer**, inside authentication, as below. Both limits are then checked in a single
//!   decision, and the requests of a rejected user are not charged to the address. Authentication itself is not
//!   limited.
//! - **Do not let a proxy retry 429.** Each retry charges one unit to the outer limit.
//! - **Keep CORS and health checks outside** both layers. Scripts cannot read a rejection without CORS headers, and an
//!   orchestrator restarts an instance whose health checks are rejected. If CORS and health checks cannot be outside,
//!   use [`skip_cors_preflight`](crate::RateLimitLayerBuilder::skip_cors_preflight) and
//!   [`exempt`](crate::RateLimitLayerBuilder::exempt).
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # use axum::{Router, extract::Request, middleware, routing::get};
//! # async fn authenticate(mut request: Request) -> Request {
//! #     let user = request.headers()["x-user"].to_str().unwrap_or_default().to_owned();
//! #     request.extensions_mut().insert(user);
//! #     request
//! # }
//! # type User = String;
//! # run(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("users and addresses")
//!     .key(key::extension::<User>())
//!     .named_key("address", key::client_ip())
//!     .on_missing_key(MissingKey::Reject)
//!     .policy(QuotaPolicy::per_hour("user", 2))
//!     .policy(QuotaPolicy::per_hour("address", 10).keyed_by("address"))
//!     .build()?;
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(limits)
//!     .layer(middleware::map_request(authenticate)); // outermost
//!
//! # let request = |user| {
//! #     let mut request = http::Request::get("/").header("x-user", user).body(String::new()).unwrap();
//! #     request.extensions_mut().insert(PeerAddress("192.0.2.1:50000".parse().unwrap()));
//! #     request
//! # };
//! for (user, status) in [("bob", 200), ("bob", 200), ("bob", 429), ("bob", 429), ("bob", 429)] {
//!     assert_eq!(app.clone().oneshot(request(user)).await?.status(), status);
//! }
//! // Bob's rejected requests were not charged to the address that alice shares.
//! let response = app.oneshot(request("alice")).await?;
//! assert!(response.headers()["ratelimit"].to_str()?.contains(r#""address";r=7;"#));
//! # Ok(()) });
//! ```
//!
//! # Plans that only a database knows
//!
//! Authentication identifies the user, but the user's plan is in a database. A [`TierLayer`](crate::tier::TierLayer)
//! between authentication and the limits looks up the plan once and caches it for a minute. Requests of a new user wait
//! for the lookup, for at most 1 s. In the example, a user starts with ten requests at once, and none of them is
//! counted in the free tier. If the lookup fails or takes longer, the requests are counted in the tier for
//! [unknown](crate::tier::OnUnknownTier) users. Do not let these requests pass uncounted: otherwise, a client that
//! invents users would bypass every limit while the database is slow.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # run(async {
//! use axum::{Router, extract::Request, middleware, routing::get};
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Tiers, key, tier::{TierLayer, OnUnknownTier}};
//!
//! async fn plan_of(user: String) -> Result<Option<&'static str>, std::io::Error> {
//!     tokio::time::sleep(Duration::from_millis(200)).await; // a busy database
//!     Ok((user == "bob").then_some("pro"))
//! }
//!
//! # async fn authenticate(mut request: Request) -> Request {
//! #     request.extensions_mut().insert("bob".to_owned());
//! #     request
//! # }
//! # type User = String;
//! let plans = TierLayer::by_extension(plan_of)
//!     .on_unknown_tier(OnUnknownTier::wait(Duration::from_secs(1)).then_tier("free")) // the default
//!     .build()?;
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("api")
//!     .key(key::extension::<User>())
//!     .tiers(
//!         Tiers::resolved()
//!             .tier("free", [QuotaPolicy::per_second("second", 2)])
//!             .tier("pro", [QuotaPolicy::per_second("second", 20)]),
//!     )
//!     .build()?;
//!
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(limits) // innermost
//!     .layer(plans)
//!     .layer(middleware::map_request(authenticate)); // outermost
//!
//! let request = || app.clone().oneshot(http::Request::get("/").body(String::new()).unwrap());
//! for response in futures_util::future::join_all((0..10).map(|_| request())).await {
//!     assert_eq!(response?.status(), 200);
//! }
//! # Ok(()) });
//! ```
//!
//! # Failed logins only
//!
//! A limit on logins should stop password guessing without restricting users who log in often. Charge each attempt
//! before the password check, and refund it if the login succeeds. If attempts were counted afterwards, a hundred
//! concurrent guesses could exceed the limit. If an uncounted guess is worse than a failed login, let the layer [fail
//! closed](crate::FailureMode::Closed).
//!
//! Refund on success only, not "unless the status is 401": that would also refund attempts that an inner layer rejects,
//! and the client could continue indefinitely. As a consequence, requests that fail because of an error of the service
//! count as attempts, too. For such errors, or if the status does not show success (a redirect, or a gRPC response,
//! whose status is always 200), let the handler add [`ActualCost(0)`](crate::ActualCost) to the responses that should
//! not count.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use axum::{Router, http::{HeaderMap, StatusCode}, routing::post};
//! use tower_quota::{FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! async fn login(fields: HeaderMap) -> StatusCode {
//!     match fields.get("x-password") {
//!         Some(password) if password == "secret" => StatusCode::NO_CONTENT,
//!         _ => StatusCode::UNAUTHORIZED,
//!     }
//! }
//!
//! # run(async {
//! let failed_logins = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("failed logins")
//!     .key(key::client_ip())
//!     .policy(QuotaPolicy::per_hour("failures", 2))
//!     .actual_cost(|response| response.status.is_success().then_some(0))
//!     .failure_mode(FailureMode::Closed)
//!     .build()?;
//! let app: Router = Router::new().route("/login", post(login).layer(failed_logins));
//!
//! # let request = |password| {
//! #     let mut request = http::Request::post("/login").header("x-password", password).body(String::new()).unwrap();
//! #     request.extensions_mut().insert(PeerAddress("203.0.113.9:50000".parse().unwrap()));
//! #     request
//! # };
//! for (password, status) in [
//!     ("secret", 204),
//!     ("secret", 204),
//!     ("secret", 204),
//!     ("wrong", 401),
//!     ("wrong", 401),
//!     ("secret", 429), // correct, but rejected before the check
//! ] {
//!     assert_eq!(app.clone().oneshot(request(password)).await?.status(), status);
//! }
//! # Ok(()) });
//! ```
//!
//! # Guesses that lock no user out
//!
//! The name in a login request is not verified. If failed logins were counted by name alone, any client could lock out
//! bob with a few wrong passwords. Count them by address *and* claimed name: an attacker then exhausts only the
//! attempts of their own address on this name, and no other user's quota.
//!
//! [`with_lockout`](crate::QuotaPolicy::with_lockout) locks an attacker out for longer than the window: after the third
//! wrong password below, that address cannot try this name for 15 minutes. With a lockout, the choice of the key is
//! even more important: a lockout by name alone would let any client lock out any user for 15 minutes at a time. If the
//! charge of a correct password starts a lockout, the refund ends it.
//!
//! The drawback is that guesses for one name from many addresses are not counted together. Stop such attacks without
//! rejecting the account's owner, for example with a second factor, or with an [`AccessList`](crate::AccessList) that
//! blocks the addresses. Also limit each address alone, because an attacker can try one password for many names. The
//! [next program](#logins-with-the-account-in-a-json-body) has all three limits.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use std::time::Duration;
//! use axum::{Router, http::{HeaderMap, StatusCode}, routing::post};
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key::{self, KeyExtractor}};
//! # async fn login(fields: HeaderMap) -> StatusCode {
//! #     match fields.get("x-password") {
//! #         Some(password) if password == "secret" => StatusCode::NO_CONTENT,
//! #         _ => StatusCode::UNAUTHORIZED,
//! #     }
//! # }
//!
//! # run(async {
//! let guesses = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("guesses")
//!     .key(key::client_ip().and(key::header("x-user"))) // never the claimed name alone
//!     .policy(QuotaPolicy::per_minute("guesses", 3).with_lockout(Duration::from_secs(15 * 60)))
//!     .actual_cost(|response| response.status.is_success().then_some(0))
//!     .build()?;
//! let app: Router = Router::new().route("/login", post(login).layer(guesses));
//!
//! # let request = |peer, password| {
//! #     let request = http::Request::post("/login").header("x-user", "bob").header("x-password", password);
//! #     let mut request = request.body(String::new()).unwrap();
//! #     request.extensions_mut().insert(PeerAddress(format!("{peer}:50000").parse().unwrap()));
//! #     request
//! # };
//! for (address, password, status) in [
//!     ("203.0.113.9", "wrong", 401),
//!     ("203.0.113.9", "wrong", 401),
//!     ("203.0.113.9", "secret", 204), // charged, then refunded
//!     ("203.0.113.9", "wrong", 401),
//!     ("203.0.113.9", "secret", 429), // locked out
//!     ("192.0.2.1", "secret", 204), // bob, at home
//! ] {
//!     assert_eq!(app.clone().oneshot(request(address, password)).await?.status(), status);
//! }
//! let blocked = app.oneshot(request("203.0.113.9", "wrong")).await?;
//! let seconds: u64 = blocked.headers()["retry-after"].to_str()?.parse()?;
//! assert!((880..=900).contains(&seconds), "{seconds}");
//! # Ok(()) });
//! ```
//!
//! # Logins with the account in a JSON body
//!
//! Keys are extracted from the request head, so a small middleware reads the body first, **once**. The limits and the
//! handler then use the same account, even if the JSON is ambiguous, for example because it contains two accounts. The
//! middleware bounds size and time, and runs inside a limit by address, because the client is not authenticated yet.
//! Normalize account names. Otherwise, each spelling gets its own quota.
//!
//! | limit | why |
//! |---|---|
//! | 5 failures by account *and* address, then [locked out](crate::QuotaPolicy::with_lockout) for 15 minutes | the limit is strict, because it locks out only the attacker: the owner can log in from any other address |
//! | 20 an hour by address | stops guesses of one password for many accounts. IPv6 addresses are limited per /64 |
//! | 320 an hour by site, the /48 of an IPv6 address | a /48 is easy to get and contains 65,536 networks of size /64: without this limit, an attacker with a /48 has 1.3 million guesses an hour; with this limit, the attacker has 320, as many as with sixteen addresses. If a hundred homes of one provider share a /48, each home has three failures an hour. Each IPv4 address is a separate site, and reaches the address limit first |
//! | 200 an hour by account | stops guesses from many addresses. The limit is ten times the address limit, so that a single attacker cannot lock the owner out. The policy is [hidden](crate::QuotaPolicy::hidden), so that responses do not reveal that the account is under attack |
//!
//! All four limits are checked in one decision: a login that any of these limits rejects is charged to none of them. A
//! lockout by account alone, whether short or long, lets any client lock out any user. If even the account limit is a
//! risk, make this policy a [`shadow`](crate::QuotaPolicy::shadow), let the handler extract the
//! [`Decision`](crate::Decision), and require a second factor while
//! [`shadow_violated`](crate::Decision::shadow_violated) contains the policy.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use axum::{Extension, Router, body::{Body, to_bytes}, extract::Request, middleware, routing::post};
//! use tower::ServiceBuilder;
//! use tower_quota::{
//!     FailureMode, MemoryStore, MissingKey, PartitionKey, QuotaPolicy, RateLimitLayer, ToPartitionKey, key::{self, KeyExtractor},
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
//!     let content: serde_json::Value = serde_json::from_slice(content).ok()?;
//!     let account = content.get("account")?.as_str()?.trim().to_lowercase();
//!     let password = content.get("password")?.as_str()?.to_owned();
//!     Some(Login { account, password })
//! }
//!
//! async fn read_login(request: Request) -> Result<Request, StatusCode> {
//!     let (mut parts, body) = request.into_parts();
//!     let content = tokio::time::timeout(Duration::from_secs(10), to_bytes(body, 4_096)).await;
//!     let content = content.map_err(|_| StatusCode::REQUEST_TIMEOUT)?.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
//!     parts.extensions.insert(parse(&content).ok_or(StatusCode::BAD_REQUEST)?);
//!     Ok(Request::from_parts(parts, Body::empty()))
//! }
//!
//! async fn log_in(Extension(login): Extension<Login>) -> StatusCode {
//!     match &*login.password {
//!         "secret" => StatusCode::OK,
//!         _ => StatusCode::UNAUTHORIZED,
//!     }
//! }
//!
//! # run(async {
//! let quarter = Duration::from_secs(15 * 60);
//! let failures = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("failed logins")
//!     .key(key::extension::<Login>().and(key::client_ip()))
//!     .named_key("address", key::client_ip())
//!     .named_key("site", key::client_ip().ipv6_prefix(48))
//!     .named_key("account", key::extension::<Login>())
//!     .policy(QuotaPolicy::new("guesses", 5, quarter).with_lockout(quarter))
//!     .policy(QuotaPolicy::per_hour("address", 20).keyed_by("address"))
//!     .policy(QuotaPolicy::per_hour("site", 320).keyed_by("site"))
//!     .policy(QuotaPolicy::per_hour("account", 200).keyed_by("account").hidden())
//!     .on_missing_key(MissingKey::Reject)
//!     .actual_cost(|response| response.status.is_success().then_some(0))
//!     .failure_mode(FailureMode::Closed)
//!     .build()?;
//! // In production, put a limit on all requests by address outside these layers.
//! let layers = ServiceBuilder::new().layer(middleware::map_request(read_login)).layer(failures);
//! let app: Router = Router::new().route("/login", post(log_in).layer(layers));
//!
//! # let request = |peer: &str, account, password| {
//! #     let login = serde_json::json!({"account": account, "password": password});
//! #     let mut request = http::Request::post("/login").body(login.to_string()).unwrap();
//! #     request.extensions_mut().insert(PeerAddress(format!("{peer}:50000").parse().unwrap()));
//! #     request
//! # };
//! for _ in 0..5 {
//!     assert_eq!(app.clone().oneshot(request("203.0.113.9", "bob", "wrong")).await?.status(), 401);
//! }
//! let rejected = app.clone().oneshot(request("203.0.113.9", "Bob", "secret")).await?;
//! assert_eq!((rejected.status(), &rejected.headers()["retry-after"]), (StatusCode::TOO_MANY_REQUESTS, &"900".parse()?));
//! assert_eq!(app.oneshot(request("192.0.2.1", "bob", "secret")).await?.status(), 200); // bob, at home
//! # Ok(()) });
//! ```
//!
//! The example `login` is the complete service, with a real server and the outer limit.
//!
//! # Tokens
//!
//! Language models are limited by tokens rather than requests, and the number of tokens is known only after the
//! response. Charge the maximum or typical number of tokens up front and refund the difference:
//!
//! - A policy that [counts tokens](crate::QuotaPolicy::with_unit) is checked in one decision with policies for requests
//!   and concurrent responses. A request for which too few tokens remain is charged to none of them.
//! - The estimate depends on the body. A middleware outside the layer reads the body once, up to a bound, inserts the
//!   estimate into the extensions, and forwards the bytes, so that the handler need not parse them again. The
//!   middleware also reads the bodies of requests that the limits then reject, so put it *inside* authentication, use a
//!   small bound, and set a timeout.
//! - The response stream holds the [`Permit`](crate::Permit) of its request, and reports the amount when the stream
//!   ends. A report in `drop` also covers responses that the client cancels. If only the last message of the model
//!   contains the amount, report the amount when this message arrives: a response that is cancelled earlier is charged
//!   its estimate.
//!
//! If the estimate is too low, the actual amount can overdraw the policy, and later requests are rejected until the
//! debt is repaid. If the estimate is too high, fewer responses run concurrently than the remaining tokens would allow.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! use axum::{
//!     Extension, Router, body::{Body, to_bytes}, extract::Request, middleware::{self, Next}, response::Response, routing::post,
//! };
//! use futures_util::{StreamExt, stream};
//! use tower_quota::{MemoryStore, Permit, QuotaPolicy, RateLimitLayer, WeakPermit, key};
//!
//! #[derive(Clone)]
//! struct Prompt {
//!     tokens: u64,
//!     max_tokens: u64,
//! }
//!
//! /// Reads the body once and passes the bytes on without copying them.
//! async fn read_prompt(request: Request, next: Next) -> Result<Response, StatusCode> {
//!     let (mut head, body) = request.into_parts();
//!     let body = to_bytes(body, 16_384).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
//!     let json: serde_json::Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
//!     let prompt = json["prompt"].as_str().ok_or(StatusCode::BAD_REQUEST)?;
//!     head.extensions.insert(Prompt {
//!         tokens: prompt.len() as u64 / 4,
//!         max_tokens: json["max_tokens"].as_u64().unwrap_or(500),
//!     });
//!     Ok(next.run(Request::from_parts(head, Body::from(body))).await)
//! }
//!
//! /// Reports the usage, even if the response is cancelled.
//! struct Answer {
//!     used: u64,
//!     /// `None` for requests that pass uncounted.
//!     permit: Option<Permit>,
//! }
//!
//! impl Drop for Answer {
//!     fn drop(&mut self) {
//!         if let Some(permit) = &self.permit {
//!             permit.finish("tokens", self.used);
//!         }
//!     }
//! }
//!
//! async fn complete(Extension(prompt): Extension<Prompt>, permit: Option<Extension<WeakPermit>>) -> Body {
//!     let permit = permit.and_then(|Extension(permit)| permit.upgrade());
//!     let answer = Answer { used: prompt.tokens, permit };
//!     let words = stream::iter(["a ", "short ", "answer"]).scan(answer, |answer, word| {
//!         answer.used += 1;
//!         std::future::ready(Some(Ok::<_, Infallible>(word)))
//!     });
//!     Body::from_stream(words)
//! }
//!
//! # run(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new())
//!     .scope("models")
//!     .key(key::header("x-user-id")) // set by a gateway
//!     .policy(QuotaPolicy::per_day("requests", 1_000))
//!     .policy(QuotaPolicy::per_day("tokens", 1_000).with_unit("tokens"))
//!     .policy(QuotaPolicy::concurrent("at once", 2))
//!     .unit_cost("tokens", |request| {
//!         request.extensions.get().map_or(0, |prompt: &Prompt| prompt.tokens + prompt.max_tokens)
//!     })
//!     .build()?;
//! let admin = limits.limiter().clone();
//! let app: Router = Router::new()
//!     .route("/", post(complete))
//!     .layer(limits)
//!     .layer(middleware::from_fn(read_prompt)); // outside the limits
//!
//! let ask = async |max_tokens| {
//!     let body = format!(r#"{{"prompt": "Say a few words, please.", "max_tokens": {max_tokens}}}"#);
//!     app.clone().oneshot(Request::post("/").header("x-user-id", "alice").body(Body::from(body))?).await.map_err(Box::<dyn Error>::from)
//! };
//! let left = async || {
//!     let decision = admin.caller(&PartitionKey::new("x-user-id", "alice")).peek().await?;
//!     let left = decision.iter().flat_map(|decision| decision.allowances()).map(|allowance| allowance.remaining());
//!     Ok::<_, Box<dyn Error>>(left.collect::<Vec<_>>())
//! };
//!
//! let answer = ask(800).await?;
//! assert_eq!(left().await?, [999, 194, 1]);
//! assert_eq!(ask(800).await?.status(), 429);
//! assert_eq!(answer.into_body().collect().await?.to_bytes(), "a short answer");
//! assert_eq!(left().await?, [999, 991, 2]);
//! assert_eq!(ask(800).await?.status(), 200);
//! # Ok(()) });
//! ```
//!
//! With the feature `axum`, a handler can take a [`WeakPermit`](crate::WeakPermit) as an argument, without `Extension`.
//! The example `llm_gateway` is a complete gateway with server-sent events.
//!
//! # What must not be a key
//!
//! The caller that is charged must be the sender of the request. Therefore:
//!
//! - Do not use fields that clients can set as keys: neither unverified user IDs or tokens, nor `X-Forwarded-For`
//!   except from a [trusted proxy](crate::key::ClientIp::trusted_proxies). A client that invents values would get a new
//!   quota for each value, and a client that sends another user's name would exhaust that user's quota.
//!   [`key::header`](crate::key::header) is for fields that your gateway sets and removes from client requests.
//! - A `RateLimit` field or a partition key (`pk`) in a request proves nothing, and the layer does not read it. The
//!   `pk` that responses [can show](crate::QuotaPolicy::show_partition_key) is a digest, which cannot be used to act as
//!   another user. However, others can guess the user behind it, unless you set a [digest
//!   key](crate::LimiterBuilder::digest_key).
//! - An [exemption](crate::Exemption) or an [access list](crate::AccessList) rule by key is only as trustworthy as the
//!   key.
//!
//! # In an app of axum
//!
//! A layer and an [`AccessList`](crate::AccessList) are cheap to clone and can be part of the application state: the
//! router gets the layer from the state, and handlers change the list. `route_layer` applies a layer to the routes
//! added before it, and does not count requests for unknown paths.
//!
//! With the feature `axum`, [`key::matched_path`](crate::key) limits each route separately, a handler can take a
//! [`Decision`](crate::Decision) as an argument, and `respond_with_axum` rejects with any type that axum converts to a
//! response.
//!
//! ```
//! use axum::{Router, extract::{FromRef, Path, State}, http::StatusCode, routing::{get, post}};
//! use tower_quota::{
//!     Access, AccessList, ConfigError, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer, key,
//! };
//! # use tower::ServiceExt;
//!
//! #[derive(Clone)]
//! struct App {
//!     access: AccessList,
//!     searches: RateLimitLayer,
//! }
//!
//! impl FromRef<App> for AccessList {
//!     fn from_ref(app: &App) -> Self {
//!         app.access.clone()
//!     }
//! }
//!
//! /// Only for administrators.
//! async fn block(State(access): State<AccessList>, Path(user): Path<String>) -> StatusCode {
//!     let user = PartitionKey::new("x-user-id", user);
//!     match access.update(|rules| rules.set_key(user, Access::Block)) {
//!         Ok(()) => StatusCode::NO_CONTENT,
//!         Err(_) => StatusCode::INSUFFICIENT_STORAGE, // too many rules
//!     }
//! }
//!
//! fn state() -> Result<App, ConfigError> {
//!     let access = AccessList::new(key::client_ip());
//!     let searches = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("searches")
//!         .key(key::header("x-user-id")) // set by a gateway
//!         .policy(QuotaPolicy::per_minute("minute", 10))
//!         .access_list(access.clone())
//!         .build()?;
//!     Ok(App { access, searches })
//! }
//!
//! fn router(app: App) -> Router {
//!     Router::new()
//!         .route("/search", get(|| async { "found" }))
//!         .route_layer(app.searches.clone())
//!         .route("/admin/block/{user}", post(block))
//!         .with_state(app)
//! }
//!
//! # tokio_test::block_on(async {
//! let app = router(state()?);
//! # let search = || http::Request::get("/search").header("x-user-id", "mallory").body(String::new()).unwrap();
//! assert_eq!(app.clone().oneshot(search()).await?.status(), StatusCode::OK);
//! # let blocking = http::Request::post("/admin/block/mallory").body(String::new())?;
//! assert_eq!(app.clone().oneshot(blocking).await?.status(), StatusCode::NO_CONTENT);
//! assert_eq!(app.oneshot(search()).await?.status(), StatusCode::FORBIDDEN);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Shutdown
//!
//! A response is sent before its refund or the release of its slot has reached Redis. If the process exits before that,
//! callers stay overcharged, and slots stay occupied until their leases expire.
//! [`Limiter::flush`](crate::Limiter::flush) waits for settlements in flight and refunds prefetched units. The order
//! is: switch off readiness, shut down the server gracefully, flush, exit. All steps must complete within the 30
//! seconds that Kubernetes allows by default:
//!
//! | step | at most | why |
//! |---|---|---|
//! | readiness off, but continue to serve | 5 s | load balancers keep sending requests until they notice |
//! | graceful shutdown | 15 s | requests end, and their costs are settled |
//! | flush | 5 s | settlements reach Redis; on timeout, the error contains the number of remaining settlements |
//!
//! ```
//! use std::{future::Future, io, time::Duration};
//! use axum::{Router, extract::State, http::StatusCode, routing::get};
//! use tokio::{net::TcpListener, sync::watch, time::{sleep, timeout}};
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! async fn ready(State(ready): State<watch::Receiver<bool>>) -> StatusCode {
//!     if *ready.borrow() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
//! }
//!
//! /// In a pod, `terminated` is `tokio::signal::unix::signal(SignalKind::terminate())?.recv()`.
//! async fn serve(
//!     listener: TcpListener,
//!     limits: RateLimitLayer,
//!     terminated: impl Future<Output = ()>,
//! ) -> io::Result<()> {
//!     let (ready_sender, is_ready) = watch::channel(true);
//!     let (stop, mut stopped) = watch::channel(());
//!     let app = Router::new()
//!         .route("/", get(|| async { "Hello!" }))
//!         .route_layer(limits.clone())
//!         .route("/ready", get(ready).with_state(is_ready));
//!     let server = axum::serve(listener, app).with_graceful_shutdown(async move {
//!         let _ = stopped.changed().await;
//!     });
//!     let server = tokio::spawn(server.into_future());
//!
//!     terminated.await;
//!     ready_sender.send_replace(false);
//!     sleep(Duration::from_secs(5)).await;
//!     stop.send_replace(());
//!     if timeout(Duration::from_secs(15), server).await.is_err() {
//!         eprintln!("some requests have not ended");
//!     }
//!     if let Err(error) = limits.limiter().flush(Duration::from_secs(5)).await {
//!         eprintln!("{error}");
//!     }
//!     Ok(())
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?.block_on(async {
//! let limits = RateLimitLayer::builder(MemoryStore::new()) // in production, a `RedisStore`
//!     .scope("api")
//!     .key(key::header("x-user-id"))
//!     .policy(QuotaPolicy::per_minute("minute", 60).with_prefetch(10))
//!     .build()?;
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! serve(listener, limits, async { /* the signal */ }).await?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Flush several layers concurrently, so that one timeout covers all of them. A [`Store`](crate::Store) used without a
//! layer also has [`flush`](crate::Store::flush). Requests that are still running when the process exits, such as
//! WebSockets, stay charged, and their slots stay occupied until the leases expire.
