//! Several layers of one limiter: the layers share its rules, and each has its own keys, costs and fields.

use std::sync::Arc;

use http_body_util::BodyExt;
use test_kit::{TestStore, Timing};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    AccessList, ActualCost, Algorithm, CallerQuotas, ConfigError, Direction, FailureMode, MissingKey, RateLimitBody,
    ResponseFields, Rules, RulesHandle, Tiers,
};

use self::Word::{Actual, Refund, Settle};
use super::*;

fn per_hour(quota: u64) -> QuotaPolicy {
    QuotaPolicy::per_hour("hour", quota)
}

fn limiter(rules: Rules) -> Limiter {
    let builder = Limiter::builder(Scene::new([]).store).scope("layer");
    builder.rules(rules).build().unwrap()
}

fn on(limiter: &Limiter) -> RateLimitLayerBuilder {
    RateLimitLayer::with_limiter(limiter.clone()).key(key::from_fn(|_| Some(everybody())))
}

async fn sent(layer: &RateLimitLayer, request: Request<TextBody>) -> Response<RateLimitBody<TextBody>> {
    layer.layer(service_fn(hello)).oneshot(request).await.unwrap()
}

fn replaced(rules: &RulesHandle, policy: QuotaPolicy) -> Result<(), ConfigError> {
    rules.replace(Rules::new().policy(policy))
}

fn message<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> String {
    result.unwrap_err().to_string()
}

/// A request of a caller with a top-up of `units`.
fn topped_up(units: u64) -> Request<Full<Bytes>> {
    let mut request = request();
    let top_up = CallerQuotas::new().top_up("hour", units, Timestamp::from_micros(u64::MAX));
    request.extensions_mut().insert(top_up);
    request
}

