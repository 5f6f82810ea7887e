//! Policies that lockout, in memory and in Redis.

use std::time::Duration;

use futures_util::future::join_all;
use tower_quota::{
    Algorithm, Decision, Outcome, PartitionId, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Settlement, Store,
    clock::{Clock, Timestamp},
};

use super::ledger::{Caller, SECOND, all_algorithms, for_any, remaining, somebody};

const LOCKOUT: Duration = Duration::from_secs(15 * 60);
const BLOCK_MICROS: i64 = LOCKOUT.as_micros() as i64;
const WINDOW: u64 = 60 * SECOND;

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

fn without_block(policy: &QuotaPolicy) -> QuotaPolicy {
    let plain = QuotaPolicy::new(policy.name().to_owned(), policy.quota(), policy.window().unwrap());
    match policy.algorithm() {
        Algorithm::StrictTokenBucket => plain.with_algorithm(policy.algorithm()).with_burst_capacity(10),
        algorithm => plain.with_algorithm(algorithm),
    }
}

async fn outcome(caller: &Caller, policy: &QuotaPolicy, cost: u64) -> Outcome {
    caller.decide(policy, cost).await.outcome()
}

/// Uses up all units, and returns the decision about the last one.
async fn use_up(caller: &Caller, policy: &QuotaPolicy) -> Decision {
    let units = policy.burst_capacity();
    if units > 1 {
        let before = caller.allowed(policy, units - 1).await;
        assert_eq!(remaining(&before), [1]);
    }
    caller.allowed(policy, 1).await
}

/// Each policy has its own lockout, even if policies without one are placed between them.
#[tokio::test]
async fn of_several_policies_each_has_its_own_block() {
    let per_minute = |name, quota| QuotaPolicy::per_minute(name, quota);
    let policies = || {
        let log = per_minute("d", 4).with_algorithm(Algorithm::SlidingWindowLog);
        let counter = per_minute("b", 2).with_algorithm(Algorithm::SlidingWindowCounter);
        [
            per_minute("a", 9),
            counter.with_lockout(Duration::from_secs(100)),
            per_minute("c", 9).with_algorithm(Algorithm::FixedWindow),
            log.with_lockout(Duration::from_secs(200)),
        ]
    };
    for caller in Caller::of_each_store() {
        let decide = async || caller.store.decide(caller.plan(policies(), 1)).await.unwrap();
        let waits = |decision: &Decision| -> Vec<_> {
            let waits = decision
                .allowances()
                .map(|it| it.retry_after().map_or(0, |wait| wait.as_secs()));
            waits.collect()
        };
        for left in [[8, 1, 8, 3], [7, 0, 7, 2]] {
            assert_eq!(remaining(&decide().await), left, "{:?}", caller.store);
        }
        assert_eq!(waits(&decide().await), [0, 100, 0, 0], "{:?}", caller.store);
        caller.step(100 * SECOND as i64);
        decide().await;
        caller.step(1);
        caller
            .allowed(&per_minute("d", 4).with_algorithm(Algorithm::SlidingWindowLog), 3)
            .await;
        caller.store.reset(caller.plan([per_minute("a", 9)], 1)).await.unwrap();
        assert_eq!(remaining(&decide().await)[3], 0, "the log is not forgotten");
    }
}

/// The lockout ends exactly on the microsecond, for any requests in the meantime, including ones that cost nothing.
#[tokio::test]
async fn the_charge_that_leaves_less_than_a_unit_begins_a_lockout_which_rejections_do_not_lengthen() {
    for policy in blocking() {
        for caller in Caller::of_each_store() {
            let last = use_up(&caller, &policy).await;
            let context = format!("{:?} of {:?}", policy.algorithm(), caller.store);
            let allowance = last.allowances().next().unwrap();
            assert_eq!(
                (allowance.remaining(), allowance.effective_window()),
                (0, Some(LOCKOUT)),
                "{context}"
            );
            for (step, left) in [(0, BLOCK_MICROS), (1, BLOCK_MICROS - 1), (BLOCK_MICROS - 2, 1)] {
                caller.step(step);
                for cost in [0, 1, 1] {
                    let rejected = caller.decide(&policy, cost).await;
                    assert_eq!(rejected.outcome(), Outcome::Rejected, "{context}");
                    assert_eq!(
                        rejected.retry_after(),
                        Some(Duration::from_micros(left as u64)),
                        "{context}"
                    );
                    assert_eq!(remaining(&rejected), [0]);
                }
            }
            caller.step(1);
            caller.allowed(&policy, 1).await;
        }
    }
}

