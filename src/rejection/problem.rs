//! Problem types of draft-ietf-httpapi-ratelimit-headers-11, as problem details of RFC 9457.

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::Rejection;

/// Why a request is rejected.
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
            Self::AbnormalUsageDetected => "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
            Self::Blocked | Self::Forbidden | Self::TooManyRequests | Self::Unauthorized => "about:blank",
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::TemporaryReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
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

pub(super) fn body(rejection: &Rejection<'_>) -> Bytes {
    problem(rejection.problem_type(), rejection.status(), rejection.violated_names())
}

/// The content of a response: why it is a rejection, and by which policies.
pub(crate) fn problem<'a>(
    problem_type: ProblemType,
    status: StatusCode,
    violated: impl IntoIterator<Item = &'a str>,
) -> Bytes {
    let mut problem = json!({
        "type": problem_type.uri(),
        "title": problem_type.title(),
        "status": status.as_u16(),
    });
    match problem_type {
        ProblemType::Blocked => problem["detail"] = "The client is blocked.".into(),
        ProblemType::Forbidden => problem["detail"] = "The request cannot be attributed to a caller.".into(),
        ProblemType::TooManyRequests => {}
        ProblemType::Unauthorized => problem["detail"] = "A valid token is needed.".into(),
        ProblemType::AbnormalUsageDetected | ProblemType::QuotaExceeded | ProblemType::TemporaryReducedCapacity => {
            problem["violated-policies"] = violated.into_iter().collect::<Value>();
        }
    }
    problem.to_string().into()
}
