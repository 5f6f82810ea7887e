//! Rules that are replaced every 50 ms under load: no request is rejected that both the old and the new rules let pass,
//! and what was used stays counted, also while other instances keep the old rules.

#![allow(clippy::disallowed_methods, reason = "a server does not follow virtual time")]

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use test_kit::{RemoteStore, limits, limits_of, load::ask, load::outcome, load::until, memory};
use tokio::{task::JoinSet, time::sleep};
use tower_quota::{
    Access, AccessList, Algorithm, Limiter, MemoryStore, Outcome, PartitionKey, QuotaPolicy, RateLimitLayer,
    RateLimitLayerBuilder, Rules, RulesHandle, Scope, Store, Tiers,
    clock::{Clock, Timestamp},
    key,
};

use super::shared_store;
use super::support::{START, plan, remaining};

const RELOADS: u64 = 600;
const PAUSE: Duration = Duration::from_millis(50);
const USER: &str = "alice";

/// So long that no unit comes back and no window ends while a test runs.
const AGE: Duration = Duration::from_secs(1_000_000_000);

fn counted(name: &str, quota: u64, algorithm: Algorithm) -> QuotaPolicy {
    QuotaPolicy::new(name.to_owned(), quota, AGE).with_algorithm(algorithm)
}

fn rules(policies: impl IntoIterator<Item = QuotaPolicy>) -> Rules {
    policies.into_iter().fold(Rules::new(), Rules::policy)
}

/// The policies of rules number n.
type PoliciesOf = fn(u64) -> Vec<QuotaPolicy>;

/// Quotas that rise over time, in steps up and down, and always below the demand.
mod greedy {
    use super::{Algorithm, QuotaPolicy, counted};

    pub(super) fn quota(number: u64) -> u64 {
        100 + 2 * number + 20 * (number % 2)
    }

    /// Two of them reject; the others come and go.
    pub(super) fn policies(number: u64) -> Vec<QuotaPolicy> {
        let window = counted("window", quota(number), Algorithm::FixedWindow);
        let bucket = counted("bucket", quota(number) + number % 3, Algorithm::TokenBucket);
        let guest = counted("guest", 5_000 + number % 7, Algorithm::StrictTokenBucket);
        let counter = counted("counter", 5_000 + number % 7, Algorithm::SlidingWindowCounter);
        let log = counted("log", 5_000 + number % 7, Algorithm::SlidingWindowLog);
        match number % 3 {
            0 => vec![bucket, window],
            1 => vec![counter, window, log, bucket, guest],
            _ => vec![window, guest, bucket],
        }
    }
}

/// Quotas that no caller ever uses up.
fn ample(number: u64) -> Vec<QuotaPolicy> {
    vec![
        counted("window", 1_000_000 + number % 5, Algorithm::FixedWindow),
        QuotaPolicy::concurrent("slots", 1_000 + number % 3),
    ]
}

fn batches(number: u64) -> Vec<QuotaPolicy> {
    let window = counted("window", 1_000_000 + number % 5, Algorithm::FixedWindow);
    vec![window.with_prefetch(10 + number % 4)]
}

/// One process: its own store, its own memory of rejections, its own batches.
struct Instance {
    layer: RateLimitLayer,
    /// The newest rules that may apply by now, and the newest that certainly apply.
    announced: AtomicU64,
    applied: AtomicU64,
}

impl Instance {
    fn new(scope: &str, policies: PoliciesOf, number: u64) -> Self {
        let layer = limits(shared_store().build().unwrap()).scope(scope);
        let layer = layer.rules(rules(policies(number)));
        Self {
            layer: layer.build().unwrap(),
            announced: AtomicU64::new(number),
            applied: AtomicU64::new(number),
        }
    }

    fn replace(&self, handle: &RulesHandle, policies: PoliciesOf, number: u64) {
        self.announced.store(number, SeqCst);
        handle.replace(rules(policies(number))).unwrap();
        self.applied.store(number, SeqCst);
    }
}