#[tokio::test]
async fn layers_of_one_limiter_share_its_rules_and_its_counts() {
    let limiter = limiter(Rules::new().policy(per_hour(10)));
    let plain = on(&limiter).build().unwrap();
    let old = on(&limiter).cost(2).response_fields(ResponseFields::draft07());
    let old = old.build().unwrap();
    sent(&plain, request()).await;
    let response = sent(&old, request()).await;
    assert!(ratelimit(&response).starts_with("limit=10, remaining=7,"));

    let rules = limiter.rules();
    replaced(&rules, per_hour(20)).unwrap();
    assert_eq!(ratelimit(&sent(&plain, request()).await), r#""hour";r=16;t=2880"#);
    assert!(ratelimit(&sent(&old, request()).await).starts_with("limit=20, remaining=14,"));
    // A rollout, a reduced capacity and a top-up have separate policy sets, with the fields of each layer.
    let rolled_out = per_hour(40).with_caller_quotas(1..=100);
    rules.roll_out(100, Rules::new().policy(rolled_out)).unwrap();
    let half = on(&limiter).capacity(|_| tower_quota::Capacity::reduced_to(50).unwrap());
    let half = half.response_fields(ResponseFields::draft07()).build().unwrap();
    assert!(ratelimit(&sent(&plain, topped_up(10)).await).starts_with(r#""hour";r=43;"#));
    assert!(ratelimit(&sent(&half, topped_up(10)).await).starts_with("limit=25, remaining=17,"));
}

#[tokio::test]
async fn rules_that_do_not_fit_one_layer_are_rejected_by_all_until_it_is_gone() {
    let limiter = limiter(Rules::new().policy(per_hour(10)));
    let plain = on(&limiter).build().unwrap();
    let costly = on(&limiter).cost(5).build().unwrap();
    let rules = limiter.rules();
    let expected = r#"policy "hour": fixed cost 5 exceeds capacity 4"#;
    assert_eq!(message(replaced(&rules, per_hour(4))), expected);
    let dear = message(on(&limiter).cost(11).build());
    assert_eq!(dear, r#"policy "hour": fixed cost 11 exceeds capacity 10"#);
    // The layer that could not be built is gone, too.
    assert_eq!(message(replaced(&rules, per_hour(4))), expected);

    let service = costly.layer(service_fn(hello));
    drop(costly);
    assert_eq!(message(replaced(&rules, per_hour(4))), expected);
    drop(service);
    replaced(&rules, per_hour(4)).unwrap();
    assert_eq!(ratelimit(&sent(&plain, request()).await), r#""hour";r=3;t=2700"#);
}

/// A program may make a layer for each connection.
#[tokio::test]
async fn a_layer_takes_the_position_of_one_that_is_gone() {
    let limiter = limiter(Rules::new().policy(per_hour(1_000)));
    let first = on(&limiter).build().unwrap();
    for number in 0..100 {
        let fields = ResponseFields::draft11().with_extra_fields(move |_, fields| {
            fields.insert("x-number", number.into());
        });
        let layer = on(&limiter).response_fields(fields).build().unwrap();
        let response = sent(&layer, request()).await;
        assert_eq!(response.headers()["x-number"], number.to_string());
        assert!(!sent(&first, request()).await.headers().contains_key("x-number"));
    }
}

#[tokio::test]
async fn a_layer_that_comes_while_rules_change_has_its_part_of_them() {
    let limiter = limiter(Rules::new().policy(per_hour(1_000_000)));
    let rules = limiter.rules();
    let changing = tokio::task::spawn_blocking(move || {
        for number in 0..500 {
            replaced(&rules, per_hour(1_000_000 + number)).unwrap();
        }
    });
    while !changing.is_finished() {
        let legacy = ResponseFields::legacy(tower_quota::LegacyReset::DeltaSeconds);
        let layer = on(&limiter).response_fields(legacy).build().unwrap();
        let response = sent(&layer, request()).await;
        assert!(response.headers().contains_key("x-ratelimit-limit"));
    }
    changing.await.unwrap();
}

#[test]
fn a_setting_of_a_limiter_that_is_built_is_an_error_that_names_it() {
    let limiter = limiter(Rules::new().policy(per_hour(10)));
    let (layer, list) = (|| on(&limiter), AccessList::new(key::client_ip()));
    let tiers = Tiers::from_fn(|_| None).tier("free", [per_hour(1)]);
    for (layer, name) in [
        (layer().scope("other"), "scope"),
        (layer().policy(per_hour(1)), "policy"),
        (layer().rules(Rules::new()), "rules"),
        (layer().failure_mode(FailureMode::Closed), "failure mode"),
        (layer().on_missing_key(MissingKey::Reject), "missing key"),
        (layer().access_list(list), "access list"),
        (layer().tiers(tiers), "tiers"),
    ] {
        let expected = format!("{name}: must be set on the builder of the limiter");
        assert_eq!(message(layer.build()), expected);
    }
}

#[tokio::test]
async fn a_layer_extracts_each_key_that_its_limiter_names() {
    let by_team = per_hour(1).with_name("team").keyed_by("team");
    let rules = Rules::new().policy(per_hour(10)).policy(by_team);
    let builder = Limiter::builder(MemoryStore::new()).scope("layer").rules(rules);
    let limiter = builder.named_key("team").named_key("region").build().unwrap();
    let with_team = || on(&limiter).named_key("team", key::header("x-team"));
    let keys = || with_team().named_key("region", key::header("x-region"));
    let required = r#"key "region": required by the limiter, but not extracted by the layer; use `named_key`"#;
    let unknown = r#"key "planet": unknown to the limiter, which has ["team", "region"]"#;
    let duplicate = r#"key "team": duplicate name; names must be unique"#;
    for (layer, expected) in [
        (with_team(), required),
        (keys().named_key("planet", key::header("x-planet")), unknown),
        (keys().named_key("team", key::header("x-other")), duplicate),
    ] {
        assert_eq!(message(layer.build()), expected);
    }

    let layer = keys().build().unwrap();
    let mut of_red = request();
    of_red.headers_mut().insert("x-team", "red".parse().unwrap());
    sent(&layer, of_red).await;
    let red = PartitionKey::new("x-team", "red");
    let decision = limiter.caller(&everybody()).keyed_by("team", &red).check().await;
    assert_eq!(decision.violated().next().unwrap().policy().name(), "team");
}

#[tokio::test]
async fn each_layer_of_a_limiter_with_tiers_knows_the_tier_of_a_request() {
    let rules = Rules::new()
        .tier("free", [per_hour(1)])
        .tier("premium", [per_hour(100)]);
    let limiter = limiter(rules);
    let error = message(on(&limiter).build());
    assert_eq!(error, "tiers: no source of tiers; build the layer with `tiers`");
    let tier = |name: &'static str| Tiers::from_fn(move |_| Some(name));
    let free = on(&limiter).tiers(tier("free")).build().unwrap();
    let premium = on(&limiter).tiers(tier("premium")).build().unwrap();
    assert_eq!(sent(&free, request()).await.status(), 200);
    assert_eq!(sent(&free, request()).await.status(), 429);
    assert_eq!(ratelimit(&sent(&premium, request()).await), r#""hour";r=98;t=3528"#);
    // Rules without tiers are the same for each.
    replaced(&limiter.rules(), per_hour(10)).unwrap();
    assert_eq!(ratelimit(&sent(&premium, request()).await), r#""hour";r=7;t=2520"#);
}

fn slots() -> QuotaPolicy {
    QuotaPolicy::concurrent("slots", 50)
}

/// A handler's report about the cost of its request.
#[derive(Clone, Copy, Debug)]
enum Word {
    Settle(u64),
    Refund,
    /// In the response.
    Actual(u64),
}

async fn answered(layer: &RateLimitLayer, words: &[Word]) -> Response<RateLimitBody<TextBody>> {
    let service = service_fn(move |request: Request<TextBody>| async move {
        let mut response = Response::new(Full::from("hello"));
        for word in words {
            match *word {
                Settle(cost) => permit_of(&request).settle(cost),
                Refund => permit_of(&request).refund(),
                Actual(cost) => drop(response.extensions_mut().insert(ActualCost(cost))),
            }
        }
        Ok::<_, Infallible>(response)
    });
    layer.layer(service).oneshot(request()).await.unwrap()
}

async fn left_of(limiter: &Limiter) -> Vec<u64> {
    let decision = limiter.caller(&everybody()).peek().await.unwrap().unwrap();
    decision.allowances().map(|allowance| allowance.remaining()).collect()
}

fn limiter_of(policies: [QuotaPolicy; 2]) -> Limiter {
    limiter(policies.into_iter().fold(Rules::new(), Rules::policy))
}

/// A store takes only a part of a charge above its bound, so that a charge may change once.
#[tokio::test]
async fn the_charge_of_a_request_is_corrected_once_by_the_last_word() {
    // Of 100 units others have used 40, and the request costs 10.
    let cases: [(&[Word], u64); 9] = [
        (&[], 50),
        (&[Settle(30)], 30),
        (&[Settle(1_000), Settle(1)], 59),
        (&[Settle(1_000), Actual(1)], 59),
        (&[Settle(1_000), Refund], 60),
        (&[Refund, Settle(5)], 55),
        (&[Refund, Actual(7)], 53),
        (&[Settle(50), Actual(1)], 59),
        (&[Refund], 60),
    ];
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
    ] {
        for (words, expected) in cases {
            let limiter = limiter_of([slots(), per_hour(100).with_algorithm(algorithm)]);
            let layer = on(&limiter).cost(10).build().unwrap();
            drop(limiter.caller(&everybody()).cost(40).check().await);
            drop(answered(&layer, words).await);
            assert_eq!(left_of(&limiter).await, [50, expected], "{algorithm:?}: {words:?}");
        }
    }
}

/// The response has begun, and a response that names a cost has corrected the charge.
#[tokio::test]
async fn a_permit_that_outlives_the_beginning_of_the_response_corrects_a_charge_only_if_nothing_has() {
    for (actual, left) in [(Some(20), 80), (None, 70)] {
        let limiter = limiter_of([slots(), per_hour(100)]);
        let layer = on(&limiter).cost(10).build().unwrap();
        let (sender, kept) = std::sync::mpsc::channel();
        let service = service_fn(move |request: Request<TextBody>| {
            sender.send(permit_of(&request)).unwrap();
            let mut response = Response::new(Full::from("hello"));
            if let Some(cost) = actual {
                response.extensions_mut().insert(ActualCost(cost));
            }
            async move { Ok::<_, Infallible>(response) }
        });
        let response = layer.layer(service).oneshot(request()).await.unwrap();
        kept.recv().unwrap().settle(30);
        drop(response);
        assert_eq!(left_of(&limiter).await, [50, left], "{actual:?}");
    }
}

#[tokio::test]
async fn a_place_in_a_queue_that_is_settled_down_and_up_is_charged_once() {
    let queue = Algorithm::LeakyBucketQueue { max_waiting: 99 };
    let queued = QuotaPolicy::per_hour("hour", 3_600_000).with_algorithm(queue);
    let limiter = limiter_of([slots(), queued]);
    let layer = on(&limiter).cost(10).build().unwrap();
    for _ in 0..3 {
        drop(answered(&layer, &[Settle(0), Actual(10)]).await);
    }
    assert_eq!(left_of(&limiter).await, [50, 70]);
}

#[tokio::test]
async fn a_refund_gives_no_bytes_back_that_were_sent() {
    let bytes = QuotaPolicy::per_hour("bytes", 100).with_content_bytes(Direction::Response);
    let limiter = limiter(Rules::new().policy(bytes));
    let layer = on(&limiter).build().unwrap();
    let body = answered(&layer, &[Refund]).await.into_body();
    drop(body.collect().await.unwrap());
    assert_eq!(left_of(&limiter).await, [95]);
}

#[tokio::test]
async fn the_response_shows_what_its_handler_has_settled() {
    let limiter = limiter_of([slots(), per_hour(100)]);
    let layer = on(&limiter).cost(10).build().unwrap();
    let response = answered(&layer, &[Settle(40)]).await;
    assert_eq!(ratelimit(&response), r#""slots";r=49, "hour";r=60;t=2160"#);
    let response = answered(&layer, &[Refund]).await;
    assert!(ratelimit(&response).ends_with(r#""hour";r=60;t=2160"#));
}

/// A custom unit that the rules have dropped, or that only a rollout has, is not an error for a program that restarts.
#[tokio::test]
async fn a_layer_like_one_that_runs_can_be_built_after_rules_have_changed() {
    let tokens = || QuotaPolicy::per_day("tokens", 1_000).with_unit("tokens");
    let builder = Limiter::builder(MemoryStore::new()).scope("layer");
    let limiter = builder.policy(per_hour(100)).policy(tokens()).build().unwrap();
    let like = || on(&limiter).unit_cost("tokens", |_| 1).build();
    let _first = like().unwrap();
    replaced(&limiter.rules(), per_hour(100)).unwrap();
    like().unwrap();
    let tried = Rules::new().policy(per_hour(100)).policy(tokens());
    limiter.rules().roll_out(10, tried).unwrap();
    like().unwrap();
    let without = message(on(&limiter).build());
    let expected = r#"policy "tokens": unit "tokens" has no cost"#;
    assert!(without.starts_with(expected), "{without}");
}

#[tokio::test]
async fn fields_that_cannot_say_a_top_up_do_not_end_it() {
    let team = QuotaPolicy::per_day("team", 150).keyed_by("team");
    let rules = Rules::new()
        .policy(per_hour(100).with_caller_quotas(1..=200))
        .policy(team);
    let builder = Limiter::builder(MemoryStore::new()).scope("layer").rules(rules);
    let limiter = builder.named_key("team").build().unwrap();
    let layer = || on(&limiter).named_key("team", key::header("x-team"));
    let plain = layer().build().unwrap();
    // Two policies of one quota are one to this dialect.
    let old = layer().response_fields(ResponseFields::draft07()).build().unwrap();
    assert!(ratelimit(&sent(&plain, topped_up(50)).await).starts_with(r#""hour";r=149;"#));
    assert!(ratelimit(&sent(&old, topped_up(50)).await).starts_with("limit=150, remaining=148,"));
}

#[tokio::test]
async fn a_limiter_that_a_field_of_its_layer_asks_is_freed() {
    let store = Arc::new(MemoryStore::new());
    let builder = Limiter::builder(Arc::clone(&store)).scope("layer");
    let limiter = builder.policy(per_hour(100)).build().unwrap();
    let asked = limiter.clone();
    let fields = ResponseFields::draft11().with_extra_fields(move |_, fields| {
        fields.insert("x-limits", u16::from(asked.rules().is_enabled()).into());
    });
    let layer = on(&limiter).response_fields(fields).build().unwrap();
    assert_eq!(sent(&layer, request()).await.headers()["x-limits"], "1");
    drop((layer, limiter));
    assert_eq!(Arc::strong_count(&store), 1);
}

#[tokio::test(start_paused = true)]
async fn prefetched_units_stay_when_a_layer_joins() {
    let store = TestStore::new(MemoryStore::new(), Timing::Later);
    let builder = Limiter::builder(store.clone()).scope("layer");
    let limiter = builder.policy(per_hour(100_000).with_prefetch(500)).build().unwrap();
    for _ in 0..500 {
        drop(on(&limiter).build().unwrap());
        assert!(limiter.check(&everybody()).await.outcome().is_admitted());
    }
    let calls = store.calls();
    assert!(calls < 50, "{calls}");
}
