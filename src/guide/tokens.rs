//! Limit the tokens per minute of a language model.
//!
//! Language models are limited by tokens rather than requests, and the number of tokens is known only after the
//! response. Charge the maximum or typical number of tokens up front, and refund the difference. A policy that [counts
//! tokens](crate::QuotaPolicy::with_unit) is checked in one decision with policies for requests and concurrent
//! responses: a request for which too few tokens remain is charged to none of them.
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
//! - **Outside the limits, inside authentication**: the middleware also reads the bodies of requests that the limits
//!   then reject. Use a small bound, and add a timeout as on the page [`login`](super::login).
//! - **The response stream holds the [`Permit`](crate::Permit)**, and reports the amount when the stream ends. A report
//!   in `drop` also covers responses that the client cancels. If only the last message of the model contains the
//!   amount, report it when this message arrives: a response that is cancelled earlier is charged its estimate.
//! - **If the estimate is too low**, the actual amount can overdraw the policy, and later requests are rejected until
//!   the debt is repaid. **If it is too high**, fewer responses run concurrently than the remaining tokens would allow.
//!
//! The example `llm_gateway` is a complete gateway with server-sent events.
