//! Rules from a source outside of the program, on `RulesHandle::claim` alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use test_kit::Answered;
use tokio::{sync::watch, task::JoinHandle};
use tower::Layer;
use tower_quota::{
    Algorithm, ConfigError, ConfigErrorKind, Limiter, MemoryStore, PartitionKey, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, ResponseFields, Rules, RulesHandle, Scope, Tiers, key,
    updates::{RulesClaim, RulesUpdate},
};

use crate::{everybody, request, rules::without_hanging};

/// Keeps the rules of a limiter in sync with a channel until its sender is dropped, as a source in etcd or a ConfigMap
/// does. Invalid texts leave the last valid rules active.
fn follow(rules: &RulesHandle, mut texts: watch::Receiver<String>) -> Result<JoinHandle<u32>, ConfigError> {
    let claim = rules.claim()?;
    Ok(tokio::spawn(async move {
        let mut rejected = 0;
        while texts.changed().await.is_ok() {
            let update = match &**texts.borrow_and_update() {
                "off" => {
                    claim.set_enabled(false);
                    continue;
                }
                text => serde_json::from_str(text).map(RulesUpdate::new),
            };
            let is_applied = update.is_ok_and(|update| claim.apply(update).is_ok());
            rejected += u32::from(!is_applied);
        }
        rejected
    }))
}

#[tokio::test]
async fn a_source_of_the_program_sets_the_rules_while_it_runs() {
    let (limiter, (sender, receiver)) = (limiter(1), watch::channel(String::new()));
    let follower = follow(&limiter.rules(), receiver).unwrap();
    let send = async |text: &str| {
        sender.send(text.to_owned()).unwrap();
        tokio::task::yield_now().await;
    };
    let hour = |quota| format!(r#"{{"policies": [{{"name": "hour", "quota": {quota}, "window_seconds": 3600}}]}}"#);
    send(&hour(2)).await;
    assert_eq!(limiter.rules().current(), rules(2));
    for wrong in ["[]", r#"{"policies": []}"#] {
        send(wrong).await;
        assert_eq!(limiter.rules().current(), rules(2), "{wrong}");
    }
    send("off").await;
    assert!(!limiter.rules().is_enabled());

    drop(sender);
    assert_eq!(follower.await.unwrap(), 2);
    // The end of the source has released its claim.
    assert!(limiter.rules().is_enabled() && limiter.rules().claim().is_ok());
    assert_eq!(limiter.rules().current(), rules(2));
}

fn rules(quota: u64) -> Rules {
    Rules::new().policy(QuotaPolicy::per_hour("hour", quota))
}

fn limiter(quota: u64) -> Limiter {
    let builder = Limiter::builder(MemoryStore::new()).scope("layer");
    builder.rules(rules(quota)).build().unwrap()
}

fn claimed(quota: u64) -> (RulesHandle, RulesClaim) {
    let handle = limiter(quota).rules();
    let claim = handle.claim().unwrap();
    (handle, claim)
}

fn current(handle: &RulesHandle) -> u64 {
    handle.current().policies()[0].quota()
}

#[test]
fn a_limiter_has_one_claim_until_that_is_dropped() {
    let (handle, claim) = claimed(1);
    let error = handle.claim().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Claim);
    let message = r#"scope "layer": rules are already claimed by another source"#;
    assert_eq!(error.to_string(), message);
    claim.apply(RulesUpdate::new(rules(2)).enabled(false)).unwrap();
    assert!(!handle.is_enabled());

    drop(claim);
    // No further update could enable the limits.
    assert_eq!((current(&handle), handle.is_enabled()), (2, true));
    handle.replace(rules(3)).unwrap();
    let claim = handle.claim().unwrap();
    assert!(
        !claim.is_overridden(),
        "no source had claimed the rules that the program changed"
    );
    claim.apply(RulesUpdate::new(rules(4))).unwrap();
    assert_eq!(current(&handle), 4);
}

#[test]
fn what_the_program_has_disabled_stays_disabled_when_a_source_claims_the_rules_and_releases_them() {
    let handle = limiter(1).rules();
    handle.disable();
    let claim = handle.claim().unwrap();
    claim.apply(RulesUpdate::new(rules(2))).unwrap();
    assert!(!handle.is_enabled() && claim.is_overridden());
    drop(claim);
    assert!(!handle.is_enabled());
}

