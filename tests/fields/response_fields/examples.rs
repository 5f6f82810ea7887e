//! The examples of draft-06 and draft-07, from a layer: each with the settings under which a server sends it.

use tower_quota::{Capacity, Outcome, Rules};

use super::*;

fn draft06() -> ResponseFields {
    ResponseFields::draft06()
}

fn draft07() -> ResponseFields {
    ResponseFields::draft07()
}

/// J26, N13, N18, B.1.1 and B.1.3: what is left can be lowered while the limit stays.
#[tokio::test]
async fn draft_06_and_draft_07_show_what_is_left_or_less() {
    let scene = Scene::new();
    let plain = scene.layer(draft06(), [minute(100)]);
    scene.wait(2);
    assert_eq!(take(&plain, 40).await.fields(DRAFT06), ["100", "60", "58"]);
    let dictionary = take(&scene.layer(draft07(), [minute(100)]), 0).await;
    assert_eq!(dictionary.field("ratelimit"), "limit=100, remaining=60, reset=58");
    scene.wait(2);
    let lowered = scene.layer(draft06().map_remaining(|_| 20), [minute(100)]);
    assert_eq!(take(&lowered, 1).await.fields(DRAFT06), ["100", "20", "56"]);
    let lowered = scene.layer(draft07().map_remaining(|_| 20), [minute(100)]);
    let dictionary = take(&lowered, 0).await;
    assert_eq!(dictionary.field("ratelimit"), "limit=100, remaining=20, reset=56");
    scene.wait(6);
    let last = take(&plain, 59).await;
    assert_eq!((last.code(), last.fields(DRAFT06)), (200, ["100", "0", "50"]));
    scene.wait(2);
    let none = scene.layer(draft06().map_remaining(|_| 0), [minute(100)]);
    let served = take(&none, 0).await;
    assert_eq!((served.code(), served.fields(DRAFT06)), (200, ["100", "0", "48"]));
}

/// J26, N13, N17, B.1.4
#[tokio::test]
async fn draft_06_and_draft_07_show_the_same_moment_as_the_wait_of_a_rejection() {
    let scene = Scene::new();
    let layer = scene.layer(draft06(), [minute(100)]);
    scene.wait(55);
    take(&layer, 100).await;
    let rejected = take(&layer, 1).await;
    assert_eq!(rejected.status(), 429);
    assert_eq!(rejected.fields(DRAFT06), ["100", "0", "5"]);
    assert_eq!(rejected.field("retry-after"), "5");
    let rejected = take(&scene.layer(draft07(), [minute(100)]), 1).await;
    assert_eq!(
        rejected.fields(["ratelimit", "retry-after"]),
        ["limit=100, remaining=0, reset=5", "5"]
    );
}

/// J26, B.2.1 and B.2.2: a service short of capacity lowers the limit, and may still show its usual policy.
#[tokio::test]
async fn draft_06_shows_a_lowered_limit_beside_the_usual_policy() {
    let scene = Scene::new();
    let layer = scene.layer(draft06(), [minute(100)]);
    scene.wait(10);
    let usual = take(&layer, 1).await;
    assert_eq!(usual.fields(DRAFT06), ["100", "99", "50"]);
    assert_eq!(usual.field("ratelimit-policy"), "100;w=60");

    let scene = Scene::new();
    let builder = scene
        .builder([minute(100)])
        .capacity(|_| Capacity::reduced_to(10).unwrap());
    let layer = builder
        .response_fields(draft06().with_unreduced_policies())
        .build()
        .unwrap();
    scene.wait(10);
    let lowered = take(&layer, 1).await;
    assert_eq!(lowered.fields(DRAFT06), ["10", "9", "50"]);
    assert_eq!(lowered.field("ratelimit-policy"), "100;w=60");
}

/// J26, B.2.3: a service without capacity has a limit of 0, beside the policy that holds when it has some again.
#[tokio::test]
async fn draft_06_and_draft_07_show_a_limit_of_zero_beside_a_policy() {
    let policy = || fixed(QuotaPolicy::new("smaller", 15, Duration::from_secs(20)));
    let exhausted = |fields| {
        let builder = Scene::new().builder([policy()]).response_fields(fields);
        let builder = builder.capacity(|_| Capacity::exhausted(Duration::from_secs(20)));
        builder.build().unwrap()
    };
    for fields in [draft06(), ResponseFields::draft11().with_draft06_limit()] {
        let answer = take(&exhausted(fields), 1).await;
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.fields(DRAFT06), ["0", "0", "20"]);
        assert_eq!(answer.field("retry-after"), "20");
    }
    let answer = take(&exhausted(draft06()), 1).await;
    assert_eq!(answer.field("ratelimit-policy"), "15;w=20");
    let answer = take(&exhausted(draft07()), 1).await;
    assert_eq!(answer.fields(TOLD), ["limit=0, remaining=0, reset=20", "15;w=20", "20"]);
    // The store was not called, so the time of its clock is unknown.
    for reset in [LegacyReset::DeltaSeconds, LegacyReset::UnixTime] {
        let answer = take(&exhausted(ResponseFields::legacy(reset)), 1).await;
        assert_eq!(answer.fields(LEGACY), ["", "", ""]);
    }
    let without = take(&exhausted(draft06().without_limits()), 1).await;
    assert_eq!(without.fields(DRAFT06), ["", "", ""]);
}

