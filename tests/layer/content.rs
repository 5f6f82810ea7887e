//! Bytes of content: what is announced is charged before, what is streamed afterwards.

use std::{
    future::ready,
    sync::{Arc, Mutex},
};

use http::StatusCode;
use http_body_util::BodyExt;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Direction,
    content::{RequestContentBody, RequestContentLayer},
};

use super::*;

fn scene(content: Direction, quota: u64) -> Scene {
    Scene::new([QuotaPolicy::new("bytes", quota, Duration::from_secs(3_600)).with_content_bytes(content)])
}

async fn respond_with<B>(scene: &Scene, body: B) -> Response<tower_quota::RateLimitBody<B>>
where
    B: Body<Data = Bytes>,
{
    let body = Arc::new(Mutex::new(Some(body)));
    let service = service_fn(move |_: Request<TextBody>| {
        let response = Response::new(body.lock().unwrap().take().unwrap());
        ready(Ok::<_, Infallible>(response))
    });
    scene.layer().layer(service).oneshot(request()).await.unwrap()
}

/// A10, A12
#[tokio::test]
async fn a_response_of_known_length_is_charged_before_it_is_sent() {
    let scene = scene(Direction::Response, 1_000);
    let response = respond_with(&scene, TextBody::from("x".repeat(300))).await;
    assert_eq!(ratelimit(&response), r#""bytes";r=700;t=2520"#);
    assert_eq!(
        response.headers()["ratelimit-policy"],
        r#""bytes";q=1000;qu="content-bytes";w=3600"#
    );
    response.into_body().collect().await.unwrap();
    assert_eq!(scene.left().await, [700]);
}

#[tokio::test]
async fn a_request_for_the_head_alone_counts_for_a_byte_whatever_length_it_is_told() {
    let scene = scene(Direction::Response, 1_000);
    let mut request = request();
    *request.method_mut() = http::Method::HEAD;
    let service = service_fn(|_: Request<TextBody>| ready(Ok::<_, Infallible>(Response::new(Announced::of(300)))));
    let response = scene.layer().layer(service).oneshot(request).await.unwrap();
    assert_eq!(ratelimit(&response), r#""bytes";r=999;t=3597"#);
    drop(response);
    assert_eq!(scene.left().await, [999]);
}

#[tokio::test]
async fn a_stream_is_charged_for_what_was_read_of_it_and_not_held_up() {
    let scene = scene(Direction::Response, 10_000);
    let mut body = respond_with(&scene, Stream::of(5)).await.into_body();
    assert_eq!(scene.left().await, [9_999]);
    for _ in 0..3 {
        body.frame().await.unwrap().unwrap();
    }
    drop(body);
    assert_eq!(scene.left().await, [7_000]);
    let body = respond_with(&scene, Stream::of(5)).await.into_body();
    body.collect().await.unwrap();
    assert_eq!(scene.left().await, [2_000]);
}

#[tokio::test]
async fn a_stream_that_never_ends_is_charged_in_instalments_up_to_the_bound() {
    let scene = scene(Direction::Response, 2_000_000);
    let mut body = respond_with(&scene, Stream::endless()).await.into_body();
    for _ in 0..1_100 {
        body.frame().await.unwrap().unwrap();
    }
    assert!(scene.left().await[0] < 1_000_000);
    for _ in 0..50_000 {
        body.frame().await.unwrap().unwrap();
    }
    drop(body);
    // Fifty megabytes overdraw the policy by at most its capacity.
    scene.clock.advance(Duration::from_secs(3_600));
    assert_eq!(scene.left().await, [0]);
    scene.clock.advance(Duration::from_secs(1_800));
    assert_eq!(scene.left().await, [1_000_000]);
}

#[tokio::test]
async fn an_overdrawn_caller_waits_until_the_debt_is_paid_off() {
    let scene = scene(Direction::Response, 1_000);
    drop(respond_with(&scene, Stream::of(2)).await.into_body().collect().await);
    let rejected = respond_with(&scene, Stream::of(1)).await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    // A thousand bytes of debt and one more.
    assert_eq!(rejected.headers()["retry-after"], "3604");
}

fn with_length(length: &str) -> Request<TextBody> {
    let mut request = request();
    *request.method_mut() = http::Method::POST;
    request.headers_mut().insert("content-length", length.parse().unwrap());
    request
}

#[tokio::test]
async fn the_length_that_a_request_announces_is_charged_and_rejected_if_it_never_fits() {
    let scene = scene(Direction::Request, 1_000);
    let layer = scene.layer();
    let call = |length| layer.layer(service_fn(hello)).oneshot(with_length(length));
    assert_eq!(ratelimit(&call("300").await.unwrap()), r#""bytes";r=700;t=2520"#);
    for length in ["1001", "18446744073709551615"] {
        let rejected = call(length).await.unwrap();
        assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(!rejected.headers().contains_key("retry-after"));
    }
    // Lengths that are none count as unknown.
    for length in ["-1", "1e3", "99999999999999999999", "300, 300"] {
        assert_eq!(call(length).await.unwrap().status(), StatusCode::OK, "{length}");
    }
    assert_eq!(scene.left().await, [696]);
}

/// Reads its request to the end, or does not look at it.
async fn read(scene: &Scene, request: Request<TextBody>, is_read: bool) -> StatusCode {
    let service = service_fn(move |request: Request<_>| async move {
        let body: RequestContentBody<TextBody> = request.into_body();
        if is_read {
            body.collect().await.unwrap();
        }
        Ok::<_, Infallible>(Response::new(TextBody::from("done")))
    });
    let layers = ServiceBuilder::new()
        .layer(RequestContentLayer::new())
        .layer(scene.layer());
    let response = layers.service(service).oneshot(request).await.unwrap();
    let status = response.status();
    response.into_body().collect().await.unwrap();
    status
}

#[tokio::test]
async fn bytes_that_were_read_count_whatever_was_announced() {
    let announced = ["8", "1", "900"].map(with_length).into_iter();
    for request in announced.chain([request()]) {
        let scene = scene(Direction::Request, 1_000);
        let length = format!("{:?}", request.headers());
        assert_eq!(read(&scene, request, true).await, StatusCode::OK);
        assert_eq!(scene.left().await, [992], "{length}");
    }
    // A body that is not read counts for a byte.
    let scene = scene(Direction::Request, 1_000);
    read(&scene, with_length("900"), false).await;
    assert_eq!(scene.left().await, [999]);
}

#[tokio::test]
async fn both_directions_count_together() {
    let scene = scene(Direction::Both, 1_000);
    read(&scene, request(), true).await;
    let both = ["question", "done"].concat().len() as u64;
    assert_eq!(scene.left().await, [1_000 - both]);
}

/// The part of its request that a handler keeps after the response was sent.
async fn kept<B>(scene: &Scene, body: B) -> RequestContentBody<B>
where
    B: Body<Data = Bytes> + Send + 'static,
{
    let (sender, receiver) = std::sync::mpsc::channel();
    let service = service_fn(move |request: Request<RequestContentBody<B>>| {
        sender.send(request.into_body()).unwrap();
        async { Ok::<_, Infallible>(Response::new(TextBody::default())) }
    });
    let layers = ServiceBuilder::new()
        .layer(RequestContentLayer::new())
        .layer(scene.layer());
    drop(layers.service(service).oneshot(Request::new(body)).await.unwrap());
    receiver.recv().unwrap()
}

/// A request body is over when it has ended or failed, however long it is kept: nothing is held open for it.
async fn assert_over_when_read<B>(body: B, frames: usize, counts: u64)
where
    B: Body<Data = Bytes> + Unpin + Send + 'static,
{
    let scene = Scene::new([
        QuotaPolicy::per_hour("bytes", 10_000).with_content_bytes(Direction::Request),
        QuotaPolicy::concurrent("slots", 1),
    ]);
    let mut kept = kept(&scene, body).await;
    for _ in 0..frames {
        assert_eq!(scene.left().await, [9_999, 0]);
        let _ = kept.frame().await;
    }
    assert_eq!(scene.left().await, [10_000 - counts, 1]);
    drop(kept);
    assert_eq!(scene.left().await, [10_000 - counts, 1]);
}

#[tokio::test]
async fn a_request_body_is_over_with_its_last_frame_its_end_or_its_failure_however_long_it_is_kept() {
    assert_over_when_read(TextBody::from("question"), 1, 8).await;
    assert_over_when_read(Stream::of(2), 3, 2_000).await;
    assert_over_when_read(Broken::default(), 2, 1_000).await;
}

/// A background task reads on after the response was sent.
#[tokio::test]
async fn bytes_that_are_read_after_the_response_are_charged_when_they_end() {
    let scene = scene(Direction::Request, 1_000);
    let body = kept(&scene, TextBody::from("question")).await;
    assert_eq!(scene.left().await, [999]);
    assert_eq!(body.size_hint().exact(), Some(8));
    body.collect().await.unwrap();
    assert_eq!(scene.left().await, [992]);
}

/// If a client disconnects, what was charged ahead stays charged, at most 1 MiB.
#[tokio::test]
async fn a_response_that_is_given_up_counts_for_what_was_read_or_was_charged_ahead() {
    const MIB: u64 = 1 << 20;
    let scene = scene(Direction::Response, 1_000_000_000);
    let mut used = 1_000_000_000;
    for (size, frames, counts) in [
        (300, 0, 300),
        (MIB, 1, MIB),
        (100_000_000, 1, MIB),
        (100_000_000, 50_000, 50_000_000),
        (u64::MAX, 1, MIB),
    ] {
        let mut body = respond_with(&scene, Announced::of(size)).await.into_body();
        for _ in 0..frames {
            body.frame().await.unwrap().unwrap();
        }
        drop(body);
        used -= counts;
        assert_eq!(scene.left().await, [used], "{frames} frames of {size} bytes");
    }
}

/// A late charge is capped by the maximum debt. Refunding the excess would repay what was used.
#[tokio::test]
async fn nobody_reads_more_than_the_debt_allows_by_going_away_before_the_end() {
    for (at_once, size, frames) in [(1, 100_000, 15), (3, 100_000, 9), (30, 9_000, 8), (1, u64::MAX, 1)] {
        let scene = scene(Direction::Response, 10_000);
        let mut passed = 0;
        for _ in 0..20 {
            let mut bodies = Vec::new();
            for _ in 0..at_once {
                let response = respond_with(&scene, Announced::of(size)).await;
                if response.status() == StatusCode::OK {
                    bodies.push(response.into_body());
                }
            }
            for body in &mut bodies {
                for _ in 0..frames {
                    body.frame().await.unwrap().unwrap();
                    passed += 1_000;
                }
            }
        }
        let what = format!("{at_once} at once, {frames} frames of {size} bytes");
        assert!(passed <= 20_000, "{passed} passed: {what}");
        assert_eq!(scene.left().await, [0], "{what}");
    }
}

/// An endless upload is charged while it is in progress, not only afterwards.
#[tokio::test]
async fn an_upload_is_charged_in_instalments_while_it_is_read() {
    const MIB: u64 = 1 << 20;
    let scene = scene(Direction::Request, 10_000_000);
    let mut body = kept(&scene, Stream::endless()).await;
    for read in (1..=5_000).map(|frames| frames * 1_000) {
        body.frame().await.unwrap().unwrap();
        let charged = 10_000_000 - scene.left().await[0];
        assert!(charged + MIB >= read, "{charged} of {read} bytes are charged");
    }
    drop(body);
    assert_eq!(scene.left().await, [5_000_000]);
}

/// A layer in between has read the body before the limits could count it: the announced bytes stay charged.
#[tokio::test]
async fn a_body_that_was_over_before_the_layer_saw_its_request_counts_as_announced() {
    let scene = scene(Direction::Request, 1_000);
    let limited = scene.layer().layer(service_fn(hello));
    let buffer = service_fn(move |request: Request<RequestContentBody<TextBody>>| {
        let limited = limited.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            limited.oneshot(Request::from_parts(parts, Full::from(body))).await
        }
    });
    let service = ServiceBuilder::new().layer(RequestContentLayer::new()).service(buffer);
    service.oneshot(with_length("8")).await.unwrap();
    assert_eq!(scene.left().await, [992]);
}
