//! A cluster of three nodes: one limit across all of them, whichever nodes fail and slots move.
//!
//! Uses real servers and real time. Time limits only distinguish a hang from a wait; benchmarks measure durations.

#![allow(clippy::disallowed_methods, reason = "a cluster does not follow virtual time")]

use std::{
    collections::{BTreeMap, HashSet},
    sync::OnceLock,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use proptest::test_runner::{Config, TestRunner};
use test_kit::{
    Mode, Proxy, RedisCluster, RedisServer, load::HANG, load::Load, load::assert_limit_holds, load::outcome,
    load::until, load::until_decided, partition_steps::Step, partition_steps::move_clock, partition_steps::settlement,
    partition_steps::steps, shared_cluster, shared_server,
};
use tokio::time::{sleep, timeout};
use tower_quota::{
    Algorithm, Availability, ChargeTime, Decision, Limiter, MemoryStore, Outcome, PartitionId, PartitionKey, Plan,
    PolicySet, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, RedisStore, Scope, Settlement, Store,
    StoreErrorKind,
    clock::{Clock, Timestamp},
    key,
    redis::{cmd, from_redis_value},
};

use crate::{
    callers::Caller,
    history,
    load::{Client, Observed},
    sentinel::wait_for_replica,
};

const LIMIT: u64 = 5;

/// A machine that is busy with other things must not look like a node that is lost.
const DEADLINE: Duration = Duration::from_secs(1);

fn builder(store: impl Store, scope: &str) -> RateLimitLayerBuilder {
    hurried_builder(store, scope, DEADLINE)
}

fn hurried_builder(store: impl Store, scope: &str, deadline: Duration) -> RateLimitLayerBuilder {
    // These tests need every request to reach the store.
    let limiter = Limiter::builder(store).rejection_cache(0);
    RateLimitLayerBuilder::from(limiter.deadline(deadline))
        .scope(scope)
        .key(key::header("x-user-id"))
        .policy(QuotaPolicy::per_day("daily", LIMIT))
}

fn layer(cluster: &RedisCluster) -> RateLimitLayer {
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    builder(store, "cluster").build().unwrap()
}

fn partition(scope: &str, user: &str) -> PartitionId {
    Scope::new(scope).partition(&PartitionKey::new("x-user-id", user))
}

/// The key under which a partition is kept.
fn key_of(partition: PartitionId) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = u128::from_be_bytes(partition.to_bytes());
    let digit = |place: u32| {
        let six = if place < 21 {
            bits >> (122 - 6 * place)
        } else {
            bits << 4
        };
        char::from(DIGITS[(six & 63) as usize])
    };
    format!("quota:{{{}}}", (0..22).map(digit).collect::<String>())
}

/// Returns `count` users for each node, whose names begin with `prefix`.
fn users_by_node(cluster: &RedisCluster, scope: &str, prefix: &str, count: usize) -> Vec<Vec<String>> {
    let mut users = vec![Vec::new(); 3];
    for number in 0.. {
        let user = format!("{prefix}{number}");
        let node = cluster.owner(cluster.slot(&key_of(partition(scope, &user))));
        if users[node].len() < count {
            users[node].push(user);
        }
        if users.iter().all(|users| users.len() == count) {
            break;
        }
    }
    users
}

fn plan(scope: &str, policies: &[QuotaPolicy], user: &str, cost: u64) -> Plan {
    let policies = PolicySet::new(policies.iter().cloned()).unwrap();
    Plan::new(policies, partition(scope, user), cost)
}

fn and(first: Plan, scope: &str, policies: &[QuotaPolicy], user: &str) -> Plan {
    let policies = PolicySet::new(policies.iter().cloned()).unwrap();
    first.and(policies, partition(scope, user))
}

/// Name and what is left of each policy.
fn left(decision: &Decision) -> Vec<(String, u64)> {
    let left = decision.allowances();
    left.map(|allowance| (allowance.policy().name().to_owned(), allowance.remaining()))
        .collect()
}

async fn remaining(store: &dyn Store, plan: Plan) -> Vec<u64> {
    let decision = store.peek(plan).await.unwrap();
    decision.allowances().map(|allowance| allowance.remaining()).collect()
}

