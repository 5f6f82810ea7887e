//! Charges of callers for work that is done, in memory and in Redis.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use proptest::{prelude::*, sample::select};
use test_kit::{RedisServer, memory};
use tower_quota::{
    Access, AccessList, Algorithm, Availability, Caller, ChargeTime, Direction, FailureMode, LateCharge,
    LateChargeOutcome::{self, Capped, Charged, Duplicate, NotApplicable},
    Limiter, LimiterBuilder, LimiterError, MemoryStore, Outcome, QuotaPolicy, RedisStore, Refund, RefundOutcome, Rules,
    Store, StoreErrorKind, ToPartitionKey,
    clock::Clock,
    key,
    test_util::{Answer, ScriptedStore},
};

use super::support::{HANG, START, for_any, fresh_scope, left, redis, shared_cluster_store};

const QUOTA: u64 = 10;
/// The window, at whose beginning the tests start.
const SECONDS: u64 = 10;
/// The quota of a reader that sees the used units.
const WIDE: u64 = 1_000;

/// A store and a scope that no other test uses.
struct Place {
    store: Arc<dyn Store>,
    clock: Clock,
    scope: String,
}

impl Place {
    fn new(store: fn(&Clock) -> Arc<dyn Store>) -> Self {
        let clock = Clock::manual(START);
        Self {
            store: store(&clock),
            clock,
            scope: fresh_scope(),
        }
    }

    fn in_memory() -> Self {
        Self::new(|clock| Arc::new(memory(clock)))
    }

    fn on_a_server() -> Self {
        Self::new(|clock| Arc::new(redis(clock)))
    }

    fn on_a_cluster() -> Self {
        Self::new(|clock| Arc::new(shared_cluster_store().clock(clock.clone()).build().unwrap()))
    }

    fn all() -> [Self; 3] {
        [Self::in_memory(), Self::on_a_server(), Self::on_a_cluster()]
    }

    fn builder(&self) -> LimiterBuilder {
        Limiter::builder(Arc::clone(&self.store))
            .scope(&self.scope)
            .deadline(HANG)
            .clock(self.clock.clone())
    }

    fn alice(&self, policy: QuotaPolicy) -> Caller {
        self.limiter([policy]).caller("alice")
    }

    fn limiter(&self, policies: impl IntoIterator<Item = QuotaPolicy>) -> Limiter {
        let limiter = policies.into_iter().fold(self.builder(), LimiterBuilder::policy);
        limiter.build().unwrap()
    }
}

fn of(algorithm: Algorithm, quota: u64) -> QuotaPolicy {
    QuotaPolicy::new("units", quota, Duration::from_secs(SECONDS)).with_algorithm(algorithm)
}

async fn charge(caller: &Caller, units: u64) -> LateChargeOutcome {
    caller.charge(&LateCharge::new(units)).await.unwrap()
}

fn outcome(excess: u64) -> LateChargeOutcome {
    match excess {
        0 => Charged,
        excess => Capped { excess },
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Check(u64),
    Charge(u64),
    Wait(u64),
}

/// The used units, from the documentation of each algorithm.
struct Model {
    algorithm: Algorithm,
    second: u64,
    /// The units of the charges, and the seconds at which they were made.
    charges: Vec<(u64, u64)>,
}

impl Model {
    fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            second: 0,
            charges: Vec::new(),
        }
    }

    fn in_window(&self, back: u64) -> u64 {
        let window = (self.second / SECONDS).checked_sub(back);
        let charges = self.charges.iter().filter(|(_, at)| Some(at / SECONDS) == window);
        charges.map(|(units, _)| units).sum()
    }

    /// A second drains a unit.
    fn level(&self) -> u64 {
        let drained = |level: u64, from, to: u64| level.saturating_sub(to - from);
        let level = |(level, last), (units, at): &(u64, u64)| (drained(level, last, *at) + units, *at);
        let (level, last) = self.charges.iter().fold((0, 0), level);
        drained(level, last, self.second)
    }

    /// The units that the bound limits.
    fn bounded(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket | Algorithm::StrictTokenBucket => self.level(),
            Algorithm::SlidingWindowLog => {
                let charges = self.charges.iter().filter(|(_, at)| at + SECONDS > self.second);
                charges.map(|(units, _)| units).sum()
            }
            _ => self.in_window(0),
        }
    }

    fn used(&self) -> u64 {
        let overlap = SECONDS - self.second % SECONDS;
        match self.algorithm {
            Algorithm::SlidingWindowCounter => self.in_window(0) + (self.in_window(1) * overlap).div_ceil(SECONDS),
            _ => self.bounded(),
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (1..12_u64).prop_map(Step::Check),
        prop_oneof![0..8_u64, 0..60_u64, Just(u64::MAX)].prop_map(Step::Charge),
        prop_oneof![0..4_u64, 0..25_u64].prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..25)
}

