//! The bound of `r` for each `t`, on every response.

use std::{collections::HashMap, time::UNIX_EPOCH};

use proptest::{collection::vec, prelude::*, sample::select};
use test_kit::RemoteStore;
use tokio::runtime::{Builder, Runtime};
use tower_quota::{PolicySet, fields::Hints};

use super::*;

const DAY: u64 = 86_400;

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::FixedWindow),
        Just(Algorithm::LeakyBucketMeter),
        (1..50_u64).prop_map(|max_waiting| Algorithm::LeakyBucketQueue { max_waiting }),
        Just(Algorithm::SlidingWindowCounter),
        Just(Algorithm::SlidingWindowLog),
        Just(Algorithm::StrictTokenBucket),
        Just(Algorithm::TokenBucket),
    ]
}

/// A policy, and its window in seconds.
fn policy() -> impl Strategy<Value = (QuotaPolicy, u64)> {
    let window = select(vec![1_u64, 7, 60, 3_600, DAY]);
    let timed = (quota(), window, algorithm(), option_of_capacity()).prop_map(|(quota, window, algorithm, more)| {
        let policy = QuotaPolicy::new("timed", quota, Duration::from_secs(window)).with_algorithm(algorithm);
        match (algorithm, more) {
            (Algorithm::TokenBucket, Some(more)) => (policy.with_burst_capacity(quota + more), window),
            _ => (policy, window),
        }
    });
    let calendar = quota().prop_map(|quota| (QuotaPolicy::per_calendar_day("day", quota, "UTC"), DAY));
    let counted = prop_oneof![6 => timed, 1 => calendar];
    let overage = prop::option::weighted(0.3, 1..=200_u32);
    let is_sound = |policy: &QuotaPolicy| PolicySet::new([policy.clone()]).is_ok();
    let counted = (counted, overage).prop_map(move |((policy, window), overage)| {
        // Buckets have no overage, and the ceiling of a log has a bound.
        let soft = overage.map(|percent| policy.clone().with_overage(percent));
        (soft.filter(is_sound).unwrap_or(policy), window)
    });
    let shadowed = (counted, prop::bool::weighted(0.2)).prop_map(move |((policy, window), is_shadow)| {
        let shadow = (is_shadow && policy.quota() > 0).then(|| policy.clone().shadow().visible());
        (shadow.filter(is_sound).unwrap_or(policy), window)
    });
    let blocking = (1..10_000_u64, 1..100_u64).prop_map(|(quota, seconds)| {
        let policy = QuotaPolicy::per_hour("blocking", quota);
        (policy.with_lockout(Duration::from_secs(seconds)), 3_600)
    });
    prop_oneof![7 => shadowed, 1 => blocking]
}

fn quota() -> impl Strategy<Value = u64> {
    prop_oneof![0..20_u64, 20..10_000_u64]
}

fn option_of_capacity() -> impl Strategy<Value = Option<u64>> {
    prop::option::of(0..10_000_u64)
}

/// A pause in microseconds, and the cost of the request after it.
fn step() -> impl Strategy<Value = (u64, u64)> {
    let pause = prop_oneof![3 => Just(0), 2 => 0..2_000_000_u64, 1 => 0..4_000_000_000_u64];
    (pause, prop_oneof![0..5_u64, 0..12_000_u64])
}

fn dialect() -> impl Strategy<Value = ResponseFields> {
    let tightest = ResponseFields::draft11().tightest_only();
    select([&dialects()[..], &[tightest]].concat())
}

/// The numbers of one limit of a response: the name of its policy, or its quota where there is no name, `r`, and `t` in
/// microseconds.
type Told = (String, u64, u64);

fn told(answer: &Answer, now: Timestamp) -> Vec<Told> {
    let hints = Hints::read(answer.headers());
    assert!(hints.ignored().is_empty(), "{:?}", answer.headers());
    let limits = hints.limits().iter().map(|limit| {
        let quota = || limit.quota().unwrap().to_string();
        let name = limit.name().map_or_else(quota, str::to_owned);
        let reset = limit.reset().unwrap_or_default();
        (name, limit.remaining().unwrap(), reset.as_micros() as u64)
    });
    let mut told: Vec<Told> = limits.collect();
    if let [Some(quota), Some(remaining), Some(reset)] = LEGACY.map(|name| answer.field(name).parse::<u64>().ok()) {
        let reset = reset * 1_000_000;
        let is_moment = reset > MIDNIGHT * 1_000_000;
        let micros = if is_moment { reset - now.as_micros() } else { reset };
        told.push((quota.to_string(), remaining, micros));
    }
    told
}

