//! Versioned rate limit rules that all instances of a service share, in Redis, a file, or elsewhere.
//!
//! A [`RulesFollower`] applies the [`RulesDocument`] of a [`RulesSource`] to a layer or a
//! [`Limiter`](tower_quota::Limiter). A [`RulesPublisher`] changes the document in Redis.
//!
//! ```no_run
//! use tower_quota::{Limiter, QuotaPolicy, RedisStore};
//! use tower_quota_fleet::{RedisRules, RulesFollower};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = RedisStore::builder("redis://127.0.0.1/");
//! let limiter = Limiter::builder(redis.clone().build()?)
//!     .scope("api")
//!     .policy(QuotaPolicy::per_minute("minute", 60)) // until the first version is read
//!     .build()?;
//! let follower = RulesFollower::builder(limiter.rules(), RedisRules::new(redis, "api")?).start()?;
//!
//! let decision = limiter.check("alice").await;
//! println!("version {:?}: {:?}", follower.status().version(), decision.outcome());
//! # Ok(())
//! # }
//! ```
//!
//! A kill switch and an access list also apply to all instances. In Redis, a [`Control`] changes them; in a file, they
//! are part of the document. [`Contracts`] stores individual quotas of callers.
//!
//! In a single process, use [`RulesHandle`](tower_quota::RulesHandle) instead.
//!
//! The [`guide`] covers the document format, Redis ACL users, metrics and incident response.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod blocking;
mod contracts;
mod controls;
mod date;
mod document;
mod error;
mod file_rules;
mod follower;
mod pause;
mod publisher;
mod redis_rules;
mod report;
mod source;
mod sync;
mod telemetry;
mod version;

#[doc = include_str!("../docs/fleet.md")]
pub mod guide {}

pub use self::{
    contracts::{Contract, Contracts, TopUp},
    controls::{Change, Control, Controls, SwitchOrder},
    document::{AccessEntry, Rollout, RulesDocument},
    error::{FleetError, FleetErrorKind},
    file_rules::FileRules,
    follower::{FollowerStatus, Lost, RulesFollower, RulesFollowerBuilder},
    publisher::{Proposal, Publication, Published, RulesPublisher},
    redis_rules::RedisRules,
    report::InstanceReport,
    source::{RulesSource, SourceFuture, SourceState},
    version::RulesVersion,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
