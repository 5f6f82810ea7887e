//! Recipes: where the layer stands, and whom it charges. Documentation only; every example is compiled and run.
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
//! The outer layer sees a request first. In `.layer(a).layer(b)` on a router of axum, that is `b`; in
//! `ServiceBuilder::new().layer(a).layer(b)`, it is `a`.
//!
//! # Before authentication, by address
//!
//! Put the layer *outside* of authentication to protect authentication itself: passwords are slow to check, and
//! tokens cost a look-up. All that is known of a caller is the address. Whatever name a request claims, it uses the quota
//! of the address it comes from. Make the quota larger than that of a user, since [many users may share an
//! address](#inner-rejections-stay-charged).
//!
//! Behind a proxy, name it as [trusted](crate::key::ClientIp::trusted_proxies), or all clients share one quota;
//! [`docs::proxies`](crate::docs::proxies) has the lines.
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
//!     ("203.0.113.9", "carol", 429), // authentication is not asked any more
//!     ("192.0.2.1", "alice", 401),   // and no other client is affected
//! ] {
//!     assert_eq!(app.clone().oneshot(request(address, claimed)).await?.status(), status);
//! }
//! # Ok(()) });
//! ```
//!
//! # After authentication, by user
//!
//! Put the layer *inside* of authentication to give each user a quota, wherever they come from. Authentication leaves
//! a value of a type of your own in the request's extensions, once it has verified who is there, and
//! [`key::extension`](crate::key::extension) takes it from there. A request that fails authentication never reaches the
//! layer, and so charges no user, least of all the one that it names.
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
//! /// The user whose password the request has.
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
//! // An attacker claims to be bob. Bob has as much left as before.
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
//! Most services want both: a generous limit by address around authentication, and the users' own limits inside of it.
//! Give the layers different scopes, and policies of different names: the client is told about both.
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
//! A request that the inner layer rejects stays charged in the outer one. Otherwise, a user beyond the inner limit would
//! never exhaust the outer one, and authentication would run for each of their requests. The outer layer releases the
//! slot, counts the bytes that were transferred, and refunds [custom units](crate::QuotaPolicy::with_unit) that were
//! estimated and never reported. Therefore:
//!
//! - **Size the address limit for shared addresses.** Users behind one address share it, and their rejected requests count.
//!   A limit of ten users' quotas, as above, is exhausted by ten busy users, or by one that ignores 429.
//! - **Or put both keys into one layer**, inside authentication, as below. Both limits are then one decision, and a
//!   rejected user charges no address. Authentication itself is not limited.
//! - **Do not let a proxy retry 429.** Each try is a request of its own, and charges one unit of the outer limit.
//! - **Keep CORS and health checks outside** of both layers. A rejection without CORS headers is unreadable to scripts, and
//!   an instance whose health checks are rejected is restarted. If they cannot be outside, use
//!   [`skip_cors_preflight`](crate::RateLimitLayerBuilder::skip_cors_preflight) and
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
//! // Bob's rejected requests have charged nothing to the address that alice shares.
//! let response = app.oneshot(request("alice")).await?;
//! assert!(response.headers()["ratelimit"].to_str()?.contains(r#""address";r=7;"#));
//! # Ok(()) });
//! ```
//!
//! # Plans that only a database knows
//!
//! Authentication tells who calls; what they pay for is in a database. A [`TierLayer`](crate::tier::TierLayer) between
//! authentication and the limits looks it up once, and keeps the answer for a minute. Requests of a new user wait for the
//! look-up, for 1 s at most: this user begins with ten requests at once, and none of them is counted as one of a free user.
//! If the database does not answer, they are counted in the tier for [unknown](crate::tier::OnUnknownTier) users, and never
//! uncounted: else a client that invents users would pass every limit while the database is slow.
//!
//! ```
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
//! # run(async {
//! use axum::{Router, extract::Request, middleware, routing::get};
//! use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Tiers, key, tier::{TierLayer, OnUnknownTier}};
//!
//! async fn plan_of(user: String) -> Result<Option<&'static str>, std::io::Error> {
//!     tokio::time::sleep(Duration::from_millis(200)).await; // a database that is busy
//!     Ok((user == "bob").then_some("pro"))
//! }
//!
//! # async fn authenticate(mut request: Request) -> Request {
//! #     request.extensions_mut().insert("bob".to_owned());
//! #     request
//! # }
//! # type User = String;
//! let plans = TierLayer::by_extension(plan_of)
//!     .on_unknown_tier(OnUnknownTier::wait(Duration::from_secs(1)).then_tier("free")) // the default, in words
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
//! A limit on logins should not punish those who log in often, only those who guess. Charge each attempt before the
//! password is checked, and refund it if the login succeeds: a hundred concurrent guesses cannot exceed the limit then, as
//! they would if they were counted afterwards. Where an uncounted guess is worse than a failed login, let the layer
//! [fail closed](crate::FailureMode::Closed).
//!
//! Refund on success only, not "unless the status is 401": that would also refund attempts that an inner layer rejects, and
//! the client could continue without end. Errors of the service then count as attempts, too. For those, or if the status
//! does not show success (a redirect, or a gRPC response, whose status is always 200), let the handler add
//! [`ActualCost(0)`](crate::ActualCost) to the responses that cost nothing.
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
//!     ("secret", 429), // right, but rejected before it is checked
//! ] {
//!     assert_eq!(app.clone().oneshot(request(password)).await?.status(), status);
//! }
//! # Ok(()) });
//! ```
//!
//! # Guesses that lock no user out
//!
//! The name in a login is only a claim. If failed logins were counted by that name alone, any client could lock out bob: a
//! few wrong passwords, and bob himself is rejected. Count them by the address *and* the claimed name together: an
//! attacker uses up what their own address may try on this name, and no other user's quota.
//!
//! [`with_lockout`](crate::QuotaPolicy::with_lockout) keeps an attacker out for longer than the window: after the third
//! wrong password below, that address cannot try this name for 15 minutes. It makes the rule above harder: a lockout by the
//! name alone would let any client lock out any user for 15 minutes at a time. A right password that was charged before it
//! was looked at lifts the lockout that its own charge has begun.
//!
//! The price is that guesses from many addresses at one name are not counted together. Limit these by other means than
//! rejecting the owner: a second factor, or an [`AccessList`](crate::AccessList) that blocks the addresses. Have a limit by
//! address alone as well, for one password that is tried on many names. The [next program](#logins-with-the-account-in-a-json-body)
//! has all three limits.
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
//!     ("203.0.113.9", "secret", 204), // counts for nothing, although it was charged at first
//!     ("203.0.113.9", "wrong", 401),
//!     ("203.0.113.9", "secret", 429), // blocked
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
//! Keys are made of a request's head, so a small middleware reads the body first, **once**: limits and handler see the same
//! account, whatever tricks the JSON plays, such as an account that is there twice. It reads within bounds of size and
//! time, and behind a limit by address, because the client is not authenticated yet. One spelling of each account goes
//! into the key, or every other one is a quota of its own.
//!
//! | limit | why |
//! |---|---|
//! | 5 failures by account *and* address, then [rejected](crate::QuotaPolicy::with_lockout) for 15 minutes | strict, because it locks out the guesser only: the owner logs in from any other address |
//! | 20 an hour by address | one password that is tried on many accounts. An IPv6 address counts as its /64 |
//! | 320 an hour by site, the /48 of an IPv6 address | a /48 is free and has 65,536 times a /64: without this limit it has 1.3 million guesses an hour, with it those of sixteen addresses. A hundred homes of one provider that share a /48 have three failures an hour each. An IPv4 address is its own site, and has used up its 20 long before |
//! | 200 an hour by account | guesses from many addresses. It is so wide that one address has used up its own 20 long before: else a single attacker could lock the owner out. It is [hidden](crate::QuotaPolicy::hidden), or it would tell everyone that the account is under attack |
//!
//! All four are one decision: a login that one of them rejects charges none of them. A lock by account alone, however
//! long, lets anyone lock anyone out. Where even the wide one is too much, make it a [`shadow`](crate::QuotaPolicy::shadow),
//! let the handler take the [`Decision`](crate::Decision), and ask for a second factor while
//! [`shadow_violated`](crate::Decision::shadow_violated) has the policy.
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
//! // With a limit of all requests by address outside of it.
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
//! The example `login` is the whole service, with a real server and that limit in front.
//!
//! # Tokens
//!
//! A language model is limited by tokens rather than by requests, and how many an answer takes is known when it is over. So
//! charge what it may take at most, or what it takes as a rule, and give back the rest:
//!
//! - A policy that [counts](crate::QuotaPolicy::with_unit) tokens holds in one decision with those of requests, and with a
//!   limit of answers at a time. A request that has too few tokens left uses up none of the others.
//! - The estimate is in the body. A middleware around the layer reads that once, up to a bound, leaves what it has found in the
//!   extensions, and passes the bytes on: the handler need not parse them again. It reads for clients that the limits
//!   may then reject, so put it *inside* of authentication, keep the bound small, and have a timeout around it.
//! - The stream of the answer keeps the [`Permit`](crate::Permit) of its request, and reports the amount when it is over. One
//!   that reports it in its `drop` also does so for clients that stop an answer in the middle. Where only the last message of
//!   the model has the amount, report it there: an answer that is stopped before then costs its estimate.
//!
//! An estimate that is too low overdraws the policy, and later requests wait until that is paid off; one that is too high
//! lets fewer answers be written at a time than the quota has tokens for.
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
//! /// Reads the body once. The bytes are passed on, and not copied.
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
//! /// Reports what was used, also if it is dropped before it is over.
//! struct Answer {
//!     used: u64,
//!     /// `None` for requests that are not counted.
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
//!     .key(key::header("x-user-id")) // which a gateway sets
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
//!     .layer(middleware::from_fn(read_prompt)); // outside of the limits
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
//! With the feature `axum`, the handle is an argument by itself. The example `llm_gateway` is
//! such a gateway, with server-sent events.
//!
//! # What must not be a key
//!
//! The charged caller must be the sender of the request. Therefore:
//!
//! - No field that a client can set is a key by itself: neither an unverified user id or token, nor
//!   `X-Forwarded-For` but from a [trusted proxy](crate::key::ClientIp::trusted_proxies). Two requests with different
//!   inventions would have two quotas, and a request with another user's name uses up that user's quota.
//!   [`key::header`](crate::key::header) is for fields that a gateway of yours sets, and removes where clients have set
//!   them.
//! - A `RateLimit` field or a partition key (`pk`) in a request proves nothing, and the layer does not read it. The `pk`
//!   that responses [can show](crate::QuotaPolicy::show_partition_key) is a digest, of no use to act as another user; but
//!   who is behind it can be guessed, unless there is a [digest key](crate::LimiterBuilder::digest_key).
//! - An [exemption](crate::Exemption) or a rule of an [access list](crate::AccessList) by key is as trustworthy as the
//!   key is.
//!
//! # In an app of axum
//!
//! A layer and an [`AccessList`](crate::AccessList) are cheap to clone and can be kept in the state of an app, where
//! routes find the layer that they want and handlers the list that they change. `route_layer` puts a layer around the
//! routes that are there already, and does not count requests for unknown paths.
//!
//! With the feature `axum`, [`key::matched_path`](crate::key) tells routes apart, a handler takes a
//! [`Decision`](crate::Decision) as an argument, and `respond_with_axum` rejects with whatever axum makes responses of.
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
//!         Err(_) => StatusCode::INSUFFICIENT_STORAGE, // there are too many rules
//!     }
//! }
//!
//! fn state() -> Result<App, ConfigError> {
//!     let access = AccessList::new(key::client_ip());
//!     let searches = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("searches")
//!         .key(key::header("x-user-id")) // which a gateway sets
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
//! A response is sent before its refund or the release of its slot has reached Redis. A process that exits at that moment
//! leaves callers overcharged, and slots taken until their lease ends.
//! [`Limiter::flush`](crate::Limiter::flush) waits for what is under way and returns prefetched units. The order
//! is: readiness off, graceful shutdown of the server, flush, exit. All of it has to end within the 30 seconds that
//! Kubernetes gives a pod by default:
//!
//! | step | at most | why |
//! |---|---|---|
//! | readiness off, and serve on | 5 s | load balancers still send requests until they have seen it |
//! | graceful shutdown | 15 s | requests end, and settle what they have cost |
//! | flush | 5 s | settlements reach Redis; if it does not answer, the error says how many are left |
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
//! /// `terminated` is `tokio::signal::unix::signal(SignalKind::terminate())?.recv()` in a pod.
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
//! Several layers are flushed at the same time, so that the bound holds for all of them. A
//! [`Store`](crate::Store) used without a layer has [`flush`](crate::Store::flush), too. Requests that are still running when
//! the process ends, such as WebSockets, keep what they were charged, and their slots until the lease ends.
