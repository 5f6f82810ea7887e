//! A rejection as its client learns of it.

use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;

use crate::{decision::Allowance, fields::problem_types, partition::PartitionId, policy::QuotaUnit};

/// The reason of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProblemType {
    AbnormalUsageDetected,
    /// For problems without a type of their own, the status says everything.
    Blocked,
    Forbidden,
    QuotaExceeded,
    TemporaryReducedCapacity,
    /// The client is blocked and not told so.
    TooManyRequests,
}

impl ProblemType {
    pub(super) fn uri(self) -> &'static str {
        match self {
            Self::AbnormalUsageDetected => problem_types::ABNORMAL_USAGE_DETECTED,
            Self::Blocked | Self::Forbidden | Self::TooManyRequests => "about:blank",
            Self::QuotaExceeded => problem_types::QUOTA_EXCEEDED,
            Self::TemporaryReducedCapacity => problem_types::TEMPORARY_REDUCED_CAPACITY,
        }
    }

    /// Returns `true` if the client is told which policies reject.
    pub(super) fn is_about_policies(self) -> bool {
        matches!(
            self,
            Self::AbnormalUsageDetected | Self::QuotaExceeded | Self::TemporaryReducedCapacity
        )
    }

    /// The same for every occurrence of the type.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::AbnormalUsageDetected => "Request not satisfied due to detection of abnormal request pattern",
            Self::Blocked | Self::Forbidden => "Forbidden",
            Self::QuotaExceeded => "Request cannot be satisfied as assigned quota has been exceeded",
            Self::TemporaryReducedCapacity => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
            Self::TooManyRequests => "Too Many Requests",
        }
    }
}

/// A rejection as the client is told of it, whichever layer rejects.
pub(crate) struct Notice<'a> {
    pub(crate) problem: ProblemType,
    /// The status in HTTP.
    pub(crate) status: StatusCode,
    /// The policies that reject, of those that clients may know.
    pub(crate) violated: SmallVec<[Violation<'a>; 4]>,
    /// True if a policy is closed, be it one that clients may know or not.
    pub(crate) is_closed: bool,
    pub(crate) wait: Option<Duration>,
}

/// A policy that rejects a request.
#[cfg_attr(
    not(feature = "tonic"),
    allow(dead_code, reason = "only the details of a gRPC status say more than the name")
)]
pub(crate) struct Violation<'a> {
    pub(crate) policy: &'a str,
    /// The quota in its unit, if the violation is about one.
    pub(crate) quota: Option<(u64, QuotaUnit)>,
    pub(crate) subject: Subject<'a>,
    /// True if the request costs more than the policy ever lets pass.
    pub(crate) is_final: bool,
}

/// The holder of a quota, as far as clients may know.
#[cfg_attr(
    not(feature = "tonic"),
    allow(dead_code, reason = "only the details of a gRPC status say it")
)]
pub(crate) enum Subject<'a> {
    /// A partition whose key is shown.
    Partition(PartitionId),
    Scope(&'a str),
}

impl<'a> Violation<'a> {
    pub(super) fn of(allowance: &Allowance<'a>, scope: &'a str, shows_keys: bool) -> Self {
        let policy = allowance.policy();
        Self {
            policy: policy.name(),
            quota: Some((policy.quota(), policy.unit())),
            subject: match shows_keys && policy.shows_partition_key {
                true => Subject::Partition(allowance.partition()),
                false => Subject::Scope(scope),
            },
            is_final: allowance.retry_after().is_none(),
        }
    }

    /// The application says so.
    pub(super) fn named(policy: &'a str, scope: &'a str) -> Self {
        Self {
            policy,
            quota: None,
            subject: Subject::Scope(scope),
            is_final: false,
        }
    }
}

impl Notice<'_> {
    /// Returns `true` if the same request never passes, however long its client waits.
    pub(super) fn is_final(&self) -> bool {
        self.problem == ProblemType::QuotaExceeded && self.wait.is_none()
    }

    /// The names of the policies that reject.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.violated.iter().map(|violation| violation.policy)
    }
}
