//! Custom units: an estimate before, the actual amount afterwards.

use std::{
    future::ready,
    sync::{Arc, Mutex},
};

use http::StatusCode;
use http_body_util::BodyExt;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Availability, Capacity, ChargeTime, ConfigErrorKind, Decision, MissingKey, RateLimitBody, Refund,
    RefundOutcome, Rules, Settlement, Tiers,
};

use super::*;

const REQUESTS: QuotaPolicy = QuotaPolicy::per_day("requests", 100);
const TOKENS: QuotaPolicy = QuotaPolicy::per_day("tokens", 10_000).with_unit("tokens");

fn scene() -> Scene {
    Scene::new([REQUESTS, TOKENS])
}

fn estimated(scene: &Scene, tokens: u64) -> RateLimitLayer {
    scene.builder().unit_cost("tokens", move |_| tokens).build().unwrap()
}

/// The reports of a program that does not store the permit. Reports have no effect when the request is complete.
struct Usage(WeakPermit);

impl Usage {
    fn report(&self, report: impl FnOnce(&Permit) -> bool) -> bool {
        self.0.upgrade().is_some_and(|permit| report(&permit))
    }

    fn add(&self, unit: &str, amount: u64) -> bool {
        self.report(|permit| permit.add(unit, amount))
    }

    fn set(&self, unit: &str, total: u64) -> bool {
        self.report(|permit| permit.set(unit, total))
    }

    fn finish(&self, unit: &str, total: u64) -> bool {
        self.report(|permit| permit.finish(unit, total))
    }
}

/// A response with this body, and what the layer has left in its request.
async fn open<B>(layer: RateLimitLayer, body: B) -> (Response<RateLimitBody<B>>, Usage)
where
    B: Body<Data = Bytes>,
{
    let (body, permit) = (Arc::new(Mutex::new(Some(body))), Arc::new(Mutex::new(None)));
    let left = Arc::clone(&permit);
    let service = service_fn(move |request: Request<TextBody>| {
        *left.lock().unwrap() = request.extensions().get().cloned();
        let response = Response::new(body.lock().unwrap().take().unwrap());
        ready(Ok::<_, Infallible>(response))
    });
    let response = layer.layer(service).oneshot(request()).await.unwrap();
    let permit = permit.lock().unwrap().take();
    (response, Usage(permit.unwrap_or_default()))
}

