//! `t` of policies whose quota is exhausted, but not their overage.

use super::*;

async fn shown(layer: &RateLimitLayer, cost: u64) -> [String; 2] {
    take(layer, cost)
        .await
        .fields(["ratelimit", "retry-after"])
        .map(str::to_owned)
}

/// The window ends in ten seconds. A unit of the ceiling would last for a quarter of a day at twice the rate.
#[tokio::test]
async fn an_exhausted_quota_with_an_overage_shows_the_end_of_its_window() {
    let scene = Scene::new();
    let layer = scene.layer(
        ResponseFields::draft11(),
        [fixed(QuotaPolicy::per_day("day", 10)).with_overage(100)],
    );
    scene.wait(86_390);
    assert_eq!(shown(&layer, 1).await, [r#""day";r=9;t=38880"#, ""]);
    assert_eq!(shown(&layer, 9).await, [r#""day";r=0;t=10"#, ""]);
    assert_eq!(shown(&layer, 10).await, [r#""day";r=0;t=10"#, ""]);
    assert_eq!(shown(&layer, 1).await, [r#""day";r=0;t=10"#, "10"]);
    scene.wait(9);
    assert_eq!(shown(&layer, 0).await, [r#""day";r=0;t=1"#, ""]);
    scene.wait(1);
    assert_eq!(shown(&layer, 0).await, [r#""day";r=10;t=86400"#, ""]);
}

/// The first unit of the log leaves earlier, but the quota is still exhausted then.
#[tokio::test]
async fn an_exhausted_log_with_an_overage_shows_when_a_unit_of_the_quota_is_available() {
    let scene = Scene::new();
    let log = QuotaPolicy::per_hour("hour", 10).with_algorithm(Algorithm::SlidingWindowLog);
    let layer = scene.layer(ResponseFields::draft11(), [log.with_overage(100)]);
    take(&layer, 1).await;
    scene.wait(1_000);
    assert_eq!(shown(&layer, 12).await, [r#""hour";r=0;t=3600"#, ""]);
    // The ceiling admits it when the first unit has left.
    assert_eq!(shown(&layer, 8).await, [r#""hour";r=0;t=2600"#, "2600"]);
    scene.wait(2_600);
    assert_eq!(shown(&layer, 0).await, [r#""hour";r=0;t=1000"#, ""]);
    scene.wait(1_000);
    assert_eq!(shown(&layer, 0).await, [r#""hour";r=10;t=3600"#, ""]);
}

/// Without an overage, only a cost that is known late exceeds the quota.
#[tokio::test]
async fn a_log_that_a_late_charge_overdraws_shows_no_earlier_time_than_its_next_unit() {
    let scene = Scene::new();
    let log = QuotaPolicy::per_hour("hour", 10).with_algorithm(Algorithm::SlidingWindowLog);
    let layer = scene.layer(ResponseFields::draft11(), [log]);
    take(&layer, 1).await;
    scene.wait(1_000);
    let mut response = ok();
    response.extensions_mut().insert(ActualCost(12));
    let answer = send(&layer, costing(1), response).await;
    assert_eq!(answer.field("ratelimit"), r#""hour";r=0;t=3600"#);
    scene.wait(2_600);
    assert_eq!(shown(&layer, 1).await, [r#""hour";r=0;t=1000"#, "1000"]);
}
