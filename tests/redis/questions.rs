//! Partial grants, forecasts and refunds without a decision, in memory and in Redis, also with concurrent calls.
//! `differential` shows that all numbers are right.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use test_kit::{Answered, RedisServer, limits, memory, request};
use tower_quota::{
    Algorithm, Availability, Caller, ChargeTime, ConfigErrorKind, Decision, Outcome, PartitionKey, Plan, PolicySet,
    QuotaPolicy, RateLimitLayer, RedisStore, Refund,
    RefundOutcome::{self, Duplicate, NotApplicable, Refunded},
    Settlement, Store,
    clock::{Clock, Timestamp},
    key,
};

use super::support::{DAY, START, left_of, remaining, set};

/// A store of each kind, and the server of the one that has one.
fn stores(clock: &Clock) -> (RedisServer, [Arc<dyn Store>; 2]) {
    let server = RedisServer::start();
    let redis = RedisStore::builder(server.url()).clock(clock.clone()).build().unwrap();
    (server, [Arc::new(memory(clock)), Arc::new(redis)])
}

fn plan(policies: &PolicySet, user: &str, cost: u64) -> Plan {
    Plan::new(policies.clone(), super::support::user("questions", user), cost)
}

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::TokenBucket,
    Algorithm::StrictTokenBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
    Algorithm::SlidingWindowLog,
    Algorithm::LeakyBucketMeter,
    Algorithm::LeakyBucketQueue { max_waiting: 99 },
];

async fn left(store: &dyn Store, plan: Plan) -> Vec<u64> {
    remaining(&store.peek(plan).await.unwrap())
}

#[tokio::test]
async fn of_many_workers_that_ask_at_once_all_together_get_what_there_is() {
    let clock = Clock::manual(START);
    let (_server, stores) = stores(&clock);
    for algorithm in ALGORITHMS {
        let name = format!("{algorithm:?}");
        let policies = set([
            QuotaPolicy::new("hour", 100, Duration::from_secs(3_600)).with_algorithm(algorithm),
            QuotaPolicy::per_day("day", 1_000),
        ]);
        for store in &stores {
            let plan = plan(&policies, &name, 7).allow_partial().unwrap();
            let most = left(&**store, plan.clone()).await[0];
            let tasks = (0..40).map(|_| {
                let (store, plan) = (Arc::clone(store), plan.clone());
                tokio::spawn(async move { store.decide(plan).await.unwrap() })
            });
            let decisions: Vec<_> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
            let granted: Vec<u64> = decisions.iter().map(|decision| decision.granted()).collect();
            assert_eq!(granted.iter().sum::<u64>(), most, "{name} in {store:?}");
            // At most one got less than it wanted.
            let partial = granted.iter().filter(|granted| (1..7).contains(*granted)).count();
            assert!(partial <= 1, "{name} in {store:?}: {granted:?}");
            for decision in decisions {
                assert_eq!(decision.outcome() == Outcome::Allowed, decision.granted() > 0);
            }
        }
    }
}

#[tokio::test]
async fn a_grant_of_a_counter_with_the_largest_numbers_is_exact() {
    let clock = Clock::manual(START);
    let (_server, stores) = stores(&clock);
    let quota = 999_999_999_999_999;
    let counter = QuotaPolicy::new("counter", quota, Duration::from_secs(1_000_000_000));
    let policies = set([counter.with_algorithm(Algorithm::SlidingWindowCounter)]);
    for store in stores {
        clock.set(Timestamp::from_micros(1_999_999_999_999_999));
        let plan = plan(&policies, "largest", u64::MAX);
        let all = store.decide(plan.clone().allow_partial().unwrap()).await.unwrap();
        assert_eq!(all.granted(), quota);
        // A microsecond of this window is one unit, less a part of it.
        for micros in [
            2_000_000_000_000_000,
            2_000_000_000_000_001,
            2_000_000_000_000_007,
            2_345_678_901_234_567,
        ] {
            clock.set(Timestamp::from_micros(micros));
            let expected = left(&*store, plan.clone()).await[0];
            let granted = store.decide(plan.clone().allow_partial().unwrap()).await.unwrap();
            assert_eq!(granted.granted(), expected, "{micros} in {store:?}");
            assert_eq!(left(&*store, plan.clone()).await, [0]);
        }
    }
}

