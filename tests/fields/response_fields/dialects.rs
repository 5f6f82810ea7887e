//! The same decision in each dialect.

use futures_util::{FutureExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use tower_quota::{Direction, fields::Hints};

use super::*;

/// J11, X13: one limit of ten and one of eleven, in either order of configuration.
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
        let left: Vec<_> = tie.decision().allowances().map(|it| it.remaining()).collect();
        assert_eq!(left, [1, 1]);
    }
}

/// J2: parameters of a policy belong to the policy only.
#[tokio::test]
async fn the_numbers_of_draft_06_have_no_parameters() {
    let scene = Scene::new();
    let policy = || minute(10).with_extension("acme-burst", 7).show_partition_key();
    for fields in [
        ResponseFields::draft06(),
        ResponseFields::draft11().with_draft06_limit(),
    ] {
        let answer = take(&scene.layer(fields, [policy()]), 2).await;
        assert!(answer.field("ratelimit-policy").contains(";acme-burst=7"));
        for number in answer.fields(DRAFT06) {
            let is_digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            assert!(is_digits, "{number:?}");
        }
        scene.wait(60);
    }
}

/// J6, J29: there is no word for another unit, and a limit without a window has no place.
#[tokio::test]
async fn draft_06_shows_policies_that_count_requests_only() {
    let scene = Scene::new();
    let slots = QuotaPolicy::concurrent("slots", 2);
    let bytes = QuotaPolicy::per_minute("bytes", 1).with_content_bytes(Direction::Request);
    let layer = scene.layer(ResponseFields::draft06(), [slots.clone(), bytes, minute(9)]);
    let answer = take(&layer, 1).await;
    assert_eq!(answer.fields(DRAFT06), ["9", "8", "60"]);
    assert_eq!(answer.field("ratelimit-policy"), "9;w=60");
    let other = take(&scene.layer(ResponseFields::draft06(), [slots]), 1).await;
    assert!(
        other
            .headers()
            .keys()
            .all(|name| !name.as_str().starts_with("ratelimit"))
    );
}

/// J7
#[test]
fn draft_06_rejects_two_policies_with_the_same_quota() {
    let scene = Scene::new();
    let build = |fields, policies| scene.builder(policies).response_fields(fields).build();
    let policies = || [minute(10), QuotaPolicy::per_hour("hour", 10)];
    let error = build(ResponseFields::draft06(), policies()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "policy \"hour\": RateLimit-Policy: quota 10 is also that of policy \"minute\", and this dialect distinguishes \
         policies only by quota"
    );
    assert!(build(ResponseFields::draft11(), policies()).is_ok());
    let [first, second] = policies();
    assert!(build(ResponseFields::draft06(), [first, second.hidden()]).is_ok());
}

/// K1, K3, K6, K8, K11
#[tokio::test]
async fn the_dialect_in_between_writes_tokens() {
    let scene = Scene::new();
    let bytes = QuotaPolicy::per_hour("peruser", 65_535).with_content_bytes(Direction::Request);
    let policies = [minute(100).with_extension("acme-burst", 7), fixed(bytes)];
    let layer = scene.layer(ResponseFields::in_between(), policies);
    let answer = take(&layer, 50).await;
    assert_eq!(answer.field("ratelimit"), "minute;r=50;t=60, peruser;r=65534;t=3600");
    assert_eq!(
        answer.field("ratelimit-policy"),
        "minute;q=100;w=60;acme-burst=7, peruser;q=65535;w=3600;qu=bytes"
    );
}

/// K15
#[test]
fn the_dialect_in_between_rejects_names_that_are_no_tokens() {
    let scene = Scene::new();
    let requests = ["1st", "a b"].map(|name| QuotaPolicy::per_minute(name, 1));
    // `RateLimit-Policy` does not have it, and `RateLimit` does.
    let tokens = QuotaPolicy::per_minute("of tokens", 1).with_unit("tokens");
    for policy in requests.into_iter().chain([tokens]) {
        let name = policy.name().to_owned();
        let builder = scene.builder([policy]).unit_cost("tokens", |_| 1);
        let builder = builder.response_fields(ResponseFields::in_between());
        let error = builder.build().unwrap_err().to_string();
        let start = format!("policy {name:?}: ");
        assert!(error.starts_with(&start) && error.contains("Token"), "{error}");
    }
}

