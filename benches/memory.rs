//! Time per decision of `MemoryStore`, next to governor's keyed limiter.
//!
//!     cargo bench -p tower-quota-tests --bench memory
//!
//! One thread. Governor has its default store (dashmap, with the standard library's hasher) and default clock. Its
//! three windows are three limiters checked in a row, which, unlike one decision of ours, are not charged together.
//!
//! - *many keys*, *hot key*: the bare decision. On our side `Plan::new`, `MemoryStore::acquire`, the poll of its
//!   future and the drop of the `Decision`; on governor's `check_key`. Both are given 16 bytes as the key and hash it
//!   for their maps. The keys are visited in an order that has nothing to do with the one in which they were stored.
//! - *rejected*: the same for one key whose last window is used up.
//! - *text key*: the key is a user's name. Governor hashes the text; on our side the digest of the partition is made
//!   from it, as the layer does.
//! - *limiter*: `Limiter::check` with the key itself, from which it makes the digest of the partition, and the default
//!   deadline and circuit breaker. Governor is given the same sixteen bytes.
//! - *algorithms*: the bare decision for many keys with one policy of each algorithm. The slot of a concurrent request
//!   is released immediately.
//! - *screening*: a whole request through the layer, with the peer's address, which is counted by one window unless it is
//!   exempt or blocked. The rules are half about networks, of nine prefix lengths, and half about keys; the clients are in
//!   none of them. `cargo bench -p tower-quota-tests --bench layer` has the layer without screening.
//!
//! Criterion measures each alone; the tables at the end, which a filter or an option leaves out, have all sides of a
//! group in turns, and only they should be used for comparisons. With the feature `count-allocations` they have the heap
//! allocations, and the bytes of all of them together; counting costs time.
//!
//! `SIDE=7 TIMES=100000` makes `TIMES` decisions of a single side, given by its position in the tables from 0 on, for a
//! profiler: two runs with different `TIMES` yield the instructions of one decision.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod allocations;
mod rounds;

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    hash::Hash,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use axum::body::Body;
use criterion::Criterion;
use futures_util::FutureExt;
use governor::{Quota, RateLimiter};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use tower::{Layer, Service, service_fn};
use tower_quota::{
    Access, AccessList, AccessRules, Algorithm, Decision, Exemption, Limiter, MemoryStore, Outcome, PartitionId,
    PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Scope, Settlement, Store,
    key::{self, PeerAddress},
};

use self::rounds::Side;

const KEYS: usize = 10_000;
const THREE_CHECKS: &str = "governor, three windows in a row";
const THREE_WINDOWS: &str = "tower-quota, three windows";
/// A burst capacity that is never exhausted here.
const PLENTY: u32 = 500_000_000;
const USER: HeaderName = HeaderName::from_static("x-user-id");

/// The time for which a side is measured in one turn of the tables, and the number of turns.
const TURN: Duration = Duration::from_millis(15);
const ROUNDS: usize = 21;

fn main() {
    let groups: [fn() -> Group; 7] = [many_keys, hot_key, rejected, text_key, algorithms, screening, limiter];
    let alone = rounds::setting("SIDE", usize::MAX);
    if alone != usize::MAX {
        let mut cases = groups.iter().flat_map(|group| group().cases);
        let mut side = cases.nth(alone).expect("the tables have this side");
        return (side.decide)(rounds::setting("TIMES", 100_000) as u64);
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1_000))
        .sample_size(20)
        .configure_from_args();
    let mut groups = groups.map(|group| group());
    for group in &mut groups {
        let mut measured = criterion.benchmark_group(group.name);
        for case in &mut group.cases {
            measured.bench_function(case.name, |bencher| bencher.iter_custom(|times| case.time(times)));
        }
        measured.finish();
    }
    criterion.final_summary();
    if rounds::is_asked_for() {
        for group in &mut groups {
            group.print();
        }
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
    fn print(&mut self) {
        let mut sides = Vec::new();
        for case in &mut self.cases {
            let note = allocations::note(100_000, || (case.decide)(100_000));
            let times = (TURN.as_nanos() / (case.time(10_000).as_nanos() / 10_000).max(1)) as u64;
            let mut side = Side::new(case.name, move || case.time(times).as_nanos() as f64 / times as f64);
            side.note = note;
            sides.push(side);
        }
        let values = rounds::measure(ROUNDS, &mut sides);
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
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..keys.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        keys.swap(last, state as usize % (last + 1));
    }
}

/// Realistic rates, so that the state of a key does not expire between two visits. Either the burst capacity is never
/// exhausted, or the quota is one unit a day, which is exhausted when a key is stored.
fn policies(is_allowed: bool) -> [QuotaPolicy; 3] {
    [
        QuotaPolicy::per_second("second", 10).with_burst_capacity(PLENTY.into()),
        QuotaPolicy::per_minute("minute", 100).with_burst_capacity(PLENTY.into()),
        if is_allowed {
            QuotaPolicy::per_day("day", 5_000).with_burst_capacity(PLENTY.into())
        } else {
            QuotaPolicy::per_day("day", 1)
        },
    ]
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
        decide(&store, Plan::new(policies.clone(), partition(key), 1)).outcome() == Outcome::Allowed
    })
}

