//! One set of rules for all instances of a service, with its version: in Redis, in a file, or elsewhere. Needs the features
//! `redis` and `serde`.
//!
//! The kill switch and the access list also have keys of their own in Redis, which a [`Control`] changes: they apply to all
//! instances whether or not rules are published.
//!
//! A [`RulesDocument`] says by which [`Rules`](crate::Rules) all instances limit, on which part of the callers new ones are
//! tried, whether limits are on at all, and whom all instances block. Its [`RulesVersion`] is a number and a digest.
//!
//! You do not want it where the rules are part of the program, or where one process is all there is: see
//! [`RulesHandle`](crate::RulesHandle).

mod controls;
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

pub use self::{
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
