//! The same decision in each dialect.

use tower_quota::{Content, LegacyReset, ShownWhen};

use super::*;

/// J1, J3, J4, J5, J6, J8, J9, J10, J11, J26: the example with an hour and a day.
#[tokio::test]
async fn draft_06_shows_the_limit_with_the_fewest_requests_left_and_all_policies_by_their_quotas() {
    let scene = Scene::new();
    let layer = scene.layer(
        ResponseFields::draft06(),
        [
            fixed(QuotaPolicy::per_hour("hour", 1_000)),
            fixed(QuotaPolicy::per_day("day", 5_000)),
        ],
    );
    for _ in 0..7 {
        assert_eq!(take(&layer, 700).await.status, 200);
        scene.wait(7_200);
    }
    let answer = take(&layer, 0).await;
    assert_eq!(answer.fields(DRAFT06), ["5000", "100", "36000"]);
    assert_eq!(answer.field("ratelimit-policy"), "1000;w=3600, 5000;w=86400");
    assert_eq!(answer.field("ratelimit"), "");
}

/// J26: `100`, `60` and `58`.
#[tokio::test]
async fn draft_06_shows_seconds_until_the_window_ends() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::draft06(), [minute(100)]);
    scene.wait(2);
    assert_eq!(take(&layer, 40).await.fields(DRAFT06), ["100", "60", "58"]);
}

/// J11, X13: one of ten and one of eleven, in whichever order they are set up.
#[tokio::test]
async fn of_two_limits_with_as_many_left_draft_06_shows_the_one_that_resets_later() {
    let policies = || [minute(10), fixed(QuotaPolicy::per_hour("hour", 11))];
    for reversed in [false, true] {
        let scene = Scene::new();
        let layer = match reversed {
            false => scene.layer(ResponseFields::draft06(), policies()),
            true => scene.layer(ResponseFields::draft06(), policies().into_iter().rev()),
        };
        assert_eq!(take(&layer, 1).await.fields(DRAFT06), ["10", "9", "60"]);
        scene.wait(60);
        let tie = take(&layer, 9).await;
        assert_eq!(tie.fields(DRAFT06), ["11", "1", "3540"]);
        let left: Vec<_> = tie.decision.unwrap().allowances().map(|it| it.remaining()).collect();
        assert_eq!(left, [1, 1]);
    }
}

/// J28: D3, D6, D7 and D8 with other fields.
#[tokio::test]
async fn the_rules_hold_for_the_numbers_of_draft_06_too() {
    let scene = Scene::new();
    let lowered = ResponseFields::draft06().lowered_by(|allowance| allowance.remaining() / 2);
    assert_eq!(
        take(&scene.layer(lowered, [minute(10)]), 0).await.fields(DRAFT06),
        ["10", "5", "60"]
    );
    scene.wait(50);
    let capped = ResponseFields::draft06().with_ratio_cap(1);
    assert_eq!(
        take(&scene.layer(capped, [minute(10)]), 0).await.fields(DRAFT06),
        ["10", "10", "60"]
    );
    let near = scene.layer(
        ResponseFields::draft06().shown_when(ShownWhen::NearExhaustion(50)),
        [minute(10)],
    );
    assert_eq!(take(&near, 4).await.fields(DRAFT06), ["", "", ""]);
    assert_eq!(take(&near, 1).await.fields(DRAFT06), ["10", "5", "15"]);
    let layer = scene.layer(ResponseFields::draft06(), [minute(10)]);
    let mut redirect = ok();
    *redirect.status_mut() = StatusCode::SEE_OTHER;
    assert_eq!(send(&layer, request(5), redirect).await.fields(DRAFT06), ["", "", ""]);
}

/// J12, X7: a request that costs five does not fit into either, and waits longest for the one that has more left.
#[tokio::test]
async fn a_refusal_in_draft_06_resets_when_the_client_may_come_back() {
    let scene = Scene::new();
    let layer = scene.layer(
        ResponseFields::draft06(),
        [minute(5), fixed(QuotaPolicy::per_hour("hour", 7))],
    );
    take(&layer, 4).await;
    let refused = take(&layer, 5).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.fields(DRAFT06), ["5", "1", "3600"]);
    assert_eq!(refused.field("retry-after"), "3600");
}

/// J6, J29: there is no word for another unit, and a limit without a window has no place.
#[tokio::test]
async fn draft_06_shows_policies_that_count_requests_only() {
    let scene = Scene::new();
    let layer = scene.layer(
        ResponseFields::draft06(),
        [
            QuotaPolicy::concurrent("slots", 2),
            QuotaPolicy::per_minute("bytes", 1).with_content_bytes(Content::Request),
            minute(9),
        ],
    );
    let answer = take(&layer, 1).await;
    assert_eq!(answer.fields(DRAFT06), ["9", "8", "60"]);
    assert_eq!(answer.field("ratelimit-policy"), "9;w=60");
    let other = scene.layer(ResponseFields::draft06(), [QuotaPolicy::concurrent("slots", 2)]);
    assert!(
        !take(&other, 1)
            .await
            .headers
            .keys()
            .any(|name| name.as_str().starts_with("ratelimit"))
    );
}