#[tokio::test]
async fn requests_and_tokens_are_charged_in_one_decision_or_not_at_all() {
    let scene = scene();
    let tokens = |request: &http::request::Parts| request.uri.path().len() as u64 * 1_000;
    let layer = scene.builder().unit_cost("tokens", tokens).build().unwrap();
    let send = async |path: &str| {
        let mut request = request();
        *request.uri_mut() = path.parse().unwrap();
        layer.layer(service_fn(hello)).oneshot(request).await.unwrap()
    };
    assert_eq!(send("/567890").await.status(), StatusCode::OK);
    assert_eq!(scene.left().await, [99, 3_000]);
    let rejected = send("/234").await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    let body = rejected.into_body().collect().await.unwrap().to_bytes();
    let body = str::from_utf8(&body).unwrap();
    assert!(body.contains(r#""violated-policies":["tokens"]"#), "{body}");
    assert_eq!(scene.left().await, [99, 3_000]);
    assert_eq!(send("/23").await.status(), StatusCode::OK);
    assert_eq!(scene.left().await, [98, 0]);
    // More than the bucket ever holds.
    let never = send("/2345678901").await;
    assert_eq!(never.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!never.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn each_policy_counts_its_own_unit_and_several_may_count_the_same() {
    let of = |name, unit| QuotaPolicy::per_day(name, 1_000).with_unit(unit);
    let inputs = [of("in", "input"), of("also in", "input")];
    let scene = Scene::new(inputs.into_iter().chain([of("out", "output"), of("images", "images")]));
    let layer = scene.builder().unit_cost("images", |_| 3).unit_cost("output", |_| 20);
    let layer = layer.unit_cost("input", |_| 100);
    let (response, usage) = open(layer.build().unwrap(), TextBody::from("answer")).await;
    assert_eq!(scene.left().await, [900, 900, 980, 997]);
    assert!(usage.set("output", 7) && usage.set("input", 130));
    response.into_body().collect().await.unwrap();
    assert_eq!(scene.left().await, [870, 870, 993, 997]);
}

#[tokio::test]
async fn the_rest_of_an_estimate_comes_back_when_the_body_has_ended_and_not_before() {
    let scene = scene();
    let (response, usage) = open(estimated(&scene, 1_000), Stream::of(2)).await;
    let mut body = response.into_body();
    for said in [100, 200] {
        assert!(usage.add("tokens", 100));
        body.frame().await.unwrap().unwrap();
        assert_eq!(scene.left().await, [99, 9_000], "{said}");
    }
    assert!(body.frame().await.is_none());
    assert_eq!(scene.left().await, [99, 9_800]);
    assert!(!usage.add("tokens", 5_000), "the request is over");
    drop(body);
    assert_eq!(scene.left().await, [99, 9_800]);
}

type Report = fn(&Permit, &str, u64) -> bool;

/// Reported before the handler returns; a response without a body is complete immediately.
#[tokio::test]
async fn what_was_said_before_the_response_is_what_it_shows_if_it_is_over_or_final() {
    for (body, says, shown) in [
        (TextBody::from("answer"), Permit::finish as Report, 9_700),
        (TextBody::from("answer"), Permit::set, 9_000),
        (TextBody::default(), Permit::finish, 9_700),
        (TextBody::default(), Permit::set, 9_700),
    ] {
        let scene = scene();
        let body = Mutex::new(Some(body));
        let service = service_fn(|request: Request<TextBody>| {
            assert!(says(&permit_of(&request), "tokens", 300));
            ready(Ok::<_, Infallible>(Response::new(body.lock().unwrap().take().unwrap())))
        });
        let layer = estimated(&scene, 1_000);
        let response = layer.layer(service).oneshot(request()).await.unwrap();
        let decision: &Decision = response.extensions().get().unwrap();
        assert_eq!(decision.allowances().last().unwrap().remaining(), shown);
        assert!(ratelimit(&response).contains(&format!("\"tokens\";r={shown};")));
        response.into_body().collect().await.unwrap();
        assert_eq!(scene.left().await, [99, 9_700]);
    }
}

#[tokio::test]
async fn a_body_that_is_dropped_before_its_end_costs_the_estimate_or_what_was_said_if_that_is_more() {
    for (said, left) in [(0, 9_000), (400, 9_000), (1_500, 8_500), (7_000, 3_000)] {
        let scene = scene();
        let (response, usage) = open(estimated(&scene, 1_000), Stream::of(5)).await;
        let mut body = response.into_body();
        body.frame().await.unwrap().unwrap();
        usage.add("tokens", said);
        drop(body);
        assert_eq!(scene.left().await, [99, left], "{said}");
    }
}

#[tokio::test]
async fn a_broken_body_counts_as_one_that_was_dropped() {
    let scene = scene();
    let (response, usage) = open(estimated(&scene, 1_000), Broken::default()).await;
    usage.add("tokens", 100);
    assert!(response.into_body().collect().await.is_err());
    assert_eq!(scene.left().await, [99, 9_000]);
}

/// The stream reports the amount when it is dropped: a client that cancels a response pays for the generated part.
#[tokio::test]
async fn a_final_amount_holds_also_for_a_body_that_is_dropped() {
    struct Answer(Permit);

    impl Drop for Answer {
        fn drop(&mut self) {
            assert!(self.0.finish("tokens", 120));
        }
    }

    impl Body for Answer {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"word ")))))
        }
    }

    let scene = scene();
    let service =
        service_fn(|request: Request<TextBody>| ready(Ok::<_, Infallible>(Response::new(Answer(permit_of(&request))))));
    let response = estimated(&scene, 1_000).layer(service).oneshot(request()).await;
    let response = response.unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    assert_eq!(scene.left().await, [99, 9_000]);
    drop(body);
    assert_eq!(scene.left().await, [99, 9_880]);
}

#[tokio::test]
async fn what_was_said_to_be_used_never_becomes_less() {
    let scene = scene();
    let (response, usage) = open(estimated(&scene, 1_000), Stream::of(1)).await;
    assert!(usage.set("tokens", 700));
    assert!(usage.set("tokens", 300));
    assert!(usage.add("tokens", 50));
    assert!(usage.finish("tokens", 10));
    // The amount is final, and the rest is refunded while the body is in progress.
    assert_eq!(scene.left().await, [99, 9_250]);
    // A second attempt at the same request.
    assert!(usage.finish("tokens", 20) && usage.add("tokens", 40));
    drop(response);
    assert_eq!(scene.left().await, [99, 9_210]);
}

