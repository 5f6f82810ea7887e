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
    Kept,
    Returned,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    Failed,
    Full,
    Unanswered,
}

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