/// A lockout that is shorter than the time in which a unit comes back.
#[tokio::test]
async fn a_wait_lasts_until_the_lockout_is_over_and_there_are_units_again() {
    for caller in Caller::of_each_store() {
        let policy = QuotaPolicy::per_minute("minute", 2).with_lockout(Duration::from_secs(40));
        use_up(&caller, &policy).await;
        let rejected = caller.decide(&policy, 2).await;
        assert_eq!(rejected.retry_after(), Some(Duration::from_secs(60)));
        let rejected = caller.decide(&policy, 1).await;
        assert_eq!(rejected.retry_after(), Some(Duration::from_secs(40)));
        let log = QuotaPolicy::per_minute("log", 2).with_algorithm(Algorithm::SlidingWindowLog);
        let last = use_up(&caller, &log.with_lockout(Duration::from_secs(40))).await;
        assert_eq!(
            last.allowances().next().unwrap().effective_window(),
            Some(Duration::from_secs(60))
        );
        assert_eq!(caller.decide(&policy, 3).await.retry_after(), None, "it never passes");
    }
}

#[tokio::test]
async fn a_request_that_is_rejected_begins_no_block() {
    for policy in of_ten() {
        for caller in Caller::of_each_store() {
            caller.allowed(&policy, 9).await;
            assert_eq!(outcome(&caller, &policy, 2).await, Outcome::Rejected);
            // Another policy rejects a request that would have used up this one.
            let other = QuotaPolicy::per_hour("other", 1).with_algorithm(Algorithm::FixedWindow);
            let both = async || {
                let plan = caller.plan([policy.clone(), other.clone()], 1);
                caller.store.decide(plan).await.unwrap()
            };
            let used_up = caller.plan([other.clone()], 1);
            caller.store.decide(used_up).await.unwrap();
            let rejected = both().await;
            assert_eq!(
                (rejected.outcome(), &remaining(&rejected)[..1]),
                (Outcome::Rejected, &[1][..])
            );
            caller.allowed(&policy, 1).await;
            assert_eq!(outcome(&caller, &policy, 0).await, Outcome::Rejected);
        }
    }
}

#[tokio::test]
async fn a_refund_that_restores_a_unit_lifts_a_lockout_and_any_other_does_not() {
    for policy in of_ten() {
        for caller in Caller::of_each_store() {
            let context = format!("{:?} of {:?}", policy.algorithm(), caller.store);
            let first = caller.allowed(&policy, 1).await;
            caller.allowed(&policy, 8).await;
            let last = caller.allowed(&policy, 1).await;
            // It has used more than was announced, so that there is still nothing left after the next refund.
            caller.settle(Settlement::new(&last, 2)).await;
            caller.settle(Settlement::refund_all(&first)).await;
            assert_eq!(outcome(&caller, &policy, 1).await, Outcome::Rejected, "{context}");

            caller.store.reset(caller.plan([policy.clone()], 1)).await.unwrap();
            let last = use_up(&caller, &policy).await;
            caller.settle(Settlement::refund_all(&last)).await;
            let again = caller.allowed(&policy, 1).await;
            assert_eq!(outcome(&caller, &policy, 1).await, Outcome::Rejected, "{context}");
            // Too late: its units have come back by themselves.
            caller.step(2 * WINDOW as i64);
            caller.settle(Settlement::refund_all(&again)).await;
            let rest = Duration::from_micros((BLOCK_MICROS as u64) - 2 * WINDOW);
            assert_eq!(caller.decide(&policy, 1).await.retry_after(), Some(rest), "{context}");
        }
    }
}

#[tokio::test]
async fn a_reset_lifts_a_block() {
    for policy in blocking() {
        for caller in Caller::of_each_store() {
            use_up(&caller, &policy).await;
            caller.store.reset(caller.plan([policy.clone()], 1)).await.unwrap();
            caller.allowed(&policy, 1).await;
        }
    }
}

/// An overdraft, too; and one that comes during a lockout does not lengthen it.
#[tokio::test]
async fn a_cost_that_is_known_late_begins_a_block() {
    for policy in of_ten() {
        for cost in [10, 15] {
            for caller in Caller::of_each_store() {
                let context = format!("{cost} of {:?} in {:?}", policy.algorithm(), caller.store);
                let early = caller.allowed(&policy, 1).await;
                let later = caller.allowed(&policy, 1).await;
                caller.step(1);
                caller.settle(Settlement::new(&early, cost - 1)).await;
                assert_eq!(
                    caller.decide(&policy, 1).await.retry_after(),
                    Some(LOCKOUT),
                    "{context}"
                );
                caller.step(10);
                caller.settle(Settlement::new(&later, 3)).await;
                let rest = LOCKOUT - Duration::from_micros(10);
                assert_eq!(caller.decide(&policy, 1).await.retry_after(), Some(rest), "{context}");
            }
        }
    }
}