#[tokio::test]
async fn a_stream_that_never_ends_is_charged_while_it_grows_in_a_few_calls() {
    let store = tower_quota::test_util::ScriptedStore::new();
    let day = QuotaPolicy::per_day("tokens", 1_000_000).with_unit("tokens");
    let policies = [day];
    let layer = builder(store.clone(), &policies)
        .unit_cost("tokens", |_| 100)
        .build()
        .unwrap();
    let (response, usage) = open(layer, Stream::endless()).await;
    for said in 1..=100_000_u64 {
        usage.add("tokens", 1);
        if said % 1_000 == 0 {
            let charged = 1_000_000 - left(&store, &policies).await[0];
            let is_near = charged.max(100) * 2 >= said && charged <= said.max(100);
            assert!(is_near, "{charged} of {said}");
        }
    }
    assert!(store.settlements() < 12, "{}", store.settlements());
    drop(response);
    assert_eq!(left(&store, &policies).await, [900_000]);
}

/// As any late charge: twice the capacity is the most that is ever owed.
#[tokio::test]
async fn more_than_the_estimate_is_charged_late_and_later_requests_pay_it_off() {
    for amount in [15_000, u64::MAX] {
        let scene = scene();
        let (response, usage) = open(estimated(&scene, 1_000), Stream::of(1)).await;
        usage.add("tokens", amount);
        usage.add("tokens", u64::MAX);
        response.into_body().collect().await.unwrap();
        let (rejected, _) = open(estimated(&scene, 0), Stream::of(1)).await;
        assert_eq!(rejected.status(), 429, "an estimate of 0 pays off debts, too");
        assert_eq!(rejected.headers()["retry-after"], "86400");
        assert_eq!(scene.left().await, [99, 0]);
    }
}

#[tokio::test]
async fn an_error_of_the_service_leaves_the_estimate_unless_a_final_amount_was_said() {
    for (says, left) in [(Permit::set as Report, 9_000), (Permit::finish, 9_900)] {
        let scene = scene();
        let service = service_fn(|request: Request<TextBody>| {
            says(&permit_of(&request), "tokens", 100);
            ready(Err::<Response<TextBody>, _>("failed"))
        });
        let response = estimated(&scene, 1_000).layer(service).oneshot(request()).await;
        assert_eq!(response.unwrap_err(), "failed");
        assert_eq!(scene.left().await, [99, left]);
    }
}

#[tokio::test]
async fn a_handler_that_refunds_its_permit_gives_the_request_and_its_estimate_back() {
    let scene = scene();
    let service = service_fn(|request: Request<TextBody>| {
        permit_of(&request).refund();
        ready(Ok::<_, Infallible>(Response::new(Stream::of(2))))
    });
    let response = estimated(&scene, 1_000).layer(service).oneshot(request()).await;
    assert_eq!(scene.left().await, [100, 10_000]);
    drop(response);
    assert_eq!(scene.left().await, [100, 10_000]);
}

#[tokio::test]
async fn all_layers_around_a_handler_hear_what_was_used() {
    let (team, user) = (Scene::new([TOKENS]), scene());
    let layers = ServiceBuilder::new()
        .layer(estimated(&team, 2_000))
        .layer(estimated(&user, 1_000));
    let service = layers.service(service_fn(|request: Request<TextBody>| {
        assert!(permit_of(&request).finish("tokens", 300));
        ready(Ok::<_, Infallible>(Response::new(TextBody::from("answer"))))
    }));
    test_kit::call(service, request()).await;
    assert_eq!((team.left().await, user.left().await), (vec![9_700], vec![99, 9_700]));
}

#[tokio::test]
async fn a_request_that_costs_nothing_uses_no_units_either() {
    let scene = scene();
    let layer = scene.builder().cost(0).unit_cost("tokens", |_| 1_000).build().unwrap();
    let (_, usage) = open(layer, Stream::of(1)).await;
    assert!(!usage.add("tokens", 5));
    assert_eq!(scene.left().await, [100, 10_000]);
}

#[tokio::test]
async fn a_request_that_is_not_limited_has_no_permit_to_report_to() {
    let layer = RateLimitLayerBuilder::from(Limiter::builder(MemoryStore::new()).on_missing_key(MissingKey::Allow))
        .scope("nobody")
        .key(key::from_fn(|_| None))
        .policy(TOKENS)
        .unit_cost("tokens", |_| 1)
        .build()
        .unwrap();
    let (_, usage) = open(layer, Stream::of(1)).await;
    assert!(!usage.add("tokens", 5) && !usage.finish("tokens", 5));
}

