//! Rules that change while charges are open: what was used of a larger quota is neither hidden nor given away.

#![allow(clippy::disallowed_methods, reason = "a server does not follow virtual time")]

use std::{sync::Arc, time::Duration};

use proptest::{prelude::*, sample::select};
use test_kit::{RedisServer, load::until};
use tower_quota::{
    Algorithm, Availability, ChargeTime, Decision, Direction, Outcome, PolicySet, QuotaPolicy, RedisStore, Settlement,
    Store,
    calendar::{CalendarPeriod, CalendarWindow},
    clock::{Clock, Timestamp},
};

use super::ledger::{Caller, SECOND};
use super::support::{commands, for_any, somebody};

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::StrictTokenBucket,
    Algorithm::LeakyBucketQueue { max_waiting: 0 },
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
    Algorithm::SlidingWindowLog,
];

/// A daily policy that admits its whole quota at once, for each algorithm.
fn each_day(quota: u64) -> Vec<QuotaPolicy> {
    let day = |algorithm| {
        let algorithm = match algorithm {
            Algorithm::LeakyBucketQueue { .. } => Algorithm::LeakyBucketQueue { max_waiting: quota - 1 },
            other => other,
        };
        let day = QuotaPolicy::per_day("day", quota).with_algorithm(algorithm);
        match algorithm {
            // The others have it by default.
            Algorithm::StrictTokenBucket => day.with_burst_capacity(quota),
            _ => day,
        }
    };
    let mut days: Vec<_> = ALGORITHMS.into_iter().map(day).collect();
    let utc = CalendarWindow::new(CalendarPeriod::Day, "UTC");
    days.push(QuotaPolicy::per_calendar("day", quota, utc));
    days
}

fn is_leaky(policy: &QuotaPolicy) -> bool {
    matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. })
}

fn is_bucket(policy: &QuotaPolicy) -> bool {
    let algorithm = policy.algorithm();
    let is_token = matches!(algorithm, Algorithm::TokenBucket | Algorithm::StrictTokenBucket);
    policy.window().is_some() && (is_token || is_leaky(policy))
}

fn wait(decision: &Decision) -> Duration {
    decision.retry_after().unwrap()
}

/// L23: found by the differential test. A full bucket of the larger quota has more weight than a level of the smaller one
/// can have, and the store in memory and the script rounded that differently.
#[tokio::test]
async fn both_stores_refund_the_same_when_the_policies_differ_by_more_than_a_level_can_hold() {
    let small = QuotaPolicy::new("a", 999_999_999_999_989, Duration::from_secs(2_678_400)).with_burst_capacity(1);
    let large = QuotaPolicy::per_minute("a", 999_999_937);
    for age in [18_446, 18_447] {
        for caller in Caller::of_each_store() {
            caller.allowed(&small, 1).await;
            let made = Timestamp::from_micros(caller.clock.now().as_micros() - age);
            let refund = caller.plan([large.clone()], 1);
            caller.settle(Settlement::refund(refund, ChargeTime::At(made))).await;
            assert_eq!(caller.left(&small).await, 0, "{age} {:?}", caller.store);
        }
    }
}

/// L23: found by the differential test. The weights of both costs were bounded before they were subtracted.
#[tokio::test]
async fn a_settlement_changes_a_bucket_by_the_difference_although_the_cost_is_more_than_it_counts() {
    let hour =
        |quota| QuotaPolicy::per_hour("hour", quota).with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 1 });
    let (slow, fast) = (hour(1), hour(4_000_000_000));
    for caller in Caller::of_each_store() {
        let first = caller.allowed(&slow, 1).await;
        caller.allowed(&fast, 1).await;
        caller.settle(Settlement::new(&first, u64::MAX)).await;
        let rejected = caller.decide(&fast, 1).await;
        // Twice the capacity of the slow bucket is used: four units of 9 parts, of which ten leave in a microsecond.
        assert_eq!(wait(&rejected), Duration::from_micros(3), "{:?}", caller.store);
    }
}

