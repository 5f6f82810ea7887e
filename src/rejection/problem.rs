//! Problem types of draft-ietf-httpapi-ratelimit-headers-11, as problem details of RFC 9457.

use serde_json::json;

use super::Notice;
use crate::fields::problem_types;

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
    #[cfg_attr(
        not(feature = "privacy-pass"),
        allow(dead_code, reason = "origins of anonymous tokens ask for them")
    )]
    Unauthorized,
}

impl ProblemType {
    fn uri(self) -> &'static str {
        match self {
            Self::AbnormalUsageDetected => problem_types::ABNORMAL_USAGE_DETECTED,
            Self::Blocked | Self::Forbidden | Self::TooManyRequests | Self::Unauthorized => "about:blank",
            Self::QuotaExceeded => problem_types::QUOTA_EXCEEDED,
            Self::TemporaryReducedCapacity => problem_types::TEMPORARY_REDUCED_CAPACITY,
        }
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
            Self::Unauthorized => "Unauthorized",
        }
    }
}

/// The content of a response: why it is a rejection, and by which policies.
pub(super) fn problem(notice: &Notice<'_>) -> String {
    let mut problem = json!({
        "type": notice.problem.uri(),
        "title": notice.problem.title(),
        "status": notice.status.as_u16(),
    });
    match notice.problem {
        ProblemType::Blocked => problem["detail"] = "The client is blocked.".into(),
        ProblemType::Forbidden => problem["detail"] = "The request cannot be attributed to a caller.".into(),
        ProblemType::TooManyRequests => {}
        ProblemType::Unauthorized => problem["detail"] = "A valid token is needed.".into(),
        ProblemType::AbnormalUsageDetected | ProblemType::QuotaExceeded | ProblemType::TemporaryReducedCapacity => {
            problem["violated-policies"] = notice.names().collect();
            if notice.is_final() {
                problem["detail"] = "The request costs more than the quota ever lets pass.".into();
            }
        }
    }
    problem.to_string()
}
