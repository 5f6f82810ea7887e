//! The delay before a retry, as in gRFC A6.

use http::HeaderMap;

use super::timeout::timeout;
use crate::response::rejection::notice::Notice;

/// Forbids a retry.
const NEVER: i32 = -1;

/// Returns the milliseconds before a retry, or `None` if the backoff of the client applies.
///
/// A client would sleep through a wait that exceeds its timeout, and then report an expired deadline.
pub(super) fn millis(notice: &Notice<'_>, request: &HeaderMap) -> Option<i32> {
    if notice.is_final() {
        return Some(NEVER);
    }
    let wait = notice.wait?;
    let is_in_time = timeout(request).is_none_or(|timeout| wait < timeout);
    let millis = wait.as_nanos().div_ceil(1_000_000).try_into().ok();
    Some(millis.filter(|_| is_in_time).unwrap_or(NEVER))
}