async fn until_remaining(store: &dyn Store, plan: Plan, expected: &[u64]) {
    until("what was charged is given back", || async {
        remaining(store, plan.clone()).await == expected
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_forecast_asks_every_node_and_charges_none_and_each_node_gives_back_its_part() {
    let cluster = shared_cluster();
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    let users = users_by_node(cluster, "forecast", "", 1).concat();
    let policies = |name: &'static str| [QuotaPolicy::per_day(name, 10).with_algorithm(Algorithm::SlidingWindowLog)];
    let three = |cost| {
        let first = plan("forecast", &policies("first"), &users[0], cost);
        let two = and(first, "forecast", &policies("second"), &users[1]);
        and(two, "forecast", &policies("third"), &users[2])
    };
    let decision = store.decide(three(4)).await.unwrap();
    let second = plan("forecast", &policies("second"), &users[1], 3);
    assert_eq!(store.decide(second).await.unwrap().outcome(), Outcome::Allowed);

    // The second node rejects, and the third one is still called.
    let forecast = store.peek(three(6)).await.unwrap();
    let each: Vec<Availability> = forecast.allowances().map(|each| each.availability()).collect();
    assert!(
        matches!(each[..], [Availability::Now, Availability::After(_), Availability::Now]),
        "{each:?}"
    );
    assert!(matches!(forecast.availability(), Availability::After(_)));
    assert_eq!(remaining(&store, three(1)).await, [6, 3, 6]);

    let charged = ChargeTime::At(decision.decided_at().unwrap());
    store.settle(Settlement::refund(three(4), charged)).await.unwrap();
    assert_eq!(remaining(&store, three(1)).await, [10, 7, 10]);
    let partial = plan("forecast", &policies("second"), &users[1], 9)
        .allow_partial()
        .unwrap();
    assert_eq!(store.decide(partial).await.unwrap().granted(), 7);
}

/// L11, L25, L29
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_every_node_a_thousand_at_once_never_pass_more_than_the_limit() {
    let cluster = shared_cluster();
    let stores = [(); 2].map(|()| RedisStore::cluster(cluster.urls()).unwrap());
    let users = users_by_node(cluster, "exact", "", 2).concat();
    let tasks = (0..6_000_usize).map(|number| {
        let user = users[number % users.len()].clone();
        let (store, day) = (stores[number / 6 % 2].clone(), QuotaPolicy::per_day("day", 100));
        tokio::spawn(async move {
            let decision = store.decide(plan("exact", &[day], &user, 1)).await.unwrap();
            (user, usize::from(decision.outcome() == Outcome::Allowed))
        })
    });
    let mut allowed = BTreeMap::new();
    for (user, is_allowed) in join_all(tasks).await.into_iter().map(Result::unwrap) {
        *allowed.entry(user).or_insert(0) += is_allowed;
    }
    assert!(allowed.values().all(|count| *count == 100), "{allowed:?}");
    for (node, server) in cluster.nodes.iter().enumerate() {
        let keys = server.command(&["KEYS", "quota:*"]);
        assert!(keys.lines().count() >= 2, "node {node} has its share");
    }
}

/// L29, L36: a cluster client must not send a call to an arbitrary node and wait for a redirection.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_goes_to_the_node_that_has_its_keys() {
    let cluster = RedisCluster::start(3, 0);
    // The store discovers the other nodes through one of them.
    let store = RedisStore::cluster([cluster.nodes[1].url()]).unwrap();
    let log = QuotaPolicy::per_day("log", 9).with_algorithm(Algorithm::SlidingWindowLog);
    let policies = [QuotaPolicy::per_day("day", 9), log, QuotaPolicy::concurrent("slots", 9)];
    for user in 0..60 {
        let plan = |cost| plan("routing", &policies, &user.to_string(), cost);
        let decision = store.decide(plan(1)).await.unwrap();
        store.settle(Settlement::refund_all(&decision)).await.unwrap();
        store.decide(plan(2)).await.unwrap();
        store.reset(plan(1)).await.unwrap();
    }
    for node in &cluster.nodes {
        let errors = node.command(&["INFO", "errorstats"]);
        let redirections = ["MOVED", "ASK", "CROSSSLOT"].map(|code| errors.contains(code));
        assert_eq!(redirections, [false; 3], "{errors}");
        let calls = node.command(&["INFO", "commandstats"]);
        assert!(calls.contains("cmdstat_evalsha:"), "{calls}");
    }
}

/// A store that decides partitions one by one, next to one that decides them at once.
struct Bench {
    clock: Clock,
    memory: MemoryStore,
    redis: RedisStore,
    policies: [PolicySet; 4],
}

impl Bench {
    fn new(redis: tower_quota::RedisStoreBuilder) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let of = |policies: Vec<QuotaPolicy>| PolicySet::new(policies).unwrap();
        let (log, window) = (Algorithm::SlidingWindowLog, Algorithm::FixedWindow);
        let queue = Algorithm::LeakyBucketQueue { max_waiting: 4 };
        Self {
            memory: MemoryStore::builder().clock(clock.clone()).build().unwrap(),
            redis: redis
                .clock(clock.clone())
                .lease_time(Duration::from_secs(86_400))
                .build()
                .unwrap(),
            clock,
            policies: [
                of(vec![
                    QuotaPolicy::per_second("second", 5),
                    QuotaPolicy::per_hour("hour", 40),
                ]),
                of(vec![
                    QuotaPolicy::per_minute("log", 9).with_algorithm(log),
                    QuotaPolicy::concurrent("slots", 6),
                ]),
                of(vec![
                    QuotaPolicy::per_minute("window", 12).with_algorithm(window),
                    QuotaPolicy::per_minute("queue", 60).with_algorithm(queue),
                ]),
                of(vec![
                    QuotaPolicy::per_minute("counter", 14).with_algorithm(Algorithm::SlidingWindowCounter),
                    QuotaPolicy::concurrent("all slots", 8),
                    QuotaPolicy::per_minute("tried", 3).shadow(),
                ]),
            ],
        }
    }

    fn plan(&self, run: u64, parts: &[(usize, u8)], cost: u64) -> Plan {
        let mut parts = parts.iter().map(|(kind, user)| {
            // Two kinds share their partitions, and so their slot, like the keys of a user without an address.
            let group = if *kind == 2 { 1 } else { *kind };
            let key = PartitionKey::new("run", run.to_be_bytes()).and(PartitionKey::new([group as u8], [*user]));
            (self.policies[*kind].clone(), Scope::new("slots").partition(&key))
        });
        let (policies, partition) = parts.next().unwrap();
        parts.fold(Plan::new(policies, partition, cost), |plan, (policies, partition)| {
            plan.and(policies, partition)
        })
    }

    /// Waits until both stores agree: the refunds of a rejection arrive later.
    async fn compare(&self, run: u64, parts: &[(usize, u8)]) {
        for part in parts {
            let plan = self.plan(run, &[*part], 0);
            let memory = self.memory.decide(plan.clone()).await.unwrap();
            until("both stores keep the same", || async {
                left(&self.redis.decide(plan.clone()).await.unwrap()) == left(&memory)
            })
            .await;
        }
    }

    async fn request(&self, run: u64, parts: &[(usize, u8)], cost: u64) -> Option<[Decision; 2]> {
        let plan = self.plan(run, parts, cost);
        let memory = self.memory.decide(plan.clone()).await.unwrap();
        let redis = self.redis.decide(plan).await.unwrap();
        assert_eq!(redis.outcome(), memory.outcome());
        if memory.outcome() == Outcome::Allowed || cost == 0 {
            assert_eq!(left(&redis), left(&memory));
        } else {
            // All allowances are true, and one of them is a reason.
            let said = left(&memory);
            assert!(
                left(&redis).iter().all(|one| said.contains(one)),
                "{redis:?} {memory:?}"
            );
            assert!(redis.violated().count() > 0);
            assert!(redis.retry_after() <= memory.retry_after() || memory.retry_after().is_none());
        }
        self.compare(run, parts).await;
        (memory.outcome() == Outcome::Allowed && cost > 0).then_some([memory, redis])
    }

    async fn run(&self, run: u64, steps: Vec<Step>) {
        let mut open: Vec<[Decision; 2]> = Vec::new();
        for step in steps {
            match step {
                Step::Acquire { parts, cost } => open.extend(self.request(run, &parts, cost).await),
                Step::Settle { which, actual } if which < open.len() => {
                    let [memory, redis] = open.swap_remove(which);
                    self.memory.settle(settlement(&memory, actual)).await.unwrap();
                    self.redis.settle(settlement(&redis, actual)).await.unwrap();
                }
                Step::Settle { .. } => {}
                Step::Time { micros } => move_clock(&self.clock, micros),
            }
        }
    }
}

fn decides_like_memory(bench: &Bench) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let config = Config {
        cases: 30,
        failure_persistence: None,
        // A failure may take as long as a hang.
        max_shrink_iters: 4,
        ..Config::default()
    };
    let number = std::cell::Cell::new(0);
    let result = TestRunner::new(config).run(&steps(25), |steps| {
        number.set(number.get() + 1);
        runtime.block_on(bench.run(number.get(), steps));
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// L27, L29
#[test]
fn partitions_in_different_slots_are_charged_if_all_of_them_fit_and_none_is_if_one_does_not() {
    decides_like_memory(&Bench::new(RedisStore::cluster_builder(shared_cluster().urls())));
}

/// L27, L29
#[test]
fn one_slot_per_call_on_a_single_server_decides_the_same() {
    let store = RedisStore::builder(shared_server().url()).one_slot_per_call(true);
    decides_like_memory(&Bench::new(store));
}

/// The plan's order determines which partition is decided first, and so what a rejection shows.
#[tokio::test]
async fn a_rejection_shows_the_partitions_that_were_asked_and_gives_their_charges_back() {
    let cluster = shared_cluster();
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    let users = users_by_node(cluster, "shown", "", 1).concat();
    let policies = ["first", "second", "third"].map(|name| [QuotaPolicy::per_hour(name, 3)]);
    let plan = |cost| {
        let first = plan("shown", &policies[0], &users[0], cost);
        and(
            and(first, "shown", &policies[1], &users[1]),
            "shown",
            &policies[2],
            &users[2],
        )
    };
    let second = |cost| self::plan("shown", &policies[1], &users[1], cost);
    store.decide(second(2)).await.unwrap();

    let rejected = store.decide(plan(2)).await.unwrap();
    assert_eq!(rejected.outcome(), Outcome::Rejected);
    let shown = |left: &[(&str, u64)]| -> Vec<(String, u64)> {
        left.iter().map(|(name, left)| ((*name).to_owned(), *left)).collect()
    };
    assert_eq!(left(&rejected), shown(&[("first", 3), ("second", 1)]));
    let violated: Vec<_> = rejected
        .violated()
        .map(|allowance| allowance.policy().name().to_owned())
        .collect();
    assert_eq!(violated, ["second"]);
    until_remaining(&store, plan(0), &[3, 1, 3]).await;

    let allowed = store.decide(plan(1)).await.unwrap();
    assert_eq!(left(&allowed), shown(&[("first", 2), ("second", 0), ("third", 2)]));
    // A question without a charge gets every allowance, also behind a policy that has nothing left.
    assert_eq!(remaining(&store, plan(0)).await, [2, 0, 2]);
    store.settle(Settlement::refund_all(&allowed)).await.unwrap();
    assert_eq!(remaining(&store, plan(0)).await, [3, 1, 3]);
    store.reset(plan(1)).await.unwrap();
    assert_eq!(remaining(&store, plan(0)).await, [3, 3, 3]);
}

/// F applies across hash slots, as it does to the memory and single-server stores: a request releases its slots in all
/// places.
#[tokio::test]
async fn concurrent_requests_hold_slots_on_several_nodes_renew_them_and_give_them_back() {
    let cluster = shared_cluster();
    let lease_time = Duration::from_secs(2);
    let store = RedisStore::cluster_builder(cluster.urls())
        .lease_time(lease_time)
        .build()
        .unwrap();
    let users = users_by_node(cluster, "held", "", 1).concat();
    let policies = ["a", "b"].map(|name| [QuotaPolicy::concurrent(name, 2)]);
    let plan = |cost| {
        and(
            plan("held", &policies[0], &users[0], cost),
            "held",
            &policies[1],
            &users[2],
        )
    };
    let held = store.decide(plan(1)).await.unwrap();
    assert_eq!(remaining(&store, plan(0)).await, [1, 1]);
    // The second slot of the second partition is acquired, so the slot of the first partition is released.
    let other = store
        .decide(self::plan("held", &policies[1], &users[2], 1))
        .await
        .unwrap();
    for _ in 0..3 {
        assert_eq!(store.decide(plan(1)).await.unwrap().outcome(), Outcome::Rejected);
        until_remaining(&store, plan(0), &[1, 0]).await;
    }
    store.settle(Settlement::refund_all(&other)).await.unwrap();
    let taken_at = Instant::now();
    until("a lease would have ended", || async {
        assert_eq!(remaining(&store, plan(0)).await, [1, 1], "it is renewed on both nodes");
        taken_at.elapsed() > lease_time + Duration::from_millis(500)
    })
    .await;
    store.settle(Settlement::refund_all(&held)).await.unwrap();
    assert_eq!(remaining(&store, plan(0)).await, [2, 2]);
}

#[tokio::test]
async fn what_one_node_has_granted_is_given_back_when_another_one_fails_or_is_not_waited_for() {
    let cluster = RedisCluster::start(3, 0);
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    let users = users_by_node(&cluster, "back", "", 1).concat();
    let policies = ["a", "b"].map(|name| [QuotaPolicy::per_hour(name, 9), QuotaPolicy::concurrent("slots", 3)]);
    let first = || plan("back", &policies[0], &users[0], 1);
    let both = || and(first(), "back", &policies[1], &users[1]);
    let allowed = store.decide(both()).await.unwrap();
    store.settle(Settlement::refund_all(&allowed)).await.unwrap();
    let (peek, other) = (first(), &cluster.nodes[1]);

    other.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = store.decide(both()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::OutOfMemory);
    until_remaining(&store, peek.clone(), &[9, 3]).await;
    other.command(&["CONFIG", "SET", "maxmemory", "0"]);

    let second = plan("back", &policies[1], &users[1], 1);
    until("the node is asked again", || async {
        store.peek(second.clone()).await.is_ok()
    })
    .await;
    for round in 1..=2 {
        other.pause();
        let given_up = timeout(Duration::from_millis(300), store.decide(both())).await;
        assert!(given_up.is_err(), "{given_up:?}");
        until_remaining(&store, peek.clone(), &[9, 3]).await;
        other.resume();
        // As on a single server, a charge with an unknown outcome remains, and slots are released by name.
        until_remaining(&store, second.clone(), &[9 - round, 3]).await;
    }
}

/// L8
#[tokio::test]
async fn a_store_made_while_no_node_answers_limits_once_one_does() {
    let cluster = shared_cluster();
    let proxy = Proxy::start(cluster.nodes[0].port()).await;
    proxy.set_mode(Mode::Reject);
    let store = RedisStore::cluster([proxy.url()]).unwrap();
    let layer = builder(store, "late").build().unwrap();
    for _ in 0..500 {
        assert_eq!(outcome(&layer, "early").await, Outcome::FailedOpen);
    }
    let tries = proxy.connections();
    assert!(tries < 50, "{tries} connections for 500 requests");
    proxy.set_mode(Mode::Forward);
    until_decided(&layer, "early").await;
    assert_limit_holds(&layer, "late", 5).await;
}

/// Two instances whose requests are recorded.
fn observed(cluster: &RedisCluster) -> Observed {
    Observed::start(2, |instance, record| {
        let store = RedisStore::cluster_builder(cluster.urls());
        Client::with_store(instance, store, record)
    })
}

/// The callers of the recorded requests, each with its slot.
fn observed_callers(cluster: &RedisCluster) -> Vec<(Caller, u16)> {
    let callers = Caller::all_of_chapter(0).into_iter();
    callers
        .map(|caller| (caller, cluster.slot(&key_of(caller.partition()))))
        .collect()
}

fn observed_callers_of(cluster: &RedisCluster, node: usize) -> HashSet<Caller> {
    let callers = observed_callers(cluster).into_iter();
    let of_node = callers.filter(|(_, slot)| cluster.owner(*slot) == node);
    of_node.map(|(caller, _)| caller).collect()
}

/// A slot that is being moved, and the users whose keys are in it.
struct Move<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    from: usize,
    to: usize,
}

impl<'a> Move<'a> {
    fn begin(cluster: &'a RedisCluster, slot: u16, from: usize, to: usize) -> Self {
        let started = Self {
            cluster,
            slot: slot.to_string(),
            from,
            to,
        };
        started.set(to, "IMPORTING", from);
        started.set(from, "MIGRATING", to);
        started
    }

    /// The slot of a user, from the node that has it to the next one.
    fn of(cluster: &'a RedisCluster, scope: &str, user: &str) -> Self {
        let slot = cluster.slot(&key_of(partition(scope, user)));
        let from = cluster.owner(slot);
        Self::begin(cluster, slot, from, (from + 1) % 3)
    }

    fn set(&self, node: usize, what: &str, other: usize) {
        let id = self.cluster.id(other);
        let set = self.cluster.nodes[node].command(&["CLUSTER", "SETSLOT", &self.slot, what, &id]);
        assert_eq!(set, "OK");
    }

    fn target(&self) -> &RedisServer {
        &self.cluster.nodes[self.to]
    }

    /// The keys that have not been moved yet, some of them.
    fn keys(&self) -> Vec<String> {
        let keys = self.cluster.nodes[self.from].command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "10"]);
        keys.lines().map(str::to_owned).collect()
    }

    fn move_key(&self, key: &str) {
        let port = self.target().port().to_string();
        let moved = self.cluster.nodes[self.from].command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        assert!(["OK", "NOKEY"].contains(&moved.trim_start_matches('+')), "{moved}");
    }

    fn end(self) {
        loop {
            let keys = self.keys();
            if keys.is_empty() {
                break;
            }
            keys.iter().for_each(|key| self.move_key(key));
        }
        for node in [self.to, self.from] {
            self.set(node, "NODE", self.to);
        }
    }
}

