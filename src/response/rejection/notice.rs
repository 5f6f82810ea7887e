use std::time::Duration;

use http::StatusCode;
use smallvec::SmallVec;

use crate::{decision::Allowance, fields::problem_types, partition::PartitionId, policy::QuotaUnit};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProblemType {
    AbnormalUsageDetected,
    /// Problems without a registered type are described by their status.
    Blocked,
    Forbidden,
    QuotaExceeded,
    TemporaryReducedCapacity,
    /// For a blocked client that should not notice the block.
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

    pub(super) fn is_about_policies(self) -> bool {
        matches!(
            self,
            Self::AbnormalUsageDetected | Self::QuotaExceeded | Self::TemporaryReducedCapacity
        )
    }

    /// RFC 9457 requires the same title for each occurrence of a problem type.
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

pub(crate) struct Notice<'a> {
    pub(crate) problem: ProblemType,
    pub(crate) status: StatusCode,
    /// Hidden policies are omitted.
    pub(crate) violated: SmallVec<[Violation<'a>; 4]>,
    /// Also true if the closed policy is hidden.
    pub(crate) is_closed: bool,
    pub(crate) wait: Option<Duration>,
}

#[cfg_attr(
    not(feature = "tonic"),
    allow(
        dead_code,
        reason = "fields other than the name are only used in the details of a gRPC status"
    )
)]
pub(crate) struct Violation<'a> {
    pub(crate) policy: &'a str,
    /// `None` if the application named the policy.
    pub(crate) quota: Option<(u64, QuotaUnit)>,
    pub(crate) subject: Subject<'a>,
    /// The cost of the request exceeds the capacity.
    pub(crate) is_final: bool,
}

/// The holder of the quota, as reported to the client.
#[cfg_attr(
    not(feature = "tonic"),
    allow(dead_code, reason = "only used in the details of a gRPC status")
)]
pub(crate) enum Subject<'a> {
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

    /// For a policy that the application has named.
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
    /// Returns `true` if an identical request is never admitted.
    pub(super) fn is_final(&self) -> bool {
        self.problem == ProblemType::QuotaExceeded && self.wait.is_none()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.violated.iter().map(|violation| violation.policy)
    }
}
