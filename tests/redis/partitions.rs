//! Several partitions in one decision: all or nothing, in every store.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;

use proptest::strategy::Strategy;
use test_kit::{
    RedisServer, hello, limits_of, load::until, partition_steps::Step, partition_steps::move_clock,
    partition_steps::settlement, partition_steps::steps, partition_steps::steps_back_and_forth, request,
};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_quota::{
    Algorithm, Decision, Limiter, Outcome, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitBody,
    RateLimitLayer, RedisStore, Scope, Settlement, Store,
    clock::{Clock, Timestamp},
    key,
};

use super::support::{self, HANG, both_stores, left_of, plan, remaining, set, user};

/// Both stores on one clock, and the kinds of partitions, each with its own policies.
struct Bench {
    clock: Clock,
    stores: [Arc<dyn Store>; 2],
    policies: [PolicySet; 4],
    /// The kind whose partitions each kind has.
    owners: [u8; 4],
    /// Returns the cost of a kind in a request of this cost.
    cost_of: fn(usize, u64) -> u64,
}

impl Bench {
    /// Two kinds share their partitions, for example for a user without an address.
    fn new() -> Self {
        Self::of([0, 1, 1, 3])
    }

    fn of(owners: [u8; 4]) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let (log, window) = (Algorithm::SlidingWindowLog, Algorithm::FixedWindow);
        Self {
            stores: both_stores(&clock),
            clock,
            policies: [
                set([QuotaPolicy::per_second("second", 5), QuotaPolicy::per_hour("hour", 40)]),
                set([
                    QuotaPolicy::per_minute("log", 9).with_algorithm(log),
                    QuotaPolicy::concurrent("slots", 6),
                ]),
                set([QuotaPolicy::per_minute("window", 12).with_algorithm(window)]),
                set([
                    QuotaPolicy::per_minute("strict", 14).with_algorithm(Algorithm::StrictTokenBucket),
                    QuotaPolicy::concurrent("all slots", 8),
                    QuotaPolicy::per_minute("tried", 3).shadow(),
                ]),
            ],
            owners,
            cost_of: |_, cost| cost,
        }
    }

    fn partition(&self, run: u64, kind: usize, user: u8) -> PartitionId {
        let key = PartitionKey::new("run", run.to_be_bytes()).and(PartitionKey::new([self.owners[kind]], [user]));
        Scope::new(&format!("partitions of {:?}", self.owners)).partition(&key)
    }

    fn plan(&self, run: u64, parts: &[(usize, u8)], cost: u64) -> Plan {
        let cost_of = |kind| (self.cost_of)(kind, cost);
        let is_joined = parts.iter().any(|(kind, _)| cost_of(*kind) != cost);
        let parts = parts.iter().map(|(kind, user)| {
            let policies = self.policies[*kind].clone();
            (policies, self.partition(run, *kind, *user), cost_of(*kind))
        });
        let add = |plan, (policies, partition, cost)| match plan {
            None => Some(Plan::new(policies, partition, cost)),
            Some(plan) if is_joined => Some(Plan::join(plan, Plan::new(policies, partition, cost))),
            Some(plan) => Some(Plan::and(plan, policies, partition)),
        };
        parts.fold(None, add).unwrap()
    }

    fn question(&self, run: u64, (kind, user): (usize, u8)) -> Plan {
        Plan::new(self.policies[kind].clone(), self.partition(run, kind, user), 0)
    }
}

/// Name and what is left of each policy, and whether it is a shadow.
fn left(decision: &Decision) -> Vec<(String, u64, bool)> {
    let left = decision.allowances().map(|allowance| {
        let policy = allowance.policy();
        (policy.name().to_owned(), allowance.remaining(), policy.is_shadow())
    });
    left.collect()
}

async fn acquire(bench: &Bench, plan: &Plan) -> [Decision; 2] {
    let [memory, redis] = &bench.stores;
    [
        memory.decide(plan.clone()).await.unwrap(),
        redis.decide(plan.clone()).await.unwrap(),
    ]
}

