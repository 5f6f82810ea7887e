//! Problem types of draft-ietf-httpapi-ratelimit-headers-11, as problem details of RFC 9457.

use bytes::Bytes;
use serde_json::{Value, json};

use super::Rejection;
use crate::decision::Outcome;

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const TEMPORARY_REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

pub(super) fn body(rejection: &Rejection<'_>) -> Bytes {
    let status = rejection.status().as_u16();
    let violated: Value = rejection
        .decision()
        .violated()
        .map(|allowance| allowance.policy().name())
        .collect();
    let problem = match rejection.decision().outcome() {
        Outcome::FailedClosed => json!({
            "type": TEMPORARY_REDUCED_CAPACITY,
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": status,
            "violated-policies": violated,
        }),
        Outcome::Unattributed => json!({
            "type": "about:blank",
            "title": "Forbidden",
            "status": status,
            "detail": "The request cannot be attributed to a caller.",
        }),
        _ => json!({
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": status,
            "violated-policies": violated,
        }),
    };
    problem.to_string().into()
}
