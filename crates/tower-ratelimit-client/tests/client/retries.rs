//! Requests that are sent again.

use futures_util::future::join_all;
use tower::ServiceExt;
use tower_layer::Layer;
use tower_ratelimit_client::{Retry, Strategy};

use super::*;

const URI: &str = "http://a.example/";

#[allow(clippy::ptr_arg, reason = "the content is a `String`")]
fn content_of(body: &String) -> Option<String> {
    Some(body.clone())
}

fn post(content: &str) -> Request<String> {
    Request::post(URI)
        .header("x-kept", "yes")
        .body(content.to_owned())
        .unwrap()
}

/// The status of the response to a request, and the seconds at which a server that always gives this answer got it.
async fn sent<R: Retry<String>>(builder: ClientLayerBuilder<R>, answer: (u16, Vec<&'static str>)) -> (u16, Vec<u64>) {
    let script = Script::new([answer]);
    let response = script.client(builder).oneshot(post("")).await.unwrap();
    (response.status().as_u16(), script.times())
}

/// F8
#[tokio::test(start_paused = true)]
async fn a_rejected_request_is_sent_again_when_its_time_has_come() {
    let script = Script::new([
        (429, vec!["retry-after: 20"]),
        (429, vec!["retry-after: 7"]),
        (200, vec![r#"ratelimit: "a";r=5;t=10"#]),
    ]);
    let client = script.client(builder().retries(3, content_of));
    let response = client.oneshot(post("content")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(script.times(), [0, 20, 27]);
    assert_eq!(script.requests(), ["/content"; 3]);
}

#[tokio::test(start_paused = true)]
async fn after_so_many_retries_the_rejection_is_the_response() {
    let script = Script::new([(429, vec!["retry-after: 1"])]);
    let client = script.client(builder().retries(2, content_of));
    let response = client.oneshot(post("")).await.unwrap();
    assert_eq!(response.status(), 429);
    let advice = response.extensions().get::<Advice>().unwrap();
    assert_eq!(advice.retry_after(), Some(seconds(1)));
    assert_eq!(script.times(), [0, 1, 2]);
}

/// A7: without a `Retry-After`, a quota of 0 is the last word.
#[tokio::test(start_paused = true)]
async fn a_rejection_by_a_closed_policy_is_final() {
    let closed = vec![r#"ratelimit: "a";r=0"#, r#"ratelimit-policy: "a";q=0;w=60"#];
    let retrying = builder().retries(3, content_of);
    assert_eq!(sent(retrying, (429, closed)).await, (429, vec![0]));
}

/// A limiter has not processed a request that it rejects with 429; after a 503, this is unknown.
#[tokio::test(start_paused = true)]
async fn only_what_was_not_processed_or_may_be_processed_twice_is_sent_again() {
    let times = async |method: &str, status, lines: &[&'static str]| {
        let script = Script::new([(status, lines.to_vec()), (200, vec![])]);
        let client = script.client(builder().retries(3, content_of));
        let request = Request::builder().method(method).uri(URI).body(String::new()).unwrap();
        client.oneshot(request).await.unwrap();
        script.times().len()
    };
    let wait = &["retry-after: 1"];
    for method in ["GET", "PUT", "DELETE", "POST", "PATCH"] {
        let idempotent = !method.starts_with('P') || method == "PUT";
        assert_eq!(times(method, 429, wait).await, 2, "{method}");
        assert_eq!(times(method, 503, wait).await, 1 + usize::from(idempotent), "{method}");
        for status in [200, 403, 500, 502] {
            assert_eq!(times(method, status, wait).await, 1, "{method} {status}");
        }
        // Without a wait, the client backs off.
        assert_eq!(times(method, 429, &[]).await, 2, "{method}");
        assert_eq!(times(method, 503, &[]).await, 1 + usize::from(idempotent), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_could_not_be_in_time_is_not_made() {
    let impatient = builder().queue_timeout(seconds(20)).retries(9, content_of);
    let rejection = (429, vec!["retry-after: 8"]);
    assert_eq!(sent(impatient, rejection).await, (429, vec![0, 8, 16]));
}

#[tokio::test(start_paused = true)]
async fn who_only_observes_sends_nothing_again() {
    let observing = builder().strategy(Strategy::Observe).retries(3, content_of);
    let rejection = (429, vec!["retry-after: 1"]);
    assert_eq!(sent(observing, rejection).await, (429, vec![0]));
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_finds_no_place_to_wait_in_is_not_made() {
    let script = Script::new([(429, vec!["retry-after: 5"])]).taking(seconds(1));
    let client = script.client(builder().max_waiting(1).retries(1, content_of));
    let start = Instant::now();
    let call = async || {
        let response = client.clone().oneshot(post("")).await.unwrap();
        (response.status().as_u16(), start.elapsed().as_secs())
    };
    assert_eq!(join_all([call(), call()]).await, [(429, 7), (429, 1)]);
    assert_eq!(script.times(), [0, 0, 6]);
}

#[tokio::test(start_paused = true)]
async fn content_that_cannot_be_had_again_is_sent_once() {
    let without_content = builder().retries(3, |_: &String| None);
    let rejection = (429, vec!["retry-after: 1"]);
    assert_eq!(sent(without_content, rejection).await, (429, vec![0]));
}

/// Without retries, the content does not need `Clone`.
#[tokio::test]
async fn content_that_cannot_be_cloned_can_be_sent() {
    struct Once;
    let client = builder().build().unwrap().layer(service_fn(async |_: Request<Once>| {
        Ok::<_, Infallible>(Response::new(()))
    }));
    client.oneshot(Request::new(Once)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_again_is_the_whole_request() {
    #[derive(Clone)]
    struct TraceId(u64);

    let (sender, receiver) = std::sync::mpsc::channel();
    let server = service_fn(async |request: Request<String>| {
        let (parts, body) = request.into_parts();
        let trace = parts.extensions.get::<TraceId>().map(|trace| trace.0);
        let seen = (parts.method, parts.uri, parts.version, parts.headers, trace, body);
        sender.send(seen).unwrap();
        Response::builder().status(429).header("retry-after", "1").body(())
    });
    let client = builder().retries(2, content_of).build().unwrap().layer(server);
    let request = Request::put("http://a.example/path?query")
        .version(http::Version::HTTP_2)
        .header("x-many", "1")
        .header("x-many", "2")
        .extension(TraceId(7))
        .body("content".to_owned())
        .unwrap();
    client.oneshot(request).await.unwrap();
    let first = receiver.recv().unwrap();
    assert_eq!(first.2, http::Version::HTTP_2);
    assert_eq!(first.3.get_all("x-many").iter().count(), 2);
    assert_eq!((first.4, first.5.as_str()), (Some(7), "content"));
    for _ in 0..2 {
        assert_eq!(receiver.recv().unwrap(), first);
    }
}
