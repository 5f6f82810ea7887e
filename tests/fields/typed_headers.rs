//! The fields as typed headers, in handlers of axum.

use std::time::Duration;

use axum::{Router, body::Body, routing::get};
use axum_extra::{TypedHeader, headers::HeaderMapExt};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_quota::fields::draft11;

fn limit() -> draft11::RateLimit {
    let item = draft11::LimitItem::new("daily", 4_999).unwrap();
    draft11::RateLimit::new([item.with_reset(Duration::from_secs(60))]).unwrap()
}

#[tokio::test]
async fn a_handler_of_axum_returns_a_field_and_takes_one() {
    let app = Router::new().route("/write", get(async || TypedHeader(limit()))).route(
        "/read",
        get(async |TypedHeader(field): TypedHeader<draft11::RateLimit>| field.to_string()),
    );
    let request = Request::get("/write").body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["ratelimit"], r#""daily";r=4999;t=60"#);
    assert_eq!(response.headers().typed_get(), Some(limit()));

    let read = async |lines: &[&str]| {
        let request = lines.iter().fold(Request::get("/read"), |request, line| {
            request.header("ratelimit", *line)
        });
        let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        (head.status, axum::body::to_bytes(body, 999).await.unwrap())
    };
    let (status, text) = read(&[r#""daily";r=1"#, r#""burst";r=2"#]).await;
    assert_eq!(
        (status, &*text),
        (StatusCode::OK, br#""daily";r=1, "burst";r=2"#.as_slice())
    );
    for malformed in [&[][..], &["daily;r=1"]] {
        assert_eq!(read(malformed).await.0, StatusCode::BAD_REQUEST, "{malformed:?}");
    }
}