/// J7
#[test]
fn draft_06_refuses_two_policies_with_the_same_quota() {
    let scene = Scene::new();
    let build = |fields, policies| scene.builder(policies).response_fields(fields).build();
    let policies = || [minute(10), QuotaPolicy::per_hour("hour", 10)];
    let error = build(ResponseFields::draft06(), policies()).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"policy "hour": its quota 10 is that of policy "minute"; draft-06 has nothing else to tell them apart"#
    );
    assert!(build(ResponseFields::draft11(), policies()).is_ok());
    let [first, second] = policies();
    assert!(build(ResponseFields::draft06(), [first, second.hidden()]).is_ok());
}

/// K1, K3, K6, K8, K11
#[tokio::test]
async fn the_dialect_in_between_writes_tokens() {
    let scene = Scene::new();
    let bytes = QuotaPolicy::per_hour("peruser", 65_535).with_content_bytes(Content::Request);
    let layer = scene.layer(
        ResponseFields::in_between(),
        [minute(100).with_extension("acme-burst", 7), fixed(bytes)],
    );
    let answer = take(&layer, 50).await;
    assert_eq!(answer.field("ratelimit"), "minute;r=50;t=60, peruser;r=65534;t=3600");
    assert_eq!(
        answer.field("ratelimit-policy"),
        "minute;q=100;w=60;acme-burst=7, peruser;q=65535;w=3600;qu=bytes"
    );
}

/// K15
#[test]
fn the_dialect_in_between_refuses_names_that_are_no_tokens() {
    let scene = Scene::new();
    for name in ["1st", "a b"] {
        let policy = QuotaPolicy::per_minute(name, 1);
        let builder = scene.builder([policy]).response_fields(ResponseFields::in_between());
        let error = builder.build().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("policy {name:?}: ")) && error.contains("Token"),
            "{error}"
        );
    }
}

/// K9: the time of a violated policy is that of `Retry-After`.
#[tokio::test]
async fn a_refusal_in_the_dialect_in_between_names_one_moment() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::in_between(), [minute(1)]);
    take(&layer, 1).await;
    let refused = take(&layer, 1).await;
    assert_eq!(refused.field("ratelimit"), "minute;r=0;t=60");
    assert_eq!(refused.field("retry-after"), "60");
}

/// K17
#[tokio::test]
async fn the_numbers_of_draft_06_stand_beside_the_lists_of_draft_11() {
    let scene = Scene::new();
    let fields = ResponseFields::draft11().with_draft06_limit();
    let layer = scene.layer(fields, [fixed(QuotaPolicy::per_minute("default", 100))]);
    scene.wait(2);
    let answer = take(&layer, 40).await;
    assert_eq!(answer.field("ratelimit"), r#""default";r=60;t=58"#);
    assert_eq!(answer.field("ratelimit-policy"), r#""default";q=100;w=60"#);
    assert_eq!(answer.fields(DRAFT06), ["100", "60", "58"]);
}

/// K17
#[test]
fn the_numbers_of_draft_06_are_added_to_no_other_dialect() {
    let scene = Scene::new();
    let fields = ResponseFields::in_between().with_draft06_limit();
    let error = scene.builder([minute(1)]).response_fields(fields).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "response fields: the limit of draft-06 is added to InBetween; it goes with draft-11 only"
    );
}

#[tokio::test]
async fn legacy_fields_show_the_closest_limit_and_reset_in_seconds_or_at_a_unix_time() {
    let scene = Scene::new();
    let policies = || [minute(100), fixed(QuotaPolicy::per_hour("hour", 1_000))];
    let seconds = scene.layer(ResponseFields::legacy(LegacyReset::Seconds), policies());
    let moment = scene.layer(ResponseFields::legacy(LegacyReset::UnixTime), policies());
    scene.wait(2);
    let answer = take(&seconds, 40).await;
    assert_eq!(answer.fields(LEGACY), ["100", "60", "58"]);
    assert_eq!(
        answer.fields(["ratelimit", "ratelimit-policy", "ratelimit-limit"]),
        ["", "", ""]
    );
    let reset = (MIDNIGHT + 60).to_string();
    assert_eq!(take(&moment, 0).await.fields(LEGACY), ["100", "60", &reset]);
}

#[tokio::test]
async fn without_fields_a_refusal_still_says_when_to_come_back() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::none(), [minute(1)]);
    let names = |answer: &Answer| answer.headers.keys().map(|name| name.to_string()).collect::<Vec<_>>();
    assert!(names(&take(&layer, 1).await).is_empty());
    let refused = take(&layer, 1).await;
    assert_eq!(names(&refused), ["content-type", "retry-after"]);
    assert_eq!(refused.field("retry-after"), "60");
}

/// A20, B9, J13, K10
#[tokio::test]
async fn no_field_is_in_a_trailer_section() {
    for fields in [
        ResponseFields::draft11().with_draft06_limit(),
        ResponseFields::in_between(),
        ResponseFields::draft06(),
        ResponseFields::legacy(LegacyReset::Seconds),
    ] {
        let scene = Scene::new();
        let layer = scene.layer(fields, [minute(1)]);
        let handler = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(ok()) });
        for _ in 0..2 {
            let response = layer.layer(handler).oneshot(request(1)).await.unwrap();
            assert!(response.into_body().collect().await.unwrap().trailers().is_none());
        }
    }
}