/// Moves a slot and its keys to another node, as `redis-cli --cluster reshard` does.
fn move_slot(cluster: &RedisCluster, slot: u16, from: usize, to: usize) {
    Move::begin(cluster, slot, from, to).end();
}

/// The number of requests that each of the users is allowed until one is rejected.
async fn use_up(layer: &RateLimitLayer, users: &[String]) -> Vec<usize> {
    let mut allowed = vec![0; users.len()];
    for (user, allowed) in users.iter().zip(&mut allowed) {
        loop {
            match outcome(layer, user).await {
                Outcome::Allowed => *allowed += 1,
                Outcome::Rejected => break,
                _ => {}
            }
        }
    }
    allowed
}

/// The slots of the observed callers and of these users, each with the node that has it.
fn moved_slots(cluster: &RedisCluster, users: &[String]) -> Vec<(u16, usize)> {
    let of_observed = observed_callers(cluster).into_iter().map(|(_, slot)| slot);
    let of_users = users
        .iter()
        .map(|user| cluster.slot(&key_of(partition("cluster", user))));
    let mut slots: Vec<(u16, usize)> = Vec::new();
    for slot in of_observed.chain(of_users) {
        if slots.iter().all(|(other, _)| *other != slot) {
            slots.push((slot, cluster.owner(slot)));
        }
    }
    slots
}