/// Compares each step with the model. The bound is twice the quota, or twice the ceiling of an overage of 50 %.
async fn follow(place: &Place, algorithm: Algorithm, has_overage: bool, steps: &[Step]) {
    let (policy, bound) = match has_overage {
        true => (of(algorithm, QUOTA).with_overage(50), 30),
        false => (of(algorithm, QUOTA), 20),
    };
    let (alice, reader) = (place.alice(policy), place.alice(of(algorithm, WIDE)));
    let mut model = Model::new(algorithm);
    for step in steps {
        match *step {
            Step::Check(cost) => {
                if alice.clone().cost(cost).check().await.outcome() == Outcome::Allowed {
                    model.charges.push((cost, model.second));
                }
            }
            Step::Charge(0) => assert_eq!(charge(&alice, 0).await, NotApplicable),
            Step::Charge(units) => {
                let applied = units.min(bound - model.bounded());
                let charged = charge(&alice, units).await;
                assert_eq!(charged, outcome(units - applied), "{:?}", place.store);
                model.charges.push((applied, model.second));
            }
            Step::Wait(seconds) => {
                place.clock.advance(Duration::from_secs(seconds));
                model.second += seconds;
            }
        }
        let used = WIDE - model.used();
        assert_eq!(left(&reader).await, [used], "{:?} after {step:?}", place.store);
    }
}

#[test]
fn a_late_charge_counts_up_to_its_bound_and_returns_the_rest() {
    let algorithms = select(vec![
        (Algorithm::TokenBucket, false),
        (Algorithm::FixedWindow, false),
        (Algorithm::SlidingWindowCounter, false),
        (Algorithm::SlidingWindowLog, false),
        (Algorithm::FixedWindow, true),
        (Algorithm::SlidingWindowLog, true),
    ]);
    for_any(100, (algorithms, steps()), async |((algorithm, has_overage), steps)| {
        for place in [Place::in_memory(), Place::on_a_server()] {
            follow(&place, algorithm, has_overage, &steps).await;
        }
    });
}

/// Each unit is restored in 100 ms. Half a unit remains used after 150 ms.
#[tokio::test]
async fn a_part_of_a_unit_above_the_bound_counts_as_one() {
    for place in Place::all() {
        let alice = place.alice(QuotaPolicy::per_second("second", 10));
        assert_eq!(charge(&alice, 2).await, Charged);
        place.clock.advance(Duration::from_millis(150));
        assert_eq!(charge(&alice, 20).await, Capped { excess: 1 });
        // From 20 of 10 used units to 9.
        let wait = Availability::After(Duration::from_millis(1_100));
        assert_eq!(alice.peek().await.unwrap().unwrap().availability(), wait);
    }
}

/// The charge counts in the units of the state, which another instance has written with a larger quota.
#[tokio::test]
async fn a_late_charge_under_a_smaller_quota_keeps_what_a_larger_one_has_admitted() {
    for place in Place::all() {
        for algorithm in [
            Algorithm::TokenBucket,
            Algorithm::FixedWindow,
            Algorithm::SlidingWindowLog,
        ] {
            let of = |quota| place.limiter([of(algorithm, quota)]).caller(&format!("{algorithm:?}"));
            let (small, large) = (of(QUOTA), of(100));
            assert!(large.clone().cost(12).check().await.outcome().is_admitted());
            assert_eq!(charge(&small, 12).await, Capped { excess: 4 });
            assert_eq!(left(&large).await, [80], "{algorithm:?}");
            assert!(large.clone().cost(10).check().await.outcome().is_admitted());
            assert_eq!(charge(&small, 5).await, Capped { excess: 5 });
            assert_eq!(left(&large).await, [70], "{algorithm:?}");
        }
    }
}

