//! The values of labels.

use std::time::Duration;

use crate::decision::{Decision, Outcome};

/// A counter with no label but the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerCount {
    NeverFits,
    Unattributed,
    UncountedContent,
    UnknownTier,
}

/// The fate of a batch of prefetched units whose call missed the deadline, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateBatch {
    /// It arrived, and may be spent.
    Kept,
    /// It arrived too late, and went back.
    Returned,
    /// There was no answer. Its units may be charged, and no instance can use them then.
    Unknown,
}

/// The reason why a request goes on although the tier of its user is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// The look-up has failed, or one has a moment ago.
    Failed,
    /// There are too many look-ups, or too many requests that wait for them.
    Full,
    /// The look-up goes on, and the request waits no longer.
    Unanswered,
}

/// The policy that rejects a request for the longest time; empty if none does.
pub(super) fn rejecting_policy(decision: &Decision) -> &str {
    if decision.outcome() != Outcome::Rejected {
        return "";
    }
    let violated = decision.violated();
    let longest = violated.max_by_key(|allowance| allowance.retry_after().unwrap_or(Duration::MAX));
    longest.map_or("", |allowance| allowance.policy().name())
}

pub(super) fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Abnormal => "abnormal",
        Outcome::Allowed => "allowed",
        Outcome::Blocked => "blocked",
        Outcome::FailedOpen => "failed_open",
        Outcome::FailedClosed => "failed_closed",
        Outcome::Overloaded => "overloaded",
        Outcome::Rejected => "rejected",
        Outcome::MissingKey => "unattributed",
        Outcome::Unlimited => "unlimited",
    }
}