/// L8, L25
#[tokio::test(flavor = "multi_thread")]
async fn slots_that_are_moved_under_load_lose_no_request_and_admit_none_twice() {
    let cluster = RedisCluster::start(3, 0);
    let layer = layer(&cluster);
    let users = users_by_node(&cluster, "cluster", "moved", 15).concat();
    let slots = moved_slots(&cluster, &users);
    let last = *slots.last().unwrap();
    until_decided(&layer, "warm").await;
    let load = Load::start(&layer, &users, 4);
    let observed = observed(&cluster);
    observed.is_under_way().await;
    observed.record.fault_begins();
    let cluster = tokio::task::spawn_blocking(move || {
        for (slot, owner) in &slots {
            move_slot(&cluster, *slot, *owner, (owner + 1) % 3);
        }
        // Back again.
        for (slot, owner) in slots.iter().take(10) {
            move_slot(&cluster, *slot, (owner + 1) % 3, *owner);
        }
        cluster
    })
    .await
    .unwrap();
    observed.check().await;
    let allowed = timeout(HANG, use_up(&layer, &users))
        .await
        .expect("all quota is used up");
    let tallies = load.stop().await;
    let fresh = users_by_node(&cluster, "cluster", "fresh", 2).concat();
    for user in fresh {
        assert_limit_holds(&layer, &user, 5).await;
    }
    for ((user, tally), allowed) in users.iter().zip(&tallies).zip(allowed) {
        assert_eq!(
            (tally.failed_open, tally.allowed + allowed),
            (0, 5),
            "{user}: {tally:?} {allowed}"
        );
        assert_eq!(outcome(&layer, user).await, Outcome::Rejected, "{user}");
    }
    // A redirected client retries at once.
    let (slot, owner) = last;
    move_slot(&cluster, slot, (owner + 1) % 3, owner);
    assert_eq!(outcome(&layer, users.last().unwrap()).await, Outcome::Rejected);
}