#[tokio::test]
async fn a_late_charge_takes_its_place_in_a_queue() {
    for place in Place::all() {
        let alice = place.alice(of(Algorithm::LeakyBucketQueue { max_waiting: 9 }, QUOTA));
        assert_eq!(charge(&alice, 3).await, Charged);
        let queued = alice.check().await;
        assert_eq!(queued.outcome(), Outcome::Allowed);
        assert_eq!(queued.delay(), Duration::from_secs(3));
        assert_eq!(charge(&alice, 20).await, Capped { excess: 4 });
    }
}

#[tokio::test]
async fn a_late_charge_to_a_calendar_window_counts_in_the_current_one() {
    for place in Place::all() {
        let alice = place.alice(QuotaPolicy::per_calendar_day("day", 10, "Europe/Berlin"));
        assert_eq!(charge(&alice, 7).await, Charged);
        assert_eq!(left(&alice).await, [3]);
        place.clock.advance(Duration::from_secs(86_400));
        assert_eq!(charge(&alice, 21).await, Capped { excess: 1 });
        assert_eq!(left(&alice).await, [0]);
    }
}

#[tokio::test]
async fn a_late_charge_begins_a_lockout_and_never_extends_it() {
    for place in Place::all() {
        for algorithm in [
            Algorithm::TokenBucket,
            Algorithm::FixedWindow,
            Algorithm::SlidingWindowCounter,
            Algorithm::SlidingWindowLog,
        ] {
            let limiter = place.limiter([of(algorithm, QUOTA).with_lockout(Duration::from_secs(90))]);
            let alice = limiter.caller(&format!("{algorithm:?}"));
            assert_eq!(charge(&alice, QUOTA - 2).await, Charged);
            assert!(alice.check().await.outcome().is_admitted());
            assert_eq!(charge(&alice, 5).await, Charged);
            let wait = async || alice.check().await.retry_after().unwrap();
            assert_eq!(wait().await, Duration::from_secs(90), "{algorithm:?}");
            place.clock.advance(Duration::from_secs(30));
            assert_eq!(charge(&alice, 20).await, Charged);
            assert_eq!(wait().await, Duration::from_secs(60), "{algorithm:?}");
        }
    }
}

#[tokio::test]
async fn only_requests_and_custom_units_are_charged_late_and_shadows_count_them() {
    for place in Place::all() {
        let limiter = place.limiter([
            QuotaPolicy::per_day("requests", 10),
            QuotaPolicy::per_day("shadow", 5).shadow(),
            QuotaPolicy::per_day("tokens", 1_000).with_unit("tokens"),
            QuotaPolicy::per_day("bytes", 100).with_content_bytes(Direction::Both),
            QuotaPolicy::concurrent("slots", 3),
        ]);
        let alice = limiter.caller("alice");
        let usage = LateCharge::new(4).with_units("tokens", 300).with_units("images", 7);
        assert_eq!(alice.charge(&usage).await.unwrap(), Charged);
        assert_eq!(left(&alice).await, [6, 1, 700, 100, 3]);
        // The shadow would have counted two units less.
        assert_eq!(charge(&alice, 8).await, Charged);
        assert_eq!(left(&alice).await, [0, 0, 700, 100, 3]);
        let usage = LateCharge::new(0).with_units("tokens", 2_000);
        assert_eq!(alice.charge(&usage).await.unwrap(), Capped { excess: 300 });
        let unknown = LateCharge::new(0).with_units("images", 7);
        assert_eq!(alice.charge(&unknown).await.unwrap(), NotApplicable);
    }
}

#[tokio::test]
async fn keys_on_several_nodes_are_charged_and_the_largest_excess_is_returned() {
    for place in Place::all() {
        let limiter = place
            .builder()
            .named_key("team")
            .policy(QuotaPolicy::per_day("user", 50))
            .policy(QuotaPolicy::per_day("team", 100).keyed_by("team"))
            .build()
            .unwrap();
        let of = |user: &str| limiter.caller(user).keyed_by("team", "red");
        assert_eq!(charge(&of("alice"), 60).await, Charged);
        assert_eq!([left(&of("alice")).await, left(&of("bob")).await], [[0, 40], [50, 40]]);
        assert_eq!(charge(&of("alice"), 60).await, Capped { excess: 20 });
        assert_eq!(charge(&of("bob"), 90).await, Capped { excess: 10 });
        let red = limiter.keyed_by("team", "red");
        assert_eq!(charge(&red, 1).await, Capped { excess: 1 });
        assert_eq!(left(&of("carol")).await, [50, 0]);
    }
}

