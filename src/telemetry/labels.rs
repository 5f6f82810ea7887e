use std::time::Duration;

use crate::decision::{Decision, Outcome};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerCount {
    NeverFits,
    Unattributed,
    UncountedContent,
    UnknownTier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateBatch {
    /// The batch arrived and can be spent.
    Kept,
    /// The batch arrived too late and was refunded.
    Returned,
    /// No reply arrived. If the units were charged, they are lost.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// This lookup or a recent one failed.
    Failed,
    /// Too many lookups are in progress, or too many requests wait for them.
    Full,
    /// The lookup is still in progress, but the request no longer waits for it.
    Unanswered,
}

/// Returns the rejecting policy with the longest wait, or an empty string.
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
