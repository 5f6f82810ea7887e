//! Time per decision of `MemoryStore`, next to governor's keyed limiter.
//!
//!     cargo bench -p tower-quota-tests --bench memory
//!
//! One thread. Governor has its default store (dashmap, with the standard library's hasher) and default clock. Its
//! three windows are three limiters checked in a row, which, unlike one decision of ours, are not charged together. The
//! sides of a group are measured in turns.
//!
//! - *many keys*, *hot key*: the bare decision. On our side `Plan::new`, `MemoryStore::acquire`, the poll of its
//!   future and the drop of the `Decision`; on governor's `check_key`. Both are given 16 bytes as the key and hash it
//!   for their maps. The keys are visited in an order that has nothing to do with the one in which they were stored.
//! - *rejected*: the same for one key whose last window is used up.
//! - *text key*: the key is a user's name. Governor hashes the text; on our side the digest of the partition is made
//!   from it, as the layer does.
//! - *limiter*: `Limiter::check` with the key itself, from which it makes the digest of the partition, and the default
//!   deadline and circuit breaker. Governor is given the same sixteen bytes.
//!
//! `SIDE=7 TIMES=100000` makes `TIMES` decisions of a single side, given by its position in the tables from 0 on, for a
//! profiler: two runs with different `TIMES` yield the instructions of one decision.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod limits;
mod rounds;

use std::{
    hash::Hash,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use governor::{Quota, RateLimiter};
use tower_quota::{
    Limiter, MemoryStore, Outcome, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store,
};

use self::{
    limits::POLICIES,
    rounds::{Random, Side},
};

const KEYS: usize = 10_000;
const THREE_CHECKS: &str = "governor, three windows in a row";
const THREE_WINDOWS: &str = "tower-quota, three windows";

/// The time for which a side is measured in one turn, and the number of turns.
const TURN: Duration = Duration::from_millis(15);
const ROUNDS: usize = 21;

fn main() {
    let groups: [fn() -> Group; 5] = [many_keys, hot_key, rejected, text_key, limiter];
    let alone = rounds::setting("SIDE", usize::MAX);
    if alone != usize::MAX {
        let mut cases = groups.iter().flat_map(|group| group().cases);
        let mut side = cases.nth(alone).expect("the tables have this side");
        return (side.decide)(rounds::setting("TIMES", 100_000) as u64);
    }
    let rounds = if rounds::is_asked_for() { ROUNDS } else { 1 };
    for group in groups {
        group().print(rounds);
    }
}

struct Group {
    name: &'static str,
    cases: Vec<Case>,
}

struct Case {
    name: &'static str,
    /// Makes the given number of decisions.
    decide: Box<dyn FnMut(u64)>,
}

impl Case {
    fn time(&mut self, times: u64) -> Duration {
        let start = Instant::now();
        (self.decide)(times);
        start.elapsed()
    }
}

impl Group {
    /// Measures the cases in turns.
    fn print(&mut self, rounds: usize) {
        let sides = self.cases.iter_mut().map(|case| {
            let times = (TURN.as_nanos() / (case.time(10_000).as_nanos() / 10_000).max(1)) as u64;
            Side::new(case.name, move || case.time(times).as_nanos() as f64 / times as f64)
        });
        let mut sides: Vec<_> = sides.collect();
        let values = rounds::measure(rounds, &mut sides);
        rounds::print(self.name, "ns", &sides, &values);
        drop(sides);
        let place = |name| self.cases.iter().position(|case| case.name == name);
        if let (Some(checks), Some(own)) = (place(THREE_CHECKS), place(THREE_WINDOWS)) {
            println!(
                "  three windows, to three checks: {:.2}",
                values[own].ratio(&values[checks])
            );
        }
    }
}

/// Decides about each of the keys in turn, in a shuffled order, and checks the answer. All keys are stored before, in
/// their own order.
fn case<K: 'static>(
    name: &'static str,
    mut keys: Vec<K>,
    is_allowed: bool,
    mut decide: impl FnMut(&K) -> bool + 'static,
) -> Case {
    for key in &keys {
        decide(key);
    }
    shuffle(&mut keys);
    let mut next = 0;
    let decide = Box::new(move |times| {
        for _ in 0..times {
            assert_eq!(decide(&keys[next]), is_allowed);
            next += 1;
            if next == keys.len() {
                next = 0;
            }
        }
    });
    Case { name, decide }
}

/// The same order every time.
fn shuffle<K>(keys: &mut [K]) {
    for (last, random) in (1..keys.len()).rev().zip(Random::new(1)) {
        keys.swap(last, random as usize % (last + 1));
    }
}