/// Every algorithm takes estimates, refunds, and no estimate at all.
#[tokio::test]
async fn every_algorithm_counts_units() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::StrictTokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
    ] {
        let scene = Scene::new([TOKENS.with_algorithm(algorithm)]);
        let full = scene.left().await[0];
        for (estimate, used) in [(900, 20), (0, 35), (10, 45)] {
            let (response, usage) = open(estimated(&scene, estimate), Stream::of(1)).await;
            usage.set("tokens", used);
            response.into_body().collect().await.unwrap();
        }
        assert_eq!(scene.left().await, [full - 100], "{algorithm:?}");
    }
}

/// Units that policies count, units that have a cost, and what is wrong with them.
const MISTAKES: &str = r#"
    ["tokens"] | [] | policy "0": unit "tokens" has no cost; `unit_cost` is set for []
    ["tokens"] | ["token"] | policy "0": unit "tokens" has no cost; `unit_cost` is set for ["token"]
    ["a"] | ["a", "b"] | unit "b": not used by any policy; use `with_unit`, or remove the unit
    ["tokens"] | ["tokens", "tokens"] | unit "tokens": cost is set twice
    ["tokens"] | ["tokens", ""] | unit "" is empty or not printable ASCII
    [""] | [] | policy "0": unit "" is empty or not printable ASCII
    ["größe"] | [] | policy "0": unit "größe" is empty or not printable ASCII
    ["requests"] | [] | policy "0": unit "requests" is reserved; choose another name
    ["a unit of 23 characters€"] | [] | policy "0": unit "a unit of 23 characters…" has more than 24 characters
    ["a", "content-bytes"] | [] | policy "1": unit "content-bytes" is reserved; choose another name
    ["a", "b", "c", "d"] | ["a", "b", "c", "d"] | policies: more than 3 custom units: ["a", "b", "c", "d"]
"#;

#[test]
fn mistakes_about_units_are_named() {
    let build = |units: &[&str], costs: &[&str]| {
        let policies = units.iter().enumerate();
        let policies =
            policies.map(|(name, unit)| QuotaPolicy::per_day("", 10).with_name(name.to_string()).with_unit(unit));
        let builder = builder(MemoryStore::new(), &policies.collect::<Vec<_>>());
        let costs = costs
            .iter()
            .fold(builder, |builder, unit| builder.unit_cost(unit, |_| 1));
        costs.build().map(drop)
    };
    for sound in [&["a", "b", "c"][..], &["a unit of 24 characters!"]] {
        assert!(build(sound, sound).is_ok());
    }
    let list = |text| serde_json::from_str::<Vec<&str>>(text).unwrap();
    for [units, costs, message] in &test_kit::rows(MISTAKES) {
        let error = build(&list(units), &list(costs)).unwrap_err();
        assert_eq!((&error.to_string(), error.kind()), (message, ConfigErrorKind::Unit));
    }
    let prefetched = [QuotaPolicy::per_day("p", 10).with_unit("tokens").with_prefetch(5)];
    let error = builder(MemoryStore::new(), &prefetched)
        .build()
        .unwrap_err()
        .to_string();
    let message = r#"prefetch 5: not supported for Custom("tokens"), only for requests"#;
    assert!(error.contains(message), "{error}");
}

/// Tiers may count different units, and rules from a file need not use all of them.
#[tokio::test]
async fn rules_from_a_file_count_units_of_the_program() {
    let rules: Rules = serde_json::from_str(
        r#"{"tiers": [
            {"name": "free", "policies": [
                {"name": "tokens", "quota": 100, "window_seconds": 86400, "unit": "tokens"},
                {"name": "requests", "quota": 9, "window_seconds": 86400}
            ]},
            {"name": "painter", "policies": [{"name": "images", "quota": 5, "window_seconds": 86400, "unit": "images"}]}
        ]}"#,
    )
    .unwrap();
    let scene = Scene::new([]);
    let layer = scene
        .builder()
        .tiers(Tiers::from_fn(|request| request.headers.get("x-tier")?.to_str().ok()))
        .rules(rules)
        .unit_cost("seconds", |_| panic!("no policy counts them"))
        .unit_cost("images", |_| 2)
        .unit_cost("tokens", |_| 30)
        .build()
        .unwrap();
    for (tier, shown) in [
        ("painter", r#""images";r=3;t=51840"#),
        ("free", r#""tokens";r=70;t=60480, "requests";r=8;t=76800"#),
    ] {
        let mut request = request();
        request.headers_mut().insert("x-tier", tier.parse().unwrap());
        let response = layer.layer(service_fn(hello)).oneshot(request).await.unwrap();
        assert_eq!(ratelimit(&response), shown);
    }
    let typo = Rules::new().tier("free", [QuotaPolicy::per_day("tokens", 5).with_unit("toknes")]);
    let error = layer.limiter().rules().replace(typo).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tier \"free\": policy \"tokens\": unit \"toknes\" has no cost; `unit_cost` is set for [\"seconds\", \
         \"images\", \"tokens\"]"
    );
}

