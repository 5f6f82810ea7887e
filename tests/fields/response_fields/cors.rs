//! Scripts of other origins.

use http::Method;
use tower_quota::fields;

use super::*;

fn preflight() -> Request<String> {
    let mut request = costing(1);
    *request.method_mut() = Method::OPTIONS;
    for (name, value) in [
        ("origin", "https://example.com"),
        ("access-control-request-method", "PUT"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn preflight_requests_are_counted_unless_the_layer_is_told_to_skip_them() {
    let scene = Scene::new();
    let counting = scene.layer(ResponseFields::draft11(), [minute(9)]);
    let counted = send(&counting, preflight(), ok()).await;
    assert_eq!(counted.field("ratelimit"), r#""minute";r=8;t=60"#);
    let skipping = scene.builder([minute(9)]).skip_cors_preflight().build().unwrap();
    let skipped = send(&skipping, preflight(), ok()).await;
    assert_eq!((skipped.code(), skipped.field("ratelimit")), (200, ""));
    // Neither is a preflight request.
    for name in ["origin", "access-control-request-method"] {
        let mut request = preflight();
        request.headers_mut().remove(name);
        assert!(!send(&skipping, request, ok()).await.field("ratelimit").is_empty());
    }
    for method in [Method::GET, Method::POST, Method::PUT] {
        let mut request = preflight();
        *request.method_mut() = method;
        assert!(!send(&skipping, request, ok()).await.field("ratelimit").is_empty());
    }
    assert_eq!(take(&skipping, 1).await.field("ratelimit"), r#""minute";r=2;t=60"#);
}

/// Behind a CORS layer that exposes them, scripts can read all that any setting writes, on rejections too.
#[tokio::test]
async fn every_field_that_is_written_is_among_those_to_expose() {
    let scene = Scene::new();
    for settings in dialects() {
        let layer = scene.layer(settings, [minute(1)]);
        let cors = tower_http::cors::CorsLayer::permissive().expose_headers(fields::EXPOSED);
        let handler = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(ok()) });
        for _ in 0..2 {
            let answer = call(cors.clone().layer(layer.layer(handler)), costing(1)).await;
            let exposed = answer.field("access-control-expose-headers").to_owned();
            for name in answer.headers().keys().map(|name| name.as_str()) {
                let is_ours = name.contains("ratelimit") || name == "retry-after";
                let is_exposed = exposed.split(',').any(|exposed| exposed == name);
                assert!(!is_ours || is_exposed, "{name}: {exposed}");
            }
        }
    }
}