/// For tests that move their own slots, and move them once.
fn cluster_of_moves() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| RedisCluster::start(3, 0))
}

/// L8: there, moved already, or never seen; by a node that has never seen the script.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_being_moved_is_counted_wherever_its_keys_are() {
    let cluster = cluster_of_moves();
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    let users = users_by_node(cluster, "asked", "user", 2).swap_remove(0);
    let day = [QuotaPolicy::per_day("day", 10)];
    let of = |user: &str, cost| plan("asked", &day, user, cost);
    let charge = async |user: &str, cost| left(&store.decide(of(user, cost)).await.unwrap())[0].1;
    until("there is a map", || async {
        store.peek(of(&users[0], 1)).await.is_ok()
    })
    .await;
    let (known, new) = (&users[0], &users[1]);
    assert_eq!(charge(known, 1).await, 9);

    let moves = [known, new].map(|user| Move::of(cluster, "asked", user));
    moves[0].target().command(&["SCRIPT", "FLUSH"]);
    assert_eq!(charge(new, 1).await, 9, "seen by nobody");
    assert_eq!(charge(new, 1).await, 8, "and by its new node from now on");
    assert_eq!(charge(known, 1).await, 8, "still there");
    moves[0].keys().iter().for_each(|key| moves[0].move_key(key));
    moves[0].target().command(&["SCRIPT", "FLUSH"]);
    assert_eq!(charge(known, 1).await, 7, "moved");

    let decision = store.decide(of(known, 3)).await.unwrap();
    store.settle(Settlement::refund_all(&decision)).await.unwrap();
    assert_eq!(
        remaining(&store, of(known, 1)).await,
        [7],
        "given back where it is by now"
    );
    store.reset(of(new, 1)).await.unwrap();
    assert_eq!(remaining(&store, of(new, 1)).await, [10]);
    assert_eq!(charge(new, 4).await, 6);

    moves.into_iter().for_each(Move::end);
    assert_eq!((charge(known, 1).await, charge(new, 1).await), (6, 5));
}