/// L23: found by the differential test. The script compared a level that it had bounded with the same level unbounded.
#[tokio::test]
async fn a_settlement_of_other_policies_begins_no_block_however_much_is_used_under_a_larger_quota() {
    let tokens = |quota| QuotaPolicy::new("tokens", quota, Duration::from_secs(7)).with_unit("tokens");
    let (large, small) = (tokens(4_000_000_000), tokens(11).with_lockout(Duration::from_secs(60)));
    let requests = QuotaPolicy::per_second("requests", 1);
    for caller in Caller::of_each_store() {
        let plan = |policies: Vec<QuotaPolicy>, tokens| caller.plan(policies, 1).with_units("tokens", tokens);
        let first = caller.store.decide(plan(vec![large.clone()], 1)).await.unwrap();
        caller
            .settle(Settlement::with_units(&first, 1, [("tokens", 1 << 53)]))
            .await;
        let other = plan(vec![small.clone(), requests.clone()], 0);
        caller
            .settle(Settlement::refund(other, ChargeTime::At(caller.clock.now())))
            .await;
        let rejected = caller.store.decide(plan(vec![small.clone()], 5)).await.unwrap();
        // Twice the larger quota is used, which drains at its rate. A lockout would take a minute.
        assert_eq!(wait(&rejected), Duration::from_secs(14), "{:?}", caller.store);
    }
}

fn buckets() -> impl Strategy<Value = QuotaPolicy> {
    let window = select(vec![1, 60, 3_600, 86_400_u64]);
    (1..=500_u64, window, 0..3_usize).prop_filter_map("a policy", |(quota, window, algorithm)| {
        let algorithm = match ALGORITHMS[algorithm] {
            Algorithm::LeakyBucketQueue { .. } => Algorithm::LeakyBucketQueue { max_waiting: quota },
            other => other,
        };
        let policy = QuotaPolicy::new("quota", quota, Duration::from_secs(window)).with_algorithm(algorithm);
        PolicySet::new([policy.clone()]).is_ok().then_some(policy)
    })
}

/// L23, D18: exact to the microsecond in a peek. A request before the wait has ended must not prolong it.
#[test]
fn a_lone_caller_of_a_changed_bucket_that_waits_as_told_is_admitted() {
    let strategy = (
        buckets(),
        buckets(),
        1..=500_u64,
        0..100 * SECOND,
        1..=500_u64,
        any::<bool>(),
    );
    for_any(600, strategy, async |(old, new, used, pause, cost, is_peek)| {
        for caller in Caller::of_each_store() {
            for _ in 0..4 {
                caller.decide(&old, used.min(old.burst_capacity())).await;
            }
            caller.step(pause as i64);
            let peek = async || {
                caller
                    .store
                    .peek(caller.plan([new.clone()], cost))
                    .await
                    .unwrap()
                    .availability()
            };
            let told = match is_peek {
                true => peek().await,
                false => caller
                    .decide(&new, cost)
                    .await
                    .retry_after()
                    .map_or(Availability::Now, Availability::After),
            };
            let Availability::After(told) = told else { continue };
            let micros = told.as_micros() as i64;
            if is_peek {
                caller.step(micros - 1);
                let last = Availability::After(Duration::from_micros(1));
                assert_eq!(peek().await, last, "{:?}: {told:?}", caller.store);
                caller.step(1);
            } else {
                caller.step(micros / 3);
                caller.decide(&new, cost).await;
                caller.step(micros - micros / 3);
            }
            caller.allowed(&new, cost).await;
        }
    });
}

/// A step of a caller of two instances, of which one still has the older rules.
#[derive(Clone, Debug)]
enum Step {
    Charge { rules: usize, cost: u64, is_shadow: bool },
    Settle { which: usize, actual: u64 },
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cost = || prop_oneof![4 => 1..=3_u64, 2 => 1..=40_u64, 1 => 1..=500_u64];
    let actual = prop_oneof![2 => Just(0), 2 => cost()];
    let step = prop_oneof![
        6 => (0..2_usize, cost(), prop_oneof![5 => Just(false), 1 => Just(true)])
            .prop_map(|(rules, cost, is_shadow)| Step::Charge { rules, cost, is_shadow }),
        4 => (0..8_usize, actual).prop_map(|(which, actual)| Step::Settle { which, actual }),
        1 => (0..600 * SECOND).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..=40)
}

