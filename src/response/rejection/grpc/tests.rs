use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, StatusCode, header, request::Parts};

use super::{media_type, percent_encoded};
use crate::{
    MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store, clock::Clock, decision::Decision,
    response::rejection::Rejection,
};

fn request(content_type: &str) -> Parts {
    let request = Request::post("/").header(header::CONTENT_TYPE, content_type);
    request.body(String::new()).unwrap().into_parts().0
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

/// Returns the rejection of a request of two units after a request of one unit. Each name is a policy with quota 1.
fn rejected(names: &[&'static str]) -> Decision {
    let policies = names.iter().map(|name| QuotaPolicy::per_minute(name, 1));
    let policies = crate::PolicySet::new(policies).unwrap();
    let store = MemoryStore::builder()
        .clock(Clock::manual(crate::clock::Timestamp::from_micros(
            1_700_000_000_000_000,
        )))
        .build()
        .unwrap();
    let partition = Scope::new("tests").partition(&PartitionKey::new("user", "alice"));
    let plan = Plan::new(policies, partition, 1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(store.decide(plan.clone())).unwrap();
    runtime.block_on(store.decide(plan)).unwrap()
}

#[test]
fn a_request_is_of_grpc_by_its_media_type() {
    let told = |content_type| {
        let parts = request(content_type);
        let decision = Decision::unmeasured(Outcome::Rejected);
        let media_type = media_type(&parts.headers);
        assert_eq!(Rejection::new(&decision, &parts, "api").is_grpc(), media_type.is_some());
        media_type.map(|value| value.to_str().unwrap().to_owned())
    };
    for (content_type, answer) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc+proto"),
        ("application/grpc;charset=utf-8", "application/grpc"),
        ("application/grpc+json ; a=b", "application/grpc+json"),
        ("Application/GRPC", "application/grpc"),
        ("application/grpc-web", "application/grpc-web"),
        ("application/grpc-web+proto", "application/grpc-web+proto"),
        ("application/grpc-web-text", "application/grpc-web-text"),
        ("application/grpc-web-text+proto", "application/grpc-web-text+proto"),
    ] {
        assert_eq!(told(content_type).as_deref(), Some(answer), "{content_type}");
    }
    for content_type in [
        "",
        "application/json",
        "application/grpcx",
        "application/grpc-webx",
        "application/grpc-other",
        "application/grpc proto",
        "application/grpc+pro to",
        "application/grpc+proto, text/plain",
        "text/application/grpc",
    ] {
        assert_eq!(told(content_type), None, "{content_type}");
    }
    assert_eq!(media_type(&HeaderMap::new()), None);
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_bytes(b"application/grpc+\xff").unwrap(),
    );
    assert_eq!(media_type(&headers), None);
}

/// As in the gRPC protocol, characters from space to `~` are unchanged, except for `%`. All others are encoded as UTF-8
/// bytes.
#[test]
fn a_message_is_percent_encoded() {
    for (message, encoded) in [
        ("", ""),
        ("a b", "a b"),
        (r#"quota exceeded: "a", "b\"c""#, r#"quota exceeded: "a", "b\"c""#),
        ("100%", "100%25"),
        ("%41", "%2541"),
        ("a\r\nb\tc", "a%0D%0Ab%09c"),
        ("\0\x7f", "%00%7F"),
        ("ä€", "%C3%A4%E2%82%AC"),
    ] {
        assert_eq!(percent_encoded(message), encoded, "{message:?}");
    }
    let printable: String = (' '..='~').collect();
    assert_eq!(percent_encoded(&printable), printable.replace('%', "%25").as_str());
}

#[test]
fn each_outcome_has_a_status() {
    let printable = r#"50 % of "it", #1?"#;
    for (decision, code, message) in [
        (rejected(&["minute"]), "8", r#"quota exceeded: "minute""#),
        (
            rejected(&[printable, "other"]),
            "8",
            r#"quota exceeded: "50 %25 of \"it\", #1?", "other""#,
        ),
        (
            Decision::unmeasured(Outcome::FailedClosed),
            "14",
            "capacity is temporarily reduced",
        ),
        (
            Decision::unmeasured(Outcome::MissingKey),
            "7",
            "the request cannot be attributed to a caller",
        ),
    ] {
        let parts = request("application/grpc");
        let rejection = Rejection::new(&decision, &parts, "api").with_wait(decision.retry_after());
        let response = rejection.to_response();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.body().is_empty());
        let headers = response.headers();
        assert_eq!(field(headers, "content-type"), Some("application/grpc"));
        assert_eq!(field(headers, "grpc-status"), Some(code));
        assert_eq!(field(headers, "grpc-message"), Some(message));
        let has_details = cfg!(feature = "tonic") && code != "7";
        assert_eq!(
            headers.contains_key("grpc-status-details-bin"),
            has_details,
            "{message}"
        );
    }
}

#[test]
fn other_requests_are_told_nothing_of_grpc() {
    let decision = rejected(&["minute"]);
    let request = request("application/json");
    let rejection = Rejection::new(&decision, &request, "api").with_wait(decision.retry_after());
    let response = rejection.to_response();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        field(response.headers(), "content-type"),
        Some("application/problem+json")
    );
    for name in response.headers().keys() {
        assert!(!name.as_str().starts_with("grpc-"), "{name}");
    }
}

/// Returns the pushback of a rejection with this wait.
fn pushback(decision: &Decision, wait: Option<Duration>, timeout: &[u8]) -> Option<String> {
    let mut parts = request("application/grpc");
    if !timeout.is_empty() {
        let timeout = HeaderValue::from_bytes(timeout).unwrap();
        parts.headers.insert("grpc-timeout", timeout);
    }
    let rejection = Rejection::new(decision, &parts, "api").with_wait(wait);
    let response = rejection.to_response();
    field(response.headers(), "grpc-retry-pushback-ms").map(str::to_owned)
}

#[test]
fn a_retry_is_delayed_by_whole_milliseconds_and_forbidden_if_they_need_more_than_31_bits() {
    let exhausted = rejected(&["minute"]);
    for (micros, told) in [
        (1, "1"),
        (1_000, "1"),
        (1_001, "2"),
        (59_999_001, "60000"),
        (2_147_483_647_000, "2147483647"),
        (2_147_483_647_001, "-1"),
        (u64::MAX, "-1"),
    ] {
        let wait = Some(Duration::from_micros(micros));
        assert_eq!(pushback(&exhausted, wait, b"").as_deref(), Some(told), "{micros}");
    }
    assert_eq!(pushback(&exhausted, Some(Duration::MAX), b"").as_deref(), Some("-1"));
}

/// Rejections without a policy may end at any time, when the client decides to retry.
#[test]
fn only_a_final_rejection_by_a_policy_forbids_a_retry_without_a_wait() {
    let (exhausted, blocked) = (rejected(&["minute"]), Decision::unmeasured(Outcome::Blocked));
    assert_eq!(pushback(&exhausted, None, b"").as_deref(), Some("-1"));
    assert_eq!(pushback(&exhausted, None, b"99999999H").as_deref(), Some("-1"));
    for outcome in [Outcome::Abnormal, Outcome::MissingKey, Outcome::Overloaded] {
        assert_eq!(
            pushback(&Decision::unmeasured(outcome), None, b"1n"),
            None,
            "{outcome:?}"
        );
    }
    for status in [StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS] {
        let parts = request("application/grpc");
        let rejection = Rejection::new(&blocked, &parts, "api").with_status(status);
        let response = rejection.to_response();
        assert!(!response.headers().contains_key("grpc-retry-pushback-ms"), "{status}");
    }
}

#[test]
fn a_wait_of_at_least_the_timeout_of_the_call_forbids_a_retry() {
    let exhausted = rejected(&["minute"]);
    for (timeout, wait) in [
        ("1H", Duration::from_secs(3_600)),
        ("02M", Duration::from_secs(120)),
        ("00000003S", Duration::from_secs(3)),
        ("99999999m", Duration::from_millis(99_999_999)),
        ("5000u", Duration::from_millis(5)),
        ("6000000n", Duration::from_millis(6)),
        ("0S", Duration::ZERO),
    ] {
        let told = |wait| pushback(&exhausted, Some(wait), timeout.as_bytes());
        assert_eq!(told(wait).as_deref(), Some("-1"), "{timeout}");
        if let Some(shorter) = wait.checked_sub(Duration::from_nanos(1)) {
            assert_eq!(told(shorter), Some(wait.as_millis().to_string()), "{timeout}");
        }
    }
}

#[test]
fn a_malformed_timeout_forbids_no_retry() {
    let exhausted = rejected(&["minute"]);
    for timeout in [
        "1",
        "S",
        "1s",
        "1h",
        "1D",
        "1 S",
        " 1S ",
        "+1S",
        "-1S",
        "1.5S",
        "1_0S",
        "000000001S",
        "1SS",
        "0x1S",
        "1S,1S",
    ] {
        let told = pushback(&exhausted, Some(Duration::from_secs(60)), timeout.as_bytes());
        assert_eq!(told.as_deref(), Some("60000"), "{timeout}");
    }
    for timeout in [&b"\xd9\xa1S"[..], b"1\xff", b"\xff"] {
        let told = pushback(&exhausted, Some(Duration::from_secs(60)), timeout);
        assert_eq!(told.as_deref(), Some("60000"), "{timeout:?}");
    }
}
