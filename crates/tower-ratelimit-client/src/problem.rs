//! The problem types of draft-ietf-httpapi-ratelimit-headers-11, read from the content of a response.

use serde_json::Value;

use ratelimit_fields::problem_types;

/// The reason of a server's rejection, from the content of its response.
///
/// You want it when the fields are not enough: to tell a quota that is used up from a server that is short of
/// capacity, or to show which policies were violated. The [`ClientLayer`](super::ClientLayer) reads no content; give
/// this type the content that you have read, of at most 64 KiB.
///
/// Types are told by their full URI, never by titles or the status. Members that are unknown are ignored, and so are
/// members that do not have their type, as if they were absent. Content that is no JSON object, or has another type,
/// is no such problem.
///
/// ```
/// use tower_ratelimit_client::{Problem, ProblemKind};
///
/// let content = br#"{
///     "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
///     "title": "Request cannot be satisfied as assigned quota has been exceeded",
///     "violated-policies": ["daily", "bandwidth"]
/// }"#;
/// let problem = Problem::parse(content).expect("it is one of the three");
/// assert_eq!(problem.kind(), ProblemKind::QuotaExceeded);
/// assert_eq!(problem.violated_policies(), ["daily", "bandwidth"]);
///
/// assert!(Problem::parse(br#"{"title": "Quota Exceeded"}"#).is_none());
/// assert_eq!(Problem::MEDIA_TYPE, "application/problem+json");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    kind: ProblemKind,
    violated_policies: Vec<String>,
}

/// The problem types that the draft registers.
///
/// ```
/// use tower_ratelimit_client::{Problem, ProblemKind};
///
/// let kind = ProblemKind::TemporaryReducedCapacity;
/// let content = format!(r#"{{"type": "{}"}}"#, kind.uri());
/// let problem = Problem::parse(content.as_bytes()).expect("it is one of the three");
/// assert_eq!(problem.kind(), kind);
/// assert!(problem.violated_policies().is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// A quota is used up: `quota-exceeded`.
    QuotaExceeded,
    /// The server is short of capacity for some time: `temporary-reduced-capacity`.
    TemporaryReducedCapacity,
    /// The server takes the requests for abuse: `abnormal-usage-detected`.
    AbnormalUsageDetected,
}

impl Problem {
    const MAX_LENGTH: usize = 64 * 1024;

    /// The media type of the content, `application/problem+json`.
    pub const MEDIA_TYPE: &str = "application/problem+json";

    /// Reads the content of a response; `None` if it is none of the three problems, or longer than 64 KiB.
    pub fn parse(content: &[u8]) -> Option<Self> {
        if content.len() > Self::MAX_LENGTH {
            return None;
        }
        let mut content: Value = serde_json::from_slice(content).ok()?;
        let members = content.as_object_mut()?;
        let kind = ProblemKind::from_uri(members.get("type")?.as_str()?)?;
        let names = members.remove("violated-policies");
        Some(Self {
            kind,
            // With anything else in the array, the member does not have its type.
            violated_policies: names
                .and_then(|names| serde_json::from_value(names).ok())
                .unwrap_or_default(),
        })
    }

    /// The type of the problem.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The names of the policies that were violated, as `RateLimit` and `RateLimit-Policy` have them. Empty if the
    /// server names none.
    pub fn violated_policies(&self) -> &[String] {
        &self.violated_policies
    }
}

impl ProblemKind {
    const ALL: [Self; 3] = [
        Self::QuotaExceeded,
        Self::TemporaryReducedCapacity,
        Self::AbnormalUsageDetected,
    ];

    /// The URI that the draft gives the type.
    pub fn uri(self) -> &'static str {
        match self {
            Self::QuotaExceeded => problem_types::QUOTA_EXCEEDED,
            Self::TemporaryReducedCapacity => problem_types::TEMPORARY_REDUCED_CAPACITY,
            Self::AbnormalUsageDetected => problem_types::ABNORMAL_USAGE_DETECTED,
        }
    }

    fn from_uri(uri: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.uri() == uri)
    }
}
