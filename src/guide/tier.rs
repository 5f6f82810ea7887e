//! Apply plans that a database knows.
//!
//! A [`TierLayer`](crate::tier::TierLayer) between authentication and the limits looks up the user's plan once and
//! caches it for a minute. In the program, the first ten requests of a user wait for the lookup, and none of them is
//! counted in the free tier.
//!
//! ```
//! use std::{error::Error, io, time::Duration};
//!
//! use axum::{Router, body::Body, extract::Request, middleware, routing::get};
//! use futures_util::future::try_join_all;
//! use tower::ServiceExt;
//! use tower_quota::{
//!     MemoryStore, MissingKey, QuotaPolicy, RateLimitLayer, Tiers, key,
//!     tier::{OnUnknownTier, TierLayer},
//! };
//!
//! async fn plan_of(user: String) -> Result<Option<&'static str>, io::Error> {
//!     tokio::time::sleep(Duration::from_millis(200)).await; // a busy database
//!     Ok((user == "bob").then_some("pro"))
//! }
//!
//! /// Replaces your authentication, which inserts the user.
//! async fn authenticate(mut request: Request) -> Request {
//!     request.extensions_mut().insert("bob".to_owned());
//!     request
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let plans = TierLayer::by_extension(plan_of)
//!         .on_unknown_tier(OnUnknownTier::wait(Duration::from_secs(1)).then_tier("free"))
//!         .build()?;
//!     let limits = RateLimitLayer::builder(MemoryStore::new())
//!         .scope("api")
//!         .key(key::extension::<String>())
//!         .on_missing_key(MissingKey::Reject)
//!         .tiers(
//!             Tiers::resolved()
//!                 .tier("free", [QuotaPolicy::per_minute("minute", 2)])
//!                 .tier("pro", [QuotaPolicy::per_minute("minute", 20)]),
//!         )
//!         .build()?;
//!     let app: Router = Router::new()
//!         .route("/", get(|| async { "hello" }))
//!         .layer(limits) // innermost
//!         .layer(plans)
//!         .layer(middleware::map_request(authenticate)); // outermost
//!
//!     let requests = (0..10).map(|_| app.clone().oneshot(Request::new(Body::empty())));
//!     for response in try_join_all(requests).await? {
//!         assert_eq!(response.status(), 200);
//!         assert_eq!(response.headers()["ratelimit-policy"], r#""minute";q=20;w=60"#);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! - If the lookup fails or takes longer, the request is counted in the tier for [unknown](crate::tier::OnUnknownTier)
//!   users: by default the first one.
//! - If requests carry the plan, for example in a verified token, use [`Tiers::from_fn`](crate::Tiers::from_fn) without
//!   a lookup.
//! - [`CallerQuotas`](crate::CallerQuotas) from the same lookup give single customers individual quotas.
//!
//! [While the source of tiers is slow](crate::docs::tuning#while-the-source-of-tiers-is-slow) describes the load on the
//! database and what to monitor. The example `tiers` has tiers without a database.
