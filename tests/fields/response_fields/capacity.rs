//! Reduced capacity, and abnormal usage.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tower_quota::{AbnormalUsage, Capacity, ConfigErrorKind, Decision, Outcome, Tiers};

use super::*;

#[derive(Clone)]
struct Load(Arc<Mutex<Capacity>>);

impl Load {
    fn set(&self, capacity: Capacity) {
        *self.0.lock().unwrap() = capacity;
    }
}

fn loaded(scene: &Scene, policies: impl IntoIterator<Item = QuotaPolicy>) -> (Load, RateLimitLayerBuilder) {
    let load = Load(Arc::default());
    let capacity = load.clone();
    let builder = scene.builder(policies);
    (load, builder.capacity(move |_| *capacity.0.lock().unwrap()))
}

fn to(path: &str) -> Request<String> {
    let mut request = costing(1);
    *request.uri_mut() = path.parse().unwrap();
    request
}

fn hourly() -> QuotaPolicy {
    fixed(QuotaPolicy::per_hour("hourly", 100))
}

/// C6, C7, C9, D12, D14, D19
#[tokio::test]
async fn reduced_capacity_lowers_quotas_shows_them_and_rejects_with_503() {
    let scene = Scene::new();
    let (load, builder) = loaded(&scene, [hourly()]);
    let layer = builder.build().unwrap();
    assert_eq!(take(&layer, 15).await.field("ratelimit"), r#""hourly";r=85;t=3600"#);
    load.set(Capacity::reduced_to(20).unwrap());
    let allowed = take(&layer, 5).await;
    let exhausted = [r#""hourly";r=0;t=3600"#, r#""hourly";q=20;w=3600"#];
    assert_eq!(allowed.fields(["ratelimit", "ratelimit-policy"]), exhausted);
    assert!(allowed.decision().is_capacity_reduced());
    let rejected = take(&layer, 1).await;
    let title = "Request cannot be satisfied due to temporary server capacity constraints";
    let expected = problem_of("temporary-reduced-capacity", title, 503, &["hourly"]);
    assert_eq!((rejected.code(), problem(&rejected)), (503, expected));
    assert_eq!(rejected.fields(TOLD), [exhausted[0], exhausted[1], "3600"]);
    load.set(Capacity::full());
    // Used units stay used.
    let later = take(&layer, 1).await;
    assert_eq!(
        later.fields(TOLD),
        [r#""hourly";r=79;t=3600"#, r#""hourly";q=100;w=3600"#, ""]
    );
}

#[tokio::test]
async fn a_reduced_policy_keeps_a_unit_and_takes_odd_percentages() {
    let scene = Scene::new();
    let policies = [QuotaPolicy::per_minute("few", 3), QuotaPolicy::concurrent("slots", 9)];
    let (load, builder) = loaded(&scene, policies);
    let layer = builder.build().unwrap();
    for (percent, expected) in [
        (1, r#""few";q=1;w=60, "slots";q=1;qu="concurrent-requests""#),
        (34, r#""few";q=1;w=60, "slots";q=3;qu="concurrent-requests""#),
        (99, r#""few";q=2;w=60, "slots";q=8;qu="concurrent-requests""#),
    ] {
        load.set(Capacity::reduced_to(percent).unwrap());
        assert_eq!(take(&layer, 0).await.field("ratelimit-policy"), expected, "{percent} %");
    }
    for percent in [0, 100, 200] {
        let error = Capacity::reduced_to(percent).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Capacity);
        let message = format!("capacity: percentage {percent} is outside 1..=99");
        assert_eq!(error.to_string(), message);
    }
}

/// C6, D15, D19
#[tokio::test]
async fn exhausted_capacity_rejects_although_quota_is_left_and_takes_none() {
    let scene = Scene::new();
    let (load, builder) = loaded(&scene, [hourly()]);
    let layer = builder.build().unwrap();
    take(&layer, 50).await;
    load.set(Capacity::exhausted(Duration::from_millis(2_100)));
    let rejected = take(&layer, 1).await;
    assert_eq!(rejected.status(), 503);
    assert_eq!(rejected.field("retry-after"), "3");
    assert_eq!(problem(&rejected)["violated-policies"], json!(["hourly"]));
    assert_eq!(rejected.outcome(), Outcome::Overloaded);
    load.set(Capacity::full());
    assert_eq!(take(&layer, 1).await.field("ratelimit"), r#""hourly";r=49;t=3600"#);
}

/// C14
#[tokio::test]
async fn exhausted_capacity_names_the_policies_of_the_caller_but_neither_hidden_ones_nor_shadows() {
    let scene = Scene::new();
    let policies = || {
        [
            hourly(),
            fixed(QuotaPolicy::per_hour("secret", 90)).hidden(),
            fixed(QuotaPolicy::per_hour("planned", 80)).shadow(),
            QuotaPolicy::concurrent("slots", 9),
        ]
    };
    let tiers = Tiers::from_fn(|request| request.headers.get("x-tier")?.to_str().ok())
        .tier("free", policies())
        .tier("premium", [hourly()])
        .unlimited("admin");
    let builder = scene.builder([]).tiers(tiers);
    let builder = builder.capacity(|_| Capacity::exhausted(Duration::from_secs(5)));
    let layer = builder.build().unwrap();
    for (tier, names) in [
        ("free", json!(["hourly", "slots"])),
        ("premium", json!(["hourly"])),
        ("admin", json!([])),
    ] {
        let mut request = costing(1);
        request.headers_mut().insert("x-tier", tier.parse().unwrap());
        let rejected = send(&layer, request, ok()).await;
        let violated = &problem(&rejected)["violated-policies"];
        assert_eq!((rejected.code(), violated), (503, &names), "{tier}");
        let all = format!("{:?} {:?}", rejected.headers(), rejected.body());
        assert!(!all.contains("secret") && !all.contains("planned"), "{all}");
    }
}

/// D13
#[tokio::test]
async fn the_usual_policies_can_be_shown_beside_the_wait() {
    let scene = Scene::new();
    let (load, builder) = loaded(&scene, [hourly()]);
    let builder = builder.response_fields(ResponseFields::draft11().with_unreduced_policies());
    let layer = builder.build().unwrap();
    let usual = r#""hourly";q=100;w=3600"#;
    load.set(Capacity::reduced_to(1).unwrap());
    take(&layer, 1).await;
    let rejected = take(&layer, 1).await;
    assert_eq!(rejected.fields(TOLD), [r#""hourly";r=0;t=3600"#, usual, "3600"]);
    load.set(Capacity::exhausted(Duration::from_secs(20)));
    assert_eq!(take(&layer, 1).await.fields(TOLD), ["", usual, "20"]);
}

/// A retry after a shorter wait, which a gRPC client makes, would be immediate.
#[tokio::test]
async fn a_wait_of_the_application_is_at_least_a_second_in_the_decision_too() {
    for millis in [0, 999, 1_000, 1_001] {
        let wait = Duration::from_millis(millis);
        let builder = || Scene::new().builder([hourly()]);
        let abnormal = builder().abnormal_usage(move |_| Some(AbnormalUsage::new().with_retry_after(wait)));
        for builder in [abnormal, builder().capacity(move |_| Capacity::exhausted(wait))] {
            let rejected = take(&builder.build().unwrap(), 1).await;
            let decision = rejected.extensions().get::<Decision>().unwrap();
            assert_eq!(decision.retry_after(), Some(wait.max(Duration::from_secs(1))));
        }
    }
}

/// C8, C9
#[tokio::test]
async fn abnormal_usage_is_rejected_with_a_type_of_its_own_and_takes_no_quota() {
    let scene = Scene::new();
    let layer = scene
        .builder([hourly()])
        .abnormal_usage(|request| {
            let usage = AbnormalUsage::new();
            match request.uri.path() {
                "/probe" => Some(usage),
                "/flood" => Some(usage.with_retry_after(Duration::from_secs(600))),
                _ => None,
            }
        })
        .build()
        .unwrap();
    let rejected = send(&layer, to("/probe"), ok()).await;
    assert_eq!((rejected.code(), rejected.outcome()), (429, Outcome::Abnormal));
    assert_eq!(problem(&rejected), abnormal(&[]));
    assert_eq!(rejected.fields(TOLD), ["", "", ""]);
    assert_eq!(send(&layer, to("/flood"), ok()).await.field("retry-after"), "600");
    let allowed = send(&layer, to("/"), ok()).await;
    assert_eq!(allowed.field("ratelimit"), r#""hourly";r=99;t=3600"#);
}

fn abnormal(violated: &[&str]) -> serde_json::Value {
    let title = "Request not satisfied due to detection of abnormal request pattern";
    problem_of("abnormal-usage-detected", title, 429, violated)
}

/// C15
#[tokio::test]
async fn abnormal_usage_names_the_policies_that_the_application_names_unless_they_are_hidden() {
    let scene = Scene::new();
    let layer = scene
        .builder([hourly(), fixed(QuotaPolicy::per_hour("secret", 90)).hidden()])
        .abnormal_usage(|request| {
            let name = request.uri.query().unwrap_or_default().to_owned();
            let usage = AbnormalUsage::new().with_violated_policy("hourly");
            Some(usage.with_violated_policy("secret").with_violated_policy(name))
        })
        .build()
        .unwrap();
    let rejected = send(&layer, to("/?fair%22use"), ok()).await;
    assert_eq!(problem(&rejected), abnormal(&["hourly", "fair%22use"]));
}
