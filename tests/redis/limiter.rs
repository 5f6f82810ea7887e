//! Callers outside of HTTP, on one server and on a cluster.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use test_kit::{TestStore, Timing};
use tokio::sync::Semaphore;
use tower_quota::{
    Algorithm, CallerQuotas, ChargeTime, Decision, Limiter, LimiterBuilder, Outcome, Permit, QuotaPolicy,
    RedisStoreBuilder, Refund, RefundOutcome, clock::Clock,
};

use super::shared_store;
use super::support::{DAY, HANG, START, left, shared_cluster_store};

/// Two instances on one server, and two on a cluster, whose partitions are on several nodes.
fn instances(scope: &str, policies: impl Fn(LimiterBuilder) -> LimiterBuilder) -> [[Limiter; 2]; 2] {
    let limiter = |builder: RedisStoreBuilder| {
        let store = builder.key_prefix(scope).clock(Clock::manual(START)).lease_time(DAY);
        let limiter = Limiter::builder(store.build().unwrap()).scope(scope).deadline(HANG);
        policies(limiter).build().unwrap()
    };
    let (single, cluster) = (|| limiter(shared_store()), || limiter(shared_cluster_store()));
    [[single(), single()], [cluster(), cluster()]]
}

fn users_and_teams(limiter: LimiterBuilder) -> LimiterBuilder {
    limiter
        .named_key("team")
        .policy(QuotaPolicy::per_day("user", 50))
        .policy(QuotaPolicy::concurrent("slots", 2))
        .policy(QuotaPolicy::per_day("team", 100).keyed_by("team"))
}

#[tokio::test]
async fn checks_take_no_slot_and_permits_of_all_instances_share_the_slots() {
    for [first, second] in instances("callers", users_and_teams) {
        let alice = |limiter: &Limiter| limiter.caller("alice").keyed_by("team", "red");
        let (here, there) = (alice(&first), alice(&second));
        for caller in [&here, &there, &here] {
            assert_eq!(caller.check().await.outcome(), Outcome::Allowed);
        }
        assert_eq!(left(&here).await, [47, 2, 97]);
        let permits = [here.hold().await.unwrap(), there.hold().await.unwrap()];
        assert_eq!(here.check().await.outcome(), Outcome::Allowed);
        let rejected: Decision = there.hold().await.unwrap_err();
        assert_eq!(rejected.violated().next().unwrap().policy().name(), "slots");
        assert_eq!(left(&there).await, [44, 0, 94]);
        let [one, other] = permits;
        one.settle(10);
        other.refund();
        for limiter in [&first, &second] {
            limiter.flush(HANG).await.unwrap();
        }
        assert_eq!(left(&here).await, [36, 2, 86]);
    }
}

#[tokio::test]
async fn callers_of_two_instances_never_get_more_than_their_quota_and_refunds_count_once() {
    for limiters in instances("callers", users_and_teams) {
        let bob = |number: usize| limiters[number % 2].caller("bob").keyed_by("team", "blue");
        let outcomes = join_all((0..80).map(async |number| bob(number).check().await.outcome())).await;
        let allowed = outcomes.iter().filter(|outcome| **outcome == Outcome::Allowed).count();
        assert_eq!(allowed, 50);
        assert_eq!(left(&bob(0)).await, [0, 2, 50]);
        let refund = Refund::new(5, ChargeTime::Now).with_id("job 7");
        let refunds = join_all((0..6).map(async |number| bob(number).refund(&refund).await.unwrap())).await;
        let refunded = refunds.iter().filter(|outcome| **outcome == RefundOutcome::Refunded);
        assert_eq!(refunded.count(), 1);
        assert_eq!(left(&bob(1)).await, [5, 2, 55]);
        drop(bob(0).cost(5).hold().await.map(Permit::refund));
        limiters[0].flush(HANG).await.unwrap();
        assert_eq!(left(&bob(1)).await, [5, 2, 55]);
        bob(1).reset().await.unwrap();
        assert_eq!(left(&bob(0)).await, [50, 2, 100]);
    }
}

/// Each of them has its own numbers of the caller for a while; what is used is used for both.
#[tokio::test(flavor = "multi_thread")]
async fn instances_that_know_different_quotas_of_a_caller_count_what_both_have_admitted() {
    let policies = |limiter: LimiterBuilder| {
        let team = QuotaPolicy::per_day("team", 100).keyed_by("team");
        limiter
            .named_key("team")
            .policy(QuotaPolicy::per_day("user", 5).with_caller_quotas(1..=100))
            .policy(team.with_caller_quotas(1..=100))
    };
    for [here, there] in instances("own-quotas", policies) {
        let acme = |limiter: &Limiter, quota| {
            let quotas = CallerQuotas::new().quota("user", quota).quota("team", 30);
            limiter.caller("acme").keyed_by("team", "red").quotas(quotas)
        };
        let (here, there) = (acme(&here, 5), acme(&there, 20));
        let mut admitted = 0;
        for _ in 0..30 {
            for caller in [&here, &there] {
                admitted += usize::from(caller.check().await.outcome() == Outcome::Allowed);
            }
        }
        assert_eq!(admitted, 20);
        assert_eq!((left(&here).await, left(&there).await), (vec![0, 10], vec![0, 10]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_admit_a_quota_with_its_overage_together_and_say_who_is_over_it() {
    let day = QuotaPolicy::per_day("day", 10).with_algorithm(Algorithm::FixedWindow);
    for instances in instances("overage", |limiter| limiter.policy(day.clone().with_overage(20))) {
        let mut over = Vec::new();
        for number in 0..14 {
            let decision = instances[number % 2].caller("acme").check().await;
            over.push(match decision.outcome() {
                Outcome::Allowed => Some(decision.over_quota().map(|day| day.over_quota()).sum::<u64>()),
                _ => None,
            });
        }
        assert_eq!(over, [vec![Some(0); 10], vec![Some(1), Some(2), None, None]].concat());
    }
}

/// One unit per 100 s, which ten units overdraw by one. The reply to a call that was sent before is not cached.
#[tokio::test]
async fn a_late_charge_ends_cached_rejections_also_of_a_reply_in_flight() {
    let clock = Clock::manual(START);
    let redis = shared_store().key_prefix("late").clock(clock.clone());
    let store = TestStore::new(redis.build().unwrap(), Timing::AtOnce);
    let limiter = Limiter::builder(store.clone()).scope("late").clock(clock.clone());
    let slow = QuotaPolicy::new("slow", 1, Duration::from_secs(100));
    let limiter = limiter.deadline(HANG).policy(slow).build().unwrap();
    let wait = async |user: &str| limiter.caller(user).check().await.retry_after().unwrap().as_secs();
    let permit = limiter.caller("alice").hold().await.unwrap();
    assert_eq!((wait("alice").await, store.calls()), (100, 1));
    permit.settle(10);
    clock.advance(Duration::from_micros(1));
    assert_eq!((wait("alice").await, wait("alice").await, store.calls()), (199, 199, 2));

    let permit = limiter.caller("bob").hold().await.unwrap();
    // Longer than anything is cached.
    clock.advance(Duration::from_secs(2));
    let told = Arc::new(Semaphore::new(0));
    store.set(Timing::Told(Arc::clone(&told)));
    let settle = async {
        while store.told() == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_millis(1));
        permit.settle(10);
        clock.advance(Duration::from_millis(1));
        told.add_permits(1);
    };
    let (before, ()) = tokio::join!(wait("bob"), settle);
    store.set(Timing::AtOnce);
    let then = [wait("bob").await, wait("bob").await];
    assert_eq!((before, then, store.calls()), (98, [199; 2], 5));
}