/// Makes one request. The remaining units before and after it, read from each partition separately, determine whether
/// it must pass and how many units it must charge.
async fn ask(bench: &Bench, run: u64, parts: &[(usize, u8)], cost: u64) -> Option<[Decision; 2]> {
    let (mut before, mut is_overdrawn) = (Vec::new(), false);
    for part in parts {
        let [memory, redis] = acquire(bench, &bench.question(run, *part)).await;
        assert_eq!(left(&memory), left(&redis));
        assert_eq!(memory.outcome(), redis.outcome());
        let cost = (bench.cost_of)(part.0, cost);
        before.extend(left(&memory).into_iter().map(|left| (left, cost)));
        is_overdrawn |= memory.outcome() == Outcome::Rejected;
    }
    let decisions = acquire(bench, &bench.plan(run, parts, cost)).await;
    assert_eq!(left(&decisions[0]), left(&decisions[1]));
    assert_eq!(decisions[0].retry_after(), decisions[1].retry_after());
    let unit_cost = |name: &str, cost: u64| if name.contains("slots") { cost.min(1) } else { cost };
    let fits = before
        .iter()
        .all(|((name, left, is_shadow), cost)| !is_overdrawn && (*is_shadow || *left >= unit_cost(name, *cost)));
    let is_charged = fits && before.iter().any(|(_, cost)| *cost > 0);
    let expected: Vec<_> = before
        .into_iter()
        .map(|((name, left, is_shadow), cost)| {
            let cost = unit_cost(&name, cost);
            let taken = if fits && left >= cost { cost } else { 0 };
            (name, left - taken, is_shadow)
        })
        .collect();
    for decision in &decisions {
        assert_eq!(decision.outcome() == Outcome::Allowed, fits);
        assert_eq!(left(decision), expected);
    }
    let mut after = Vec::new();
    for part in parts {
        let [memory, redis] = acquire(bench, &bench.question(run, *part)).await;
        assert_eq!(left(&memory), left(&redis));
        after.extend(left(&memory));
    }
    assert_eq!(after, expected, "what was decided is what is kept");
    is_charged.then_some(decisions)
}

async fn run(bench: &Bench, run: u64, steps: Vec<Step>) {
    let mut open: Vec<[Decision; 2]> = Vec::new();
    for step in steps {
        match step {
            Step::Acquire { parts, cost } => open.extend(ask(bench, run, &parts, cost).await),
            Step::Settle { which, actual } if which < open.len() => {
                let decisions = open.swap_remove(which);
                for (store, decision) in bench.stores.iter().zip(&decisions) {
                    store.settle(settlement(decision, actual)).await.unwrap();
                }
            }
            Step::Settle { .. } => {}
            Step::Time { micros } => move_clock(&bench.clock, micros),
        }
    }
}

fn for_any(bench: &Bench, cases: u32, steps: impl Strategy<Value = Vec<Step>>) {
    let number = std::cell::Cell::new(0);
    support::for_any(cases, steps, async |steps| {
        number.set(number.get() + 1);
        run(bench, number.get(), steps).await;
    });
}

#[test]
fn each_partition_is_charged_if_all_of_them_fit_and_none_is_if_one_does_not() {
    for_any(&Bench::new(), 300, steps(40));
}

/// The costs include 0 for one or more parts, with and without slots.
#[test]
fn joined_plans_are_charged_each_at_its_own_cost_or_not_at_all() {
    let cost_of = |kind, cost: u64| [cost, cost / 3, 2 * cost, 4 - cost][kind];
    let bench = Bench {
        cost_of,
        ..Bench::of([3, 2, 1, 0])
    };
    for_any(&bench, 300, steps(40));
}

/// A refund covers both plans, and a report of the actual cost only the first one that counts.
#[tokio::test]
async fn a_settlement_of_joined_plans_keeps_the_cost_of_the_second_and_a_refund_does_not() {
    let bench = Bench::new();
    let plan = |run, costs: [u64; 2]| {
        let part = |kind: usize, cost| Plan::new(bench.policies[kind].clone(), bench.partition(run, kind, 0), cost);
        part(0, costs[0]).join(part(2, costs[1]))
    };
    for (run, costs, actual, expected) in [
        (0, [2, 4], Some(1), [4, 39, 8]),
        (1, [2, 4], None, [5, 40, 12]),
        (2, [0, 4], Some(1), [5, 40, 11]),
        (3, [0, 4], None, [5, 40, 12]),
        (4, [2, 0], Some(0), [5, 40, 12]),
    ] {
        let run = u64::MAX - 40 - run;
        for (store, decision) in bench.stores.iter().zip(acquire(&bench, &plan(run, costs)).await) {
            store.settle(settlement(&decision, actual)).await.unwrap();
            let left = store.peek(plan(run, [0, 0])).await.unwrap();
            assert_eq!(remaining(&left), expected, "{costs:?}, {actual:?}");
        }
    }
}