/// A caller of two rule sets, and the units that it has used.
struct Interleaving {
    caller: Caller,
    rules: [QuotaPolicy; 2],
    used: u64,
    open: Vec<(Decision, u64, u64)>,
}

impl Interleaving {
    async fn charge(&mut self, rules: usize, cost: u64, is_shadow: bool) {
        let rules = self.rules[rules].clone();
        let quota = rules.quota();
        let policy = if is_shadow { rules.shadow() } else { rules };
        let decision = self.caller.decide(&policy, cost).await;
        if !decision.allowances().any(|day| day.is_violated()) {
            self.used += cost;
            self.open.push((decision, cost, quota));
        }
    }

    async fn settle(&mut self, which: usize, actual: u64) {
        if which >= self.open.len() {
            return;
        }
        let (decision, cost, quota) = self.open.swap_remove(which);
        // Above that a late charge does not count in full.
        let actual = actual.min(cost + (2 * quota).min(self.rules[1].quota()).saturating_sub(self.used));
        self.caller.settle(Settlement::new(&decision, actual)).await;
        self.used = self.used + actual - cost;
    }

    async fn check(&self, elapsed: u64) {
        let [small, large] = &self.rules;
        let restored = match is_bucket(large) {
            true => (elapsed * large.quota()).div_ceil(86_400 * SECOND),
            false => 0,
        };
        let left = self.caller.left(large).await;
        let most = large.quota().min((large.quota() + restored).saturating_sub(self.used));
        let facts = format!("{left} of {most} remain, {:?} {:?}", self.caller.store, self.rules);
        assert!(left <= most, "{facts}");
        // A place in a queue is not always released.
        assert!(is_leaky(small) || elapsed > 0 || left + 1 >= most, "{facts}");
    }
}

/// L23: of the larger quota there is never more than what is not used, and what time has restored.
#[test]
fn under_any_interleaving_of_two_rules_no_more_of_the_larger_quota_remains_than_was_not_used() {
    let quotas = (2..=30_u64, 1..=500_u64, 0..ALGORITHMS.len() + 1);
    for_any(400, (quotas, steps()), async |((small, more, kind), steps)| {
        for caller in Caller::of_each_store() {
            let start = caller.clock.now();
            let mut run = Interleaving {
                caller,
                rules: [small, small + more].map(|quota| each_day(quota).swap_remove(kind)),
                used: 0,
                open: vec![],
            };
            for step in &steps {
                match *step {
                    Step::Charge { rules, cost, is_shadow } => run.charge(rules, cost, is_shadow).await,
                    Step::Settle { which, actual } => run.settle(which, actual).await,
                    Step::Pass(micros) => run.caller.step(micros as i64),
                }
                run.check(run.caller.clock.now().micros_since(start)).await;
            }
        }
    });
}

/// Starts a dedicated server, so that its commands can be counted, and returns it with a caller.
fn server() -> (RedisServer, Caller) {
    let server = RedisServer::start();
    let clock = Clock::manual(Timestamp::from_micros(1_700_006_400 * SECOND));
    let store = RedisStore::builder(server.url()).connections(1).clock(clock.clone());
    let caller = Caller {
        clock,
        store: Arc::new(store.build().unwrap()),
        partition: somebody(),
    };
    (server, caller)
}