#[test]
fn an_update_that_is_rejected_changes_nothing_and_the_switch_can_be_set_alone() {
    let (handle, claim) = claimed(1);
    let by_planet = || Rules::new().policy(QuotaPolicy::per_hour("hour", 2).keyed_by("planet"));
    let no_planet = r#"policy "hour": unknown key "planet""#;
    for (update, message) in [
        (RulesUpdate::new(by_planet()), no_planet.to_owned()),
        (
            RulesUpdate::new(rules(2)).with_rollout(10, [], by_planet()),
            format!("roll_out: {no_planet}"),
        ),
        (
            RulesUpdate::new(rules(2)).with_rollout(101, [], rules(3)),
            "roll_out: rules: rollout percentage 101 is outside 0..=100".to_owned(),
        ),
    ] {
        let error = claim.apply(update.enabled(false)).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!((current(&handle), handle.rollout()), (1, None));
        assert!(handle.is_enabled());
    }
    claim.set_enabled(false);
    assert!(!handle.is_enabled());
}

#[test]
fn a_rollout_has_the_callers_that_are_named_and_ends_with_the_next_update() {
    let limiter = limiter(1);
    let claim = limiter.rules().claim().unwrap();
    let key = |user| PartitionKey::new("user", user);
    let of = |user| {
        let decision = tokio_test::block_on(limiter.caller(&key(user)).peek()).unwrap();
        decision.unwrap().allowances().next().unwrap().policy().quota()
    };
    let named = ["staff", "zoe"].map(|user| Scope::new("layer").partition(&key(user)));
    claim
        .apply(RulesUpdate::new(rules(2)).with_rollout(0, named, rules(3)))
        .unwrap();
    assert_eq!(["staff", "zoe", "alice"].map(of), [3, 3, 2]);
    claim.apply(RulesUpdate::new(rules(4))).unwrap();
    assert_eq!(["staff", "alice"].map(of), [4, 4]);
}

#[test]
fn an_override_hides_updates_until_it_is_cleared() {
    let (handle, claim) = claimed(1);
    // Before the first update.
    handle.replace(rules(50)).unwrap();
    assert!(claim.is_overridden());
    handle.clear_overrides();
    assert_eq!((current(&handle), claim.is_overridden()), (1, false));

    let update = RulesUpdate::new(rules(2)).with_rollout(10, [], rules(3));
    claim.apply(update).unwrap();
    handle.roll_out(20, rules(60)).unwrap();
    assert_eq!(handle.rollout(), Some((20, rules(60))));
    handle.replace(rules(50)).unwrap();
    let update = RulesUpdate::new(rules(4)).with_rollout(30, [], rules(5));
    claim.apply(update.enabled(false)).unwrap();
    assert_eq!((current(&handle), handle.rollout()), (50, None));
    assert!(
        !handle.is_enabled(),
        "the program has overridden the rules, not the switch"
    );
    handle.enable();
    assert!(handle.is_enabled());
    handle.clear_overrides();
    assert_eq!((current(&handle), handle.rollout()), (4, Some((30, rules(5)))));
    assert!(!handle.is_enabled() && !claim.is_overridden());

    handle.replace(rules(50)).unwrap();
    drop(claim);
    handle.clear_overrides();
    assert_eq!(current(&handle), 50, "there is nothing to go back to");
}

fn joining(limiter: &Limiter) -> RateLimitLayerBuilder {
    RateLimitLayer::with_limiter(limiter.clone()).key(key::from_fn(|_| Some(everybody())))
}

fn on(limiter: &Limiter) -> RateLimitLayer {
    joining(limiter).build().unwrap()
}

/// The policies that a response shows.
async fn shown(layer: &RateLimitLayer) -> String {
    let response = test_kit::send(layer, request()).await;
    response.field("ratelimit-policy").to_owned()
}

/// The layer dropped its closures while the rules were locked, and the claim waited for the lock of its own thread.
#[test]
fn a_layer_that_does_not_fit_the_rules_releases_the_claim_of_its_closures() {
    let limiter = limiter(1);
    let claim = limiter.rules().claim().unwrap();
    let fields = ResponseFields::draft11().map_remaining(move |allowance| match claim.is_overridden() {
        true => 0,
        false => allowance.remaining(),
    });
    let layer = joining(&limiter).response_fields(fields).cost(2);
    let error = without_hanging(move || layer.build().unwrap_err());
    assert_eq!(error.kind(), ConfigErrorKind::Cost);
    assert!(limiter.rules().claim().is_ok());
}