/// A renewal adds leases that the server has lost, so it must not name slots that were never acquired.
#[tokio::test]
async fn a_part_of_cost_0_holds_no_slot_while_the_slot_of_another_part_is_renewed() {
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url()).lease_time(Duration::from_secs(1));
    let store = store.build().unwrap();
    let plan = |name, cost| plan([QuotaPolicy::concurrent("slots", 3)], user("renewed", name), cost);
    let left = async |name| remaining(&store.peek(plan(name, 0)).await.unwrap());
    let decision = store.decide(plan("alice", 0).join(plan("bob", 1))).await.unwrap();
    for _ in 0..2 {
        assert_eq!(server.command(&["FLUSHALL"]), "OK");
        until("bob's slot is renewed", async || left("bob").await == [2]).await;
    }
    assert_eq!(left("alice").await, [3]);
    store.settle(Settlement::refund_all(&decision)).await.unwrap();
    assert_eq!([left("alice").await, left("bob").await], [[3], [3]]);
}

/// Entries that a later clock has written are moved to the current time. Where kinds share a partition, memory does so
/// for the whole partition, and Redis only for the policies of the plan, because its logs are separate keys.
#[test]
fn with_a_clock_that_steps_back_it_is_the_same() {
    for_any(&Bench::of([0, 1, 2, 3]), 200, steps_back_and_forth(40));
}

/// Two tasks that name the same partitions in another order do not wait for each other, and never take too much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_in_any_order_are_never_charged_more_than_they_have() {
    let bench = Arc::new(Bench::new());
    for store in &bench.stores {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let (bench, store) = (Arc::clone(&bench), Arc::clone(store));
            tasks.spawn(async move {
                let mut allowed = 0;
                for _ in 0..25 {
                    let mut parts = [(0, 0), (2, 0)];
                    parts.rotate_left(task % 2);
                    let plan = bench.plan(u64::MAX, &parts, 1);
                    allowed += u32::from(store.decide(plan).await.unwrap().outcome() == Outcome::Allowed);
                }
                allowed
            });
        }
        let allowed: u32 = tasks.join_all().await.into_iter().sum();
        assert_eq!(allowed, 5);
    }
}

/// For example, users who send mail to themselves. The plan is charged as if it named each policy once, for any number
/// of remaining units.
#[tokio::test]
async fn policies_that_a_plan_names_twice_for_one_partition_are_charged_once() {
    let bench = Bench::new();
    for kind in 0..4 {
        let run = u64::MAX - 10 - kind as u64;
        let twice = bench.plan(run, &[(kind, 0), (kind, 0)], 1);
        let once = bench.plan(run, &[(kind, 0)], 1);
        let mut allowed = [0; 2];
        for _ in 0..15 {
            let decisions = acquire(&bench, &twice).await;
            assert_eq!(left(&decisions[0]), left(&decisions[1]));
            for (store, decision) in [0, 1].into_iter().zip(&decisions) {
                allowed[store] += u32::from(decision.outcome() == Outcome::Allowed);
                let peeked = bench.stores[store].peek(once.clone()).await.unwrap();
                assert_eq!(left(decision), left(&peeked));
            }
        }
        assert_eq!(allowed, [[5, 6, 12, 7][kind]; 2], "kind {kind}");
    }
}

/// The policies of a plan overlap: of those that come second, only the new ones are charged.
#[tokio::test]
async fn policies_that_a_plan_names_again_beside_new_ones_do_not_keep_those_from_being_charged() {
    let bench = Bench::new();
    let (second, hour) = (QuotaPolicy::per_second("second", 3), QuotaPolicy::per_hour("hour", 9));
    let alice = bench.partition(u64::MAX - 20, 0, 0);
    let plan = plan([second.clone()], alice, 1).and(set([hour, second]), alice);
    for store in &bench.stores {
        for left_then in [2, 1, 0] {
            let decision = store.decide(plan.clone()).await.unwrap();
            assert_eq!(decision.outcome(), Outcome::Allowed);
            assert_eq!(remaining(&decision), [left_then, left_then + 6]);
        }
        assert_eq!(store.decide(plan.clone()).await.unwrap().outcome(), Outcome::Rejected);
    }
}