/// L8: a lease is renewed, and released, where its key is by now.
#[tokio::test(flavor = "multi_thread")]
async fn slots_are_held_while_their_key_is_moved_and_released_afterwards() {
    let cluster = RedisCluster::start(3, 0);
    let redis = RedisStore::cluster_builder(cluster.urls());
    let store = redis.lease_time(Duration::from_secs(3)).build().unwrap();
    let user = users_by_node(&cluster, "leases", "user", 1).swap_remove(0).remove(0);
    let one = || plan("leases", &[QuotaPolicy::concurrent("slots", 1)], &user, 1);
    until("there is a map", || async { store.peek(one()).await.is_ok() }).await;
    let held = store.decide(one()).await.unwrap();
    assert_eq!(held.outcome(), Outcome::Allowed);

    let moving = Move::of(&cluster, "leases", &user);
    let key = moving.keys().remove(0);
    let ends = |node: &RedisServer| -> f64 {
        let script = "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')[2]";
        node.command(&["EVAL", script, "1", &key]).parse().unwrap()
    };
    let before = ends(&cluster.nodes[moving.from]);
    moving.move_key(&key);
    until("the lease is renewed", || async {
        moving
            .target()
            .command(&["INFO", "commandstats"])
            .contains("cmdstat_asking")
    })
    .await;
    let target = moving.to;
    moving.end();
    assert!(ends(&cluster.nodes[target]) > before);
    assert_eq!(store.decide(one()).await.unwrap().outcome(), Outcome::Rejected);
    store.settle(Settlement::refund_all(&held)).await.unwrap();
    assert_eq!(store.decide(one()).await.unwrap().outcome(), Outcome::Allowed);
}

/// The script of a command names one key, so the server has another error than `TRYAGAIN`.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_keys_are_apart_is_answered_once_they_are_together() {
    let cluster = cluster_of_moves();
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    let slot = cluster.slot("{apart}1");
    let mut from = cluster.owner(slot);
    for (moved, stays) in [("{apart}1", "{apart}2"), ("{apart}2", "{apart}1")] {
        let run = async |name: &str, words: &[&str]| store.command("{apart}1", cmd(name).arg(words).clone()).await;
        run("MSET", &["{apart}1", "one", "{apart}2", "two"]).await.unwrap();
        let to = (from + 1) % 3;
        let moving = Move::begin(cluster, slot, from, to);
        moving.move_key(moved);
        let end = async {
            sleep(Duration::from_millis(50)).await;
            assert_eq!(moving.keys(), [stays]);
            moving.end();
        };
        let (values, ()) = tokio::join!(run("MGET", &["{apart}1", "{apart}2"]), end);
        let values: [String; 2] = from_redis_value(values.unwrap()).unwrap();
        assert_eq!(values, ["one", "two"]);
        from = to;
    }
}

/// The server returns `TRYAGAIN` as long as it has only some of the keys.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_keys_are_apart_is_counted_once_they_are_together() {
    let cluster = cluster_of_moves();
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    let user = users_by_node(cluster, "apart", "user", 1).swap_remove(0).remove(0);
    let log = QuotaPolicy::per_hour("log", 10).with_algorithm(Algorithm::SlidingWindowLog);
    let policies = [QuotaPolicy::per_day("day", 10), log];
    let of = |cost| plan("apart", &policies, &user, cost);
    until("there is a map", || async { store.peek(of(1)).await.is_ok() }).await;
    store.decide(of(1)).await.unwrap();

    let moving = Move::of(cluster, "apart", &user);
    let keys = moving.keys();
    assert_eq!(keys.len(), 2);
    // Redis before version 6.2 does not count errors, but the target of the move receives `ASKING` for both keys.
    let refusals = || -> u64 {
        let count = |node: &RedisServer| {
            let stats = node.command(&["INFO", "all"]);
            let counts = stats.lines().filter_map(|line| {
                let (name, count) = line.split_once('=')?;
                let is_refusal = ["errorstat_TRYAGAIN:count", "cmdstat_asking:calls"].contains(&name);
                is_refusal.then(|| count.split(',').next().unwrap().parse::<u64>().unwrap())
            });
            counts.sum::<u64>()
        };
        cluster.nodes.iter().map(count).sum()
    };
    let before = refusals();
    moving.move_key(&keys[0]);
    let charged = tokio::spawn({
        let (store, plan) = (store.clone(), of(2));
        async move { store.decide(plan).await }
    });
    until("a node has said that it has not all of the keys", || async {
        refusals() > before
    })
    .await;
    moving.move_key(&keys[1]);
    let decision = timeout(HANG, charged).await.unwrap().unwrap().unwrap();
    let seven = |name: &str| (name.to_owned(), 7);
    assert_eq!(left(&decision), [seven("day"), seven("log")]);
    moving.end();
    assert_eq!(remaining(&store, of(1)).await, [7, 7], "once");
}