/// Several instances on one Redis, of which the first keeps the rules that it was started with.
struct Service {
    scope: String,
    policies: PoliciesOf,
    instances: Vec<Instance>,
    begun: AtomicU64,
    rejected: AtomicU64,
    /// The number of requests that each policy has let through.
    charged: Mutex<BTreeMap<String, u64>>,
    /// The lowest quota by which a request may have been rejected under any of these rules.
    lowest: fn(RangeInclusive<u64>) -> u64,
    is_over: AtomicBool,
}

impl Service {
    fn start(name: &str, policies: PoliciesOf, lowest: fn(RangeInclusive<u64>) -> u64) -> Arc<Self> {
        let scope = format!("reloads {name}");
        // The oldest have the rules of the middle: at first more than the others allow, later less.
        let instances = [RELOADS / 2, 0, 0].map(|number| Instance::new(&scope, policies, number));
        Arc::new(Self {
            scope,
            policies,
            instances: instances.into(),
            begun: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            charged: Mutex::default(),
            lowest,
            is_over: AtomicBool::new(false),
        })
    }

    /// One request. A rejected one has met a quota that others may have used up.
    async fn request(&self, instance: &Instance) -> bool {
        let first = instance.applied.load(SeqCst);
        self.begun.fetch_add(1, SeqCst);
        let decision = ask(&instance.layer, USER).await;
        // In this order, so that too many are taken for others that may have been charged, never too few.
        let rejected = self.rejected.load(SeqCst);
        let others = self.begun.load(SeqCst) - 1 - rejected;
        let last = instance.announced.load(SeqCst);
        match decision.outcome() {
            Outcome::Allowed => {
                let mut charged = self.charged.lock().unwrap();
                for allowance in decision.allowances() {
                    *charged.entry(allowance.policy().name().to_owned()).or_default() += 1;
                }
                true
            }
            Outcome::Rejected => {
                let lowest = (self.lowest)(first..=last);
                assert!(
                    others >= lowest,
                    "{}: rejected by rules {first} to {last}, which let {lowest} pass, after at most {others}",
                    self.scope
                );
                self.rejected.fetch_add(1, SeqCst);
                false
            }
            outcome => panic!("{outcome:?}"),
        }
    }