/// Used units belong to the name and the unit of a policy.
#[tokio::test]
async fn policies_of_different_units_share_no_used_units() {
    let scene = Scene::new([QuotaPolicy::per_day("day", 100)]);
    scene.take(40).await;
    for unit in ["tokens", "images"] {
        let other = QuotaPolicy::per_day("day", 100).with_unit(unit);
        assert_eq!(left(&scene.store, &[other]).await, [100]);
    }
    assert_eq!(scene.left().await, [60]);
}

#[tokio::test]
async fn reduced_capacity_is_of_tokens_too() {
    let scene = scene();
    let layer = scene
        .builder()
        .unit_cost("tokens", |_| 1_000)
        .capacity(|_| Capacity::reduced_to(50).unwrap())
        .build()
        .unwrap();
    let (response, _) = open(layer, TextBody::from("answer")).await;
    let expected = r#""requests";r=49;t=84672, "tokens";r=4000;t=69120"#;
    assert_eq!(ratelimit(&response), expected);
}

/// A layer that has charged a request and 600 tokens, and when it did.
async fn charged(scene: &Scene) -> (RateLimitLayer, Timestamp) {
    let layer = estimated(scene, 600);
    let response = layer.layer(service_fn(hello)).oneshot(request()).await.unwrap();
    let charged_at = response.extensions().get().and_then(Decision::decided_at).unwrap();
    drop(response);
    assert_eq!(scene.left().await, [99, 9_400]);
    (layer, charged_at)
}

/// The queue of another process has the caller and the amounts, and no decision.
#[tokio::test]
async fn a_refund_from_elsewhere_gives_back_requests_and_units_of_ones_own() {
    let scene = scene();
    let (_, charged_at) = charged(&scene).await;
    let part = plan(&scene.policies, 1).with_units("tokens", 250);
    let refund = Settlement::refund(part, ChargeTime::At(charged_at));
    scene.store.settle(refund).await.unwrap();
    assert_eq!(scene.left().await, [100, 9_650]);

    // No refund restores a policy above its quota, regardless of the message.
    let all = plan(&scene.policies, 100).with_units("tokens", 1_000_000);
    let refund = Settlement::refund(all, ChargeTime::Now);
    scene.store.settle(refund).await.unwrap();
    assert_eq!(scene.left().await, [100, 10_000]);
}

/// A refund of requests restores no tokens, and a refund of tokens restores no requests.
#[tokio::test]
async fn a_refund_of_a_caller_gives_back_what_was_said_of_each_unit() {
    use RefundOutcome::{Duplicate, NotApplicable, Refunded};

    let scene = scene();
    let (layer, charged_at) = charged(&scene).await;
    let refund = |requests| Refund::new(requests, ChargeTime::At(charged_at));
    let of_job = || refund(0).with_units("tokens", 250).with_id("job 2");
    for (refund, refunded, left) in [
        (refund(1).with_id("job 1"), Refunded, [100, 9_400]),
        (of_job(), Refunded, [100, 9_650]),
        (of_job(), Duplicate, [100, 9_650]),
        (refund(0).with_units("images", 250), NotApplicable, [100, 9_650]),
        (refund(0), NotApplicable, [100, 9_650]),
        (refund(7).with_units("tokens", 1_000_000), Refunded, [100, 10_000]),
    ] {
        let told = layer.limiter().caller(&everybody()).refund(&refund).await.unwrap();
        assert_eq!((told, scene.left().await), (refunded, left.to_vec()), "{refund:?}");
    }
}

#[tokio::test]
async fn a_peek_forecasts_tokens_beside_requests() {
    let scene = scene();
    let layer = estimated(&scene, 9_999);
    drop(layer.layer(service_fn(hello)).oneshot(request()).await.unwrap());
    let forecast = async |unit, amount| {
        let caller = layer.limiter().caller(&everybody()).units(unit, amount);
        caller.peek().await.unwrap().unwrap().availability()
    };
    assert_eq!(forecast("tokens", 1).await, Availability::Now);
    assert!(matches!(forecast("tokens", 2).await, Availability::After(_)));
    assert_eq!(forecast("tokens", 10_001).await, Availability::Never);
    assert_eq!(forecast("images", 5).await, Availability::Now);
    assert_eq!(scene.left().await, [99, 1], "nothing was charged");
}