/// `ASK` is followed, too.
#[tokio::test]
async fn in_a_cluster_a_user_with_the_documented_permissions_is_enough() {
    let cluster = cluster_of_moves();
    if !cluster.nodes[0].has_users() {
        return;
    }
    for node in &cluster.nodes {
        node.set_documented_user(&["+cluster|slots", "+asking"]);
    }
    let urls = cluster.urls();
    let urls = urls
        .iter()
        .map(|url| url.replace("redis://", "redis://limits:password@"));
    let layer = builder(RedisStore::cluster(urls).unwrap(), "permitted")
        .build()
        .unwrap();
    for user in ["alice", "bob", "carol", "dave"] {
        until_decided(&layer, user).await;
    }
    let moving = Move::of(cluster, "permitted", "alice");
    moving.keys().iter().for_each(|key| moving.move_key(key));
    assert_ne!(outcome(&layer, "alice").await, Outcome::FailedOpen);
    moving.end();
    assert_limit_holds(&layer, "erin", 5).await;
}

/// A node that has given many slots away is not lost.
#[tokio::test]
async fn many_who_are_sent_elsewhere_at_once_say_nothing_against_the_node_that_sends_them() {
    let cluster = RedisCluster::start(3, 0);
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    let mut users = users_by_node(&cluster, "sent", "user", 13).swap_remove(0);
    let (stays, policies) = (users.pop().unwrap(), [QuotaPolicy::per_hour("hour", 9)]);
    let acquire = |user: &str| store.decide(plan("sent", &policies, user, 1));
    until("there is a map", || async { acquire(&stays).await.is_ok() }).await;
    let slot = |user: &str| cluster.slot(&key_of(partition("sent", user)));
    let slots: HashSet<u16> = users.iter().map(|user| slot(user)).collect();
    assert!(slots.len() > 9 && !slots.contains(&slot(&stays)));
    for slot in slots {
        move_slot(&cluster, slot, 0, 1);
    }
    for decision in join_all(users.iter().map(|user| acquire(user))).await {
        assert_eq!(decision.unwrap().outcome(), Outcome::Allowed);
    }
    assert_eq!(acquire(&stays).await.unwrap().outcome(), Outcome::Allowed);
}

/// Users of a node that is lost, and of the others.
struct Lost {
    of_lost: Vec<String>,
    of_others: Vec<String>,
}

impl Lost {
    /// The first node is the one that will be lost.
    fn new(cluster: &RedisCluster) -> Self {
        let mut users = users_by_node(cluster, "cluster", "user", 4);
        let of_lost = users.remove(0);
        Self {
            of_lost,
            of_others: users.concat(),
        }
    }

    /// While the node is lost and its circuit is open, users of other nodes are limited. The others pass without
    /// waiting, even if a long wait is allowed.
    async fn assert_contained(&self, layer: &RateLimitLayer) {
        until("the circuit of the lost node is open", || async {
            outcome(layer, &self.of_lost[0]).await == Outcome::FailedOpen
        })
        .await;
        for round in 0..5 {
            for user in &self.of_others {
                assert_ne!(outcome(layer, user).await, Outcome::FailedOpen, "{user}, round {round}");
            }
        }
        let start = Instant::now();
        for round in 0..1_000 {
            let user = &self.of_lost[round % self.of_lost.len()];
            assert_eq!(outcome(layer, user).await, Outcome::FailedOpen, "{user}");
        }
        // Each of them would wait for a second.
        assert!(start.elapsed() < HANG, "{:?}", start.elapsed());
    }
}

/// Kills the first node, whose replica has at least what was acknowledged before.
fn lose_tail(cluster: &RedisCluster, user: &str, observed: &Observed) {
    let (record, node) = (&observed.record, &cluster.nodes[0]);
    let callers = observed_callers_of(cluster, 0);
    let replicated_until = record.now();
    wait_for_replica(node, &format!("{}:replicated", key_of(partition("cluster", user))));
    record.fault_begins();
    let start = record.now();
    node.kill();
    record.has_lost(history::Lost::Since(replicated_until), start, Some(callers));
}