#[test]
fn what_cannot_be_granted_in_part_is_an_error_that_says_why() {
    let (jobs, slots) = (
        set([QuotaPolicy::per_day("jobs", 10)]),
        set([QuotaPolicy::concurrent("slots", 1)]),
    );
    for (plan, reason) in [
        (plan(&jobs, "alice", 5).join(plan(&jobs, "bob", 5)), "one partition"),
        (plan(&slots, "alice", 5), "must count requests"),
    ] {
        let error = plan.allow_partial().unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::Policies);
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert!(plan(&jobs, "alice", 5).allow_partial().is_ok());
}

#[tokio::test]
async fn a_forecast_charges_nothing_takes_no_slot_and_cannot_be_settled() {
    let clock = Clock::manual(START);
    let (server, stores) = stores(&clock);
    let own = set([QuotaPolicy::per_day("day", 10), QuotaPolicy::concurrent("slots", 1)]);
    let all = set([QuotaPolicy::per_day("all", 5).with_algorithm(Algorithm::SlidingWindowLog)]);
    for store in stores {
        let plan = |cost| plan(&own, "alice", cost).join(plan(&all, "everybody", cost));
        for (cost, passes) in [
            (5, Availability::Now),
            (6, Availability::Never),
            (11, Availability::Never),
        ] {
            let forecast = store.peek(plan(cost)).await.unwrap();
            assert_eq!(forecast.availability(), passes, "{store:?}");
            assert_eq!(forecast.decided_at(), Some(START));
            assert_eq!(forecast.granted(), 0);
            assert_eq!(remaining(&forecast), [10, 1, 5]);
        }
        assert_eq!(left(&*store, plan(1)).await, [10, 1, 5], "{store:?}");
        let holder = store.decide(plan(3)).await.unwrap();
        let available = async |cost| store.peek(plan(cost)).await.unwrap().availability();
        assert_eq!(available(1).await, Availability::OnRelease);
        store.settle(Settlement::new(&holder, 3)).await.unwrap();
        assert_eq!(available(3).await, Availability::After(DAY));
        clock.advance(DAY);
        assert_eq!(available(3).await, Availability::Now);
        clock.set(START);
    }
    drop(server);
}

fn layer(server: &RedisServer) -> RateLimitLayer {
    let builder = limits(RedisStore::new(server.url()).unwrap()).cost(5);
    builder.policy(QuotaPolicy::per_day("day", 10)).build().unwrap()
}

async fn send(layer: &RateLimitLayer, user: &str) -> Decision {
    test_kit::send(layer, request(user)).await.decision().clone()
}

async fn refund(caller: Caller, refund: &Refund) -> RefundOutcome {
    caller.refund(refund).await.unwrap()
}

fn alice() -> PartitionKey {
    PartitionKey::new("x-user-id", "alice")
}

