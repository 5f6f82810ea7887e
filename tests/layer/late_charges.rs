//! Charges of callers for work that is done, on an instance that caches and prefetches.

use test_kit::{TestStore, Timing};
use tower_quota::{Caller, LateCharge, LateChargeOutcome};

use super::*;

fn alice(scene: &Scene) -> (TestStore, Caller) {
    let store = TestStore::new(scene.store.clone(), Timing::Later);
    let limiter = Limiter::builder(store.clone()).scope("late").clock(scene.clock.clone());
    let limiter = scene.policies.iter().cloned().fold(limiter, LimiterBuilder::policy);
    (store, limiter.build().unwrap().caller("alice"))
}

#[tokio::test(start_paused = true)]
async fn only_prefetched_units_are_spent_after_a_late_charge() {
    const BATCH: u64 = 16;
    let policy = QuotaPolicy::per_day("day", 1_000).with_algorithm(tower_quota::Algorithm::FixedWindow);
    let scene = Scene::new([policy.with_prefetch(BATCH)]);
    let (store, alice) = alice(&scene);
    for _ in 0..100 {
        assert!(alice.check().await.outcome().is_admitted());
    }
    assert!(store.calls() < 50, "units are prefetched");
    let shown = async || alice.check().await.allowances().next().unwrap().remaining();
    let before = shown().await;
    assert_eq!(
        alice.charge(&LateCharge::new(50)).await.unwrap(),
        LateChargeOutcome::Charged
    );
    assert_eq!(shown().await, before - 51);
    let used = 950 - peeked(&alice).await;
    assert!((102..=102 + BATCH).contains(&used), "{used}");
    assert_eq!(
        alice.charge(&LateCharge::new(1_000)).await.unwrap(),
        LateChargeOutcome::Charged
    );
    let mut admitted = 102;
    while alice.check().await.outcome().is_admitted() {
        admitted += 1;
    }
    assert_eq!(admitted, used);
}

async fn peeked(caller: &Caller) -> u64 {
    let decision = caller.peek().await.unwrap().unwrap();
    decision.allowances().next().unwrap().remaining()
}