fn decide(store: &MemoryStore, plan: Plan) -> Decision {
    let mut decided = store.decide(plan);
    match Pin::new(&mut decided).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(decision)) => decision,
        undecided => panic!("memory never waits and never fails, but this is {undecided:?}"),
    }
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
fn digests_of_users() -> impl Fn(&String) -> PartitionId {
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

/// It is the day that rejects, alone or with the others.
fn digests(name: &'static str, count: usize, is_allowed: bool) -> Group {
    let (policies, quotas) = (policies(is_allowed), quotas(is_allowed));
    let one = if is_allowed { 0..1 } else { 2..3 };
    let given = |partition: &PartitionId| *partition;
    let (ids, numbers) = (|| partitions(count), || numbers(count));
    Group {
        name,
        cases: vec![
            governor("governor, one window", &quotas[one.clone()], numbers(), is_allowed),
            governor(THREE_CHECKS, &quotas, numbers(), is_allowed),
            quota("tower-quota, one window", &policies[one], ids(), is_allowed, given),
            quota(THREE_WINDOWS, &policies, ids(), is_allowed, given),
        ],
    }
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
    let (policies, quotas) = (policies(true), quotas(true));
    let users = || users(KEYS);
    Group {
        name: "text key",
        cases: vec![
            governor("governor, one window", &quotas[..1], users(), true),
            governor(THREE_CHECKS, &quotas, users(), true),
            quota(
                "tower-quota, one window",
                &policies[..1],
                users(),
                true,
                digests_of_users(),
            ),
            quota(THREE_WINDOWS, &policies, users(), true, digests_of_users()),
        ],
    }
}

/// Quotas that are never used up. A leaky bucket that does not let wait is a token bucket of one unit.
fn algorithms() -> Group {
    let counted = |name, algorithm| {
        let plenty = if algorithm == Algorithm::SlidingWindowLog {
            10_000
        } else {
            PLENTY.into()
        };
        let policy = QuotaPolicy::per_second("second", plenty).with_algorithm(algorithm);
        quota(name, &[policy], partitions(KEYS), true, |partition| *partition)
    };
    let max_waiting = PLENTY.into();
    Group {
        name: "algorithms",
        cases: vec![
            counted("token bucket", Algorithm::TokenBucket),
            counted("strict token bucket", Algorithm::StrictTokenBucket),
            counted("fixed window", Algorithm::FixedWindow),
            counted("sliding window counter", Algorithm::SlidingWindowCounter),
            counted("sliding window log", Algorithm::SlidingWindowLog),
            counted("leaky bucket, queue", Algorithm::LeakyBucketQueue { max_waiting }),
            slots("concurrent requests"),
        ],
    }
}

fn slots(name: &'static str) -> Case {
    let policies = PolicySet::new([QuotaPolicy::concurrent("slots", 10)]).expect("the policy is sound");
    let store = MemoryStore::new();
    case(name, partitions(KEYS), true, move |partition| {
        let decision = decide(&store, Plan::new(policies.clone(), *partition, 1));
        let settled = store.settle(Settlement::new(&decision, 1)).now_or_never();
        decision.outcome() == Outcome::Allowed && settled.is_some_and(|settled| settled.is_ok())
    })
}

fn screening() -> Group {
    let list = |rules| {
        let list = AccessList::new(key::client_ip());
        list.replace(access_rules(rules));
        list
    };
    let blocked = list(100_000);
    blocked
        .update(|rules| rules.set_network("203.0.113.0/24", Access::Block))
        .expect("it is a network");
    let layer = || {
        let builder = RateLimitLayer::builder(MemoryStore::new());
        let builder = builder.scope("bench").key(key::header(USER.as_str()));
        builder.policy(policies(true)[0].clone())
    };
    let case = |name, layer: RateLimitLayerBuilder, status| {
        let layer = layer.build().expect("the settings are sound");
        requests(name, layer.layer(service_fn(answer)), PEER, status)
    };
    let (ok, forbidden) = (StatusCode::OK, StatusCode::FORBIDDEN);
    Group {
        name: "screening",
        cases: vec![
            case("nothing is screened", layer(), ok),
            case("no rules", layer().access_list(list(0)), ok),
            case("a hundred rules", layer().access_list(list(100)), ok),
            case("100 000 rules", layer().access_list(list(100_000)), ok),
            case("blocked by 100 000 rules", layer().access_list(blocked), forbidden),
            case("exempt", layer().exempt(Exemption::path("/")), ok),
            case(
                "nothing is screened, decision in request",
                layer().decision_in_request(),
                ok,
            ),
        ],
    }
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

const PEER: PeerAddress = PeerAddress(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)), 50_000));

/// `count` rules, half for networks in 10.0.0.0/8 and half for keys.
fn access_rules(count: u32) -> AccessRules {
    let mut rules = AccessRules::new();
    for number in 0..count / 2 {
        let [.., second, third] = number.to_be_bytes();
        let network = format!("10.{second}.{third}.0/{}", 24 + number % 9);
        rules.set_network(network, Access::Block).expect("it is a network");
        let key = PartitionKey::new(USER.as_str(), format!("blocked-{number:08}"));
        rules.set_key(key, Access::Block).expect("there is room");
    }
    rules
}

fn requests<S, B>(name: &'static str, mut service: S, peer: PeerAddress, status: StatusCode) -> Case
where
    S: Service<Request<Body>, Response = Response<B>> + 'static,
{
    let value = |user| HeaderValue::try_from(user).expect("a name is ASCII");
    let values = users(KEYS).into_iter().map(value).collect();
    case(name, values, true, move |user: &HeaderValue| {
        let mut request = Request::new(Body::empty());
        request.headers_mut().insert(USER, user.clone());
        request.extensions_mut().insert(peer);
        let response = service.call(request).now_or_never().expect("nothing here waits");
        response.is_ok_and(|response| response.status() == status)
    })
}

fn answer(_: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Body::empty())))
}
