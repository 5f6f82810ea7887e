//! Limit background jobs.
//!
//! A [`Limiter`](crate::Limiter) limits more than requests: the mails of a tenant, calls to a partner, the rows of an
//! export. [`Caller::wait`](crate::Caller::wait) waits until the whole cost is admitted, and the
//! [`Permit`](crate::Permit) corrects the charge afterwards.
//!
//! ```
//! use std::time::Duration;
//!
//! use tokio::time::Instant;
//! use tower_quota::{FailureMode, Limiter, MemoryStore, QuotaPolicy};
//!
//! /// Returns the number of mails that were sent.
//! async fn send_mails(recipients: u64) -> u64 {
//!     recipients.min(8) // the other addresses are invalid
//! }
//!
//! # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
//! # set_up::run(async {
//! let store = MemoryStore::new();
//! # let store = MemoryStore::builder().clock(tower_quota::clock::Clock::tokio()).build()?;
//! let limiter = Limiter::builder(store)
//!     .scope("mails")
//!     .policy(QuotaPolicy::per_second("second", 10))
//!     .policy(QuotaPolicy::per_day("day", 1_000))
//!     .failure_mode(FailureMode::Closed)
//! #   .clock(tower_quota::clock::Clock::tokio())
//!     .build()?;
//! let tenant = limiter.caller("acme");
//!
//! let start = Instant::now();
//! for recipients in [10, 10] {
//!     let job = tenant.clone().cost(recipients).wait(Duration::from_secs(3_600)).await;
//!     let permit = job.map_err(|rejected| format!("{recipients} mails: {:?}", rejected.outcome()))?;
//!     permit.settle(send_mails(recipients).await);
//! }
//! // The second job waited until 10 units were available: 2 were refunded, and one is restored every 100 ms.
//! assert!(start.elapsed() >= Duration::from_millis(800));
//! # assert!(start.elapsed() < Duration::from_millis(900));
//!
//! // A cost above the capacity of a policy is rejected immediately.
//! assert!(tenant.cost(5_000).wait(Duration::MAX).await.is_err());
//! # Ok(()) });
//! ```
//!
//! - **If the store makes no decision**, work is admitted uncounted by default. If uncounted mails could violate a
//!   contract, use [`FailureMode::Closed`](crate::FailureMode::Closed), as above, and retry the rejected jobs later.
//! - **To refuse work instead of waiting**, use [`check`](crate::Caller::check), or [`hold`](crate::Caller::hold) for
//!   concurrency limits. [`partial`](crate::Caller::partial) admits as much of a batch as the quota allows.
//! - **Another process can refund a job** that fails later with a [`Refund`](crate::Refund), once per ID.
//! - **If requests and jobs use the same quota**, use the layer's [limiter](crate::RateLimitLayer::limiter), and create
//!   the key as the layer does: a key of [another kind](crate::docs::mistakes#key-of-another-kind) is a different
//!   caller.
//! - **Before the process exits**, [flush](crate::Limiter::flush) the limiter.
//!
//! The example `jobs` has a queue and refunds.