/// L8, L9
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_killed_under_load_costs_its_own_users_only_and_its_replica_limits_them_again() {
    let cluster = RedisCluster::start(3, 1);
    let layer = layer(&cluster);
    let users = Lost::new(&cluster);
    for user in users.of_lost.iter().chain(&users.of_others) {
        until_decided(&layer, user).await;
    }
    let load = Load::start(&layer, &[users.of_lost.clone(), users.of_others.clone()].concat(), 8);
    let observed = observed(&cluster);
    observed.is_under_way().await;
    lose_tail(&cluster, &users.of_lost[0], &observed);
    until("the loss is noticed", || async {
        outcome(&layer, &users.of_lost[0]).await == Outcome::FailedOpen
    })
    .await;
    for user in &users.of_others {
        assert_ne!(outcome(&layer, user).await, Outcome::FailedOpen, "{user}");
    }
    until("the replica is promoted", || async {
        cluster.nodes[3].has_role("master")
    })
    .await;
    for user in &users.of_lost {
        until_decided(&layer, user).await;
    }
    observed.check().await;
    let tallies = load.stop().await;
    let others = &tallies[users.of_lost.len()..];
    assert!(
        others
            .iter()
            .all(|tally| tally.failed_open == 0 && tally.allowed <= 5 && tally.rejected > 0),
        "{others:?}"
    );
    let fresh = users_by_node(&cluster, "cluster", "fresh", 2);
    for user in fresh.concat() {
        assert_limit_holds(&layer, &user, 5).await;
    }
}

/// L8, L9
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_or_is_killed_holds_nobody_and_limits_hold_after_its_return() {
    let cluster = RedisCluster::start(3, 0);
    let layer = layer(&cluster);
    let users = Lost::new(&cluster);
    for user in users.of_lost.iter().chain(&users.of_others) {
        until_decided(&layer, user).await;
    }
    let load = Load::start(&layer, &[users.of_lost.clone(), users.of_others.clone()].concat(), 8);
    let (observed, callers) = (observed(&cluster), observed_callers_of(&cluster, 0));
    observed.is_under_way().await;
    observed.record.fault_begins();
    cluster.nodes[0].pause();
    users.assert_contained(&layer).await;
    cluster.nodes[0].resume();
    until_decided(&layer, &users.of_lost[0]).await;
    let start = observed.record.now();
    cluster.nodes[0].kill();
    users.assert_contained(&layer).await;
    cluster.nodes[0].restart();
    observed
        .record
        .has_lost(history::Lost::Everything, start, Some(callers));
    until_decided(&layer, &users.of_lost[0]).await;
    observed.check().await;
    let tallies = load.stop().await;
    let others = &tallies[users.of_lost.len()..];
    assert!(others.iter().all(|tally| tally.failed_open == 0), "{others:?}");
    for user in users_by_node(&cluster, "cluster", "fresh", 2).concat() {
        until_decided(&layer, "cluster").await;
        assert_limit_holds(&layer, &user, 5).await;
    }
}

/// L9: a client that cancels all of its requests would have no limits if that looked like a node that does not answer.
#[tokio::test]
async fn requests_that_are_given_up_say_nothing_against_the_node_that_has_not_answered_them_yet() {
    let cluster = RedisCluster::start(3, 0);
    let layer = layer(&cluster);
    let users = users_by_node(&cluster, "cluster", "user", 1).concat();
    for user in &users {
        until_decided(&layer, user).await;
    }
    let before = connections(&cluster);
    for round in 0..10 {
        cluster.nodes[0].pause();
        for _ in 0..10 {
            let given_up = timeout(Duration::from_millis(2), outcome(&layer, &users[0])).await;
            assert!(given_up.is_err());
        }
        cluster.nodes[0].resume();
        assert_ne!(outcome(&layer, &users[0]).await, Outcome::FailedOpen, "round {round}");
    }
    // One connection to each node runs this command.
    assert_eq!(connections(&cluster), before + 3, "no connection was given up");
}

/// The total number of connections that the nodes have accepted.
fn connections(cluster: &RedisCluster) -> usize {
    let accepted = cluster.nodes.iter().map(|node| {
        let stats = node.command(&["INFO", "stats"]);
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<usize>().unwrap()
    });
    accepted.sum()
}

/// L9
#[tokio::test]
async fn when_all_nodes_are_lost_nobody_waits_and_few_connections_are_tried() {
    let cluster = RedisCluster::start(3, 0);
    let store = RedisStore::cluster(cluster.urls()).unwrap();
    // One request at a time tries each node, and here all wait for it.
    let layer = hurried_builder(store, "all", Duration::from_millis(50))
        .build()
        .unwrap();
    // Enough that each node has some of them.
    let users: Vec<String> = (0..60).map(|number| number.to_string()).collect();
    for user in &users {
        until_decided(&layer, user).await;
    }
    let before = connections(&cluster);
    for node in &cluster.nodes {
        node.pause();
    }
    let outcomes = join_all(users.iter().map(|user| outcome(&layer, user))).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::FailedOpen));
    let start = Instant::now();
    for round in 0..2_000 {
        assert_eq!(outcome(&layer, &users[round % users.len()]).await, Outcome::FailedOpen);
    }
    // Each of them would wait for 50 ms.
    assert!(start.elapsed() < HANG, "{:?}", start.elapsed());
    for node in &cluster.nodes {
        node.resume();
    }
    for user in &users {
        until_decided(&layer, user).await;
    }
    let tries = connections(&cluster) - before;
    assert!(tries < 200, "{tries} connections");
}
