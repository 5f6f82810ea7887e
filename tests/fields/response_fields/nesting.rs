//! Fields of an inner service, or of another layer of ours.

use futures_util::FutureExt;
use http::{HeaderName, HeaderValue};
use proptest::{collection::vec, prelude::*, sample::select};
use tower_quota::fields::{EmitWhen, Hints, LimitHint};

use super::*;

fn default(quota: u64) -> QuotaPolicy {
    fixed(QuotaPolicy::per_minute("default", quota))
}

/// G1, G2, G3
#[tokio::test]
async fn what_an_inner_service_says_stays_and_own_limits_are_added() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::draft11(), [fixed(QuotaPolicy::per_minute("edge", 5))]);
    let inner = with_fields([
        ("ratelimit", r#""default";r=50;t=30"#),
        ("ratelimit", r#""other";r=1;acme-x=?0"#),
        ("ratelimit-policy", r#""default";q=100;w=60, "other";q=2"#),
    ]);
    let answer = send(&layer, costing(1), inner).await;
    let limits = r#""default";r=50;t=30, "other";r=1;acme-x=?0, "edge";r=4;t=60"#;
    let policies = r#""default";q=100;w=60, "other";q=2, "edge";q=5;w=60"#;
    assert_eq!(answer.fields(TOLD), [limits, policies, ""]);
}

/// G3: bytes are not requests, also where the layer does not show its policies.
#[tokio::test]
async fn a_limit_of_bytes_is_not_joined_with_one_of_requests_although_policies_are_hidden() {
    let policy = || default(5).with_content_bytes(tower_quota::Direction::Request);
    // Also where another policy shows whose quota it is.
    for policies in [vec![policy()], vec![policy(), minute(9).show_partition_key()]] {
        let layer = Scene::new().layer(ResponseFields::draft11().without_policies(), policies);
        let inner = with_fields([("ratelimit", r#""default";r=50;t=30"#)]);
        let answer = send(&layer, costing(1), inner).await;
        let [limits, policies, _] = answer.fields(TOLD);
        assert!(
            limits.starts_with(r#""default";r=50;t=30, "default";r=4;t=60"#),
            "{limits}"
        );
        assert_eq!(policies, "");
    }
}

/// G6
#[tokio::test]
async fn a_service_that_says_it_has_nothing_left_is_asked_again() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::draft11(), [default(5)]);
    for left in [4, 3, 2] {
        let inner = with_fields([("ratelimit", r#""upstream";r=0;t=600"#)]);
        let answer = send(&layer, costing(1), inner).await;
        assert_eq!(answer.status(), 200);
        let expected = format!(r#""upstream";r=0;t=600, "default";r={left};t=60"#);
        assert_eq!(answer.field("ratelimit"), expected);
    }
}

/// X37: the service speaks another dialect than the layer in front of it, and has nothing left.
#[tokio::test]
async fn what_an_inner_service_says_in_another_dialect_is_read_beside_the_own_limit() {
    let inner = || {
        with_fields([
            ("ratelimit-limit", "10"),
            ("ratelimit-remaining", "0"),
            ("ratelimit-reset", "60"),
        ])
    };
    for (fields, is_list) in [
        (ResponseFields::draft11(), true),
        (ResponseFields::draft11().with_draft06_limit(), true),
        (ResponseFields::in_between(), true),
        // Three numbers show one limit: the closer one.
        (ResponseFields::draft06(), false),
    ] {
        let layer = Scene::new().layer(fields.clone(), [fixed(QuotaPolicy::per_hour("edge", 1_000))]);
        let answer = send(&layer, costing(1), inner()).await;
        let hints = Hints::read(answer.headers());
        let left = |remaining| hints.limits().iter().any(|limit| limit.remaining() == Some(remaining));
        assert!(left(0), "{fields:?}: {hints:?}");
        assert_eq!(left(999), is_list, "{hints:?}");
    }
    // The other way round: numbers of ours beside a list of the service.
    let layer = Scene::new().layer(ResponseFields::draft06(), [default(5)]);
    let inner = with_fields([("ratelimit", r#""upstream";r=0;t=600"#)]);
    let hints = Hints::read(send(&layer, costing(1), inner).await.headers());
    let left: Vec<_> = hints.limits().iter().map(|limit| limit.remaining()).collect();
    assert_eq!(left, [Some(0), Some(4)]);
}

/// X39: the service is one of express-rate-limit or hono.
#[tokio::test]
async fn a_dictionary_of_an_inner_service_becomes_an_item_named_upstream() {
    let (limit, policy) = ("limit=5, remaining=3, reset=60", "5;w=60");
    let policies = r#""upstream";q=5;w=60, "edge";q=9;w=60"#;
    let draft11 = ResponseFields::draft11;
    for (fields, limits, policies) in [
        (draft11(), r#""upstream";r=3;t=60, "edge";r=8;t=60"#, policies),
        (
            ResponseFields::in_between(),
            "upstream;r=3;t=60, edge;r=8;t=60",
            "upstream;q=5;w=60, edge;q=9;w=60",
        ),
        // A layer that shows no limits or policies has nothing to add to that field.
        (draft11().without_limits(), r#""upstream";r=3;t=60"#, policies),
        (draft11().emit_when(EmitWhen::Rejected), limit, policy),
        (ResponseFields::none(), limit, policy),
    ] {
        let layer = Scene::new().layer(fields, [fixed(QuotaPolicy::per_minute("edge", 9))]);
        let inner = with_fields([("ratelimit", limit), ("ratelimit-policy", policy)]);
        let answer = send(&layer, costing(1), inner).await;
        assert_eq!(answer.fields(TOLD), [limits, policies, ""]);
    }
}

/// X39, G4
#[tokio::test]
async fn of_two_dictionaries_the_closer_limit_is_shown() {
    let dictionary = |inner: &'static str, quota| async move {
        let layer = Scene::new().layer(ResponseFields::draft07(), [default(quota)]);
        let answer = send(&layer, costing(1), with_fields([("ratelimit", inner)])).await;
        answer.field("ratelimit").to_owned()
    };
    let (late, early) = ("limit=50, remaining=3, reset=90", "limit=50, remaining=3, reset=9");
    assert_eq!(dictionary(late, 9).await, late);
    // With the later reset of the two.
    assert_eq!(dictionary(late, 3).await, "limit=3, remaining=2, reset=90");
    assert_eq!(dictionary(early, 3).await, "limit=3, remaining=2, reset=60");
    // The field does not contain the remaining units, or is not in this dialect.
    for inner in ["limit=50, reset=9", "limit=50", "???", r#""a";r=50"#, "a;r=50", ""] {
        assert_eq!(dictionary(inner, 3).await, inner);
    }

    let [generous, strict] = nested(&Scene::new(), &ResponseFields::draft07());
    for (outer, inner) in [(&generous, &strict), (&strict, &generous)] {
        let answer = through_both(outer, inner).await;
        assert!(
            answer.field("ratelimit").starts_with("limit=5, "),
            "{:?}",
            answer.headers()
        );
    }
}

/// G10
#[tokio::test]
async fn a_gateway_of_the_service_itself_can_replace_what_it_says() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::draft11().overwrite_upstream(), [default(5)]);
    let inner = with_fields([
        ("ratelimit", r#""internal";r=50;t=30"#),
        ("ratelimit-policy", r#""internal";q=100;w=60"#),
        ("ratelimit-limit", "1"),
        ("x-ratelimit-limit", "1"),
        ("retry-after", "30"),
    ]);
    let answer = send(&layer, costing(1), inner).await;
    assert_eq!(
        answer.fields(TOLD),
        [r#""default";r=4;t=60"#, r#""default";q=5;w=60"#, "30"]
    );
    assert_eq!(answer.fields(["ratelimit-limit", "x-ratelimit-limit"]), ["", ""]);
}

/// G10
#[tokio::test]
async fn what_is_replaced_is_hidden_also_where_the_layer_says_nothing_itself() {
    let scene = Scene::new();
    let quiet = ResponseFields::draft11().emit_when(EmitWhen::Rejected);
    for fields in [quiet.overwrite_upstream(), ResponseFields::none().overwrite_upstream()] {
        let layer = scene.layer(fields, [default(5)]);
        let inner = with_fields([("ratelimit", r#""internal";r=50;t=30"#), ("x-ratelimit-limit", "1")]);
        let answer = send(&layer, costing(1), inner).await;
        assert_eq!(answer.fields(["ratelimit", "x-ratelimit-limit"]), ["", ""]);
    }
}

/// Sends a request of alice through a global and a per-route layer.
async fn through_both(outer: &RateLimitLayer, inner: &RateLimitLayer) -> Answer {
    let handler = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(ok()) });
    call(outer.layer(inner.layer(handler)), costing(1)).await
}

fn nested(scene: &Scene, fields: &ResponseFields) -> [RateLimitLayer; 2] {
    let layer = |scope: &str, policies: [QuotaPolicy; 2]| {
        let builder = scene.builder(policies).scope(scope).response_fields(fields.clone());
        builder.build().unwrap()
    };
    [
        layer("global", [default(50), fixed(QuotaPolicy::per_day("day", 500))]),
        layer("route", [default(5), fixed(QuotaPolicy::per_hour("hour", 60))]),
    ]
}

/// G4
#[tokio::test]
async fn two_layers_of_ours_give_one_list_in_which_each_policy_is_named_once() {
    let limits = r#""default";r=4;t=60, "hour";r=59;t=3600, "day";r=499;t=86400"#;
    let policies = r#""default";q=5;w=60, "hour";q=60;w=3600, "day";q=500;w=86400"#;
    let quoted = [limits, policies].map(str::to_owned);
    let tokens = [limits, policies].map(|field| field.replace('"', ""));
    for (fields, expected) in [
        (ResponseFields::draft11(), quoted),
        (ResponseFields::in_between(), tokens),
    ] {
        let [global, route] = nested(&Scene::new(), &fields);
        let answer = through_both(&global, &route).await;
        assert_eq!(answer.fields(["ratelimit", "ratelimit-policy"]), expected);
    }
}

/// G4 in the dialects that have three numbers: the limit that is closer, whichever layer it belongs to.
#[tokio::test]
async fn two_layers_of_ours_show_the_closer_limit_in_three_numbers() {
    for (fields, names) in [
        (ResponseFields::draft06(), DRAFT06),
        (ResponseFields::legacy(LegacyReset::DeltaSeconds), LEGACY),
    ] {
        let [generous, strict] = nested(&Scene::new(), &fields);
        assert_eq!(through_both(&generous, &strict).await.fields(names), ["5", "4", "60"]);
        let [generous, strict] = nested(&Scene::new(), &fields);
        let answer = through_both(&strict, &generous).await;
        assert_eq!(answer.fields(names), ["5", "4", "60"]);
        if names == DRAFT06 {
            let policies = "50;w=60, 500;w=86400, 5;w=60, 60;w=3600";
            assert_eq!(answer.field("ratelimit-policy"), policies);
        }
    }
}

#[tokio::test]
async fn numbers_of_draft_06_that_are_malformed_or_incomplete_are_left_alone() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::draft06(), [default(5)]);
    for inner in [
        with_fields([("ratelimit-limit", "100, 100;w=60"), ("ratelimit-reset", "9")]),
        with_fields([("ratelimit-limit", "100"), ("ratelimit-reset", "9")]),
    ] {
        let limit = inner.headers()["ratelimit-limit"].clone();
        let answer = send(&layer, costing(0), inner).await;
        assert_eq!(answer.headers()["ratelimit-limit"], limit);
        assert_eq!(answer.fields(["ratelimit-remaining", "ratelimit-reset"]), ["", "9"]);
    }
    // The later reset of the two.
    let inner = with_fields([
        ("ratelimit-limit", "9"),
        ("ratelimit-remaining", "6"),
        ("ratelimit-reset", "90"),
    ]);
    assert_eq!(send(&layer, costing(0), inner).await.fields(DRAFT06), ["5", "5", "90"]);
}

/// J30: seconds and moments are not compared, though both are ours.
#[tokio::test]
async fn legacy_fields_of_two_layers_with_different_meanings_are_not_joined() {
    let (seconds, moment) = (LegacyReset::DeltaSeconds, LegacyReset::UnixTime);
    for (outer, inner) in [(seconds, moment), (moment, seconds)] {
        let scene = Scene::new();
        let [_, alone] = nested(&scene, &ResponseFields::legacy(inner));
        let expected = take(&alone, 1).await;
        // The outer one is the closer one, and would be shown if it could be.
        let scene = Scene::new();
        let [_, route] = nested(&scene, &ResponseFields::legacy(inner));
        let global = scene.layer(ResponseFields::legacy(outer), [default(1)]);
        let answer = through_both(&global, &route).await;
        assert_eq!(
            answer.fields(LEGACY),
            expected.fields(LEGACY),
            "{outer:?} around {inner:?}"
        );
    }
}

/// J30: another server may mean anything by them.
#[tokio::test]
async fn legacy_fields_of_another_server_are_left_alone() {
    let scene = Scene::new();
    let layer = scene.layer(ResponseFields::legacy(LegacyReset::DeltaSeconds), [default(5)]);
    let inner = with_fields([("x-ratelimit-remaining", "50"), ("x-ratelimit-reset", "1700000000")]);
    let answer = send(&layer, costing(1), inner).await;
    assert_eq!(answer.fields(LEGACY), ["", "50", "1700000000"]);
}

/// Values of the inner service's fields, good ones and others.
fn section() -> impl Strategy<Value = Vec<(HeaderName, HeaderValue)>> {
    let names = "ratelimit ratelimit-policy ratelimit-limit ratelimit-remaining ratelimit-reset x-ratelimit-remaining \
                 x-ratelimit-reset retry-after";
    let names = names.split(' ').map(HeaderName::from_static);
    // Separated by bars.
    let pieces = "\"default\"|default|\"a\"|a|;r=7|;r=0|;t=9|;t=90|;q=3|;q=300|;w=60|;qu=\"tokens\"|;qu=bytes|;pk=x|7|7;w=60|\
                  300;w=0|limit=7, remaining=3, reset=9|limit=300, reset=9|remaining=5|300|999999999999999|-1|, |?";
    let (names, pieces) = (names.collect::<Vec<_>>(), pieces.split('|').collect::<Vec<_>>());
    let value = vec(select(pieces), 0..6).prop_map(|pieces| pieces.concat().parse().unwrap());
    vec((select(names), value), 0..6)
}

/// Returns `true` if a client that obeys `after` sends at most as much as a client that obeys `before`. An item may
/// contain the numbers of draft-06, which have no name.
fn holds_back_as_much(after: &LimitHint, before: &LimitHint) -> bool {
    let is_same = before.name().is_none() || after.name() == before.name();
    let is_low = |before| after.remaining().is_some_and(|after| after <= before);
    let is_late = |before| after.reset().is_some_and(|after| after >= before);
    is_same && before.remaining().is_none_or(is_low) && before.reset().is_none_or(is_late)
}

proptest! {
    /// G1, G2, G9, X37 in every dialect, and of every dialect: no field of the inner service is lost or looks more
    /// permissive, for arbitrary fields.
    #[test]
    fn no_layer_removes_or_relaxes_what_an_inner_service_says(section in section(), quota in 1..400_u64) {
        let scene = Scene::new();
        for fields in dialects() {
            let layer = scene.layer(fields.clone(), [default(quota)]);
            let mut inner = ok();
            inner.headers_mut().extend(section.iter().map(|(name, value)| (Some(name.clone()), value.clone())));
            let before = inner.headers().clone();
            let answer = send(&layer, costing(0), inner).now_or_never().expect("nothing is waited for");

            prop_assert_eq!(answer.headers().get("retry-after"), before.get("retry-after"), "{:?}", fields);
            let [before_it, after_it] = [&before, answer.headers()].map(Hints::read);
            for before in before_it.limits() {
                let is_kept = after_it.limits().iter().any(|after| holds_back_as_much(after, before));
                prop_assert!(is_kept, "{:?}: {:?} is in none of {:?}", fields, before, after_it.limits());
            }
            for (after, before) in after_it.policies().iter().zip(before_it.policies()) {
                prop_assert!(before.name().is_none() || after.name() == before.name(), "{:?}", fields);
                prop_assert!(after.quota() <= before.quota(), "{:?}: {:?}", fields, after);
                // A window of zero carries no information.
                let window = before.window().filter(|window| !window.is_zero());
                prop_assert!(after.window() >= window, "{:?}: {:?}", fields, after);
            }
            prop_assert!(after_it.ignored().len() <= before_it.ignored().len(), "{:?}", fields);
            for name in before.keys() {
                prop_assert!(answer.headers().contains_key(name), "{:?}: {}", fields, name);
            }
        }
    }
}