/// P11
#[tokio::test]
async fn rejections_write_nothing_but_once_after_a_change_of_rate() {
    let (server, caller) = server();
    let (hour, minute) = (QuotaPolicy::per_hour("quota", 10), QuotaPolicy::per_minute("quota", 10));
    let per_day = QuotaPolicy::per_day("day", 100).with_algorithm(Algorithm::FixedWindow);
    let reject = async |policy: &QuotaPolicy, count| {
        for _ in 0..count {
            let plan = caller.plan([policy.clone(), per_day.clone()], 1);
            assert_eq!(caller.store.decide(plan).await.unwrap().outcome(), Outcome::Rejected);
        }
    };
    caller
        .store
        .decide(caller.plan([hour.clone(), per_day.clone()], 10))
        .await
        .unwrap();
    let sets = || commands(&server)["set"];
    let before = sets();
    reject(&hour, 10_000).await;
    assert_eq!(sets() - before, 0);
    reject(&minute, 1_000).await;
    assert_eq!(sets() - before, 1);
    // A debt above a lowered capacity keeps its rate, which is written once, too.
    reject(&QuotaPolicy::per_minute("quota", 5), 1_000).await;
    assert_eq!(sets() - before, 2);
}

/// F9
#[tokio::test]
async fn an_exhausted_caller_stays_rejected_while_no_write_succeeds() {
    for fault in ["OOM", "MISCONF", "READONLY"] {
        let (server, caller) = server();
        let policies: Vec<_> = ["a", "b"].map(|name| QuotaPolicy::per_hour(name, 10)).to_vec();
        caller.store.decide(caller.plan(policies.clone(), 10)).await.unwrap();
        match fault {
            "OOM" => drop(server.command(&["CONFIG", "SET", "maxmemory", "1"])),
            "MISCONF" => fail_to_save(&server).await,
            _ => drop(server.command(&["REPLICAOF", "127.0.0.1", "1"])),
        }
        let rejected_write = server.command(&["SET", "key", "value"]);
        assert!(rejected_write.contains(fault), "{rejected_write}");
        let mut rejected = 0;
        for number in 0..200 {
            // With every tenth of them the rules change.
            let changed = policies.iter().map(|policy| match number % 10 {
                0 => QuotaPolicy::per_minute(if policy.name() == "a" { "a" } else { "b" }, 10),
                _ => policy.clone(),
            });
            let decision = caller.store.decide(caller.plan(changed, 1)).await;
            rejected += u32::from(decision.is_ok_and(|decision| decision.outcome() == Outcome::Rejected));
        }
        assert!(rejected >= 198, "{fault}: {rejected} of 200");
    }
}

/// Makes the server reject writes because it cannot save.
async fn fail_to_save(server: &RedisServer) {
    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    // A directory in place of the dump file makes the snapshot fail.
    let directory = server.command(&["CONFIG", "GET", "dir"]);
    let directory = directory.lines().last().unwrap();
    std::fs::create_dir_all(format!("{directory}/dump.rdb/taken")).unwrap();
    server.command(&["BGSAVE"]);
    until("the server has not saved", async || {
        server
            .command(&["INFO", "persistence"])
            .contains("rdb_last_bgsave_status:err")
    })
    .await;
}

#[tokio::test]
async fn a_reset_by_a_plan_whose_log_is_closed_deletes_the_log() {
    let log = |quota| QuotaPolicy::per_day("log", quota).with_algorithm(Algorithm::SlidingWindowLog);
    for caller in Caller::of_each_store() {
        caller.allowed(&log(5), 4).await;
        caller.store.reset(caller.plan([log(0)], 1)).await.unwrap();
        assert_eq!(caller.left(&log(5)).await, 5, "{:?}", caller.store);
    }
}

#[tokio::test]
async fn the_byte_that_a_plan_without_bytes_charges_is_refunded_with_it() {
    let bytes = QuotaPolicy::per_day("bytes", 10).with_content_bytes(Direction::Both);
    for caller in Caller::of_each_store() {
        caller.allowed(&bytes, 1).await;
        assert_eq!(caller.left(&bytes).await, 9, "{:?}", caller.store);
        let plan = caller.plan([bytes.clone()], 1);
        caller.settle(Settlement::refund(plan, ChargeTime::Now)).await;
        assert_eq!(caller.left(&bytes).await, 10, "{:?}", caller.store);
    }
}