#[tokio::test]
async fn units_that_a_queue_gives_back_lift_the_cached_rejections_of_this_instance_at_once() {
    let server = RedisServer::start();
    let (layer, other) = (layer(&server), layer(&server));
    let charged_at = send(&layer, "alice").await.decided_at().unwrap();
    send(&layer, "alice").await;
    assert_eq!(send(&layer, "alice").await.outcome(), Outcome::Rejected);
    assert!(send(&layer, "alice").await.is_cached());

    // Fewer than a day has brought since, by far.
    let job = Refund::new(5, ChargeTime::At(charged_at)).with_id("job 1");
    assert_eq!(refund(layer.limiter().caller(&alice()), &job).await, Refunded);
    assert_eq!(send(&layer, "alice").await.outcome(), Outcome::Allowed);
    assert_eq!(send(&layer, "alice").await.outcome(), Outcome::Rejected);

    // The message comes again, to another instance; the same id of another caller is another message.
    assert_eq!(refund(other.limiter().caller(&alice()), &job).await, Duplicate);
    let bob = PartitionKey::new("x-user-id", "bob");
    assert_eq!(refund(other.limiter().caller(&bob), &job).await, Refunded);
    assert_eq!(send(&layer, "alice").await.outcome(), Outcome::Rejected);
    // Without an id, each message counts.
    let more = Refund::new(5, ChargeTime::Now);
    for _ in 0..3 {
        assert_eq!(refund(other.limiter().caller(&alice()), &more).await, Refunded);
    }
    for (units, expected) in [(10, Availability::Now), (11, Availability::Never)] {
        let forecast = other.limiter().caller(&alice()).cost(units).peek().await;
        assert_eq!(forecast.unwrap().unwrap().availability(), expected);
    }
}

#[tokio::test]
async fn of_a_message_that_many_instances_get_at_once_one_gives_back() {
    let server = RedisServer::start();
    let layers: Vec<_> = (0..4).map(|_| layer(&server)).collect();
    send(&layers[0], "alice").await;
    send(&layers[0], "alice").await;
    let job = Refund::new(5, ChargeTime::Now).with_id("job 1");
    let refunds = (0..40).map(|number| refund(layers[number % 4].limiter().caller(&alice()), &job));
    let done = join_all(refunds).await;
    assert_eq!(done.iter().filter(|refunded| **refunded == Refunded).count(), 1);
    assert_eq!(left_of(&layers[0], "alice").await, [5]);
}

#[tokio::test]
async fn nothing_is_given_back_where_nothing_counts_the_caller() {
    let clock = Clock::manual(START);
    let (_server, stores) = stores(&clock);
    for store in stores {
        let queue = QuotaPolicy::per_day("queue", 10).with_algorithm(Algorithm::LeakyBucketMeter);
        let layer = limits(store)
            .named_key("team", key::header("x-team"))
            .named_key("queue", key::header("x-queue"))
            .policy(QuotaPolicy::per_day("team", 10).keyed_by("team"))
            .policy(queue.keyed_by("queue"))
            .build()
            .unwrap();
        let (admin, job) = (layer.limiter(), Refund::new(5, ChargeTime::Now).with_id("job 1"));
        assert_eq!(refund(admin.caller(&alice()), &job).await, NotApplicable);
        let by = async |key| admin.keyed_by(key, &alice()).refund(&job).await;
        assert_eq!(by("queue").await.unwrap(), NotApplicable);
        assert_eq!(by("team").await.unwrap(), Refunded);
        assert!(by("taem").await.is_err());
        assert!(admin.caller(&alice()).cost(5).peek().await.unwrap().is_none());
        let team = admin.keyed_by("team", &alice()).cost(5).peek().await.unwrap().unwrap();
        assert_eq!(team.availability(), Availability::Now);
        assert!(admin.keyed_by("taem", &alice()).cost(5).peek().await.is_err());
    }
}

/// The main key and a named one of the same value: an address that is limited by itself, too.
#[tokio::test]
async fn one_message_gives_back_by_each_key_that_leads_to_a_caller() {
    let clock = Clock::manual(START);
    let (_server, stores) = stores(&clock);
    for store in stores {
        let layer = limits(store)
            .named_key("same", key::header("x-user-id"))
            .policy(QuotaPolicy::per_day("day", 10))
            .policy(QuotaPolicy::per_day("same", 10).keyed_by("same"))
            .build()
            .unwrap();
        let (admin, job) = (layer.limiter(), Refund::new(5, ChargeTime::Now).with_id("job 1"));
        for expected in [Refunded, Duplicate] {
            assert_eq!(refund(admin.caller(&alice()), &job).await, expected);
            assert_eq!(refund(admin.keyed_by("same", &alice()), &job).await, expected);
        }
    }
}
