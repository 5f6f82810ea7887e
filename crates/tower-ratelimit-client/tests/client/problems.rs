//! Problem types, as a client reads them. C13

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, key};
use tower_ratelimit_client::{Problem, ProblemKind};

fn parse(content: &str) -> Option<(ProblemKind, Vec<String>)> {
    let problem = Problem::parse(content.as_bytes())?;
    Some((problem.kind(), problem.violated_policies().to_vec()))
}

/// C13
#[test]
fn the_three_types_are_told_by_their_full_uri() {
    let types = [
        ("quota-exceeded", ProblemKind::QuotaExceeded),
        ("temporary-reduced-capacity", ProblemKind::TemporaryReducedCapacity),
        ("abnormal-usage-detected", ProblemKind::AbnormalUsageDetected),
    ];
    for (name, kind) in types {
        let uri = format!("https://iana.org/assignments/http-problem-types#{name}");
        assert_eq!(kind.uri(), uri);
        let content = format!(r#"{{"type": "{uri}", "violated-policies": ["a", "b"]}}"#);
        assert_eq!(parse(&content), Some((kind, vec!["a".to_owned(), "b".to_owned()])));
        // C9: not the address of the registry, nor a part, nor another case.
        let case = uri.to_uppercase();
        for other in [uri.replace("//", "//www."), name.to_owned(), case, format!("{uri} ")] {
            assert_eq!(parse(&format!(r#"{{"type": "{other}"}}"#)), None);
        }
    }
}

/// C13, X9
#[test]
fn unknown_and_wrong_typed_members_are_ignored() {
    let uri = ProblemKind::QuotaExceeded.uri();
    let no_names = Some((ProblemKind::QuotaExceeded, Vec::new()));
    let members = [
        r#""violated-policies": "daily""#,
        r#""violated-policies": null"#,
        r#""violated-policies": {"0": "daily"}"#,
        r#""violated-policies": ["daily", 5]"#,
        r#""title": "Another title", "status": "many", "detail": [1], "acme": {"x": []}"#,
    ];
    for member in members {
        let problem = format!(r#"{{"type": "{uri}", {member}}}"#);
        assert_eq!(parse(&problem), no_names, "{member}");
    }
}

#[test]
fn what_is_no_such_problem_gives_nothing() {
    let uri = ProblemKind::QuotaExceeded.uri();
    let nested = format!("{}{}", "[".repeat(60_000), "]".repeat(5_000));
    let long = format!(r#"{{"type": "{uri}", "x": "{}"}}"#, "x".repeat(64 * 1024));
    let short = r#"|{|[]|null|{"type": 5}|{"title": "x"}"#;
    for content in short.split('|').chain([&*nested, &long]) {
        assert_eq!(parse(content), None);
    }
    assert!(Problem::parse(&[0xff, 0xfe]).is_none());
}

/// C13, C2
#[tokio::test]
async fn a_rejection_of_the_layer_is_read_as_what_it_is() {
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .scope("problems")
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_day("daily", 1))
        .build()
        .unwrap();
    let service = limits.layer(service_fn(async |_: Request<String>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(Full::from(Bytes::new())))
    }));
    let request = || {
        Request::get("/")
            .header("x-user-id", "alice")
            .body(String::new())
            .unwrap()
    };
    service.clone().oneshot(request()).await.unwrap();
    let rejected = service.oneshot(request()).await.unwrap();
    assert_eq!(rejected.headers()["content-type"], Problem::MEDIA_TYPE);
    let content = rejected.into_body().collect().await.unwrap().to_bytes();
    let problem = Problem::parse(&content).unwrap();
    assert_eq!(problem.kind(), ProblemKind::QuotaExceeded);
    assert_eq!(problem.violated_policies(), ["daily"]);
}
