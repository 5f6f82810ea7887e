//! Policies that lockout, in memory and in Redis.

use std::time::Duration;

use futures_util::future::join_all;
use test_kit::RedisServer;
use tower_quota::{Algorithm, Decision, Outcome, QuotaPolicy, RedisStore, Store, clock::Clock};

use super::ledger::{Caller, all_algorithms};
use super::support::{START, life, plan, remaining, set, somebody};

const LOCKOUT: Duration = Duration::from_secs(15 * 60);

/// All that can lockout, each with ten a minute.
fn blocking() -> impl Iterator<Item = QuotaPolicy> {
    let can_block = |policy: &QuotaPolicy| !matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. });
    all_algorithms()
        .into_iter()
        .filter(can_block)
        .map(|policy| policy.with_lockout(LOCKOUT))
}

/// The same without the meter, of which a single unit is all that there is.
fn of_ten() -> impl Iterator<Item = QuotaPolicy> {
    blocking().filter(|policy| policy.burst_capacity() == 10)
}

/// With a manual clock, keys stay for an hour longer.
#[tokio::test]
async fn a_key_does_not_expire_before_its_lockout_ends() {
    let server = RedisServer::start();
    let clock = Clock::manual(START);
    let redis = RedisStore::builder(server.url()).clock(clock.clone()).build().unwrap();
    for policy in blocking() {
        server.command(&["FLUSHALL"]);
        let carol = somebody();
        for _ in 0..policy.burst_capacity() {
            redis.decide(plan([policy.clone()], carol, 1)).await.unwrap();
        }
        for other in [None, Some(QuotaPolicy::per_second("another", 7))] {
            if let Some(other) = other {
                redis.decide(plan([other], carol, 1)).await.unwrap();
            }
            let keys = server.command(&["KEYS", "*}"]);
            let key = keys.lines().find(|line| line.ends_with('}')).unwrap();
            let (life, least) = (life(&server, key), LOCKOUT.as_millis() as i64 + 3_540_000);
            assert!(life > least, "{life} of {:?}", policy.algorithm());
        }
    }
}

/// The lockout begins once: all that pass have taken a unit.
#[tokio::test]
async fn of_many_requests_at_once_as_many_pass_as_there_are_units_and_the_rest_is_blocked() {
    for policy in of_ten() {
        for caller in Caller::of_each_store() {
            let decisions = join_all((0..50).map(|_| caller.decide(&policy, 1))).await;
            let allowed = decisions
                .iter()
                .filter(|decision| decision.outcome() == Outcome::Allowed);
            assert_eq!(allowed.count(), 10);
            let waits = decisions.iter().filter_map(Decision::retry_after);
            assert_eq!(waits.filter(|wait| *wait == LOCKOUT).count(), 40);
        }
    }
}

/// Alice's lockout is hers, and a plan that finds it takes nothing of the others.
#[tokio::test]
async fn a_lockout_in_one_partition_rejects_a_plan_of_several() {
    for caller in Caller::of_each_store() {
        let policy = QuotaPolicy::per_minute("pair", 2).with_lockout(LOCKOUT);
        let wide = set([QuotaPolicy::per_minute("account", 100)]);
        let account = somebody();
        let plan = || caller.plan([policy.clone()], 1).and(wide.clone(), account);
        for left in [(1, 99), (0, 98), (0, 98)] {
            let decision = caller.store.decide(plan()).await.unwrap();
            assert_eq!(remaining(&decision), [left.0, left.1], "{:?}", caller.store);
        }
        let rejected = caller.store.decide(plan()).await.unwrap();
        let violated: Vec<_> = rejected.violated().map(|by| by.policy().name()).collect();
        assert_eq!((violated, rejected.retry_after()), (vec!["pair"], Some(LOCKOUT)));
    }
}
