use serde_json::Value;

use ratelimit_fields::problem_types;

/// The reason for a rejection, parsed from a problem document of draft-ietf-httpapi-ratelimit-headers-11.
///
/// [`ClientLayer`](super::ClientLayer) does not read bodies. Unknown members and members of the wrong type are ignored.
///
/// ```
/// use tower_ratelimit_client::{Problem, ProblemKind};
///
/// let content = br#"{
///     "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
///     "title": "Request cannot be satisfied as assigned quota has been exceeded",
///     "violated-policies": ["daily", "bandwidth"]
/// }"#;
/// let problem = Problem::parse(content).expect("a problem type of the draft");
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

/// The problem types of the draft.
///
/// ```
/// use tower_ratelimit_client::{Problem, ProblemKind};
///
/// let kind = ProblemKind::TemporaryReducedCapacity;
/// let content = format!(r#"{{"type": "{}"}}"#, kind.uri());
/// let problem = Problem::parse(content.as_bytes()).expect("a problem type of the draft");
/// assert_eq!(problem.kind(), kind);
/// assert!(problem.violated_policies().is_empty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// `quota-exceeded`.
    QuotaExceeded,
    /// The capacity of the server is reduced: `temporary-reduced-capacity`.
    TemporaryReducedCapacity,
    /// The server considers the requests abusive: `abnormal-usage-detected`.
    AbnormalUsageDetected,
}

impl Problem {
    const MAX_LENGTH: usize = 64 * 1024;

    /// The media type of problem documents.
    pub const MEDIA_TYPE: &str = "application/problem+json";

    /// Parses the body of a response. `None` if it is not a JSON object with a problem type of the draft, or exceeds 64
    /// KiB.
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
            // An array with anything but strings has the wrong type.
            violated_policies: names
                .and_then(|names| serde_json::from_value(names).ok())
                .unwrap_or_default(),
        })
    }

    /// Returns the problem type.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// Returns the names of the violated policies, if the server sends them.
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

    /// Returns the URI of the problem type.
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
