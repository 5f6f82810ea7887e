//! Policies that admit a part more than their quota.

use test_kit::{Answered, costing, limits, memory, request, send};
use tower_layer::Layer;
use tower_quota::{
    ActualCost, Algorithm, CallerQuotas, Capacity, ConfigErrorKind, Outcome,
    calendar::{CalendarPeriod, CalendarWindow},
};

use super::*;

const DAY: QuotaPolicy = QuotaPolicy::per_day("day", 10)
    .with_algorithm(Algorithm::FixedWindow)
    .with_overage(20);

fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_006_400_000_000))
}

#[tokio::test]
async fn requests_above_the_quota_pass_up_to_the_ceiling_and_are_marked_in_decision_and_field() {
    let policies = [
        DAY,
        DAY.with_algorithm(Algorithm::SlidingWindowCounter),
        DAY.with_algorithm(Algorithm::SlidingWindowLog),
        QuotaPolicy::per_calendar("day", 10, CalendarWindow::new(CalendarPeriod::Day, "UTC")).with_overage(20),
    ];
    for policy in policies {
        let layer = limits(memory(&clock())).policy(policy.clone()).build().unwrap();
        for used in 1..=12_u64 {
            let response = send(&layer, request("alice")).await;
            assert_eq!(response.outcome(), Outcome::Allowed);
            assert_eq!(
                response.remaining(),
                [("day".to_owned(), 10_u64.saturating_sub(used))],
                "{policy:?}"
            );
            assert!(response.field("ratelimit-policy").starts_with(r#""day";q=10"#));
            let over: Vec<u64> = response.decision().over_quota().map(|day| day.over_quota()).collect();
            assert_eq!(over, if used > 10 { vec![used - 10] } else { vec![] }, "{policy:?}");
        }
        let rejected = send(&layer, request("alice")).await;
        assert_eq!(
            (rejected.code(), rejected.remaining()),
            (429, vec![("day".to_owned(), 0)])
        );
        assert_ne!(rejected.field("retry-after"), "");
    }
}

#[tokio::test]
async fn slots_above_the_quota_are_taken_up_to_the_ceiling() {
    let limiter = Limiter::builder(memory(&clock()))
        .scope("slots")
        .policy(QuotaPolicy::concurrent("slots", 2).with_overage(50))
        .build()
        .unwrap();
    let alice = limiter.caller("alice");
    let permits = [
        alice.hold().await.unwrap(),
        alice.hold().await.unwrap(),
        alice.hold().await.unwrap(),
    ];
    let over = permits.iter().map(|permit| permit.decision().over_quota().count());
    assert_eq!(over.collect::<Vec<_>>(), [0, 0, 1]);
    assert!(alice.hold().await.is_err());
    drop(permits);
    assert!(alice.hold().await.is_ok());
}

#[tokio::test]
async fn costs_and_actual_costs_count_above_the_quota_as_below_it() {
    let layer = limits(memory(&clock()))
        .cost_by(test_kit::cost)
        .policy(DAY)
        .build()
        .unwrap();
    assert_eq!(send(&layer, costing(9)).await.code(), 200);
    // One unit too many for the ceiling, and nothing is charged.
    assert_eq!(send(&layer, costing(4)).await.code(), 429);
    let response = send(&layer, costing(3)).await;
    assert_eq!(response.decision().over_quota().next().unwrap().over_quota(), 2);
    // A cost above the ceiling never passes.
    let response = send(&layer, costing(13)).await;
    assert_eq!((response.code(), response.field("retry-after")), (429, ""));

    let layer = limits(memory(&clock())).policy(DAY).build().unwrap();
    let service = layer.layer(tower::service_fn(async |_: Request<String>| {
        let mut response = Response::new(TextBody::default());
        response.extensions_mut().insert(ActualCost(11));
        Ok::<_, Infallible>(response)
    }));
    let response = test_kit::call(service, request("alice")).await;
    assert_eq!(response.decision().over_quota().next().unwrap().over_quota(), 1);
    assert_eq!(send(&layer, request("alice")).await.code(), 200);
    assert_eq!(send(&layer, request("alice")).await.code(), 429);
}

#[tokio::test]
async fn quotas_of_callers_top_ups_and_reduced_capacity_move_the_ceiling_with_the_quota() {
    async fn admitted(layer: &RateLimitLayer, request: impl Fn() -> Request<String>) -> u64 {
        let mut admitted = 0;
        while send(layer, request()).await.code() == 200 {
            admitted += 1;
        }
        admitted
    }
    let own = || {
        let mut request = request("acme");
        request.extensions_mut().insert(CallerQuotas::new().quota("day", 50));
        request
    };
    let policy = || DAY.with_caller_quotas(1..=100);
    let layer = limits(memory(&clock())).policy(policy()).build().unwrap();
    assert_eq!(admitted(&layer, own).await, 60);
    let topped_up = || {
        let mut request = request("bob");
        let top_up = CallerQuotas::new().top_up("day", 10, Timestamp::from_micros(u64::MAX));
        request.extensions_mut().insert(top_up);
        request
    };
    assert_eq!(admitted(&layer, topped_up).await, 24);
    let reduced = limits(memory(&clock())).capacity(|_| Capacity::reduced_to(50).unwrap());
    let reduced = reduced.policy(policy()).build().unwrap();
    assert_eq!(
        (
            admitted(&reduced, own).await,
            admitted(&reduced, || request("bob")).await
        ),
        (30, 6)
    );
}

#[tokio::test]
async fn an_overage_that_does_not_apply_is_an_error_of_build() {
    let window = DAY;
    for (policy, message) in [
        (window.clone().shadow(), "not supported for shadow policies"),
        (
            window.clone().with_lockout(Duration::from_secs(9)),
            "not supported for policies with a lockout",
        ),
        (
            window.clone().with_prefetch(2),
            "not supported for policies with prefetching",
        ),
        (
            window.clone().with_overage(0),
            "overage in percent 0 is outside 1..=10000",
        ),
        (
            window.clone().with_overage(u32::MAX),
            "overage in percent 4294967295 is outside 1..=10000",
        ),
        (
            window.clone().with_caller_quotas(1..=900_000_000_000_000),
            "quota plus overage 1080000000000000 is outside",
        ),
    ] {
        let error = limits(memory(&clock())).policy(policy).build().unwrap_err();
        assert!(
            error.to_string().starts_with(r#"policy "day": "#) && error.to_string().contains(message),
            "{error}"
        );
        assert_eq!(error.kind(), ConfigErrorKind::Quota);
    }
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::StrictTokenBucket,
        Algorithm::LeakyBucketMeter,
        Algorithm::LeakyBucketQueue { max_waiting: 2 },
    ] {
        let bucket = limits(memory(&clock())).policy(window.clone().with_algorithm(algorithm));
        let error = bucket.build().unwrap_err().to_string();
        assert!(error.contains("overage 20%: not supported for buckets"), "{error}");
    }
    // The cost of every request may be as high as the ceiling.
    assert!(limits(memory(&clock())).cost(12).policy(window.clone()).build().is_ok());
    assert!(limits(memory(&clock())).cost(13).policy(window).build().is_err());
}