/// The rules without a lockout use each algorithm in turn; narrow buckets use the smaller script.
#[tokio::test]
async fn instances_whose_rules_have_no_lockout_or_another_keep_the_one_that_has_begun() {
    for policy in blocking() {
        for caller in Caller::of_each_store() {
            let context = format!("{:?} of {:?}", policy.algorithm(), caller.store);
            use_up(&caller, &policy).await;
            caller.step(WINDOW as i64);
            caller.step(WINDOW as i64);
            caller.allowed(&without_block(&policy), 1).await;
            caller.allowed(&QuotaPolicy::per_hour("another", 7), 1).await;
            let rest = LOCKOUT - Duration::from_micros(2 * WINDOW);
            let longer = policy.clone().with_lockout(10 * LOCKOUT);
            for policy in [&policy, &longer] {
                assert_eq!(caller.decide(policy, 1).await.retry_after(), Some(rest), "{context}");
            }
            caller.step(rest.as_micros() as i64);
            caller.allowed(&policy, 1).await;
        }
    }
}

/// Days are longer than a narrow value has room for.
#[tokio::test]
async fn a_lockout_of_a_year_is_exact_to_the_microsecond() {
    let year = Duration::from_secs(365 * 86_400);
    for policy in blocking() {
        let policy = policy.with_lockout(year);
        for caller in Caller::of_each_store() {
            use_up(&caller, &policy).await;
            caller.step(year.as_micros() as i64 - 1);
            caller.allowed(&QuotaPolicy::per_hour("another", 7), 1).await;
            assert_eq!(
                caller.decide(&policy, 1).await.retry_after(),
                Some(Duration::from_micros(1))
            );
            caller.step(1);
            caller.allowed(&policy, 1).await;
        }
    }
}

/// With a manual clock, keys stay for an hour longer.
#[tokio::test]
async fn a_key_does_not_expire_before_its_lockout_ends() {
    let server = test_kit::RedisServer::start();
    let clock = Clock::manual(Timestamp::from_micros(1_700_006_400 * SECOND));
    let redis = RedisStore::builder(server.url()).clock(clock.clone()).build().unwrap();
    for policy in blocking() {
        server.command(&["FLUSHALL"]);
        let plan = |policy| Plan::new(PolicySet::new([policy]).unwrap(), somebody_else(), 1);
        for _ in 0..policy.burst_capacity() {
            redis.decide(plan(policy.clone())).await.unwrap();
        }
        for other in [None, Some(QuotaPolicy::per_second("another", 7))] {
            if let Some(other) = other {
                redis.decide(plan(other)).await.unwrap();
            }
            let keys = server.command(&["KEYS", "*}"]);
            let key = keys.lines().find(|line| line.ends_with('}')).unwrap();
            let life = server.command(&["PTTL", key]);
            let life: u128 = life.trim().trim_start_matches(':').parse().unwrap();
            assert!(
                life > LOCKOUT.as_millis() + 3_600_000 - 60_000,
                "{life} of {:?}",
                policy.algorithm()
            );
        }
    }
}

fn somebody_else() -> PartitionId {
    Scope::new("lockouts").partition(&tower_quota::PartitionKey::new("user", "carol"))
}

/// Between the charge that begins a lockout and its end, nothing passes without a refund or a reset, for any charges
/// and requests.
#[test]
fn nothing_passes_during_a_block() {
    let steps = proptest::collection::vec((0..20_000_000_i64, 0..=4_u64, proptest::option::of(0..6_u64)), 1..60);
    let policies = (0..7_usize, 1..=6_u64, 1..=120_u64);
    for_any(100, (policies, steps), async |((which, quota, seconds), steps)| {
        let algorithm = all_algorithms()[which].algorithm();
        if matches!(algorithm, Algorithm::LeakyBucketQueue { .. }) {
            return;
        }
        let policy = QuotaPolicy::per_minute("any", quota).with_algorithm(algorithm);
        let policy = policy.with_lockout(Duration::from_secs(seconds));
        for caller in Caller::of_each_store() {
            let mut blocked_until = None;
            for (pause, cost, actual) in &steps {
                caller.step(*pause);
                let decision = caller.decide(&policy, *cost).await;
                let now = caller.clock.now();
                let is_allowed = decision.outcome() == Outcome::Allowed;
                assert!(!is_allowed || blocked_until <= Some(now), "{:?}", caller.store);
                if is_allowed && *cost > 0 && remaining(&decision) == [0] {
                    blocked_until = Some(now.saturating_add(Duration::from_secs(seconds)));
                }
                match actual {
                    Some(actual) if actual < cost => {
                        caller.settle(Settlement::new(&decision, *actual)).await;
                        blocked_until = None;
                    }
                    Some(actual) => caller.settle(Settlement::new(&decision, *actual)).await,
                    None => {}
                }
            }
        }
    });
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
        let wide = PolicySet::new([QuotaPolicy::per_minute("account", 100)]).unwrap();
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
