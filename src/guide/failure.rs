//! Count only failed attempts.
//!
//! Stop the guessing of gift codes, one-time passwords or passwords without restricting users who succeed. Charge each
//! attempt before it is checked, and refund it if it succeeds: if attempts were counted afterwards, concurrent guesses
//! could exceed the limit.
//!
//! ```
//! use std::{error::Error, time::Duration};
//!
//! use axum::{Router, body::Body, http::{Request, StatusCode}, routing::post};
//! use tower::ServiceExt;
//! use tower_quota::{FailureMode, MemoryStore, QuotaPolicy, RateLimitLayer, key};
//!
//! async fn redeem(code: String) -> StatusCode {
//!     if code == "right" { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let failures = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("gift codes")
//!         .key(key::header("x-user-id")) // set by a gateway
//!         .policy(QuotaPolicy::per_minute("failures", 3).with_lockout(Duration::from_secs(15 * 60)))
//!         .actual_cost(|response| response.status.is_success().then_some(0))
//!         .failure_mode(FailureMode::Closed)
//!         .build()?;
//!     let app: Router = Router::new().route("/codes", post(redeem).layer(failures));
//!
//!     let send = async |code: &'static str| {
//!         let request = Request::post("/codes").header("x-user-id", "mallory").body(Body::from(code))?;
//!         Ok::<_, Box<dyn Error>>(app.clone().oneshot(request).await?)
//!     };
//!     for (code, status) in [
//!         ("right", 204),
//!         ("right", 204),
//!         ("right", 204),
//!         ("guess", 404),
//!         ("guess", 404),
//!         ("right", 204), // charged, then refunded
//!         ("guess", 404),
//!         ("right", 429), // locked out, so the code is not checked
//!     ] {
//!         assert_eq!(send(code).await?.status(), status);
//!     }
//!     let seconds: u64 = send("guess").await?.headers()["retry-after"].to_str()?.parse()?;
//!     assert!((880..=900).contains(&seconds), "{seconds}");
//!     Ok(())
//! }
//! ```
//!
//! - **Refund on success only**, not "unless the status is 404": that would also refund attempts that an inner layer
//!   rejects. Requests that fail because of an error of the service therefore count, too.
//! - **Other responses that should not count**, such as errors of the service, redirects or gRPC responses (whose
//!   status is always 200): let the handler add [`ActualCost(0)`](crate::ActualCost) to the response extensions.
//! - **Fail [closed](crate::FailureMode::Closed)**, as above, if an uncounted guess is worse than a failed request.
//! - **A [lockout](crate::QuotaPolicy::with_lockout) lasts longer than the window.** Lock out identified callers, or an
//!   account together with an address as on the page [`login`](super::login), never an account alone. If the charge of
//!   a correct attempt starts a lockout, the refund ends it.