/// D4, for fields that name no moment of the day.
fn no_violated_limit_ends_after_the_wait(answer: &Answer) -> bool {
    let hints = Hints::read(answer.headers());
    let Some(wait) = hints.retry_after().map(|field| field.wait(UNIX_EPOCH)) else {
        return true;
    };
    let decision = answer.decision();
    hints.limits().iter().all(|limit| {
        let mut violated = decision.violated();
        let is_violated = violated.any(|by| match limit.name() {
            Some(name) => by.policy().name() == name,
            None => limit.quota() == Some(by.policy().quota()),
        });
        !is_violated || limit.reset().is_none_or(|reset| reset <= wait)
    })
}

fn runtime() -> Runtime {
    let mut runtime = Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_500) })]

    /// D4, D5, D6, J28, X43: for every algorithm, cost, response, dialect and source of the decision.
    #[test]
    fn no_response_invites_to_more_than_the_cap_allows(
        policies in vec(policy(), 1..4), steps in vec(step(), 1..12), fields in dialect(), is_remote in any::<bool>(),
        is_once in any::<bool>(),
    ) {
        // In the dialects of one number, a quota is the name of a policy.
        let mut rates = HashMap::new();
        let mut named = Vec::new();
        for (index, (policy, window)) in policies.into_iter().enumerate() {
            let (name, quota) = (format!("p{index}"), policy.quota());
            if !rates.contains_key(&quota.to_string()) {
                rates.extend([name.clone(), quota.to_string()].map(|name| (name, (quota, window))));
                named.push(policy.with_name(name));
            }
        }
        let (factor, fields) = match is_once {
            true => (1, fields.within_rate()),
            false => (2, fields),
        };
        let scene = Scene::new();
        let builder = match is_remote {
            true => scene.builder_on(RemoteStore::<1>(scene.store.clone()), named),
            false => scene.builder(named),
        };
        let layer = builder.response_fields(fields).build().unwrap();
        runtime().block_on(async {
            for (pause, cost) in steps {
                scene.clock.advance(Duration::from_micros(pause));
                let answer = take(&layer, cost).await;
                prop_assert!(no_violated_limit_ends_after_the_wait(&answer), "{:?}", answer.headers());
                for (name, remaining, micros) in told(&answer, scene.clock.now()) {
                    let (quota, window) = rates[&name];
                    let most = u128::from(factor * quota) * u128::from(micros);
                    prop_assert!(
                        u128::from(remaining) * u128::from(window) * 1_000_000 <= most,
                        "{quota} per {window} s: {:?} after a cost of {cost}", answer.headers()
                    );
                }
            }
            Ok(())
        })?;
    }
}

/// D2, D4, D5, D6, X43: when half of a quota remains, one request costs slightly more.
#[tokio::test]
async fn a_short_wait_for_one_large_request_does_not_invite_to_all_that_is_left() {
    for (fields, expected) in [
        (ResponseFields::draft11(), [r#""hour";r=5;t=1"#, ""]),
        (ResponseFields::in_between(), ["hour;r=5;t=1", ""]),
        (ResponseFields::draft07(), ["limit=10000, remaining=5, reset=1", ""]),
        (ResponseFields::draft06(), ["", "5"]),
    ] {
        let layer = Scene::new().layer(fields, [QuotaPolicy::per_hour("hour", 10_000)]);
        take(&layer, 5_000).await;
        let rejected = take(&layer, 5_001).await;
        assert_eq!(rejected.status(), 429);
        assert_eq!(rejected.fields(["ratelimit", "ratelimit-remaining"]), expected);
        assert_eq!(rejected.field("retry-after"), "1");
    }
}

/// D5, X43: the time of a shadow is no wait, so it is lengthened and its units stay.
#[tokio::test]
async fn a_shadow_that_would_reject_shows_all_of_its_units_for_a_longer_time() {
    let shadow = QuotaPolicy::per_hour("shadow", 10_000).shadow().visible();
    let layer = Scene::new().layer(ResponseFields::draft11(), [shadow]);
    take(&layer, 5_000).await;
    let passed = take(&layer, 5_001).await;
    assert_eq!(passed.status(), 200);
    assert_eq!(passed.field("ratelimit"), r#""shadow";r=5000;t=900"#);
}
