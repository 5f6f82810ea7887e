//! Quota 0: closed.

use http::header::RETRY_AFTER;
use tower_quota::{
    Algorithm, CallerQuotas, Capacity, Outcome, Rules, StoreErrorKind,
    test_util::{Answer, ScriptedStore},
};

use super::*;

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::TokenBucket,
    Algorithm::StrictTokenBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
    Algorithm::SlidingWindowLog,
    Algorithm::LeakyBucketMeter,
    Algorithm::LeakyBucketQueue { max_waiting: 3 },
];

fn minute(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_minute("minute", quota)
}

/// A7
#[tokio::test]
async fn a_closed_policy_rejects_every_request_for_good_and_shows_no_quota() {
    for algorithm in ALGORITHMS {
        for cost in [0, 1, u64::MAX] {
            let scene = Scene::new([minute(0).with_algorithm(algorithm)]);
            let rejected = send(&scene.builder().cost_by(move |_| cost).build().unwrap(), request()).await;
            assert_eq!(rejected.code(), 429, "{algorithm:?}, {cost}");
            let fields = rejected.fields(["ratelimit-policy", "ratelimit", "retry-after"]);
            assert_eq!(fields, [r#""minute";q=0;w=60"#, r#""minute";r=0"#, ""]);
            let problem: serde_json::Value = serde_json::from_slice(rejected.body()).unwrap();
            let type_of = "https://iana.org/assignments/http-problem-types#quota-exceeded";
            assert_eq!(problem["type"], type_of);
            assert_eq!(problem["violated-policies"][0], "minute");
            assert_eq!(problem["detail"], "The limit is closed.");
        }
    }
    let rejected = send(&Scene::new([QuotaPolicy::concurrent("slots", 0)]).layer(), request()).await;
    assert_eq!(rejected.code(), 429);
    let fields = rejected.fields(["ratelimit-policy", "ratelimit"]);
    assert_eq!(fields, [r#""slots";q=0;qu="concurrent-requests""#, r#""slots";r=0"#]);
}

/// If the response mentioned the cost, the client would try a smaller request.
#[tokio::test]
async fn a_hidden_closed_policy_has_no_name_and_no_cost_is_blamed() {
    let scene = Scene::new([minute(0).hidden(), QuotaPolicy::per_hour("hour", 9)]);
    let rejected = send(&scene.layer(), request()).await;
    let problem: serde_json::Value = serde_json::from_slice(rejected.body()).unwrap();
    assert_eq!(problem["detail"], "The limit is closed.");
    assert_eq!(problem["violated-policies"], serde_json::json!([]));
}

/// A fixed cost that no other quota would leave room for is no mistake here.
#[tokio::test]
async fn a_plan_with_a_closed_policy_takes_nothing_from_the_others() {
    let scene = Scene::new([QuotaPolicy::per_hour("hour", 10), minute(0)]);
    let layer = scene.builder().cost(3).build().unwrap();
    assert_eq!(send(&layer, request()).await.outcome(), Outcome::Rejected);
    assert_eq!(scene.left().await, [10, 0]);
    let peeked = scene.store.peek(plan(&scene.policies, 1)).await.unwrap();
    assert_eq!(peeked.outcome(), Outcome::Rejected);
}

#[tokio::test]
async fn a_closed_policy_rejects_without_the_store_also_while_that_fails_and_the_layer_fails_open() {
    let store = ScriptedStore::new();
    store.answer(Answer::Failed(StoreErrorKind::Unavailable));
    let layer = builder(store.clone(), &[minute(0)]).build().unwrap();
    for _ in 0..10 {
        assert_eq!(send(&layer, request()).await.outcome(), Outcome::Rejected);
    }
    assert_eq!(store.calls(), 0);
}

#[tokio::test]
async fn what_was_used_before_a_policy_was_closed_is_used_after_it_is_opened_again() {
    for algorithm in ALGORITHMS {
        let policy = |quota| QuotaPolicy::per_day("day", quota).with_algorithm(algorithm);
        let (scene, rules) = (Scene::new([policy(10)]), |quota| Rules::new().policy(policy(quota)));
        let layer = scene.layer();
        assert_eq!(send(&layer, request()).await.outcome(), Outcome::Allowed);
        let left = scene.left().await;
        for _ in 0..3 {
            layer.limiter().rules().replace(rules(0)).unwrap();
            assert_eq!(send(&layer, request()).await.outcome(), Outcome::Rejected);
        }
        layer.limiter().rules().replace(rules(10)).unwrap();
        assert_eq!(scene.left().await, left, "{algorithm:?}");
    }
}

#[tokio::test]
async fn neither_a_top_up_nor_reduced_capacity_opens_a_policy_and_neither_closes_one() {
    let reduced = |scene: &Scene| {
        let builder = scene.builder().capacity(|_| Capacity::reduced_to(1).unwrap());
        builder.build().unwrap()
    };
    let closed = Scene::new([minute(0).with_caller_quotas(0..=1_000)]);
    let mut topped_up = request();
    let top_up = CallerQuotas::new().top_up("minute", 100, Timestamp::from_micros(u64::MAX));
    topped_up.extensions_mut().insert(top_up);
    assert_eq!(send(&closed.layer(), topped_up).await.outcome(), Outcome::Rejected);

    let rejected = send(&reduced(&closed), request()).await;
    assert_eq!(rejected.status(), 429, "capacity is not the reason");
    assert_eq!(rejected.headers()["ratelimit-policy"], r#""minute";q=0;w=60"#);
    let allowed = send(&reduced(&Scene::new([minute(1)])), request()).await;
    assert_eq!(allowed.headers()["ratelimit-policy"], r#""minute";q=1;w=60"#);
}

#[tokio::test]
async fn a_closed_shadow_rejects_nothing_and_says_what_it_would_reject() {
    for policy in [minute(0).shadow(), QuotaPolicy::concurrent("slots", 0).shadow()] {
        let scene = Scene::new([QuotaPolicy::per_hour("hour", 10), policy]);
        let allowed = send(&scene.layer(), request()).await;
        assert_eq!(allowed.outcome(), Outcome::Allowed);
        assert_eq!(allowed.decision().shadow_violated().count(), 1);
        assert_eq!(scene.left().await, [9, 0]);
    }
}

/// An operator changes only the quota, to 0. This used to be an error, which left the old limits in effect.
#[tokio::test]
async fn a_policy_is_closed_by_its_quota_alone_and_has_its_settings_again_when_it_is_opened() {
    let settings: [fn(QuotaPolicy) -> QuotaPolicy; 4] = [
        |policy| policy.with_burst_capacity(2),
        |policy| policy.with_prefetch(2),
        |policy| policy.with_lockout(Duration::from_secs(900)),
        |policy| policy.with_burst_capacity(9).with_prefetch(8),
    ];
    for with_settings in settings {
        let rules = |quota| Rules::new().policy(with_settings(minute(quota)));
        let layer = Scene::new([with_settings(minute(2))]).layer();
        assert_eq!(send(&layer, request()).await.outcome(), Outcome::Allowed);
        layer.limiter().rules().replace(rules(0)).unwrap();
        for _ in 0..3 {
            let rejected = send(&layer, request()).await;
            assert_eq!(rejected.outcome(), Outcome::Rejected);
            assert!(!rejected.headers().contains_key(RETRY_AFTER));
        }
        layer.limiter().rules().replace(rules(2)).unwrap();
        assert_eq!(send(&layer, request()).await.outcome(), Outcome::Allowed);
    }
    // A block that began before does not end while the policy is closed.
    let blocking = |quota| minute(quota).with_lockout(Duration::from_secs(900));
    let layer = Scene::new([blocking(1)]).layer();
    assert_eq!(send(&layer, request()).await.outcome(), Outcome::Allowed);
    for rules in [0, 1].map(|quota| Rules::new().policy(blocking(quota))) {
        layer.limiter().rules().replace(rules).unwrap();
        assert_eq!(send(&layer, request()).await.outcome(), Outcome::Rejected);
    }
    assert_eq!(send(&layer, request()).await.headers()[RETRY_AFTER], "900");
}

#[test]
fn settings_of_a_closed_policy_that_no_quota_would_make_valid_are_mistakes() {
    let slots = || QuotaPolicy::concurrent("minute", 0);
    for (policy, message) in [
        (minute(0).with_burst_capacity(0), "burst capacity 0 is outside 1..="),
        (minute(0).with_prefetch(0), "prefetch 0 is outside 1..="),
        (
            minute(0).with_lockout(Duration::ZERO),
            "lockout 0ns is not a whole number of seconds",
        ),
        (
            slots().with_prefetch(1),
            "prefetch 1: not supported for ConcurrentRequests",
        ),
        (
            QuotaPolicy::new("minute", 0, Duration::ZERO),
            "window 0ns is not a whole number of seconds",
        ),
        (
            slots().with_algorithm(Algorithm::FixedWindow),
            "a concurrency limit takes neither",
        ),
    ] {
        let error = PolicySet::new([policy]).unwrap_err().to_string();
        assert!(error.starts_with(&format!(r#"policy "minute": {message}"#)), "{error}");
    }
    let names = [minute(0), minute(1)];
    let error = PolicySet::new(names).unwrap_err().to_string();
    assert_eq!(error, r#"policy "minute": duplicate name; names must be unique"#);
}