/// The dialects in which the reset of the displayed limit must equal `Retry-After`.
fn naming_one_moment() -> [ResponseFields; 4] {
    [
        ResponseFields::draft06(),
        ResponseFields::draft07(),
        ResponseFields::draft11().with_draft06_limit(),
        ResponseFields::in_between(),
    ]
}

/// The units that are left, and the reset of the closest limit, as a client of these dialects reads them.
fn left_and_reset(answer: &Answer) -> (u64, u64) {
    let mut headers = answer.headers().clone();
    // If the numbers of draft-06 are present, the list is in draft-11.
    if headers.contains_key("ratelimit-reset") {
        headers.remove("ratelimit");
    }
    let hints = Hints::read(&headers);
    let closest = hints.limits().iter().min_by_key(|limit| limit.remaining()).unwrap();
    (closest.remaining().unwrap(), closest.reset().unwrap().as_secs())
}

/// J12, K9, X7
#[tokio::test]
async fn a_rejection_by_a_hidden_policy_names_one_moment() {
    for fields in naming_one_moment() {
        let (hour, second) = (QuotaPolicy::per_hour("secret", 1), QuotaPolicy::per_second("secret", 1));
        // Later than what is shown; and earlier: four units in a second would look like more than four in a minute.
        for (secret, wait, expected) in [(hour, "3600", (4, 3600)), (second, "1", (0, 1))] {
            let layer = Scene::new().layer(fields.clone(), [minute(5), fixed(secret).hidden()]);
            take(&layer, 1).await;
            let rejected = take(&layer, 1).await;
            assert_eq!(rejected.field("retry-after"), wait);
            assert_eq!(left_and_reset(&rejected), expected, "{fields:?}");
        }
    }
}

/// J12, K9, X7
#[tokio::test]
async fn a_rejection_by_slots_names_one_moment() {
    for fields in naming_one_moment() {
        let layer = Scene::new().layer(fields.clone(), [minute(5), QuotaPolicy::concurrent("slots", 1)]);
        let never = |_: Request<String>| std::future::pending::<Result<TextResponse, Infallible>>();
        let mut holding = Box::pin(layer.layer(service_fn(never)).oneshot(costing(1)));
        assert!(holding.as_mut().now_or_never().is_none());
        let rejected = take(&layer, 1).await;
        assert_eq!((rejected.code(), rejected.field("retry-after")), (429, "1"));
        assert_eq!(left_and_reset(&rejected), (0, 1), "{fields:?}");
    }
}

/// J12, K9, X7: set by a service behind the layer, with any status, or by the application in its rejection.
#[tokio::test]
async fn beside_a_retry_after_of_somebody_else_the_reset_names_its_moment() {
    for fields in naming_one_moment() {
        for (retry_after, expected) in [("30", (0, 30)), ("90", (4, 90)), ("60", (4, 60)), ("nonsense", (4, 60))] {
            let layer = Scene::new().layer(fields.clone(), [minute(5)]);
            let mut inner = with_fields([("retry-after", retry_after)]);
            *inner.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            let answer = send(&layer, costing(1), inner).await;
            assert_eq!(answer.field("retry-after"), retry_after, "it is not ours");
            assert_eq!(left_and_reset(&answer), expected, "{fields:?}");
        }

        let builder = Scene::new().builder([minute(1)]).response_fields(fields.clone());
        let builder = builder.respond_with(|rejection| {
            let mut response = rejection.to_response();
            response.headers_mut().insert("retry-after", 600.into());
            response
        });
        let layer = builder.build().unwrap();
        take(&layer, 1).await;
        let rejected = take(&layer, 1).await;
        assert_eq!(rejected.field("retry-after"), "600");
        assert_eq!(left_and_reset(&rejected), (0, 600), "{fields:?}");
    }
}

/// K9: each violated policy reports the longest wait of all violated policies; the others keep their reset.
#[tokio::test]
async fn in_the_dialect_in_between_all_violated_policies_name_the_moment_and_no_other() {
    let [hour, day] = [QuotaPolicy::per_hour("hour", 1), QuotaPolicy::per_day("day", 9)].map(fixed);
    let layer = Scene::new().layer(ResponseFields::in_between(), [minute(1), hour, day]);
    take(&layer, 1).await;
    let rejected = take(&layer, 1).await;
    let limits = "minute;r=0;t=3600, hour;r=0;t=3600, day;r=8;t=86400";
    assert_eq!(rejected.fields(["ratelimit", "retry-after"]), [limits, "3600"]);
}