#[tokio::test]
async fn a_message_that_arrives_again_charges_nothing() {
    for place in Place::all() {
        let alice = place.alice(QuotaPolicy::per_day("day", 100));
        assert!(alice.clone().cost(40).check().await.outcome().is_admitted());
        let usage = LateCharge::new(5).with_id("job 7");
        let outcomes = join_all((0..6).map(async |_| alice.charge(&usage).await.unwrap())).await;
        let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
        assert_eq!((count(Charged), count(Duplicate)), (1, 5));
        assert_eq!(left(&alice).await, [55]);
        let other = LateCharge::new(5).with_id("job 8");
        assert_eq!(alice.charge(&other).await.unwrap(), Charged);
        let refund = Refund::new(5, ChargeTime::Now).with_id("job 7");
        assert_eq!(alice.refund(&refund).await.unwrap(), RefundOutcome::Refunded);
        assert_eq!(left(&alice).await, [55]);
    }
}

#[tokio::test]
async fn nothing_is_charged_late_without_a_limit() {
    for place in Place::all() {
        let rules = Rules::new()
            .tier("free", [QuotaPolicy::per_day("day", 10)])
            .unlimited("admin");
        let list = AccessList::new(key::client_ip());
        for (key, access) in [("root", Access::Allow), ("mallory", Access::Block)] {
            list.update(|rules| rules.set_key(key.to_partition_key(), access))
                .unwrap();
        }
        let limiter = place.builder().rules(rules).access_list(list).build().unwrap();
        let alice = limiter.caller("alice");
        let usage = LateCharge::new(4).with_id("answer");
        limiter.rules().disable();
        assert_eq!(alice.charge(&usage).await.unwrap(), NotApplicable);
        limiter.rules().enable();
        assert_eq!(left(&alice).await, [10]);
        // The ID was not recorded, either.
        assert_eq!(alice.charge(&usage).await.unwrap(), Charged);
        assert_eq!(left(&alice).await, [6]);
        assert_eq!(charge(&alice.clone().tier("admin"), 4).await, NotApplicable);
        assert_eq!(charge(&limiter.caller("root"), 4).await, NotApplicable);
        assert_eq!(charge(&limiter.caller("mallory"), 4).await, Charged);
        assert_eq!([left(&alice).await, left(&limiter.caller("root")).await], [[6], [10]]);
        let unknown = alice.tier("gold").charge(&usage).await.unwrap_err();
        assert!(matches!(unknown, LimiterError::UnknownTier { .. }), "{unknown}");
        let closed = place.alice(QuotaPolicy::per_day("closed", 0));
        assert_eq!(charge(&closed, 4).await, NotApplicable);
    }
}

fn open(store: impl Store, policy: QuotaPolicy) -> Caller {
    let limiter = Limiter::builder(store)
        .scope("late")
        .failure_mode(FailureMode::Open)
        .policy(policy);
    limiter.fallback(MemoryStore::new()).build().unwrap().caller("alice")
}

#[tokio::test]
async fn a_late_charge_returns_the_error_of_the_store() {
    let day = || QuotaPolicy::per_day("day", 10);
    let scripted = ScriptedStore::new();
    scripted.answer(Answer::Failed(StoreErrorKind::Unavailable));
    let error = open(scripted, day()).charge(&LateCharge::new(1)).await.unwrap_err();
    assert!(matches!(error, LimiterError::Store(_)), "{error}");

    let server = RedisServer::start();
    let store = RedisStore::builder(server.url()).connection_timeout(HANG);
    let alice = open(store.build().unwrap(), day());
    assert_eq!(charge(&alice, 3).await, Charged);
    // A layout of a newer release, which this one leaves unchanged.
    let key = server.command(&["KEYS", "*"]);
    server.command(&["SETRANGE", key.trim(), "0", "\x1f"]);
    let error = alice.charge(&LateCharge::new(3)).await.unwrap_err();
    assert!(error.to_string().contains("newer release"), "{error}");
    server.kill();
    let error = alice.charge(&LateCharge::new(3)).await.unwrap_err();
    assert!(matches!(error, LimiterError::Store(_)), "{error}");
}
