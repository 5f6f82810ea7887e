//! Charge a GraphQL query its cost.
//!
//! All queries use the same path, but one query can cost a thousand times as much as another. Charge an estimate before
//! the query runs, and correct it to the actual cost. A middleware outside the limits reads the body once, up to a
//! bound, and the handler takes the query from the extensions.
//!
//! ```
//! use std::error::Error;
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
//!     let content: Value = serde_json::from_slice(&content).map_err(|_| StatusCode::BAD_REQUEST)?;
//!     let text = content["query"].as_str().ok_or(StatusCode::BAD_REQUEST)?.to_owned();
//!     let cost = estimate(&text);
//!     if cost > MOST {
//!         return Err(StatusCode::UNPROCESSABLE_ENTITY); // always too complex, so a retry would not help
//!     }
//!     parts.extensions.insert(Query { text, cost });
//!     Ok(Request::from_parts(parts, Body::empty()))
//! }
//!
//! async fn run_query(Extension(query): Extension<Query>) -> (Extension<ActualCost>, &'static str) {
//!     let rows = query.text.len() as u64 / 10; // the actual cost
//!     (Extension(ActualCost(rows)), "{}")
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let limits = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("graphql")
//!         .key(key::header("x-user-id")) // set by a gateway
//!         .policy(QuotaPolicy::per_hour("points", MOST))
//!         .cost_by(|request| request.extensions.get::<Query>().map_or(1, |query| query.cost))
//!         .build()?;
//!     let layers = ServiceBuilder::new().layer(middleware::map_request(read_query)).layer(limits);
//!     let app: Router = Router::new().route("/graphql", post(run_query).layer(layers));
//!
//!     let ask = async |query: &str| {
//!         let body = json!({"query": query}).to_string();
//!         let request = Request::post("/graphql").header("x-user-id", "alice").body(Body::from(body))?;
//!         Ok::<_, Box<dyn Error>>(app.clone().oneshot(request).await?)
//!     };
//!     let response = ask("{ user(id: 7) { name orders(first: 5) { total } } }").await?; // 3 points, and then 5
//!     assert!(response.headers()["ratelimit"].to_str()?.starts_with(r#""points";r=95;"#));
//!     assert_eq!(ask(&"{".repeat(101)).await?.status(), 422);
//!     Ok(())
//! }
//! ```
//!
//! - **A query whose cost exceeds the capacity of the policy** would always be rejected with 429, without
//!   `Retry-After`. Return an error that explains the reason instead, as above.
//! - **The middleware also reads the bodies of requests that the limits then reject.** Put it inside authentication,
//!   use a small bound, and add a timeout as on the page [`login`](super::login).
//! - **If the response shows the actual cost**, use [`actual_cost`](crate::RateLimitLayerBuilder::actual_cost) instead
//!   of the handler.
//! - **An actual cost above the estimate** can [overdraw](crate::Settlement#late-charges) the policy. To limit requests
//!   and points separately, use a [custom unit](super::tokens).
