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
            let left = 10_u64.saturating_sub(used);
            assert_eq!(response.remaining(), [("day".to_owned(), left)], "{policy:?}");
            assert!(response.field("ratelimit-policy").starts_with(r#""day";q=10"#));
            let over: Vec<u64> = response.decision().over_quota().map(|day| day.over_quota()).collect();
            assert_eq!(over, if used > 10 { vec![used - 10] } else { vec![] }, "{policy:?}");
        }
        let rejected = send(&layer, request("alice")).await;
        assert_eq!(rejected.code(), 429);
        assert_eq!(rejected.remaining(), [("day".to_owned(), 0)]);
        assert_ne!(rejected.field("retry-after"), "");
    }
}

#[tokio::test]
async fn slots_above_the_quota_are_taken_up_to_the_ceiling() {
    let slots = QuotaPolicy::concurrent("slots", 2).with_overage(50);
    let limiter = Limiter::builder(memory(&clock())).scope("slots").policy(slots);
    let alice = limiter.build().unwrap().caller("alice");
    let mut permits = Vec::new();
    for over in [0, 0, 1] {
        permits.push(alice.hold().await.unwrap());
        assert_eq!(permits.last().unwrap().decision().over_quota().count(), over);
    }
    assert!(alice.hold().await.is_err());
    drop(permits);
    assert!(alice.hold().await.is_ok());
}

#[tokio::test]
async fn costs_and_actual_costs_count_above_the_quota_as_below_it() {
    let builder = limits(memory(&clock())).cost_by(test_kit::cost);
    let layer = builder.policy(DAY).build().unwrap();
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
    let with = |user: &str, quotas: CallerQuotas| {
        let mut request = request(user);
        request.extensions_mut().insert(quotas);
        request
    };
    let own = || with("acme", CallerQuotas::new().quota("day", 50));
    let end = Timestamp::from_micros(u64::MAX);
    let topped_up = || with("bob", CallerQuotas::new().top_up("day", 10, end));
    let policy = || DAY.with_caller_quotas(1..=100);
    let layer = limits(memory(&clock())).policy(policy()).build().unwrap();
    assert_eq!(admitted(&layer, own).await, 60);
    assert_eq!(admitted(&layer, topped_up).await, 24);
    let reduced = limits(memory(&clock())).capacity(|_| Capacity::reduced_to(50).unwrap());
    let reduced = reduced.policy(policy()).build().unwrap();
    assert_eq!(admitted(&reduced, own).await, 30);
    assert_eq!(admitted(&reduced, || request("bob")).await, 6);
}

#[tokio::test]
async fn an_overage_that_does_not_apply_is_an_error_of_build() {
    let lockout = Duration::from_secs(9);
    let refused = |policies| format!("not supported for {policies}");
    for (policy, message) in [
        (DAY.shadow(), refused("shadow policies")),
        (DAY.with_lockout(lockout), refused("policies with a lockout")),
        (DAY.with_prefetch(2), refused("policies with prefetching")),
        (DAY.with_overage(0), "overage in percent 0 is outside 1..=10000".into()),
        (
            DAY.with_overage(u32::MAX),
            "overage in percent 4294967295 is outside 1..=10000".into(),
        ),
        (
            DAY.with_caller_quotas(1..=900_000_000_000_000),
            "quota plus overage 1080000000000000 is outside".into(),
        ),
    ] {
        let error = limits(memory(&clock())).policy(policy).build().unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Quota);
        let error = error.to_string();
        assert!(
            error.starts_with(r#"policy "day": "#) && error.contains(&message),
            "{error}"
        );
    }
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::StrictTokenBucket,
        Algorithm::LeakyBucketMeter,
        Algorithm::LeakyBucketQueue { max_waiting: 2 },
    ] {
        let bucket = limits(memory(&clock())).policy(DAY.with_algorithm(algorithm));
        let error = bucket.build().unwrap_err().to_string();
        assert!(error.contains("overage 20%: not supported for buckets"), "{error}");
    }
    // The cost of every request may be as high as the ceiling.
    assert!(limits(memory(&clock())).cost(12).policy(DAY).build().is_ok());
    assert!(limits(memory(&clock())).cost(13).policy(DAY).build().is_err());
}