/// J26, B.2.3: the same from a policy with quota 0, which is a limit like others and so a member of the policy field.
/// The policy has no reset that a client could wait for.
#[tokio::test]
async fn draft_06_and_draft_07_show_quota_0_as_the_limit_beside_a_policy() {
    let window = Duration::from_secs(20);
    let closed = || [("smaller", 15), ("closed", 0)].map(|(name, quota)| fixed(QuotaPolicy::new(name, quota, window)));
    let answer = take(&Scene::new().layer(draft06(), closed()), 1).await;
    assert_eq!((answer.code(), answer.fields(DRAFT06)), (429, ["0", "0", "20"]));
    assert_eq!(answer.fields(TOLD), ["", "15;w=20, 0;w=20", ""]);
    let answer = take(&Scene::new().layer(draft07(), closed()), 1).await;
    let limit = "limit=0, remaining=0, reset=20";
    assert_eq!(answer.fields(TOLD), [limit, "15;w=20, 0;w=20", ""]);
}

/// J26, B.2.3: a different policy from one request to the next, and a limit set by the application.
#[tokio::test]
async fn draft_06_shows_another_policy_and_a_limit_of_the_application() {
    let scene = Scene::new();
    let of_application = draft06().with_extra_fields(|decision, headers| {
        if decision.outcome() == Outcome::Rejected {
            headers.insert("ratelimit-limit", 0.into());
        }
    });
    let layer = scene.layer(of_application, [minute(100)]);
    assert_eq!(take(&layer, 91).await.fields(DRAFT06), ["100", "9", "60"]);
    let smaller = QuotaPolicy::new("minute", 15, Duration::from_secs(20));
    let rules = Rules::new().policy(fixed(smaller));
    layer.limiter().rules().replace(rules).unwrap();
    take(&layer, 15).await;
    let rejected = take(&layer, 1).await;
    assert_eq!((rejected.code(), rejected.fields(DRAFT06)), (429, ["0", "0", "20"]));
    assert_eq!(rejected.fields(TOLD), ["", "15;w=20", "20"]);
}

const OF_APPLICATION: [&str; 2] = ["acme-ratelimit-hourlimit", "acme-ratelimit-daylimit"];

/// J1, J3, J4, J5, J6, J8, J9, J10, J11, J26, N13, N15, N16, B.1.2 and B.3.2: fields of the application beside ours.
#[tokio::test]
async fn draft_06_and_draft_07_show_the_limit_of_a_day_beside_fields_of_the_application() {
    let scene = Scene::new();
    let fields = draft06().with_extra_fields(|decision, headers| {
        for (own, name) in decision.allowances().zip(OF_APPLICATION) {
            headers.insert(name, own.policy().quota().into());
        }
    });
    let policies = || [QuotaPolicy::per_hour("hour", 1_000), QuotaPolicy::per_day("day", 5_000)].map(fixed);
    let layer = scene.layer(fields, policies());
    for _ in 0..7 {
        take(&layer, 700).await;
        scene.wait(7_200);
    }
    let answer = take(&layer, 0).await;
    assert_eq!(answer.fields(DRAFT06), ["5000", "100", "36000"]);
    let shown = "1000;w=3600, 5000;w=86400";
    assert_eq!(answer.fields(TOLD), ["", shown, ""]);
    assert_eq!(answer.fields(OF_APPLICATION), ["1000", "5000"]);
    let answer = take(&scene.layer(draft07(), policies()), 0).await;
    let limit = "limit=5000, remaining=100, reset=36000";
    assert_eq!(answer.fields(TOLD), [limit, shown, ""]);
    assert_eq!(answer.fields(DRAFT06), ["", "", ""]);
}

/// D12: the example of a service that pushes back, in draft-11.
#[tokio::test]
async fn a_policy_that_is_replaced_is_shown_by_the_next_response() {
    let scene = Scene::new();
    let dynamic = |quota, window| fixed(QuotaPolicy::new("dynamic", quota, Duration::from_secs(window)));
    let layer = scene.layer(ResponseFields::draft11(), [dynamic(100, 60)]);
    scene.wait(10);
    let first = take(&layer, 91).await;
    assert_eq!(
        first.fields(TOLD),
        [r#""dynamic";r=9;t=50"#, r#""dynamic";q=100;w=60"#, ""]
    );
    let rules = Rules::new().policy(dynamic(15, 20));
    layer.limiter().rules().replace(rules).unwrap();
    scene.wait(10);
    take(&layer, 15).await;
    let rejected = take(&layer, 1).await;
    assert_eq!(rejected.status(), 429);
    assert_eq!(
        rejected.fields(TOLD),
        [r#""dynamic";r=0;t=20"#, r#""dynamic";q=15;w=20"#, "20"]
    );
}