/// The states of a partition are brought to the policies of each part in turn, and a log whose entries are all out of
/// the window may be dropped by that.
#[tokio::test]
async fn a_charge_is_given_back_to_a_log_that_was_empty_when_two_parts_of_a_plan_shared_its_partition() {
    let bench = Bench::new();
    let run = u64::MAX - 30;
    let log = bench.plan(run, &[(1, 0)], 1);
    acquire(&bench, &log).await;
    bench.clock.advance(Duration::from_secs(60));
    let decisions = acquire(&bench, &bench.plan(run, &[(2, 0), (1, 0)], 2)).await;
    for (store, decision) in bench.stores.iter().zip(&decisions) {
        store.settle(settlement(decision, None)).await.unwrap();
        assert_eq!(remaining(&store.peek(log.clone()).await.unwrap())[0], 9);
    }
}

#[tokio::test]
async fn a_reset_forgets_all_partitions_of_a_plan() {
    let bench = Bench::new();
    let plan = |cost| bench.plan(u64::MAX - 1, &[(0, 0), (2, 0), (1, 1)], cost);
    for store in &bench.stores {
        store.decide(plan(3)).await.unwrap();
        store.reset(plan(1)).await.unwrap();
        let left = remaining(&store.decide(plan(0)).await.unwrap());
        assert_eq!(left, [5, 40, 12, 9, 5], "a slot is held until it is given back");
    }
}

/// A layer with readable keys, on the given server.
fn readable(server: &RedisServer) -> RateLimitLayer {
    let limiter = Limiter::builder(RedisStore::new(server.url()).unwrap()).deadline(HANG);
    limits_of(limiter.readable_keys())
        .scope("api v1")
        .named_key("address", key::client_ip())
        .policy(QuotaPolicy::per_hour("hour", 9))
        .policy(QuotaPolicy::per_hour("log", 9).with_algorithm(Algorithm::SlidingWindowLog))
        .policy(QuotaPolicy::concurrent("slots", 9).keyed_by("address"))
        .build()
        .unwrap()
}

async fn send(layer: &RateLimitLayer, user: &str) -> Response<RateLimitBody<Full<Bytes>>> {
    let address: SocketAddr = "192.0.2.7:9".parse().unwrap();
    let mut request = request(user);
    request.extensions_mut().insert(key::PeerAddress(address));
    layer.layer(hello()).oneshot(request).await.unwrap()
}

fn keys(server: &RedisServer) -> Vec<String> {
    let mut keys: Vec<String> = server.command(&["KEYS", "*"]).lines().map(str::to_owned).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn operators_can_have_keys_that_they_can_read() {
    let server = RedisServer::start();
    let layer = readable(&server);
    let response = send(&layer, "alice").await;
    let named = keys(&server);
    let name = |key: &String| {
        key.rfind("}:")
            .map_or(&**key, |_| key.rsplit_once(':').unwrap().0)
            .to_owned()
    };
    let names: Vec<String> = named.iter().map(name).collect();
    assert_eq!(
        names,
        [
            "quota:{scope:api%20v1/address/address:192.0.2.7}:slots",
            "quota:{scope:api%20v1/x-user-id:alice}",
            "quota:{scope:api%20v1/x-user-id:alice}:log",
        ]
    );
    // Settlements and resets find them, too.
    drop(response);
    until("its slot is released", async || keys(&server).len() == 2).await;
    let alice = PartitionKey::new("x-user-id", "alice");
    assert_eq!(left_of(&layer, "alice").await, [8, 8]);
    layer.limiter().caller(&alice).reset().await.unwrap();
    assert_eq!(keys(&server), Vec::<String>::new());
}

/// No caller can take another caller's name, or leave the hash tag.
#[tokio::test]
async fn what_callers_call_themselves_cannot_change_the_meaning_of_a_key() {
    let server = RedisServer::start();
    let layer = readable(&server);
    for user in ["a}b{c", "alice/scope:x", "50%", "x y", &"long".repeat(60)] {
        drop(send(&layer, user).await);
    }
    let keys = keys(&server);
    let of = |user: &str| keys.contains(&format!("quota:{{scope:api%20v1/x-user-id:{user}}}"));
    for user in ["a%7Db%7Bc", "alice%2Fscope%3Ax", "50%25", "x%20y"] {
        assert!(of(user), "{user}: {keys:?}");
    }
    let digests = keys.iter().filter(|key| key.len() == "quota:{}".len() + 22).count();
    assert_eq!(digests, 1, "a long name stays a digest: {keys:?}");
}
