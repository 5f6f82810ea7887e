//! A status with details, as in google.rpc: when to try again, and which quotas are used up.

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use http::HeaderValue;
use tonic_types::{ErrorDetails, StatusExt};

use super::Status;
use crate::rejection::Notice;

/// The text of a `grpc-status-details-bin`, if there is anything to say.
pub(super) fn header_value(notice: &Notice<'_>, status: &Status) -> Option<HeaderValue> {
    let mut details = ErrorDetails::new();
    if let Some(wait) = notice.wait {
        details.set_retry_info(Some(wait));
    }
    for name in &notice.violated {
        details.add_quota_failure_violation(*name, "the quota of this policy is exceeded");
    }
    if details.retry_info().is_none() && !details.has_quota_failure_violations() {
        return None;
    }
    let code = tonic::Code::from(i32::from(status.code));
    let status = tonic::Status::with_error_details(code, &status.message, details);
    HeaderValue::try_from(STANDARD_NO_PAD.encode(status.details())).ok()
}