/// Either the burst capacity is never exhausted, or the last quota is one unit a day, which is exhausted when a key is
/// stored.
fn policies(is_allowed: bool) -> [QuotaPolicy; 3] {
    let [second, minute, day] = POLICIES;
    let day = if is_allowed {
        day
    } else {
        QuotaPolicy::per_day("day", 1)
    };
    [second, minute, day]
}

/// The same for governor.
fn quotas(is_allowed: bool) -> [Quota; 3] {
    policies(is_allowed).map(|policy| {
        let burst = u32::try_from(policy.burst_capacity()).ok().and_then(NonZeroU32::new);
        let quota = Quota::with_period(policy.window().unwrap_or_default() / policy.quota() as u32);
        let quota = quota.map(|quota| quota.allow_burst(burst.expect("governor's range is enough")));
        quota.expect("the period is not zero")
    })
}

fn quota<K: 'static>(
    name: &'static str,
    policies: &[QuotaPolicy],
    keys: Vec<K>,
    is_allowed: bool,
    partition: impl Fn(&K) -> PartitionId + 'static,
) -> Case {
    let policies = PolicySet::new(policies.iter().cloned()).expect("the policies are sound");
    let store = MemoryStore::new();
    case(name, keys, is_allowed, move |key| {
        let decided = store.decide(Plan::new(policies.clone(), partition(key), 1));
        let decision = decided.now_or_never().expect("memory never waits");
        decision.expect("memory never fails").outcome() == Outcome::Allowed
    })
}

/// Limiters in a row until one rejects.
fn governor<K: Hash + Eq + Clone + 'static>(
    name: &'static str,
    quotas: &[Quota],
    keys: Vec<K>,
    is_allowed: bool,
) -> Case {
    let limiters: Vec<_> = quotas.iter().map(|quota| RateLimiter::keyed(*quota)).collect();
    case(name, keys, is_allowed, move |key| {
        limiters.iter().all(|limiter| limiter.check_key(key).is_ok())
    })
}

fn users(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("user-{number:08}")).collect()
}

/// From the names of users to the digests of their partitions.
fn digests_of_users() -> impl Fn(&String) -> PartitionId + Clone {
    let scope = Scope::new("bench");
    move |user| scope.partition(&PartitionKey::new("user", user))
}

fn partitions(count: usize) -> Vec<PartitionId> {
    users(count).iter().map(digests_of_users()).collect()
}

/// The same sixteen bytes for governor.
fn numbers(count: usize) -> Vec<u128> {
    let number = |partition: PartitionId| u128::from_le_bytes(partition.to_bytes());
    partitions(count).into_iter().map(number).collect()
}

/// It is the day that rejects, alone or with the others. `given` are the keys of governor, and `own` ours.
fn beside<G: Hash + Eq + Clone + 'static, O: 'static>(
    name: &'static str,
    is_allowed: bool,
    given: impl Fn() -> Vec<G>,
    own: impl Fn() -> Vec<O>,
    partition: impl Fn(&O) -> PartitionId + Clone + 'static,
) -> Group {
    let (policies, quotas) = (policies(is_allowed), quotas(is_allowed));
    let one = if is_allowed { 0..1 } else { 2..3 };
    let checks = &quotas[one.clone()];
    Group {
        name,
        cases: vec![
            governor("governor, one window", checks, given(), is_allowed),
            governor(THREE_CHECKS, &quotas, given(), is_allowed),
            quota(
                "tower-quota, one window",
                &policies[one],
                own(),
                is_allowed,
                partition.clone(),
            ),
            quota(THREE_WINDOWS, &policies, own(), is_allowed, partition),
        ],
    }
}

fn digests(name: &'static str, count: usize, is_allowed: bool) -> Group {
    beside(
        name,
        is_allowed,
        || numbers(count),
        || partitions(count),
        |partition| *partition,
    )
}

fn many_keys() -> Group {
    digests("many keys", KEYS, true)
}

fn hot_key() -> Group {
    digests("hot key", 1, true)
}

fn rejected() -> Group {
    digests("rejected", 1, false)
}

fn text_key() -> Group {
    let users = || users(KEYS);
    beside("text key", true, users, users, digests_of_users())
}

fn limiter() -> Group {
    let limiter = Limiter::builder(MemoryStore::new()).scope("bench");
    let limiter = limiter.policy(policies(true)[0].clone()).build();
    let limiter = limiter.expect("the settings are sound");
    Group {
        name: "limiter",
        cases: vec![
            governor("governor, one window", &quotas(true)[..1], numbers(KEYS), true),
            case("Limiter::check, one window", numbers(KEYS), true, move |key| {
                let decision = limiter.check(key).now_or_never().expect("memory never waits");
                decision.outcome() == Outcome::Allowed
            }),
        ],
    }
}
