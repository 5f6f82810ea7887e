//! A page per task: what to write, what to avoid, and what a client sees.
//!
//! | page | task |
//! |---|---|
//! | [`route`] | limit a route, or a method of a route |
//! | [`user`] | limit by authenticated user |
//! | [`address`] | limit by address before authentication, and by user after it |
//! | [`keys`] | apply several limits in one decision, and choose what must not be a key |
//! | [`redis`] | share limits through Redis, and plan for its outages |
//! | [`proxy`] | limit clients behind a proxy |
//! | [`failure`] | count only failed attempts |
//! | [`login`] | stop password guessing without locking out users |
//! | [`tier`] | apply plans that a database knows |
//! | [`tokens`] | limit the tokens per minute of a language model |
//! | [`graphql`] | charge a GraphQL query its cost |
//! | [`upload`] | limit bytes and concurrent uploads |
//! | [`websocket`] | limit WebSocket messages |
//! | [`job`] | limit background jobs |
//! | [`rejection`] | customize rejections, and exempt requests |
//! | [`access`] | block a caller at run time |
//! | [`testing`] | test your limits |
//! | [`operation`] | start, monitor and stop a service with limits |
//!
//! **Layer order.** The outer layer processes a request first. In `.layer(a).layer(b)` on an axum router, the outer
//! layer is `b`; in `ServiceBuilder::new().layer(a).layer(b)`, it is `a`.
//!
//! Each page has one program: most are complete, and the others are the statements of an `async` function that returns
//! `Result<(), Box<dyn std::error::Error>>`. The programs use these packages. `graphql`, `login` and `tokens` also use
//! `serde_json = "1"`, and `tier`, `tokens` and `websocket` use `futures-util = "0.3"`:
//!
//! ```toml
//! [dependencies]
//! axum = "0.8"
//! tokio = { version = "1", features = ["full"] }
//! tower = { version = "0.5", features = ["util"] }
//! tower-quota = { version = "0.1", features = ["axum"] }
//! ```
//!
//! Most programs count in memory and send requests without a socket. To share the limits between instances, replace
//! [`MemoryStore`](crate::MemoryStore) as on the page [`redis`].

pub mod access;
pub mod address;
pub mod failure;
pub mod graphql;
pub mod job;
pub mod keys;
pub mod login;
pub mod operation;
pub mod proxy;
pub mod redis;
pub mod rejection;
pub mod route;
pub mod testing;
pub mod tier;
pub mod tokens;
pub mod upload;
pub mod user;
pub mod websocket;
