//! The layer: who waits, how long, and for which server.

use futures_util::future::join_all;
use ratelimit_fields::draft11::{LimitItem, RateLimit};
use tokio_test::{assert_pending, assert_ready, task};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_quota::{PartitionKey, Scope};
use tower_ratelimit_client::{ClientError, Strategy, Throttled, ThrottledKind};

use super::*;

const URI: &str = "http://a.example/";

fn throttled<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, ClientError<E>>) -> Throttled {
    match result.unwrap_err() {
        ClientError::Throttled(error) => error,
        other => panic!("{other:?}"),
    }
}

/// F7
#[tokio::test(start_paused = true)]
async fn requests_wait_for_their_turn_in_the_order_in_which_they_came() {
    let script = Script::new([
        (200, vec![r#"ratelimit: "a";r=2;t=10"#]),
        (200, vec![r#"ratelimit: "a";r=1;t=10"#]),
        (200, vec![r#"ratelimit: "a";r=0;t=10"#]),
        (200, vec![r#"ratelimit: "a";r=1;t=10"#]),
        (200, vec![r#"ratelimit: "a";r=0;t=10"#]),
    ]);
    let client = script.client(builder());
    client.clone().oneshot(get("http://a.example/first")).await.unwrap();
    let calls = (0..6).map(|number| client.clone().oneshot(get(&format!("{URI}{number}"))));
    assert!(
        join_all(calls)
            .await
            .into_iter()
            .all(|call| call.unwrap().status() == 200)
    );
    assert_eq!(script.requests(), ["/first", "/0", "/1", "/2", "/3", "/4", "/5"]);
    assert_eq!(script.times(), [0, 0, 0, 10, 10, 20, 30]);
}

/// Not even while the first in line has not noticed yet that its turn has come.
#[tokio::test(start_paused = true)]
async fn nobody_overtakes_those_who_wait() {
    let script = Script::new([(200, vec![r#"ratelimit: "a";r=0;t=10"#]), (200, vec![])]);
    let client = script.client(builder());
    client.clone().oneshot(get("http://a.example/before")).await.unwrap();
    let spawn = |path: &str| task::spawn(client.clone().oneshot(get(&format!("{URI}{path}"))));
    let (mut first, mut late) = (spawn("first"), spawn("late"));
    assert_pending!(first.poll());
    tokio::time::advance(seconds(11)).await;
    assert_pending!(late.poll());
    assert!(assert_ready!(first.poll()).is_ok());
    assert_eq!(script.requests(), ["/before", "/first"]);
}

/// F8, F13
#[tokio::test(start_paused = true)]
async fn nothing_is_sent_until_retry_after_is_over_or_the_cap_of_it() {
    let script = Script::new([
        (429, vec!["retry-after: 20", r#"ratelimit: "a";r=0;t=40"#]),
        (503, vec!["retry-after: 1000000"]),
        (200, vec![]),
    ]);
    let caps = Caps::new(seconds(60), 10_000).unwrap();
    let client = script.client(builder().queue_timeout(seconds(3_600)).caps(caps));
    for _ in 0..4 {
        client.clone().oneshot(get(URI)).await.unwrap();
    }
    assert_eq!(script.times(), [0, 20, 80, 80]);
}

/// F9: the wall clock of the program, because the response has no `Date`.
#[tokio::test(start_paused = true)]
async fn a_date_without_the_date_of_the_response_is_compared_with_the_wall_clock() {
    let until = (503, vec!["retry-after: Tue, 14 Nov 2023 22:14:00 GMT"]);
    let script = Script::new([until.clone(), until, (200, vec![])]);
    let start = Instant::now();
    let layer = builder().wall_clock(move || date() + start.elapsed()).build().unwrap();
    let client = layer.layer(script.service());
    for _ in 0..2 {
        client.clone().oneshot(get(URI)).await.unwrap();
    }
    assert_eq!(script.times(), [0, 40]);
    let known = layer.origin_status(&parts(URI)).unwrap();
    assert_eq!(known.retry_after(), None, "the date has passed");
}

/// F11: the response is older than its exchange.
#[tokio::test(start_paused = true)]
async fn an_old_date_is_that_of_a_cache_if_dates_are_trusted() {
    for (trusts_dates, limits) in [(false, 1), (true, 0)] {
        let lines = vec!["date: Tue, 14 Nov 2023 21:00:00 GMT", r#"ratelimit: "a";r=5;t=60"#];
        let caps = Caps::default().trust_dates(trusts_dates);
        let layer = builder().caps(caps).wall_clock(date).build().unwrap();
        let client = layer.layer(Script::new([(200, lines)]).service());
        client.oneshot(get(URI)).await.unwrap();
        assert_eq!(layer.origin_status(&parts(URI)).unwrap().limits().len(), limits);
    }
}

/// F14
#[tokio::test(start_paused = true)]
async fn paced_requests_are_spread_over_the_window() {
    let script = Script::new([(200, vec![r#"ratelimit: "a";r=4;t=12"#]), (200, vec![])]);
    let pace = Strategy::Pace { below_percent: 100 };
    let client = script.client(builder().strategy(pace));
    client.clone().oneshot(get(URI)).await.unwrap();
    join_all((0..4).map(|_| client.clone().oneshot(get(URI)))).await;
    assert_eq!(script.times(), [0, 0, 3, 6, 9]);
}

/// F14
#[tokio::test(start_paused = true)]
async fn who_only_observes_sends_at_once() {
    let script = Script::new([(429, vec!["retry-after: 20"])]);
    let layer = builder().strategy(Strategy::Observe).build().unwrap();
    let client = layer.layer(script.service());
    for _ in 0..3 {
        let response = client.clone().oneshot(get(URI)).await.unwrap();
        let advice = response.extensions().get::<Advice>().unwrap();
        assert_eq!(advice.retry_after(), Some(seconds(20)));
    }
    assert_eq!(script.times(), [0, 0, 0]);
    let known = layer.origin_status(&parts(URI)).unwrap();
    assert_eq!(known.retry_after(), Some(seconds(20)));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_known_to_be_too_long_fails_at_once_and_says_until_when() {
    let script = Script::new([(200, vec![r#"ratelimit: "a";r=0;t=30"#])]);
    let client = script.client(builder().queue_timeout(seconds(29)));
    client.clone().oneshot(get(URI)).await.unwrap();
    let start = Instant::now();
    let error = throttled(client.clone().oneshot(get(URI)).await);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(error.kind(), ThrottledKind::TooLong);
    assert_eq!(error.retry_after(), Some(seconds(30)));
    let message = "request not sent: the wait for the server's quota is too long; retry after 30s";
    assert_eq!(error.to_string(), message);
    tokio::time::advance(seconds(1)).await;
    client.oneshot(get(URI)).await.unwrap();
    assert_eq!(script.times(), [0, 30]);
}

/// Requests behind the first one in the queue cannot know their wait, and wait at most for the queue timeout.
#[tokio::test(start_paused = true)]
async fn no_request_waits_longer_than_its_patience() {
    let script = Script::new([(200, vec![r#"ratelimit: "a";r=0;t=10"#])]);
    let client = script.client(builder().queue_timeout(seconds(25)));
    client.clone().oneshot(get(URI)).await.unwrap();
    let start = Instant::now();
    let calls = (0..4).map(|_| async {
        let result = client.clone().oneshot(get(URI)).await;
        (result.is_ok(), start.elapsed().as_secs())
    });
    let expected = [(true, 10), (true, 20), (false, 20), (false, 20)];
    assert_eq!(join_all(calls).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_an_answer_gives_up_when_its_patience_ends() {
    let layer = builder().queue_timeout(seconds(3)).build().unwrap();
    let hangs = service_fn(|request: Request<String>| async move {
        if request.uri().path() == "/hangs" {
            std::future::pending::<()>().await;
        }
        let mut response = Response::new(());
        *response.headers_mut() = headers(&[r#"ratelimit: "a";r=0"#]);
        Ok::<_, Infallible>(response)
    });
    let client = layer.layer(hangs);
    client.clone().oneshot(get(URI)).await.unwrap();
    let _trial = pending(client.clone().oneshot(get("http://a.example/hangs")));
    let start = Instant::now();
    let error = throttled(client.oneshot(get(URI)).await);
    assert_eq!((error.kind(), start.elapsed()), (ThrottledKind::TooLong, seconds(3)));
    assert_eq!(error.retry_after(), Some(seconds(2)), "then another one may try");
}

#[tokio::test(start_paused = true)]
async fn more_than_may_wait_fail_at_once() {
    let script = Script::new([(200, vec![r#"ratelimit: "a";r=0;t=10"#])]);
    let layer = builder().max_waiting(2).build().unwrap();
    let client = layer.layer(script.service());
    // All origins count together.
    for uri in [URI, "http://b.example/"] {
        client.clone().oneshot(get(uri)).await.unwrap();
    }
    let spawn = |uri| task::spawn(client.clone().oneshot(get(uri)));
    let (mut first, mut second) = (spawn(URI), spawn("http://b.example/"));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_eq!(layer.origin_status(&parts(URI)).unwrap().waiting(), 1);
    let error = throttled(assert_ready!(spawn(URI).poll()));
    assert_eq!(error.kind(), ThrottledKind::TooMany);
    assert_eq!(error.retry_after(), Some(seconds(10)));

    // A request that leaves makes room.
    drop(second);
    assert_pending!(spawn(URI).poll());
    assert_eq!(layer.origin_status(&parts(URI)).unwrap().waiting(), 1);
}

#[tokio::test(start_paused = true)]
async fn each_origin_is_for_itself() {
    let script = Script::new([(429, vec!["retry-after: 20"]), (200, vec![])]);
    let client = script.client(builder().queue_timeout(Duration::ZERO));
    client.clone().oneshot(get("http://a.example/x")).await.unwrap();
    for uri in ["http://A.example:80/y", "http://user@a.example/", "HTTP://a.example/"] {
        throttled(client.clone().oneshot(get(uri)).await);
    }
    let others = "https://a.example/ https://a.example:80/ http://a.example:8080/ http://b.example/ /";
    for uri in others.split(' ') {
        assert!(client.clone().oneshot(get(uri)).await.is_ok(), "{uri}");
    }
}

/// A connection that adds the origin itself, as tonic's does, or the `Host` field.
#[tokio::test(start_paused = true)]
async fn requests_without_a_host_in_their_uri_are_told_apart_by_their_host_field() {
    let script = Script::new([(429, vec!["retry-after: 20"]), (200, vec![])]);
    let client = script.client(builder().queue_timeout(Duration::ZERO));
    let with_host = |host: &str| Request::get("/").header("host", host).body(String::new()).unwrap();
    client.clone().oneshot(with_host("a.example")).await.unwrap();
    throttled(client.clone().oneshot(with_host("A.example")).await);
    client.clone().oneshot(with_host("b.example")).await.unwrap();
    client.clone().oneshot(get("/")).await.unwrap();
}

/// E10: the rule for the server's keys is public, so the client computes the key of its next request and finds the
/// remaining units, even if the server reported them in response to another request.
#[tokio::test(start_paused = true)]
async fn a_client_that_computes_the_key_of_its_next_request_knows_what_is_left_for_it() {
    let key_of = |user: &[u8]| {
        Scope::new("api")
            .partition(&PartitionKey::new("user", user))
            .shown_key()
    };
    let item = |user: &str, remaining| {
        let item = LimitItem::new("day", remaining).unwrap();
        item.with_reset(seconds(60)).with_partition_key(key_of(user.as_bytes()))
    };
    let field = RateLimit::new([item("alice", 0), item("bob", 3)]).unwrap();
    let line: &str = format!("ratelimit: {field}").leak();
    let script = Script::new([(200, vec![line]), (200, vec![])]);
    let computed = move |request: &request::Parts| Some(key_of(request.headers.get("user")?.as_bytes()).to_vec());
    let impatient = || builder().queue_timeout(Duration::ZERO).partition_by(computed);
    let client = script.client(impatient());
    let of = |user: &str| Request::get(URI).header("user", user).body(user.to_owned()).unwrap();
    client.clone().oneshot(of("bob")).await.unwrap();
    for _ in 0..3 {
        client.clone().oneshot(of("bob")).await.unwrap();
    }
    throttled(client.clone().oneshot(of("bob")).await);
    assert_eq!(script.requests(), ["/bob"; 4]);

    let script = Script::new([(200, vec![line])]);
    let client = script.client(impatient());
    client.clone().oneshot(of("alice")).await.unwrap();
    throttled(client.oneshot(of("alice")).await);
    assert_eq!(script.requests(), ["/alice"]);
}

/// E11: what earlier responses reported applies to similar later requests, even if the server sent a key with it: to
/// requests to the same origin, or of the same user if the client distinguishes users.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_know_the_rule_of_keys_guesses_from_earlier_requests() {
    let fields = [
        r#"ratelimit: "u";r=0;t=9;pk=:xJvU:"#,
        r#"ratelimit: "u";r=5;t=9;pk=:0Q7z:"#,
    ];
    let answers = || Script::new(fields.map(|field| (200, vec![field])));
    let of = |user: &str| Request::get(URI).header("user", user).body(String::new()).unwrap();
    let impatient = || builder().queue_timeout(Duration::ZERO);

    let script = answers();
    let client = script.client(impatient());
    client.clone().oneshot(of("alice")).await.unwrap();
    for user in ["alice", "bob"] {
        throttled(client.clone().oneshot(of(user)).await);
    }

    let by_user = |request: &request::Parts| Some(request.headers.get("user")?.as_bytes().to_vec());
    let script = answers();
    let client = script.client(impatient().partition_by(by_user));
    client.clone().oneshot(of("alice")).await.unwrap();
    throttled(client.clone().oneshot(of("alice")).await);
    for _ in 0..3 {
        client.clone().oneshot(of("bob")).await.unwrap();
    }
    throttled(client.oneshot(of("alice")).await);
}

/// Regardless of the order of the origins.
#[tokio::test(start_paused = true)]
async fn of_many_origins_with_news_those_are_kept_whose_news_last_longest() {
    for before in 0..8 {
        let mut answers = vec![(429, vec!["retry-after: 10"]); before];
        answers.extend([(429, vec!["retry-after: 600"]), (429, vec!["retry-after: 10"])]);
        let layer = builder().max_origins(8).queue_timeout(Duration::ZERO).build().unwrap();
        let client = layer.layer(Script::new(answers).service());
        let to = |number: usize| get(&format!("http://{number}.example/"));
        for number in 0..before {
            client.clone().oneshot(to(number)).await.unwrap();
        }
        client.clone().oneshot(get(URI)).await.unwrap();
        for number in before..200 {
            client.clone().oneshot(to(number)).await.unwrap();
            assert!(layer.origins() <= 8);
        }
        throttled(client.oneshot(get(URI)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_origin_that_is_used_often_is_evicted_first_once_nothing_is_known_of_it() {
    let script = Script::new([(429, vec!["retry-after: 10"]), (429, vec!["retry-after: 600"])]);
    let layer = builder().max_origins(8).queue_timeout(Duration::ZERO).build().unwrap();
    let client = layer.layer(script.service());
    let uri = |number: usize| format!("http://{number}.example/");
    let send = async |number| client.clone().oneshot(get(&uri(number))).await;
    for number in 0..8 {
        send(number).await.unwrap();
    }
    throttled(send(0).await);
    tokio::time::advance(seconds(10)).await;
    send(8).await.unwrap();
    let is_known = |number| layer.origin_status(&parts(&uri(number))).is_some();
    assert!(!is_known(0) && (1..=8).all(is_known));
}

/// The responses of those servers do not matter, because any server can send a wait of an hour.
#[tokio::test(start_paused = true)]
async fn a_flood_of_origins_that_are_asked_once_does_not_push_out_one_that_is_used() {
    let mut answers = vec![(200, vec![]), (429, vec!["retry-after: 60"])];
    answers.extend(vec![(429, vec!["retry-after: 3600"]); 1_000]);
    let client = Script::new(answers).client(builder().max_origins(100).queue_timeout(Duration::ZERO));
    for _ in 0..2 {
        client.clone().oneshot(get(URI)).await.unwrap();
    }
    for number in 0..1_000 {
        let uri = format!("http://{number}.example/");
        client.clone().oneshot(get(&uri)).await.unwrap();
    }
    throttled(client.oneshot(get(URI)).await);
}

/// A new queue for the same server would overtake the existing one.
#[tokio::test(start_paused = true)]
async fn an_origin_where_requests_wait_or_are_on_their_way_is_not_forgotten_for_a_new_one() {
    let server = service_fn(async |request: Request<String>| {
        let response = Response::builder();
        match request.uri().host().unwrap() {
            "slow.example" => std::future::pending().await,
            "a.example" => response.header("ratelimit", r#""a";r=0;t=10"#).body(()),
            "news.example" => response.header("ratelimit", r#""a";r=5;t=600"#).body(()),
            _ => response.body(()),
        }
    });
    let layer = builder().max_origins(3).build().unwrap();
    let client = layer.layer(server);
    let _on_its_way = pending(client.clone().oneshot(get("http://slow.example/")));
    client.clone().oneshot(get(URI)).await.unwrap();
    let _waits = pending(client.clone().oneshot(get(URI)));
    client.clone().oneshot(get("http://news.example/")).await.unwrap();

    for number in 0..20 {
        let uri = format!("http://{number}.example/");
        client.clone().oneshot(get(&uri)).await.unwrap();
        assert_eq!(layer.origins(), 3);
        let known = |uri| layer.origin_status(&parts(uri));
        assert_eq!(known("http://slow.example/").unwrap().in_flight(), 1);
        assert_eq!(known(URI).unwrap().waiting(), 1);
        assert!(known("http://news.example/").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_known_can_be_looked_at() {
    let script = Script::new([(
        200,
        lines(r#"ratelimit: "a";r=5;t=10 | ratelimit-policy: "a";q=9;w=10"#),
    )]);
    let layer = builder().build().unwrap();
    assert_eq!(layer.origin_status(&parts(URI)), None);
    layer.layer(script.service()).oneshot(get(URI)).await.unwrap();
    tokio::time::advance(seconds(3)).await;
    let known = layer.origin_status(&parts("http://a.example/else")).unwrap();
    let limit = &known.limits()[0];
    assert_eq!((limit.name(), limit.quota()), (Some("a"), Some(9)));
    assert_eq!((limit.remaining(), limit.reset()), (Some(5), Some(seconds(7))));
    assert_eq!((known.retry_after(), known.in_flight(), known.waiting()), (None, 0, 0));
}

/// The extensions contain the advice of the response, and nothing if it has none.
#[tokio::test]
async fn the_advice_is_in_the_extensions_of_the_response() {
    let script = Script::new([
        (200, vec![r#"ratelimit: "a";r=5;t=10"#]),
        (200, vec!["ratelimit: ("]),
        (200, vec![]),
    ]);
    let client = script.client(builder());
    let advice = async || {
        let response = client.clone().oneshot(get(URI)).await.unwrap();
        response.extensions().get::<Advice>().cloned()
    };
    assert_eq!(advice().await.unwrap().limits()[0].remaining(), Some(5));
    assert_eq!(advice().await.unwrap().ignored().len(), 1);
    assert_eq!(advice().await, None);
}

#[tokio::test]
async fn an_error_of_the_inner_service_is_passed_on() {
    let client = builder().build().unwrap().layer(service_fn(async |_: Request<String>| {
        Err::<Response<()>, _>(std::io::Error::other(std::io::Error::other("the cause")))
    }));
    let error = client.oneshot(get(URI)).await.unwrap_err();
    assert_eq!(error.to_string(), "the cause");
    let boxed: Box<dyn std::error::Error + Send + Sync> = error.into();
    assert!(boxed.downcast_ref::<ClientError<std::io::Error>>().is_some());
}

#[test]
fn settings_out_of_their_range_are_rejected() {
    let pace = Strategy::Pace { below_percent: 0 };
    for (builder, message) in [
        (
            builder().queue_timeout(seconds(86_401)),
            "queue_timeout 86401s is outside 0ns..=86400s",
        ),
        (builder().max_waiting(0), "max_waiting 0 is outside 1..=1000000"),
        (builder().max_origins(0), "max_origins 0 is outside 1..=1000000"),
        (builder().jitter_percent(101), "jitter_percent 101 is outside 0..=100"),
        (builder().strategy(pace), "below_percent 0 is outside 1..=100"),
    ] {
        assert_eq!(builder.build().unwrap_err().to_string(), format!("client: {message}"));
    }
    let error = builder()
        .retries(11, |body: &String| Some(body.clone()))
        .build()
        .unwrap_err();
    assert_eq!(error.to_string(), "client: retries 11 is outside 0..=10");
}
