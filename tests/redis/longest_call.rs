//! The most work of one call, which blocks the server: a backlog from many calls is processed in parts, and every
//! number is right in the meantime.

use std::time::Duration;

use futures_util::future::join_all;
use test_kit::{RedisServer, memory};
use tower_quota::{
    Algorithm, ChargeTime, Decision, Outcome, Plan, PolicySet, QuotaPolicy, RedisStore, Settlement, Store,
    clock::{Clock, Timestamp},
};

use super::support::{plan, remaining, scripts, set, user};

const START: u64 = 1_700_000_040_000_000;
const WINDOW: Duration = Duration::from_secs(60);

struct Bench {
    server: RedisServer,
    clock: Clock,
    stores: [Box<dyn Store>; 2],
    policies: PolicySet,
}

impl Bench {
    /// Logs with this quota, under names of one letter.
    fn new(names: &'static str, quota: u64) -> Self {
        let server = RedisServer::start();
        let clock = Clock::manual(Timestamp::from_micros(START));
        let redis = RedisStore::builder(server.url()).connections(1).clock(clock.clone());
        let log =
            |name: char| QuotaPolicy::new(name.to_string(), quota, WINDOW).with_algorithm(Algorithm::SlidingWindowLog);
        Self {
            stores: [Box::new(memory(&clock)), Box::new(redis.build().unwrap())],
            policies: set(names.chars().map(log)),
            server,
            clock,
        }
    }

    fn plan(&self, cost: u64) -> Plan {
        Plan::new(self.policies.clone(), user("longest", "alice"), cost)
    }

    /// Sends `requests` requests to both stores, a microsecond apart.
    async fn spend(&self, requests: u64) {
        for _ in 0..requests {
            self.clock.advance(Duration::from_micros(1));
            for store in &self.stores {
                assert_eq!(store.decide(self.plan(1)).await.unwrap().outcome(), Outcome::Allowed);
            }
        }
    }

    /// Makes a decision in both stores, which must be equal.
    async fn decide(&self, cost: u64) -> [Decision; 2] {
        let decisions = join_all(self.stores.iter().map(|store| store.decide(self.plan(cost)))).await;
        let [memory, redis] = <[_; 2]>::try_from(decisions).unwrap().map(Result::unwrap);
        let numbers = |decision: &Decision| {
            let allowances = decision.allowances();
            let numbers = allowances.map(|it| (it.remaining(), it.effective_window(), it.retry_after()));
            (decision.outcome(), numbers.collect::<Vec<_>>())
        };
        assert_eq!(numbers(&memory), numbers(&redis));
        [memory, redis]
    }

    async fn remaining(&self) -> u64 {
        let [decision, _] = self.decide(0).await;
        remaining(&decision).into_iter().min().unwrap()
    }

    /// The numbers of entries of all logs in Redis whose moments are in a range.
    fn entries(&self, from: &str, until: &str) -> Vec<u64> {
        let keys = self.server.command(&["KEYS", "*:*:*"]);
        let count = |key: &str| self.server.command(&["ZCOUNT", key, from, until]).trim().parse();
        keys.lines().map(|key| count(key).unwrap()).collect()
    }
}

#[tokio::test]
async fn a_log_whose_entries_are_all_over_is_cleared_a_hundred_at_a_time_and_counts_on() {
    let bench = Bench::new("a", 250);
    bench.spend(250).await;
    bench.decide(1).await;
    bench.clock.advance(WINDOW);
    for left in [151, 52, 3] {
        bench.spend(1).await;
        assert_eq!(bench.entries("-inf", "+inf"), [left]);
    }
    assert_eq!(bench.remaining().await, 247);
    let decisions = bench.decide(5).await;
    for (store, decision) in bench.stores.iter().zip(&decisions) {
        store.settle(Settlement::refund_all(decision)).await.unwrap();
    }
    assert_eq!(bench.remaining().await, 247);
    bench.spend(247).await;
    bench.decide(1).await;
}

#[tokio::test]
async fn entries_of_a_clock_that_stood_later_are_moved_a_thousand_at_a_time_and_all_count_meanwhile() {
    let bench = Bench::new("a", 2_600);
    bench.spend(2_500).await;
    let before = Duration::from_secs(20);
    bench
        .clock
        .set(Timestamp::from_micros(START - before.as_micros() as u64));
    for left in [1_501, 502, 0] {
        bench.spend(1).await;
        let later = format!("({}", bench.clock.now().as_micros());
        assert_eq!(bench.entries(&later, "+inf"), [left]);
    }
    assert_eq!(bench.remaining().await, 97);
    let [decision, _] = bench.decide(200).await;
    assert!(decision.retry_after().unwrap() <= WINDOW);
    bench.spend(97).await;
    bench.decide(1).await;
    bench.clock.advance(WINDOW);
    assert_eq!(bench.remaining().await, 2_600);
}

#[tokio::test]
async fn units_go_back_to_many_logs_in_a_call_for_each_and_before_the_next_decision() {
    let bench = Bench::new("abcd", 2_000);
    bench.spend(1_500).await;
    let decisions = bench.decide(100).await;
    bench.spend(20).await;
    let calls = scripts(&bench.server);
    let both = bench.stores.iter().zip(&decisions);
    let settled: Vec<_> = both
        .map(|(store, decision)| store.settle(Settlement::new(decision, 30)))
        .collect();
    assert_eq!(bench.remaining().await, 2_000 - 1_500 - 30 - 20);
    assert!(join_all(settled).await.into_iter().all(|settled| settled.is_ok()));
    assert_eq!(scripts(&bench.server) - calls, 4 + 1);
    for store in &bench.stores {
        let refund = Settlement::refund(bench.plan(900), ChargeTime::At(bench.clock.now()));
        store.settle(refund).await.unwrap();
    }
    assert_eq!(bench.remaining().await, 2_000 - 1_550 + 900);
    assert_eq!(scripts(&bench.server) - calls, 4 + 1 + 4 + 1);
}

#[tokio::test]
async fn leases_that_have_ended_are_cleared_a_hundred_at_a_time_and_hold_no_slot() {
    let server = RedisServer::start();
    let clock = Clock::manual(Timestamp::from_micros(START));
    let store = RedisStore::builder(server.url()).connections(1).clock(clock);
    let store = store.build().unwrap();
    let plan = || plan([QuotaPolicy::concurrent("slots", 2)], user("longest", "alice"), 1);
    let decide = async || store.decide(plan()).await.unwrap().outcome();
    assert_eq!(decide().await, Outcome::Allowed);
    let key = server.command(&["KEYS", "*:slots:*"]);
    let ended = "for n = 1, 250 do redis.call('ZADD', KEYS[1], n, 'lease ' .. n) end";
    server.command(&["EVAL", ended, "1", key.trim()]);
    for (outcome, left) in [(Outcome::Allowed, "152"), (Outcome::Rejected, "152")] {
        assert_eq!(decide().await, outcome);
        assert_eq!(server.command(&["ZCARD", key.trim()]).trim(), left);
    }
}