/// K17
#[test]
fn the_numbers_of_draft_06_are_added_to_no_other_dialect() {
    let scene = Scene::new();
    let fields = ResponseFields::in_between().with_draft06_limit();
    let error = scene.builder([minute(1)]).response_fields(fields).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "response fields: the draft-06 limit cannot be added to EditorsCopy, only to draft-11"
    );
}

/// As tower_governor shows them.
#[tokio::test]
async fn the_legacy_fields_alone_can_show_the_burst_capacity_as_the_limit() {
    let second = QuotaPolicy::per_second("second", 1).with_burst_capacity(5);
    let legacy = || ResponseFields::legacy(LegacyReset::DeltaSeconds).with_capacity_as_limit();
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining"];
    let layer = Scene::new().layer(legacy(), [second.clone(), minute(90)]);
    for left in ["4", "3"] {
        assert_eq!(take(&layer, 1).await.fields(names), ["5", left]);
    }
    // Without a burst capacity it is the quota.
    let answer = take(&Scene::new().layer(legacy(), [minute(9)]), 1).await;
    assert_eq!(answer.fields(names), ["9", "8"]);

    for fields in [
        ResponseFields::draft11(),
        ResponseFields::draft06(),
        ResponseFields::none(),
    ] {
        let builder = Scene::new().builder([second.clone()]);
        let builder = builder.response_fields(fields.with_capacity_as_limit());
        let error = builder.build().unwrap_err();
        assert!(error.to_string().contains("only in the legacy fields"), "{error}");
    }
}

/// A20, B9, J13, K10: fields in a trailer section of the inner service are not read, and none of ours is put there.
#[tokio::test]
async fn in_no_dialect_is_a_field_in_a_trailer_section_read_or_written() {
    for fields in dialects() {
        let scene = Scene::new();
        let layer = scene.layer(fields, [minute(9)]);
        let expected = take(&layer, 0).await;
        let mut trailers = expected.headers().clone();
        trailers.remove("content-type");
        // The same fields, from a service with fewer remaining units.
        for value in trailers.values_mut() {
            let less = value.to_str().unwrap().replace('9', "1");
            *value = less.parse().unwrap();
        }
        trailers.insert("retry-after", 600.into());
        let inner = trailers.clone();
        let handler = service_fn(move |_: Request<String>| {
            let frames = [Frame::data(Bytes::from("hello")), Frame::trailers(inner.clone())];
            let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        let response = layer.layer(handler).oneshot(costing(0)).await.unwrap();
        assert!(trailers.len() > 2, "{trailers:?}");
        assert_eq!(response.headers(), expected.headers());
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.trailers(), Some(&trailers));
    }
}

fn draft07() -> ResponseFields {
    ResponseFields::draft07()
}

const DRAFT07: [&str; 2] = ["ratelimit", "ratelimit-policy"];

/// N5, N19
#[tokio::test]
async fn draft_07_has_the_rules_of_draft_06_for_policies_and_units() {
    let scene = Scene::new();
    let policies = || [minute(5), fixed(QuotaPolicy::per_hour("hour", 5))];
    let builder = scene.builder(policies()).response_fields(draft07());
    let error = builder.build().unwrap_err().to_string();
    assert!(
        error.contains("this dialect distinguishes policies only by quota"),
        "{error}"
    );

    let bytes = minute(9).with_content_bytes(Direction::Request);
    let only_bytes = scene.layer(draft07(), [bytes]);
    assert_eq!(take(&only_bytes, 1).await.fields(DRAFT07), ["", ""]);
    let shown = scene.layer(draft07(), [minute(7).with_extension("acme-burst", 7)]);
    assert_eq!(take(&shown, 1).await.field("ratelimit-policy"), "7;w=60;acme-burst=7");

    let hidden = scene.layer(draft07().without_limits(), [minute(8)]);
    assert_eq!(take(&hidden, 1).await.fields(DRAFT07), ["", "8;w=60"]);
    let beside = scene
        .builder([minute(8)])
        .response_fields(draft07().with_draft06_limit());
    assert!(beside.build().unwrap_err().to_string().contains("only to draft-11"));
    let keyed = scene.layer(draft07(), [minute(6).show_partition_key()]);
    assert_eq!(take(&keyed, 1).await.field("ratelimit-policy"), "6;w=60");
}
