//! Instances in virtual time that share one store with latency.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::FutureExt;

use super::*;
use crate::{
    MemoryStore, Outcome,
    limiter::guard::{DecisionState, Guard, GuardConfig, PendingDecision},
    partition::{PartitionKey, Scope},
    policy::{Algorithm, PolicySet, QuotaPolicy},
    store::{Store, StoreFuture},
    sync::random::{Sequence, for_many},
};

#[derive(Debug)]
struct Remote {
    store: MemoryStore,
    clock: Clock,
    one_way: Duration,
    calls: AtomicUsize,
}

impl Store for Remote {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let (store, clock, one_way) = (self.store.clone(), self.clock.clone(), self.one_way);
        StoreFuture::boxed(async move {
            travel(&clock, one_way).await;
            let decision = store.acquire(plan).await;
            travel(&clock, one_way).await;
            decision
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }
}

async fn travel(clock: &Clock, time: Duration) {
    let arrival = clock.now().saturating_add(time);
    poll_fn(|_| {
        if clock.now() >= arrival {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

struct Instance {
    guard: Arc<Guard>,
    store: Arc<Remote>,
    under_way: Vec<PendingDecision>,
    answers: Vec<Decision>,
}

impl Instance {
    /// `None` if the request was sent.
    fn decide(&mut self, plan: Plan) -> Option<Decision> {
        match self.guard.decide(plan) {
            DecisionState::Decided(decision) => Some(decision),
            DecisionState::Pending(decision) => {
                self.under_way.push(decision);
                self.answers = self.answers();
                None
            }
        }
    }

    fn answers(&mut self) -> Vec<Decision> {
        let mut answers = std::mem::take(&mut self.answers);
        self.under_way.retain_mut(
            |decision| match Pin::new(decision).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(decision) => {
                    answers.push(decision);
                    false
                }
                Poll::Pending => true,
            },
        );
        answers
    }

    fn calls(&self) -> usize {
        self.store.calls.load(Ordering::Relaxed)
    }
}

struct World {
    clock: Clock,
    store: MemoryStore,
    instances: Vec<Instance>,
    /// Deadlines need a runtime. Its clock is paused.
    runtime: tokio::runtime::Runtime,
}

impl World {
    const START: Timestamp = Timestamp::from_micros(3_600_000_000);

    fn new(instances: usize, one_way: Duration, rejection_cache: usize) -> Self {
        let clock = Clock::manual(Self::START);
        let store = MemoryStore::on(clock.clone());
        let instance = |_| {
            let remote = Arc::new(Remote {
                store: store.clone(),
                clock: clock.clone(),
                one_way,
                calls: AtomicUsize::new(0),
            });
            let terms = GuardConfig {
                rejection_cache,
                ..GuardConfig::default()
            };
            let guard = Guard::new(Arc::new(Arc::clone(&remote)), None, terms, clock.clone(), "world");
            Instance {
                guard: Arc::new(guard),
                store: remote,
                under_way: Vec::new(),
                answers: Vec::new(),
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        Self {
            instances: (0..instances).map(instance).collect(),
            store,
            clock,
            runtime,
        }
    }
}

fn alice() -> PartitionId {
    Scope::new("world").partition(&PartitionKey::new("user", "alice"))
}

fn checked(policies: impl IntoIterator<Item = QuotaPolicy>) -> PolicySet {
    PolicySet::new(policies).unwrap()
}

struct Attack {
    admitted: u64,
    /// Rejected calls, per second and instance.
    vain_calls: Vec<usize>,
    calls: Vec<usize>,
}

const OFFERED: u64 = 30_000;

/// 30,000 requests per second, distributed round-robin.
fn attack(policy: &QuotaPolicy, instances: usize, one_way: Duration, seconds: u64, rejection_cache: usize) -> Attack {
    let mut world = World::new(instances, one_way, rejection_cache);
    let _context = world.runtime.enter();
    let plan = Plan::new(checked([policy.clone()]), alice(), 1);
    let (mut admitted, mut vain_calls, mut calls) = (vec![0_usize; instances], Vec::new(), Vec::new());
    let mut before = vec![(0, 0); instances];
    for number in 0..seconds * OFFERED {
        world
            .clock
            .set(World::START.saturating_add(Duration::from_micros(number * 1_000_000 / OFFERED)));
        for (instance, admitted) in world.instances.iter_mut().zip(&mut admitted) {
            let allowed = |decision: &Decision| decision.outcome() == Outcome::Allowed;
            *admitted += instance.answers().iter().filter(|decision| allowed(decision)).count();
        }
        let index = (number % instances as u64) as usize;
        if let Some(decision) = world.instances[index].decide(plan.clone()) {
            assert!(decision.is_cached());
        }
        if (number + 1) % OFFERED == 0 {
            for ((instance, admitted), before) in world.instances.iter().zip(&admitted).zip(&mut before) {
                let now = (instance.calls(), *admitted);
                calls.push(now.0 - before.0);
                vain_calls.push((now.0 - before.0).saturating_sub(now.1 - before.1));
                *before = now;
            }
        }
    }
    Attack {
        admitted: admitted.iter().sum::<usize>() as u64,
        vain_calls,
        calls,
    }
}

/// L15: the whole quota is admitted, except for calls in flight at the end and units held back for 20 ms.
#[test]
fn a_hot_key_under_attack_costs_few_calls_and_all_of_its_quota_is_admitted() {
    let policies = [
        QuotaPolicy::per_minute("minute", 100),
        QuotaPolicy::per_second("second", 20),
        QuotaPolicy::per_minute("meter", 100).with_algorithm(Algorithm::LeakyBucketMeter),
        QuotaPolicy::per_day("day", 10),
    ];
    for (index, policy) in policies.into_iter().enumerate() {
        let scenes = [(8, 500), (1, 500), (3, 5_000)].map(|(instances, way)| (instances, Duration::from_micros(way)));
        let count = if index == 0 { scenes.len() } else { 1 };
        for (instances, one_way) in scenes.into_iter().take(count) {
            let seconds = 3;
            let attack = attack(&policy, instances, one_way, seconds, 64);
            let case = format!("{policy:?}, {instances} instances, {one_way:?}");
            let window = policy.window().unwrap().as_micros() as u64;
            let capacity = match policy.algorithm() {
                Algorithm::LeakyBucketMeter => 1,
                _ => policy.burst_capacity(),
            };
            // With a capacity of one unit, units that are not used at once are lost; with a larger one, only those at
            // the end.
            let (held, unit) = (20_000 + 2 * one_way.as_micros() as u64, window / policy.quota());
            let least = match capacity {
                1 => 1 + (seconds * 1_000_000 - held) / (unit + held),
                _ => capacity + (seconds * 1_000_000 - held) / unit,
            };
            let most = capacity + seconds * 1_000_000 / unit;
            assert!(
                (least..=most).contains(&attack.admitted),
                "{} of {most}: {case}",
                attack.admitted
            );
            let (first, later) = attack.calls.split_at(instances);
            assert!(later.iter().all(|calls| *calls <= 60), "{later:?} {case}");
            let burst = OFFERED as usize * (2 * one_way.as_micros() as usize) / 1_000_000 / instances + 1;
            let vain = &attack.vain_calls[..instances];
            assert!(
                vain.iter().all(|calls| *calls <= 60 + burst),
                "{vain:?} of {first:?} {case}"
            );
        }
    }
}

/// L15
#[test]
fn refunds_to_many_others_do_not_make_a_hot_key_dear() {
    for rejection_cache in [64, GuardConfig::default().rejection_cache] {
        let mut world = World::new(1, Duration::from_micros(500), rejection_cache);
        let _context = world.runtime.enter();
        let policies = checked([QuotaPolicy::per_day("day", 10)]);
        let attack = Plan::new(policies.clone(), alice(), 1);
        let mut calls = Vec::new();
        for number in 0..20_000_u64 {
            world.clock.advance(Duration::from_micros(100));
            let other = PartitionKey::new("user", (number % 1_000).to_be_bytes());
            let other = Plan::new(policies.clone(), Scope::new("world").partition(&other), 5);
            let decision = world.store.decide(other).now_or_never().unwrap().unwrap();
            assert_eq!(decision.outcome(), Outcome::Allowed);
            let instance = &mut world.instances[0];
            instance.guard.settle(&decision, Settlement::refund_all(&decision));
            instance.answers();
            instance.decide(attack.clone());
            if (number + 1) % 10_000 == 0 {
                calls.push(instance.calls());
            }
        }
        assert!(calls[1] - calls[0] <= 60, "{calls:?} with room for {rejection_cache}");
    }
}

#[test]
fn windows_and_logs_under_attack_cost_few_calls_too() {
    for algorithm in [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
    ] {
        let policy = QuotaPolicy::new("window", 50, Duration::from_secs(2)).with_algorithm(algorithm);
        let attack = attack(&policy, 4, Duration::from_micros(500), 6, 64);
        let calls: Vec<usize> = attack.calls.chunks(4).map(|second| second.iter().sum()).collect();
        assert!(calls.iter().sum::<usize>() <= 6 * 4 * 60, "{calls:?} {algorithm:?}");
        // Each window starts within a hold. With the counter, the first is followed by an even flow.
        let least = if algorithm == Algorithm::SlidingWindowCounter {
            50 + 90
        } else {
            150
        };
        assert!(
            (least..=151).contains(&attack.admitted),
            "{} {algorithm:?}",
            attack.admitted
        );
    }
}

#[test]
fn a_flood_of_keys_never_exceeds_the_capacity() {
    for capacity in [1, 7, 2_048] {
        let mut world = World::new(1, Duration::ZERO, capacity);
        let _context = world.runtime.enter();
        let policies = checked([QuotaPolicy::per_hour("hour", 1)]);
        for user in 0..5_000_u32 {
            let user = Scope::new("flood").partition(&PartitionKey::new("user", user.to_be_bytes()));
            for _ in 0..2 {
                world.instances[0].decide(Plan::new(policies.clone(), user, 1));
                world.instances[0].answers();
            }
            world.clock.advance(Duration::from_micros(1));
            let kept: usize = world.instances[0]
                .guard
                .cache
                .shards
                .lock_each()
                .map(|shard| shard.partitions.len())
                .sum();
            assert_eq!(world.instances[0].guard.cache.len.load(Ordering::Relaxed), kept);
            assert!(kept <= capacity, "{kept} of {capacity}");
        }
    }
}

#[test]
fn a_flood_of_keys_that_come_once_does_not_push_out_a_caller_who_goes_on() {
    let mut world = World::new(1, Duration::ZERO, 64);
    let _context = world.runtime.enter();
    let policies = checked([QuotaPolicy::per_hour("hour", 1)]);
    let of = |user| Plan::new(policies.clone(), user, 1);
    let decide = |instance: &mut Instance, plan: Plan| {
        instance.decide(plan);
        instance.answers();
    };
    // A plan for two partitions, because a rejection of one needs no record once it is hot.
    let caller = of(alice()).and(policies.clone(), user("bob"));
    let instance = &mut world.instances[0];
    for _ in 0..2 {
        decide(instance, caller.clone());
    }
    let calls = instance.calls();
    for number in 0..10_000_u32 {
        let flood = Scope::new("flood").partition(&PartitionKey::new("user", number.to_be_bytes()));
        decide(instance, of(flood));
        if number % 1_000 == 0 {
            decide(instance, caller.clone());
        }
        world.clock.advance(Duration::from_micros(10));
    }
    assert_eq!(instance.calls() - calls, 10_000, "only those of the flood");
}

struct Memory {
    clock: Clock,
    store: MemoryStore,
    cache: RejectionCache,
}

impl Memory {
    fn new() -> Self {
        let clock = Clock::manual(World::START);
        let (store, log) = (
            MemoryStore::on(clock.clone()),
            Arc::new(StoreTelemetry::new("test", None)),
        );
        let guarded = GuardedStore::new(Arc::new(store.clone()), clock.clone(), Arc::clone(&log));
        let cache = RejectionCache::new(guarded, 8, clock.clone(), log);
        cache.asked();
        Self { clock, store, cache }
    }

    fn ask(&self, plan: &Plan) -> Decision {
        self.store.decide(plan.clone()).now_or_never().unwrap().unwrap()
    }

    fn learn(&self, decision: &Decision, asked_at: Timestamp) {
        self.cache.learn(decision.measurement().unwrap(), asked_at);
    }

    fn reject(&self, plan: &Plan) {
        while self.ask(plan).outcome() == Outcome::Allowed {}
        self.learn(&self.ask(plan), self.clock.now());
        assert!(self.has_cached(plan));
    }

    fn has_cached(&self, plan: &Plan) -> bool {
        self.cache.reject(plan.clone()).is_ok()
    }

    /// Charges the plan, and returns `true` if the store seems to have lost what was charged before.
    fn has_lost(&self, plan: &Plan) -> bool {
        let charged = self.ask(plan);
        assert_eq!(charged.outcome(), Outcome::Allowed);
        let measurement = charged.measurement().unwrap();
        let (part, charges) = (measurement.plan().only_part().unwrap(), measurement.measured_charges());
        let (charges, now) = (charges.collect::<Vec<_>>(), self.clock.now());
        let answer = Answer::of(part, &charges, true, now, now);
        let learn = |record: &mut Record| record.learn(answer, true, true, now);
        self.cache
            .shards
            .lock(part.partition())
            .learn(part.partition(), now, learn)
    }
}

fn user(name: &str) -> PartitionId {
    Scope::new("world").partition(&PartitionKey::new("user", name))
}

#[test]
fn an_answer_that_was_overtaken_takes_nothing_from_what_is_known() {
    let memory = Memory::new();
    let plan = Plan::new(checked([QuotaPolicy::per_day("day", 5)]), alice(), 1);
    let (asked_at, overtaken) = (memory.clock.now(), memory.ask(&plan));
    memory.clock.advance(Duration::from_micros(1));
    memory.reject(&plan);
    memory.learn(&overtaken, asked_at);
    assert!(memory.has_cached(&plan));
}

#[test]
fn an_answer_to_a_call_before_a_refund_is_not_cached() {
    let memory = Memory::new();
    let plan = Plan::new(checked([QuotaPolicy::per_day("day", 1)]), alice(), 1);
    memory.reject(&plan);
    memory.cache.forget(alice());
    let rejected = memory.ask(&plan);
    memory.learn(&rejected, memory.clock.now());
    assert!(!memory.has_cached(&plan));
    memory.clock.advance(Duration::from_micros(1));
    memory.learn(&rejected, memory.clock.now());
    assert!(memory.has_cached(&plan));
}

#[test]
fn a_refund_to_several_is_seen_by_all_of_them() {
    let memory = Memory::new();
    let policies = checked([QuotaPolicy::per_day("day", 2)]);
    let both = Plan::new(policies.clone(), alice(), 1).and(policies.clone(), user("bob"));
    let charged = memory.ask(&both);
    let own = [alice(), user("bob")].map(|user| Plan::new(policies.clone(), user, 1));
    own.iter().for_each(|plan| memory.reject(plan));
    drop(memory.cache.settle(Settlement::refund_all(&charged)));
    assert!(own.iter().all(|plan| !memory.has_cached(plan)));
}

#[test]
fn a_late_charge_does_not_hide_that_the_store_has_lost_the_state() {
    let memory = Memory::new();
    let plan = Plan::new(checked([QuotaPolicy::per_day("day", 1)]), alice(), 1);
    let charged = memory.ask(&plan);
    memory.learn(&charged, memory.clock.now());
    memory.clock.advance(Duration::from_micros(1));
    drop(memory.cache.settle(Settlement::new(&charged, 2)));
    assert!(!memory.has_cached(&plan));
    memory.store.reset(plan.clone()).now_or_never().unwrap().unwrap();
    assert!(memory.has_lost(&plan));
}

/// The next charge begins anew, as it does after a loss.
#[test]
fn a_refund_of_all_that_was_used_is_no_lost_state() {
    let memory = Memory::new();
    let plan = Plan::new(checked([QuotaPolicy::per_day("day", 1)]), alice(), 1);
    let charged = memory.ask(&plan);
    memory.learn(&charged, memory.clock.now());
    memory.clock.advance(Duration::from_micros(1));
    drop(memory.cache.settle(Settlement::refund_all(&charged)));
    assert!(!memory.has_lost(&plan));
}

/// The charge under other rules empties the state earlier.
#[test]
fn a_change_of_the_rules_during_a_settlement_is_no_lost_state() {
    let memory = Memory::new();
    let plan = |policy| Plan::new(checked([policy]), alice(), 1);
    let (own, other) = (
        plan(QuotaPolicy::per_day("hits", 1)),
        plan(QuotaPolicy::per_second("hits", 5)),
    );
    let charged = memory.ask(&own);
    memory.learn(&charged, memory.clock.now());
    memory.clock.advance(Duration::from_micros(1));
    let (asked_at, under_other) = (memory.clock.now(), memory.ask(&other));
    assert_eq!(under_other.outcome(), Outcome::Allowed);
    drop(memory.cache.settle(Settlement::new(&charged, 2)));
    memory.learn(&under_other, asked_at);
    memory.clock.advance(Duration::from_secs(3));
    assert!(!memory.has_lost(&own));
}

/// The test holds the lock, so waiting for it would deadlock.
#[test]
fn a_key_that_goes_on_is_rejected_without_a_lock_until_something_changes() {
    let memory = Memory::new();
    let plan = Plan::new(checked([QuotaPolicy::per_day("day", 2)]), alice(), 1);
    let charged = memory.ask(&plan);
    memory.reject(&plan);
    let first = memory.cache.reject(plan.clone()).unwrap();
    let lock = memory.cache.shards.lock(alice());
    memory.clock.advance(Duration::from_micros(5));
    let later = memory.cache.reject(plan.clone()).unwrap();
    drop(lock);
    assert!(later.is_cached());
    let wait = |decision: &Decision| decision.retry_after().unwrap();
    assert_eq!(wait(&first) - wait(&later), Duration::from_micros(5));

    drop(memory.cache.settle(Settlement::refund_all(&charged)));
    assert!(!memory.has_cached(&plan));
}

#[test]
fn keys_that_share_a_place_are_all_rejected_and_a_refund_ends_that_for_its_own_alone() {
    let memory = Memory::new();
    let policies = checked([QuotaPolicy::per_day("day", 1)]);
    let plan = |user| Plan::new(policies.clone(), user, 1);
    let place = |user| memory.cache.shards.hash(user) as usize % hot::HotPartitions::PLACES;
    let mut others = (0..).map(|number: u32| user(&number.to_string()));
    let other = others.find(|other| place(*other) == place(alice())).unwrap();
    for user in [alice(), other] {
        memory.reject(&plan(user));
        assert!(memory.has_cached(&plan(user)));
    }
    // When the records in it have expired, the place is free again.
    memory.clock.advance(answer::LIFE);
    assert!(!memory.has_cached(&plan(other)));
    for user in [other, alice()] {
        memory.reject(&plan(user));
    }
    let lock = memory.cache.shards.lock(other);
    assert!(memory.has_cached(&plan(other)));
    drop(lock);
    memory.cache.forget(other);
    assert!(memory.has_cached(&plan(alice())) && !memory.has_cached(&plan(other)));
    memory.cache.forget(alice());
    assert!(!memory.has_cached(&plan(alice())));
}

#[test]
fn of_one_partition_few_answers_are_cached() {
    let memory = Memory::new();
    for number in 1..=40 {
        let plan = Plan::new(checked([QuotaPolicy::per_day("day", number)]), alice(), 41);
        memory.learn(&memory.ask(&plan), memory.clock.now());
    }
    let cached = |memory: &Memory| {
        let mut shard = memory.cache.shards.lock(alice());
        shard.partitions.get_mut(alice()).map_or(0, |record| record.len())
    };
    assert_eq!(cached(&memory), Record::MAX_ANSWERS);
    memory.clock.advance(answer::LIFE);
    memory.reject(&Plan::new(checked([QuotaPolicy::per_day("other", 1)]), alice(), 1));
    assert_eq!(cached(&memory), 1);
}

#[test]
fn after_a_clock_was_set_back_nothing_is_cached_from_the_time_to_come() {
    let memory = Memory::new();
    let plan = Plan::new(checked([QuotaPolicy::per_day("day", 1)]), alice(), 1);
    memory.reject(&plan);
    memory.clock.set(Timestamp::from_micros(World::START.as_micros() - 1));
    assert!(!memory.has_cached(&plan));
}

#[test]
fn a_cached_rejection_waits_as_long_as_the_store_does_after_a_step_back() {
    for (back, algorithm) in [0, 1, 700_000, 2_000_000, 5_000_000].into_iter().flat_map(|back| {
        [
            Algorithm::TokenBucket,
            Algorithm::FixedWindow,
            Algorithm::SlidingWindowCounter,
            Algorithm::SlidingWindowLog,
        ]
        .map(|algorithm| (back, algorithm))
    }) {
        let memory = Memory::new();
        let policy = QuotaPolicy::new("two", 2, Duration::from_secs(2)).with_algorithm(algorithm);
        let plan = Plan::new(checked([policy]), alice(), 1);
        while memory.ask(&plan).outcome() == Outcome::Allowed {}
        let moved = memory.clock.now().as_micros() - back;
        memory.clock.set(Timestamp::from_micros(moved));
        memory.reject(&plan);
        for _ in 0..8 {
            let (store, cached) = (memory.ask(&plan), memory.cache.reject(plan.clone()).ok());
            let cached = cached.expect("it is not a second old");
            assert_eq!(cached.retry_after(), store.retry_after(), "{algorithm:?}, {back}");
            assert_eq!(cached.now(), store.now());
            memory.clock.advance(Duration::from_millis(100));
        }
    }
}

/// L15
#[test]
fn when_a_rejection_is_nearly_a_second_old_one_request_asks_and_the_others_do_not_wait_for_it() {
    let mut world = World::new(1, Duration::from_micros(500), 64);
    let _context = world.runtime.enter();
    let plan = Plan::new(checked([QuotaPolicy::per_day("day", 1)]), alice(), 1);
    world.instances[0].decide(plan.clone());
    for _ in 0..2 {
        world.clock.advance(Duration::from_micros(500));
        world.instances[0].answers = world.instances[0].answers();
    }
    let before = world.instances[0].calls();
    world.clock.advance(Duration::from_millis(900));
    let asked = (0..100)
        .filter(|_| world.instances[0].decide(plan.clone()).is_none())
        .count();
    assert_eq!((asked, world.instances[0].calls() - before), (1, 1));
}

/// The rustdoc of the setting promises 7 MB for 16,384 partitions with one policy.
#[test]
fn a_partition_takes_less_than_360_bytes() {
    // The map stores a hash per entry, and an index that is at least half full.
    let bytes = size_of::<(PartitionId, Record)>() + 8 + 2 * 9;
    assert!(bytes <= 360, "{bytes}");
    let moments = Shard::MOMENTS * size_of::<Option<Timestamp>>();
    assert!(bytes * GuardConfig::default().rejection_cache + moments <= 7_000_000);
}

#[derive(Clone, Debug)]
struct Step {
    after: Duration,
    instance: usize,
    deed: Deed,
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Request(u64),
    /// Settles the instance's oldest open charge at this cost.
    Settle(u64),
    Reset,
}

fn step(random: &mut Sequence) -> Step {
    let after = random.any_of(&[0..1, 1..200, 1..20_000, 1..400_000]);
    Step {
        after: Duration::from_micros(random.within(after)),
        instance: random.below(2),
        deed: match random.below(24) {
            0 => Deed::Reset,
            1 => Deed::Settle(random.within(0..9)),
            2 | 3 => Deed::Request(random.within(4..14)),
            _ => Deed::Request(random.within(0..5)),
        },
    }
}

fn policy(name: &'static str, random: &mut Sequence) -> QuotaPolicy {
    let algorithm = random.any_of(&[
        Algorithm::TokenBucket,
        Algorithm::StrictTokenBucket,
        Algorithm::LeakyBucketMeter,
        Algorithm::LeakyBucketQueue { max_waiting: 2 },
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
    ]);
    let (quota, seconds) = (random.within(1..12), random.within(1..4));
    let policy = QuotaPolicy::new(name, quota, Duration::from_secs(seconds)).with_algorithm(algorithm);
    let policy = match random.below(6) {
        0 => QuotaPolicy::concurrent(name, quota),
        1 => policy.shadow(),
        // The capacity plus the refill must never exceed the quota.
        _ if algorithm == Algorithm::StrictTokenBucket => policy.with_burst_capacity(quota.div_ceil(2)),
        _ => policy,
    };
    match random.below(6) {
        0 => policy.with_lockout(Duration::from_secs(random.within(1..5))),
        1 => policy.with_initial_units(random.within(0..quota)),
        _ => policy,
    }
}

fn policies(random: &mut Sequence) -> PolicySet {
    loop {
        let count = random.below(3) + 1;
        let policies = ["a", "b", "c"].into_iter().take(count).map(|name| policy(name, random));
        // Not every policy can have every setting.
        if let Ok(policies) = PolicySet::new(policies.collect::<Vec<_>>()) {
            return policies;
        }
    }
}

/// Determines which rejections are excused.
#[derive(Default)]
struct Watched {
    last_sent: Option<Timestamp>,
    last_rejection: Option<Timestamp>,
    last_loss: Option<Timestamp>,
    open: VecDeque<Decision>,
}

impl Watched {
    fn note(&mut self, decision: Decision, now: Timestamp) {
        match decision.outcome() {
            Outcome::Rejected => self.last_rejection = Some(now),
            _ => self.open.push_back(decision),
        }
    }
}

fn within(moment: Option<Timestamp>, now: Timestamp, millis: u64) -> bool {
    moment.is_some_and(|moment| now.micros_since(moment) < millis * 1_000)
}

fn compare(world: &World, watched: &Watched, plan: &Plan, cached: &Decision) {
    let now = world.clock.now();
    assert!(cached.violated().count() > 0);
    assert!(cached.allowances().all(|own| is_eligible(own.policy())));
    let mut waiting = cached.allowances().filter(|own| own.retry_after().is_some());
    assert!(waiting.all(|own| own.remaining() == 0));
    assert!(cached.admitted().is_none() && Settlement::refund_all(cached).is_empty());
    assert!(within(watched.last_sent, now, 1_000), "cached for more than a second");

    let truth = world.store.peek(plan.clone()).now_or_never().unwrap().unwrap();
    let left = |name: &str| truth.allowances().find(|left| left.policy().name() == name).unwrap();
    let would_reject = |own: &crate::Allowance<'_>| left(own.policy().name()).remaining() < own.cost();
    let is_held = within(watched.last_sent, now, 20) || within(watched.last_rejection, now, 20);
    if cached.violated().any(|own| !would_reject(&own)) {
        assert!(
            is_held || within(watched.last_loss, now, 1_000),
            "rejected what the store would allow: {cached:?} {truth:?}"
        );
        return;
    }
    // The store rejects it as well, so this call changes nothing.
    let rejected = world.store.decide(plan.clone()).now_or_never().unwrap().unwrap();
    if world.instances.len() == 1 && !is_held && !within(watched.last_loss, now, 1_000) {
        compare_all(cached, &rejected);
    }
    for own in cached.violated() {
        let said = rejected
            .violated()
            .find(|said| said.policy().name() == own.policy().name())
            .unwrap();
        assert_eq!(own.retry_after().is_some(), said.retry_after().is_some());
        let is_log = own.policy().algorithm() == Algorithm::SlidingWindowLog;
        if !is_held && !is_log && !within(watched.last_loss, now, 1_000) {
            assert!(own.retry_after() <= said.retry_after(), "{own:?} {said:?}");
        }
    }
}

/// No other instance has charged units that this one has not seen, so the policies, waits and, if no wait helps, the
/// remaining units are equal.
fn compare_all(cached: &Decision, rejected: &Decision) {
    let said = || rejected.violated().filter(|said| is_eligible(said.policy()));
    assert!(
        cached.violated().map(name).eq(said().map(name)),
        "{cached:?} {rejected:?}"
    );
    for (own, said) in cached
        .violated()
        .zip(said())
        .filter(|(own, _)| own.retry_after().is_none())
    {
        match own.policy().algorithm() {
            // It is unknown when each unit of a log is restored.
            Algorithm::SlidingWindowLog => assert!(own.remaining() <= said.remaining(), "{own:?} {said:?}"),
            _ => assert_eq!(own.left(), said.left(), "{own:?} {said:?}"),
        }
    }
    let said = said().map(|said| said.retry_after());
    let said = said.reduce(|a, b| Some(a?.max(b?))).flatten();
    let told = cached.retry_after();
    let is_enough = told.is_none_or(|told| said.is_some_and(|said| said <= told));
    assert!(is_enough, "{cached:?} {rejected:?}");
}

fn name<'a>(allowance: crate::Allowance<'a>) -> &'a str {
    allowance.policy().name()
}

fn is_eligible(policy: &QuotaPolicy) -> bool {
    let is_queue = matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. });
    !policy.is_shadow() && policy.window().is_some() && !is_queue
}

fn live(policies: &PolicySet, steps: Vec<Step>, one_way: Duration, instances: usize) {
    let mut world = World::new(instances, one_way, 8);
    let handle = world.runtime.handle().clone();
    let _context = handle.enter();
    let mut watched = [Watched::default(), Watched::default()];
    for Step { after, instance, deed } in steps {
        world.clock.advance(after);
        let now = world.clock.now();
        for (instance, watched) in world.instances.iter_mut().zip(&mut watched) {
            instance
                .answers()
                .into_iter()
                .for_each(|answer| watched.note(answer, now));
        }
        let (own, other, mut is_changed) = (instance % instances, (1 - instance) % instances, false);
        match deed {
            Deed::Request(cost) => {
                let plan = Plan::new(policies.clone(), alice(), cost);
                match world.instances[own].decide(plan.clone()) {
                    Some(cached) => compare(&world, &watched[own], &plan, &cached),
                    None => watched[own].last_sent = Some(now),
                }
            }
            Deed::Settle(actual_cost) => {
                if let Some(decision) = watched[own].open.pop_front() {
                    let settlement = Settlement::new(&decision, actual_cost);
                    world.instances[own].guard.settle(&decision, settlement);
                    is_changed = true;
                }
            }
            Deed::Reset => {
                let plan = Plan::new(policies.clone(), alice(), 1);
                let reset = world.instances[own].guard.reset(plan).now_or_never();
                assert!(matches!(reset, Some(Ok::<(), StoreError>(()))));
                is_changed = true;
            }
        }
        if is_changed && other != own {
            watched[other].last_loss = Some(now);
        }
    }
}

/// Except for holds, and for a second after another instance's refund.
#[test]
fn what_is_rejected_from_memory_would_be_rejected_by_the_store() {
    for_many(1_500, |random| {
        let policies = policies(random);
        let one_way = random.any_of(&[0..1, 1..3_000]);
        let one_way = Duration::from_micros(random.within(one_way));
        live(&policies, random.list(1..120, step), one_way, 2);
    });
}

/// L4
#[test]
fn a_rejection_from_memory_names_all_policies_that_reject_and_the_longest_wait() {
    for_many(1_000, |random| {
        let policies = policies(random);
        live(&policies, random.list(1..120, step), Duration::ZERO, 1);
    });
}

/// Regression: `Retry-After` covered only the minute, although the day would also reject the charge.
#[test]
fn a_larger_charge_than_the_one_that_was_rejected_waits_for_every_policy_that_rejects_it() {
    let memory = Memory::new();
    let policies = checked([QuotaPolicy::per_minute("minute", 3), QuotaPolicy::per_day("day", 4)]);
    let of = |cost| Plan::new(policies.clone(), alice(), cost);
    for _ in 0..3 {
        let charged = memory.ask(&of(1));
        memory.learn(&charged, memory.clock.now());
    }
    assert_eq!(memory.cache.reject(of(1)).unwrap().violated().count(), 1);
    assert!(!memory.has_cached(&of(3)), "the day may reject it, too");

    let rejected = memory.ask(&of(3));
    memory.learn(&rejected, memory.clock.now());
    for cost in [1, 2, 3] {
        let (cached, stored) = (memory.cache.reject(of(cost)).unwrap(), memory.ask(&of(cost)));
        assert_eq!(cached.retry_after(), stored.retry_after(), "{cost}");
        assert_eq!(cached.violated().count(), stored.violated().count(), "{cost}");
    }
}

#[test]
fn a_charge_above_a_capacity_never_passes_whatever_else_rejects_it() {
    let memory = Memory::new();
    let policies = checked([
        QuotaPolicy::per_second("second", 3),
        QuotaPolicy::per_minute("minute", 4),
    ]);
    let of = |cost| Plan::new(policies.clone(), alice(), cost);
    memory.ask(&of(3));
    memory.clock.advance(Duration::from_secs(1));
    memory.reject(&of(1));
    assert!(!memory.has_cached(&of(4)));
    let never = memory.ask(&of(4));
    memory.learn(&never, memory.clock.now());
    assert_eq!(
        (never.retry_after(), memory.cache.reject(of(4)).unwrap().retry_after()),
        (None, None)
    );
    assert!(memory.cache.reject(of(1)).unwrap().retry_after().is_some());
}
