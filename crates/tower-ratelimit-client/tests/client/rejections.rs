//! Rejections whose wait is zero, missing, fractional, or a time.

use futures_util::future::join_all;
use tower::ServiceExt;
use tower_ratelimit_client::{Acquire, ClientError, Pacing, Strategy as Pace};

use super::*;

const URI: &str = "http://a.example/";

/// Rejections that report no time to wait for.
const WITHOUT_A_WAIT: [(u16, &str); 11] = [
    (429, "content-length: 0"),
    (429, "retry-after: 0"),
    (429, "retry-after: 0.0"),
    (429, "retry-after: soon"),
    (
        429,
        "date: Tue, 14 Nov 2023 22:13:20 GMT | retry-after: Tue, 14 Nov 2023 22:13:20 GMT",
    ),
    (429, "retry-after: Sun, 06 Nov 1994 08:49:37 GMT"),
    (429, r#"ratelimit: "a";r=0;t=0"#),
    (429, r#"ratelimit: "a";r=5;t=60"#),
    (
        429,
        "date: Tue, 14 Nov 2023 22:13:20 GMT | ratelimit-remaining: 0 | ratelimit-reset: 1700000000",
    ),
    (200, "grpc-status: 8"),
    (200, "grpc-status: 8 | grpc-retry-pushback-ms: 0"),
];

/// The seconds at which `requests` requests arrive, if each is sent when the previous one has been answered.
async fn times(answers: Vec<(u16, Vec<&'static str>)>, requests: usize) -> Vec<u64> {
    let script = Script::new(answers);
    let client = script.client(patient());
    for _ in 0..requests {
        client.clone().oneshot(get(URI)).await.unwrap();
    }
    script.times()
}

fn patient() -> ClientLayerBuilder {
    builder().queue_timeout(seconds(86_400))
}

#[tokio::test(start_paused = true)]
async fn after_a_rejection_without_a_wait_the_next_request_waits_a_second_and_then_twice_as_long_each_time() {
    for (status, fields) in WITHOUT_A_WAIT {
        let times = times(vec![(status, lines(fields))], 5).await;
        assert_eq!(times, [0, 1, 3, 7, 15], "{status} {fields}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_no_rejection_ends_the_doubling() {
    let rejected = (429, vec![]);
    let answers = vec![rejected.clone(), rejected.clone(), (200, vec![]), rejected];
    assert_eq!(times(answers, 6).await, [0, 1, 3, 3, 4, 6]);
}

/// A server that knows its wait is obeyed to the second, however often it rejects.
#[tokio::test(start_paused = true)]
async fn a_wait_of_a_second_or_more_is_obeyed_as_it_is() {
    let lines = [
        "retry-after: 1",
        "retry-after: 0.2",
        r#"ratelimit: "a";r=0;t=1"#,
        "ratelimit: limit=5, remaining=0, reset=1",
    ];
    for line in lines {
        assert_eq!(times(vec![(429, vec![line])], 5).await, [0, 1, 2, 3, 4], "{line}");
    }
    // The rejections before it count, once a wait is missing again.
    let answers = [vec![], vec!["retry-after: 20"], vec!["retry-after: 0"]];
    let answers = answers.map(|lines| (429, lines)).to_vec();
    assert_eq!(times(answers, 5).await, [0, 1, 21, 25, 33]);
}

/// Each of them is rejected by the same lack of quota.
#[tokio::test(start_paused = true)]
async fn rejections_of_requests_that_were_sent_together_count_once() {
    let script = Script::new([(429, vec![])]).taking(seconds(1));
    let client = script.client(patient());
    join_all((0..20).map(|_| client.clone().oneshot(get(URI)))).await;
    for _ in 0..3 {
        client.clone().oneshot(get(URI)).await.unwrap();
    }
    // Each exchange takes a second.
    assert_eq!(script.times()[20..], [2, 5, 10]);
}

/// The limit of a rejection may belong to another partition, and then its window says nothing about these requests.
#[test]
fn a_window_of_another_partition_is_no_wait() {
    let mut pacing = Pacing::new(Pace::Greedy, Caps::default()).with_partition_key("b");
    let Acquire::Ready(permit) = pacing.try_acquire(at(0)) else {
        panic!()
    };
    let both = [r#"ratelimit: "u";r=0;t=9;pk=:YQ==:, "u";r=9;t=9;pk=:Yg==:"#];
    pacing.record_response(permit, &advice_of(429, &both), at(0));
    assert!(matches!(pacing.try_acquire(at(0)), Acquire::Wait(wait) if wait.until() == at(1)));
}

/// A limit that a rejection mentions without its remaining units is the exhausted one.
#[tokio::test(start_paused = true)]
async fn a_rejection_with_a_reset_but_without_remaining_units_lasts_until_the_reset() {
    for lines in [
        lines("ratelimit-limit: 10 | ratelimit-reset: 30"),
        vec!["ratelimit-reset: 30"],
    ] {
        assert_eq!(times(vec![(429, lines.clone())], 3).await, [0, 30, 60]);
        assert_eq!(times(vec![(200, lines)], 3).await, [0, 0, 0]);
    }
}

/// The second after the rejection is not the whole wait.
#[tokio::test(start_paused = true)]
async fn a_window_of_a_rejection_that_is_too_long_fails_the_next_request_at_once() {
    let script = Script::new([(429, vec![r#"ratelimit: "a";r=0;t=30"#])]);
    let client = script.client(builder().queue_timeout(seconds(20)));
    client.clone().oneshot(get(URI)).await.unwrap();
    let start = Instant::now();
    let ClientError::Throttled(error) = client.oneshot(get(URI)).await.unwrap_err() else {
        panic!()
    };
    assert_eq!(error.retry_after(), Some(seconds(30)));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Confluence sends `Retry-After: 0` in every response while tokens are left.
#[tokio::test(start_paused = true)]
async fn a_zero_wait_of_a_response_that_is_no_rejection_holds_nothing_back() {
    for status in [200, 403, 500, 503] {
        let script = Script::new([(status, vec!["retry-after: 0", r#"ratelimit: "a";r=50;t=60"#])]).taking(seconds(1));
        let client = script.client(patient());
        client.clone().oneshot(get(URI)).await.unwrap();
        join_all((0..3).map(|_| client.clone().oneshot(get(URI)))).await;
        assert_eq!(script.times(), [0, 1, 1, 1], "{status}");
    }
}

/// One bad instance behind a load balancer must not stop the requests to the others.
#[tokio::test(start_paused = true)]
async fn a_503_without_a_wait_holds_no_other_request_back() {
    for lines in [vec![], vec!["retry-after: 0"]] {
        assert_eq!(times(vec![(503, lines)], 4).await, [0; 4]);
    }
    assert_eq!(times(vec![(200, vec!["grpc-status: 14"])], 4).await, [0; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_a_503_without_a_wait_backs_off_by_itself() {
    let script = Script::new([(503, vec![])]);
    let client = script.client(patient().retries(3, |body: &String| Some(body.clone())));
    let retried = client.clone().oneshot(get(URI));
    let others = async {
        tokio::time::advance(Duration::from_millis(1_500)).await;
        let once = script.client(builder());
        once.oneshot(get("http://a.example/once")).await.unwrap();
        // The same layer, while the first request waits.
        let post = Request::post("http://a.example/post").body(String::new()).unwrap();
        client.clone().oneshot(post).await.unwrap();
        assert_eq!(client.layer().origin_status(&parts(URI)).unwrap().waiting(), 0);
    };
    let (response, ()) = tokio::join!(retried, others);
    assert_eq!(response.unwrap().status(), 503);
    let requests = script.requests();
    let of = |path: &str| {
        let times = script.times().into_iter().zip(&requests);
        times
            .filter_map(|(time, request)| (request == path).then_some(time))
            .collect::<Vec<_>>()
    };
    assert_eq!((of("/once"), of("/post")), (vec![1], vec![1]));
    assert_eq!(of("/"), [0, 1, 3, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_backs_off_ends_with_the_queue_timeout_and_counts_as_waiting() {
    let retrying = |builder: ClientLayerBuilder| builder.retries(9, |body: &String| Some(body.clone()));
    let script = Script::new([(503, vec![])]);
    let client = script.client(retrying(builder().queue_timeout(seconds(10))));
    assert_eq!(client.oneshot(get(URI)).await.unwrap().status(), 503);
    assert_eq!(script.times(), [0, 1, 3, 7]);

    let script = Script::new([(503, vec![])]).taking(Duration::from_millis(10));
    let client = script.client(retrying(builder().max_waiting(1)));
    let calls = [URI, "http://b.example/b"].map(|uri| client.clone().oneshot(get(uri)));
    assert!(
        join_all(calls)
            .await
            .into_iter()
            .all(|call| call.unwrap().status() == 503)
    );
    let second = script.requests().iter().filter(|request| *request == "/b").count();
    assert_eq!(second, 1, "there was no room for its retry");
}

/// The number of retries after `answer`, and the milliseconds until the last of them.
async fn retries_after(answer: (u16, Vec<&'static str>)) -> (usize, u128) {
    let script = Script::new([answer, (200, vec!["grpc-status: 0"])]);
    let client = script.client(patient().retries(3, |body: &String| Some(body.clone())));
    let start = Instant::now();
    let request = Request::put(URI).body(String::new()).unwrap();
    client.oneshot(request).await.unwrap();
    (script.times().len() - 1, start.elapsed().as_millis())
}

/// gRFC A6: a server pushes back by milliseconds, or forbids a retry by a negative or malformed number.
#[tokio::test(start_paused = true)]
async fn a_pushback_of_grpc_is_a_wait_or_forbids_the_retry() {
    for (pushback, expected) in [
        ("grpc-retry-pushback-ms: 2500", (1, 2_500)),
        ("grpc-retry-pushback-ms: 1", (1, 1_000)),
        ("grpc-retry-pushback-ms: 99999999999999999999", (1, 600_000)),
        ("grpc-retry-pushback-ms: -1", (0, 0)),
        ("grpc-retry-pushback-ms: ", (0, 0)),
        ("grpc-retry-pushback-ms: 1.5", (0, 0)),
        ("grpc-retry-pushback-ms: +5", (0, 0)),
        ("grpc-retry-pushback-ms: soon", (0, 0)),
    ] {
        let answer = (200, vec!["grpc-status: 8", pushback]);
        assert_eq!(retries_after(answer).await, expected, "{pushback}");
    }
    let longest = lines("grpc-status: 8 | retry-after: 3 | grpc-retry-pushback-ms: 2500");
    assert_eq!(retries_after((200, longest)).await, (1, 3_000));
    let twice = "grpc-retry-pushback-ms: 1000";
    assert_eq!(retries_after((200, vec!["grpc-status: 8", twice, twice])).await, (0, 0));
}

/// The server has rejected the request, even if the client does not retry it.
#[tokio::test(start_paused = true)]
async fn a_pushback_that_forbids_a_retry_delays_other_requests_like_any_rejection() {
    let lines = vec!["grpc-status: 8", "grpc-retry-pushback-ms: -1"];
    assert_eq!(times(vec![(200, lines)], 4).await, [0, 1, 3, 7]);
    for status in [429, 503] {
        let lines = vec!["retry-after: 2", "grpc-retry-pushback-ms: -1"];
        assert_eq!(retries_after((status, lines.clone())).await, (0, 0), "{status}");
        assert_eq!(times(vec![(status, lines)], 2).await, [0, 2], "{status}");
    }
    // A pushback of a call that has failed otherwise is for its retry alone.
    let lines = vec!["grpc-status: 14", "grpc-retry-pushback-ms: 5000"];
    assert_eq!(times(vec![(200, lines)], 2).await, [0, 0]);
}

/// GitLab sends Unix times in the fields of the drafts.
#[tokio::test(start_paused = true)]
async fn a_rejection_with_a_unix_time_as_its_reset_lasts_until_then() {
    let fields = "date: Fri, 15 Sep 2023 15:28:06 GMT | ratelimit-remaining: 0 | ratelimit-reset: 1694791726";
    assert_eq!(times(vec![(429, lines(fields))], 3).await, [0, 40, 80]);
}

/// Each probe takes 0.3 s, so that one at a time is in flight if no two come in the same second.
#[tokio::test(start_paused = true)]
async fn a_crowd_behind_a_server_that_rejects_everything_sends_one_probe_at_a_time() {
    for retries in [0, 2] {
        let script = Script::new([(429, vec![])]).taking(Duration::from_millis(300));
        let builder = ClientLayer::builder().queue_timeout(seconds(86_400));
        let client = script.client(builder.retries(retries, |body: &String| Some(body.clone())));
        // Nothing is known before the first answer.
        client.clone().oneshot(get(URI)).await.unwrap();
        let crowd = join_all((0..1_000).map(|_| client.clone().oneshot(get(URI)))).await;
        let (answered, throttled): (Vec<_>, Vec<_>) = crowd.into_iter().partition(Result::is_ok);
        let is_throttled = |result: &Result<_, _>| matches!(result, Err(ClientError::Throttled(_)));
        assert!(throttled.iter().all(is_throttled));
        let times = script.times();
        assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
        // 1 + 2 + … + 512 s, and then one request in at most ten minutes.
        assert!((100..=170).contains(&times.len()), "{}", times.len());
        assert!(answered.len() < times.len());
    }
}
