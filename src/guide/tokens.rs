//! Limit the tokens per minute of a language model.
//!
//! The number of tokens is known only after the response. Charge the maximum or typical number up front, and refund the
//! difference. A policy that [counts tokens](crate::QuotaPolicy::with_unit) is checked in one decision with policies
//! for requests and concurrent responses.
//!
//! ```
//! use std::{convert::Infallible, error::Error, future};
//!
//! use axum::{
//!     Extension, Router,
//!     body::{Body, to_bytes},
//!     extract::Request,
//!     http::StatusCode,
//!     middleware,
//!     routing::post,
//! };
//! use futures_util::stream::{self, StreamExt};
//! use serde_json::{Value, json};
//! use tower::ServiceExt;
//! use tower_quota::{MemoryStore, Permit, QuotaPolicy, RateLimitLayer, WeakPermit, key};
//!
//! #[derive(Clone)]
//! struct Prompt {
//!     tokens: u64,
//!     max_tokens: u64,
//! }
//!
//! /// Reads the body once, and passes the bytes on to the handler.
//! async fn read_prompt(request: Request) -> Result<Request, StatusCode> {
//!     let (mut parts, body) = request.into_parts();
//!     let body = to_bytes(body, 16_384).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
//!     let json: Value = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
//!     let prompt = json["prompt"].as_str().ok_or(StatusCode::BAD_REQUEST)?;
//!     parts.extensions.insert(Prompt {
//!         tokens: prompt.len() as u64 / 4,
//!         max_tokens: json["max_tokens"].as_u64().unwrap_or(500),
//!     });
//!     Ok(Request::from_parts(parts, Body::from(body)))
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
//! async fn complete(Extension(prompt): Extension<Prompt>, permit: WeakPermit) -> Body {
//!     let answer = Answer { used: prompt.tokens, permit: permit.upgrade() };
//!     let words = stream::iter(["a ", "short ", "answer"]).scan(answer, |answer, word| {
//!         answer.used += 1;
//!         future::ready(Some(Ok::<_, Infallible>(word)))
//!     });
//!     Body::from_stream(words)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let limits = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("models")
//!         .key(key::header("x-user-id")) // set by a gateway
//!         .policy(QuotaPolicy::per_day("requests", 1_000))
//!         .policy(QuotaPolicy::per_minute("tokens", 1_000).with_unit("tokens"))
//!         .policy(QuotaPolicy::concurrent("at once", 2))
//!         .unit_cost("tokens", |request| {
//!             request.extensions.get().map_or(0, |prompt: &Prompt| prompt.tokens + prompt.max_tokens)
//!         })
//!         .build()?;
//!     let app: Router = Router::new()
//!         .route("/", post(complete))
//!         .layer(limits)
//!         .layer(middleware::map_request(read_prompt)); // outside the limits
//!
//!     let ask = async |max_tokens: u64| {
//!         let body = json!({"prompt": "Say a few words, please.", "max_tokens": max_tokens}).to_string();
//!         let request = Request::post("/").header("x-user-id", "alice").body(Body::from(body))?;
//!         Ok::<_, Box<dyn Error>>(app.clone().oneshot(request).await?)
//!     };
//!     let answer = ask(800).await?; // charges 806 of 1,000 tokens
//!     assert_eq!(ask(800).await?.status(), 429);
//!     assert_eq!(to_bytes(answer.into_body(), 1_000).await?, "a short answer"); // used 9 tokens
//!     assert_eq!(ask(800).await?.status(), 200);
//!     Ok(())
//! }
//! ```
//!
//! - **The middleware** also reads the bodies of requests that the limits then reject, as on the page
//!   [`graphql`](super::graphql).
//! - **The response stream holds the [`Permit`](crate::Permit)**, and reports the amount in `drop`, which also covers
//!   responses that the client cancels. If only the last message of the model contains the amount, report it when this
//!   message arrives: a response that is cancelled earlier is charged its estimate.
//! - **A low estimate** can overdraw the policy. **A high one** admits fewer concurrent responses than the remaining
//!   tokens would allow.
//! - **If another process learns the amount**, such as a proxy, charge it with
//!   [`Caller::charge`](crate::Caller::charge), which never rejects:
//!
//! ```
//! use tower_quota::{LateCharge, LateChargeOutcome, Limiter, MemoryStore, QuotaPolicy};
//!
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
//! # set_up::run(async {
//! let limiter = Limiter::builder(MemoryStore::new())
//!     .scope("streams")
//!     .policy(QuotaPolicy::per_day("tokens", 1_000).with_unit("tokens"))
//!     .build()?;
//! let alice = limiter.caller("alice");
//!
//! let mut streams = 0;
//! // Before a stream: admitted while a token remains, which is charged.
//! while alice.clone().units("tokens", 1).check().await.outcome().is_admitted() {
//!     // After it, with the other tokens that were used. The ID detects a repeated report.
//!     let usage = LateCharge::new(0).with_units("tokens", 399).with_id(format!("stream {streams}"));
//!     assert_eq!(alice.charge(&usage).await?, LateChargeOutcome::Charged);
//!     streams += 1;
//! }
//! // The third stream has overdrawn the policy: 1,200 of 1,000 tokens are used.
//! assert_eq!(streams, 3);
//! # Ok(()) });
//! ```
//!
//! The example `llm_gateway` is a complete gateway with server-sent events.