    /// Requests without end to one of the instances.
    async fn send(self: Arc<Self>, instance: usize) {
        while !self.is_over.load(SeqCst) {
            self.request(&self.instances[instance]).await;
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// New rules every 50 ms, which the last instance has one step later.
    async fn reload(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(PAUSE);
        let handles: Vec<_> = self
            .instances
            .iter()
            .map(|instance| instance.layer.limiter().rules())
            .collect();
        for number in 1..=RELOADS {
            ticks.tick().await;
            self.instances[1].replace(&handles[1], self.policies, number);
            self.instances[2].replace(&handles[2], self.policies, number - 1);
        }
        self.is_over.store(true, SeqCst);
    }

    /// Runs to the end, and returns how many requests were let through.
    async fn run(self: &Arc<Self>) -> u64 {
        let mut tasks = JoinSet::new();
        for instance in [0, 1, 1, 2, 2] {
            tasks.spawn(Arc::clone(self).send(instance));
        }
        tasks.spawn(Arc::clone(self).reload());
        tasks.join_all().await;
        self.begun.load(SeqCst) - self.rejected.load(SeqCst)
    }

    /// The counts in Redis, read by a store that has nothing to do with the layers.
    async fn used(&self) -> BTreeMap<String, u64> {
        let user = Scope::new(&self.scope).partition(&PartitionKey::new("x-user-id", USER));
        let plan = plan((self.policies)(RELOADS + 1), user, 1);
        let decision = shared_store().build().unwrap().peek(plan).await.unwrap();
        let used = decision.allowances().map(|allowance| {
            let policy = allowance.policy();
            (
                policy.name().to_owned(),
                policy.burst_capacity() - allowance.remaining(),
            )
        });
        used.collect()
    }
}

/// Every quota is met over and over: each rejection is remembered, and must be forgotten with the rules it belongs to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn for_30_seconds_nobody_is_rejected_whom_old_and_new_rules_let_pass_and_no_counter_is_lost() {
    let lowest = |numbers: RangeInclusive<u64>| numbers.map(greedy::quota).min().unwrap();
    let never = |_: RangeInclusive<u64>| 1_000_000;
    let greedy = Service::start("greedy", greedy::policies, lowest);
    let ample = Service::start("ample", self::ample, never);
    let batches = Service::start("batches", self::batches, never);
    let (allowed, passed, from_batches) = tokio::join!(greedy.run(), ample.run(), batches.run());

    // Quotas were met again and again.
    assert!(greedy.rejected.load(SeqCst) > RELOADS);
    let mut allowed = allowed;
    let number = RELOADS + 1;
    let last = &greedy.instances[1];
    last.replace(&last.layer.limiter().rules(), greedy.policies, number);
    while greedy.request(last).await {
        allowed += 1;
    }
    // All that the last rules let pass, and no more.
    assert_eq!(allowed, greedy::quota(number));
    assert_eq!(greedy.used().await, *greedy.charged.lock().unwrap());
    assert_eq!(greedy.charged.lock().unwrap().len(), 5);

    assert!(passed > RELOADS && from_batches > RELOADS, "{passed} {from_batches}");
    let expected = [("slots".to_owned(), 0), ("window".to_owned(), passed)].into();
    until("all slots are given back", async || ample.used().await == expected).await;
    // The unspent remainder of a batch is refunded within a second.
    let expected = [("window".to_owned(), from_batches)].into();
    until("all batches are given back", async || batches.used().await == expected).await;
}

/// Low rates and higher ones, some of them twice in a row.
fn rates(number: u64) -> Vec<QuotaPolicy> {
    let quota = [20, 60, 61, 200, 200, 90, 20][(number % 7) as usize];
    let second = QuotaPolicy::per_second("second", quota);
    let window = QuotaPolicy::per_second("window", quota + 5).with_algorithm(Algorithm::FixedWindow);
    let counter = QuotaPolicy::per_second("counter", quota + 9).with_algorithm(Algorithm::SlidingWindowCounter);
    match number % 2 {
        0 => vec![second, window],
        _ => vec![counter, second],
    }
}

/// A layer that caches the rejections of this store.
fn in_memory(store: &MemoryStore, clock: &Clock) -> RateLimitLayerBuilder {
    limits_of(Limiter::builder(RemoteStore::<1>(store.clone())).clock(clock.clone()))
}

/// Two instances in virtual time, one of which gets new rules every 50 ms. Before each request, the store is read to
/// find out whether the current and the previous rules would admit the request.
struct Rehearsal {
    clock: Clock,
    store: MemoryStore,
    /// The instance with the old rules, and the one with the new ones.
    layers: [RateLimitLayer; 2],
    /// The time since which every reading has shown that both rules admit a request.
    both_since: Option<Timestamp>,
    /// The requests that have passed, that both rules rejected, and that one of them rejected.
    seen: [u64; 3],
}

impl Rehearsal {
    /// The delay after a rejection until units that have come back by themselves are seen.
    const HOLD: Duration = Duration::from_millis(40);
    const STEP: Duration = Duration::from_millis(5);

    fn new() -> Self {
        let clock = Clock::manual(START);
        let store = memory(&clock);
        let layer = |_| in_memory(&store, &clock).rules(rules(rates(0))).build().unwrap();
        Self {
            layers: [0, 1].map(layer),
            clock,
            store,
            both_since: None,
            seen: [0; 3],
        }
    }

    async fn lets_pass(&self, number: u64) -> bool {
        let user = Scope::new("test").partition(&PartitionKey::new("x-user-id", USER));
        let decision = self.store.peek(plan(rates(number), user, 1)).await.unwrap();
        remaining(&decision).iter().all(|left| *left > 0)
    }

    /// A request to the instance with rules of this number, which were put in the place of those before.
    async fn request(&mut self, number: u64) {
        let (old, new) = (self.lets_pass(number - 1).await, self.lets_pass(number).await);
        let now = self.clock.now();
        self.both_since = (old && new).then(|| self.both_since.unwrap_or(now));
        let is_allowed = outcome(&self.layers[1], USER).await == Outcome::Allowed;
        assert!(new || !is_allowed, "rules {number} had nothing left");
        let since = self.both_since.filter(|_| !is_allowed);
        assert!(
            since.is_none_or(|since| now < since.saturating_add(Self::HOLD)),
            "rules {number} and those before let it pass since {since:?}, and it was rejected at {now:?}"
        );
        self.seen[if is_allowed { 0 } else { 1 + usize::from(old || new) }] += 1;
    }

