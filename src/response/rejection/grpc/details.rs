use base64::{
    Engine,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use http::HeaderValue;
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use crate::response::rejection::notice::{Notice, Subject, Violation};

/// Returns `None` if there is neither a wait nor a violation.
pub(super) fn header_value(notice: &Notice<'_>, code: u16, message: &str) -> Option<HeaderValue> {
    let mut details = ErrorDetails::new();
    if let Some(wait) = notice.wait {
        details.set_retry_info(Some(wait));
    }
    if !notice.violated.is_empty() {
        details.set_quota_failure(notice.violated.iter().map(violation).collect::<Vec<_>>());
    }
    if details.retry_info().is_none() && !details.has_quota_failure_violations() {
        return None;
    }
    let code = tonic::Code::from(i32::from(code));
    let status = tonic::Status::with_error_details(code, message, details);
    HeaderValue::try_from(STANDARD_NO_PAD.encode(status.details())).ok()
}

fn violation(violation: &Violation<'_>) -> QuotaViolation {
    let subject = match violation.subject {
        Subject::Partition(partition) => format!("partition:{}", STANDARD.encode(partition.shown_key())),
        Subject::Scope(scope) => format!("scope:{scope}"),
    };
    let description = match violation {
        Violation {
            quota: Some((0, _)), ..
        } => "this policy is closed",
        Violation { is_final: true, .. } => "the request cost exceeds the capacity of this policy",
        Violation { .. } => "the quota of this policy is exceeded",
    };
    let mut message = QuotaViolation::new(subject, description);
    message.quota_id = violation.policy.to_owned();
    if let Some((quota, unit)) = &violation.quota {
        message.quota_metric = unit
            .registered()
            .map_or_else(|| unit.to_string(), |known| known.to_string());
        message.quota_value = i64::try_from(*quota).unwrap_or(i64::MAX);
    }
    message
}