/// Each change holds the layers for a moment, and may be the last that does.
#[test]
fn layers_whose_closures_hold_a_claim_can_be_dropped_while_the_rules_change() {
    let (limiter, is_over) = (limiter(1), Arc::new(AtomicBool::new(false)));
    let changes = {
        let (handle, is_over) = (limiter.rules(), Arc::clone(&is_over));
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                handle.replace(rules(1)).unwrap();
            }
        })
    };
    let drops = move || {
        for _ in 0..2_000 {
            let claim = limiter.rules().claim().unwrap();
            let fields = ResponseFields::draft11().with_extra_fields(move |_, _| assert!(!claim.is_overridden()));
            drop(joining(&limiter).response_fields(fields).build().unwrap());
            // A change may hold the layer for another moment.
            while limiter.rules().claim().is_err() {
                thread::yield_now();
            }
        }
    };
    without_hanging(drops);
    is_over.store(true, Ordering::Relaxed);
    changes.join().unwrap();
}

/// Otherwise, the end of the override would activate rules that the layer cannot enforce.
#[tokio::test]
async fn a_layer_that_joins_during_an_override_fits_the_rules_that_it_hides() {
    let (limiter, hour) = (limiter(1), QuotaPolicy::per_hour("hour", 2));
    let tiers = Rules::new().tier("free", [hour]);
    let claim = limiter.rules().claim().unwrap();
    claim.apply(RulesUpdate::new(tiers)).unwrap();
    limiter.rules().replace(rules(50)).unwrap();
    let error = joining(&limiter).build().unwrap_err().to_string();
    assert_eq!(error, "tiers: no source of tiers; build the layer with `tiers`");
    let layer = joining(&limiter)
        .tiers(Tiers::from_fn(|_| Some("free")))
        .build()
        .unwrap();
    assert_eq!(shown(&layer).await, r#""hour";q=50;w=3600"#);
    limiter.rules().clear_overrides();
    assert_eq!(shown(&layer).await, r#""hour";q=2;w=3600"#);
}

#[tokio::test]
async fn rules_of_a_source_change_while_charges_are_open() {
    let policies = |quota| {
        let tokens = QuotaPolicy::per_hour("tokens", quota).with_unit("tokens");
        Rules::new().policy(tokens.with_algorithm(Algorithm::FixedWindow))
    };
    let builder = Limiter::builder(MemoryStore::new()).scope("layer");
    let limiter = builder.rules(policies(100)).build().unwrap();
    let claim = limiter.rules().claim().unwrap();
    let permit = limiter.caller(&everybody()).units("tokens", 10).hold().await.unwrap();
    claim.apply(RulesUpdate::new(policies(50))).unwrap();
    assert!(permit.set("tokens", 30));
    drop(permit);
    let left = async || {
        let peeked = limiter.caller(&everybody()).units("tokens", 1).peek().await;
        peeked.unwrap().unwrap().allowances().next().unwrap().remaining()
    };
    assert_eq!(left().await, 20);
    let permit = limiter.caller(&everybody()).units("tokens", 15).hold().await.unwrap();
    claim.set_enabled(false);
    permit.refund();
    claim.set_enabled(true);
    assert_eq!(left().await, 20);
}

#[tokio::test]
async fn a_source_of_the_inner_layer_leaves_the_outer_one_alone() {
    let (outer, inner) = (limiter(9), Limiter::builder(MemoryStore::new()).scope("inner"));
    let inner = inner.policy(QuotaPolicy::per_day("day", 7)).build().unwrap();
    let claims = [&outer, &inner].map(|limiter| limiter.rules().claim().unwrap());
    let both = async || {
        let service = on(&outer).layer(on(&inner).layer(test_kit::hello()));
        let response = test_kit::call(service, request()).await;
        response.field("ratelimit-policy").to_owned()
    };
    let [hour, day] = [r#""hour";q=8;w=3600"#, r#""day";q=6;w=86400"#];
    claims[0].apply(RulesUpdate::new(rules(8))).unwrap();
    let six = Rules::new().policy(QuotaPolicy::per_day("day", 6));
    claims[1].apply(RulesUpdate::new(six)).unwrap();
    let shown = both().await;
    assert!(shown.contains(hour) && shown.contains(day), "{shown}");
    claims[1].set_enabled(false);
    assert_eq!(both().await, hour);
    claims[0].set_enabled(false);
    assert_eq!(both().await, "");
}
