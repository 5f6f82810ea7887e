//! A page per task: what to write, what to avoid, and what a client sees.
//!
//! **Layer order.** The outer layer processes a request first. In `.layer(a).layer(b)` on an axum router, the outer
//! layer is `b`; in `ServiceBuilder::new().layer(a).layer(b)`, it is `a`.
//!
//! Each page has one program: most are complete, and the others are the statements of an `async` function that returns
//! `Result<(), Box<dyn std::error::Error>>`. They use these packages; `graphql`, `login` and `tokens` also use
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
//! Most programs count in memory and send requests without a socket; the page [`redis`] shares limits between
//! instances.

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