    /// 50 ms.
    async fn turn(&mut self, number: u64) {
        self.layers[1].limiter().rules().replace(rules(rates(number))).unwrap();
        for step in 0..10 {
            for _ in 0..1 + (number + step) % 3 {
                self.request(number).await;
            }
            if step % 4 == 0 {
                outcome(&self.layers[0], USER).await;
            }
            self.clock.advance(Self::STEP);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_30_seconds_of_virtual_time_no_request_is_rejected_that_old_and_new_rules_let_pass() {
    let mut rehearsal = Rehearsal::new();
    for number in 1..=RELOADS {
        rehearsal.turn(number).await;
    }
    assert!(rehearsal.seen.iter().all(|seen| *seen > 100), "{:?}", rehearsal.seen);
}

/// Rejections are cached, but only for the rules and the caller that they apply to.
#[tokio::test(start_paused = true)]
async fn what_administrators_do_takes_effect_at_once_although_rejections_are_remembered() {
    let clock = Clock::manual(START);
    let hour = |quota| rules([QuotaPolicy::per_hour("hour", quota)]);
    let access = AccessList::new(key::client_ip());
    let layer = in_memory(&memory(&clock), &clock)
        .rules(hour(2))
        .access_list(access.clone());
    let layer = layer.build().unwrap();
    let (admin, handle) = (layer.limiter(), layer.limiter().rules());
    let alice = PartitionKey::new("x-user-id", USER);
    // Exactly `count` requests pass. The next two are rejected, the second of them from the cache.
    let assert_passes = async |count: usize| {
        for _ in 0..count {
            assert_eq!(outcome(&layer, USER).await, Outcome::Allowed);
        }
        for _ in 0..2 {
            assert_eq!(outcome(&layer, USER).await, Outcome::Rejected);
        }
    };
    assert_passes(2).await;
    handle.replace(hour(3)).unwrap();
    assert_passes(1).await;
    admin.caller(&alice).reset().await.unwrap();
    assert_passes(3).await;
    handle.roll_out(100, hour(7)).unwrap();
    assert_passes(4).await;
    admin.caller(&alice).reset().await.unwrap();
    assert_passes(7).await;
    let set = |entry| access.update(|rules| rules.set_key(alice.clone(), entry)).unwrap();
    set(Access::Allow);
    assert_eq!(ask(&layer, USER).await.outcome(), Outcome::Unlimited);
    set(Access::Limit);
    assert_passes(0).await;
    handle.disable();
    assert_eq!(ask(&layer, USER).await.outcome(), Outcome::Unlimited);
    handle.enable();
    assert_passes(0).await;
    handle.replace(hour(9)).unwrap();
    assert_passes(2).await;
}

/// In Redis each log is a separate key, which only its own policies name.
#[tokio::test]
async fn a_reset_forgets_the_logs_of_all_tiers_and_of_the_rules_that_are_tried() {
    let store = shared_store().build().unwrap();
    let log = |name| QuotaPolicy::per_day(name, 50).with_algorithm(Algorithm::SlidingWindowLog);
    let of = |names: [&'static str; 2]| {
        let [first, second] = names.map(|name| [log(name)]);
        Rules::new().tier("free", first).tier("premium", second)
    };
    let layer = limits(store.clone())
        .scope("resets")
        .tiers(Tiers::from_fn(|_| Some("premium")))
        .rules(of(["free log", "premium log"]))
        .build()
        .unwrap();
    let user = Scope::new("resets").partition(&PartitionKey::new("x-user-id", USER));
    let left = async |name| remaining(&store.peek(plan([log(name)], user, 1)).await.unwrap());
    ask(&layer, USER).await;
    let admin = layer.limiter();
    admin.rules().roll_out(100, of(["other log", "tried log"])).unwrap();
    ask(&layer, USER).await;
    assert_eq!([left("premium log").await, left("tried log").await], [[49], [49]]);
    admin
        .caller(&PartitionKey::new("x-user-id", USER))
        .reset()
        .await
        .unwrap();
    assert_eq!([left("premium log").await, left("tried log").await], [[50], [50]]);
}
