//! One set of rate limit rules for all instances of a service, with its version: in Redis, in a file, or elsewhere.
//! [`guide`] has the document, the ACL users of Redis, metrics and alerts, and what to do in an incident.
//!
//! The kill switch and the access list also have keys of their own in Redis, which a [`Control`] changes: they apply to all
//! instances whether or not rules are published.
//!
//! A [`RulesDocument`] says by which [`Rules`](tower_quota::Rules) all instances limit, on which part of the callers new ones are
//! tried, whether limits are on at all, and whom all instances block. Its [`RulesVersion`] is a number and a digest.
//!
//! [`Contracts`] has the individual quotas of callers.
//!
//! You do not want it where the rules are part of the program, or where one process is all there is: see
//! [`RulesHandle`](tower_quota::RulesHandle).
#![cfg_attr(docsrs, feature(doc_cfg))]

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

/// The programs of the README have to compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
