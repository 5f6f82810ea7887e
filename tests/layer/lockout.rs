//! Policies with a lockout: the responses to clients, and the interaction of the layer with the store.

use http::{StatusCode, header::RETRY_AFTER};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    ActualCost, Algorithm, Capacity, ConfigErrorKind, Direction, Outcome, ResponseFields,
    test_util::{Answer, ScriptedStore},
};

use super::*;

const BLOCK: Duration = Duration::from_secs(900);

fn logins(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_minute("logins", quota).with_lockout(BLOCK)
}

/// Sends a request whose login is right or wrong.
async fn log_in(layer: &RateLimitLayer, is_right: bool) -> Response<()> {
    let handler = service_fn(move |_: Request<TextBody>| async move {
        let mut response = Response::new(TextBody::default());
        if is_right {
            response.extensions_mut().insert(ActualCost(0));
        }
        Ok::<_, Infallible>(response)
    });
    let Ok(response) = layer.layer(handler).oneshot(request()).await;
    response.map(drop)
}

fn layer(scene: &Scene) -> RateLimitLayer {
    let builder = scene.builder_with(|limiter| limiter.clock(scene.clock.clone()));
    builder.build().unwrap()
}

#[tokio::test]
async fn a_blocked_client_is_told_when_the_block_ends_from_the_response_on_that_begins_it() {
    let scene = Scene::new([logins(3), QuotaPolicy::per_day("day", 100)]);
    let layer = layer(&scene);
    for (status, field) in [
        (200, r#""logins";r=2;t=40, "day";r=99;t=85536"#),
        (200, r#""logins";r=1;t=20, "day";r=98;t=84672"#),
        (200, r#""logins";r=0;t=900, "day";r=97;t=83808"#),
        (429, r#""logins";r=0;t=900, "day";r=97;t=83808"#),
    ] {
        let response = log_in(&layer, false).await;
        assert_eq!((response.code(), ratelimit(&response)), (status, field));
        let wait = if status == 429 { "900" } else { "" };
        let policies = r#""logins";q=3;w=60, "day";q=100;w=86400"#;
        assert_eq!(response.fields(["retry-after", "ratelimit-policy"]), [wait, policies]);
    }
    scene.clock.advance(Duration::from_millis(899_001));
    assert_eq!(log_in(&layer, true).await.headers()[RETRY_AFTER], "1");
    scene.clock.advance(Duration::from_millis(999));
    assert_eq!(log_in(&layer, true).await.status(), StatusCode::OK);
}

/// The fifth attempt is charged before its password is checked, and starts a lockout until the password proves right.
#[tokio::test]
async fn a_login_that_turns_out_to_be_right_blocks_nobody() {
    let scene = Scene::new([logins(5)]);
    let layer = layer(&scene);
    for is_right in [false, true, false, true, false, false, true, true, true, false] {
        assert_eq!(log_in(&layer, is_right).await.status(), StatusCode::OK, "{is_right}");
    }
    for is_right in [true, false] {
        assert_eq!(log_in(&layer, is_right).await.outcome(), Outcome::Rejected);
    }
}

/// Also where each attempt is free until it has failed.
#[tokio::test]
async fn a_failure_that_is_charged_after_the_answer_begins_a_block_for_free_attempts_too() {
    let scene = Scene::new([logins(2)]);
    let builder = scene.builder_with(|limiter| limiter.clock(scene.clock.clone())).cost(0);
    let layer = builder.actual_cost(|_| Some(1)).build().unwrap();
    for _ in 0..2 {
        assert_eq!(log_in(&layer, false).await.outcome(), Outcome::Allowed);
    }
    assert_eq!(log_in(&layer, false).await.outcome(), Outcome::Rejected);
    scene.clock.advance(BLOCK);
    assert_eq!(log_in(&layer, false).await.outcome(), Outcome::Allowed);
}

/// Applies immediately in this process; other processes may call the store again after one second.
#[tokio::test]
async fn an_administrator_lifts_a_block_by_a_reset() {
    let scene = Scene::new([logins(1)]);
    let layer = layer(&scene);
    assert_eq!(log_in(&layer, false).await.outcome(), Outcome::Allowed);
    assert_eq!(log_in(&layer, false).await.outcome(), Outcome::Rejected);
    let seen = layer.limiter().caller(&everybody()).peek().await.unwrap().unwrap();
    assert_eq!(seen.allowances().next().unwrap().retry_after(), Some(BLOCK));
    layer.limiter().caller(&everybody()).reset().await.unwrap();
    assert_eq!(log_in(&layer, false).await.outcome(), Outcome::Allowed);
}

/// With one percent of five, each login would lock its user out.
#[tokio::test]
async fn reduced_capacity_leaves_a_policy_that_blocks_as_it_is() {
    let scene = Scene::new([logins(5), QuotaPolicy::per_minute("minute", 1_000)]);
    let builder = scene.builder().capacity(|_| Capacity::reduced_to(1).unwrap());
    let reduced = builder.build().unwrap();
    for _ in 0..5 {
        let allowed = log_in(&reduced, false).await;
        let policies = r#""logins";q=5;w=60, "minute";q=10;w=60"#;
        assert_eq!((allowed.code(), allowed.field("ratelimit-policy")), (200, policies));
    }
    assert_eq!(log_in(&reduced, false).await.code(), 429, "capacity is not the reason");
}

#[tokio::test]
async fn a_scripted_rejection_by_a_policy_that_blocks_is_one_of_its_block() {
    let store = ScriptedStore::new();
    store.answer(Answer::Rejected);
    let layer = builder(store, &[logins(5)]).build().unwrap();
    assert_eq!(log_in(&layer, false).await.headers()[RETRY_AFTER], "900");
}

#[tokio::test]
async fn older_dialects_show_the_end_of_a_block() {
    let scene = Scene::new([logins(1)]);
    let builder = scene.builder().response_fields(ResponseFields::draft06());
    let response = log_in(&builder.build().unwrap(), false).await;
    assert_eq!(response.headers()["ratelimit-reset"], "900");
}

#[test]
fn a_lockout_that_cannot_be_is_an_error_with_policy_value_and_bound() {
    let whole = |lockout| format!("lockout {lockout} is not a whole number of seconds in 1..=1000000000");
    let refused = |of| format!("lockout 900s: not supported for {of}");
    let minute = |time| QuotaPolicy::per_minute("p", 5).with_lockout(time);
    let too_long = Duration::from_secs(1_000_000_001);
    let queue = Algorithm::LeakyBucketQueue { max_waiting: 3 };
    let slots = QuotaPolicy::concurrent("p", 5).with_lockout(BLOCK);
    for (policy, message) in [
        (minute(Duration::ZERO), whole("0ns")),
        (minute(Duration::from_millis(1_500)), whole("1.5s")),
        (minute(too_long), whole("1000000001s")),
        (minute(Duration::MAX), whole("18446744073709551615.999999999s")),
        (minute(BLOCK).shadow(), refused("shadow policies")),
        (minute(BLOCK).with_prefetch(2), refused("policies with prefetching")),
        (minute(BLOCK).with_algorithm(queue), refused("leaky-bucket queues")),
        (slots, refused("concurrency limits")),
    ] {
        let error = PolicySet::new([policy]).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Lockout);
        assert_eq!(error.to_string(), format!(r#"policy "p": {message}"#));
    }
    for seconds in [1, 1_000_000_000] {
        let policy = minute(Duration::from_secs(seconds)).with_content_bytes(Direction::Both);
        assert_eq!(policy.lockout(), Some(Duration::from_secs(seconds)));
        assert!(PolicySet::new([policy]).is_ok());
    }
}
