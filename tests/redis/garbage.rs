//! Garbage under the keys of a partition breaks nothing: it counts as never seen, or a decision is made of it
//! that is as good as any, and it is gone soon. Only the value of a newer release is an error, and stays.

use std::time::Duration;

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};
use test_kit::RedisServer;
use tower_quota::{
    Algorithm, Decision, Outcome, Plan, PolicySet, QuotaPolicy, RedisStore, Settlement, Store, StoreError,
    StoreErrorKind,
    clock::{Clock, Timestamp},
};

use super::support::{DAY, for_any, plan, remaining, set, user};

const NOW: u64 = 1_700_000_000_123_456;
const RUNS: u32 = 1_500;

/// The bytes that are written over a value.
#[derive(Clone, Debug)]
enum Garbage {
    /// Bytes in the place of others.
    Bytes(Vec<(Index, u8)>),
    /// A layout, a moment and levels that may be anything.
    Levels(u8, u64, Vec<u8>),
    Longer(Vec<u8>),
    OtherType(&'static str),
    Shorter(Index),
    Whole(Vec<u8>),
    /// Members of a sorted set.
    Members(Vec<(Member, &'static str)>),
}

#[derive(Clone, Debug)]
enum Member {
    Any(Vec<u8>),
    /// The stored value with some bytes replaced.
    Changed(Index, Vec<(Index, u8)>),
}

fn bytes() -> impl Strategy<Value = u8> {
    prop_oneof![select(vec![0, 1, 2, 0x7f, 0x80, 0xff]), any::<u8>()]
}

fn value() -> impl Strategy<Value = Garbage> {
    let moment = prop_oneof![
        select(vec![0, 1, NOW - 1, NOW, NOW + 1, NOW + 1_000_000, (1 << 56) - 1]),
        any::<u64>()
    ];
    let level = select(vec![11_usize, 16, 25, 26]);
    let levels = (level, 1..90_usize).prop_flat_map(|(size, count)| vec(bytes(), size * count));
    prop_oneof![
        vec((any::<Index>(), bytes()), 1..12).prop_map(Garbage::Bytes),
        (0..10_u8, moment, levels).prop_map(|(layout, moment, levels)| Garbage::Levels(layout, moment, levels)),
        vec(bytes(), 1..60).prop_map(Garbage::Longer),
        select(vec!["RPUSH", "SADD", "ZADD", "HSET"]).prop_map(Garbage::OtherType),
        any::<Index>().prop_map(Garbage::Shorter),
        vec(bytes(), 0..120).prop_map(Garbage::Whole),
    ]
}

fn sorted_set() -> impl Strategy<Value = Garbage> {
    let near = ["1700000000123455.5", "1700000000123456", "1700000000123457"];
    let score = select([&["-inf", "-1", "0", "+inf"], &near[..]].concat());
    let changes = vec((any::<Index>(), bytes()), 1..5);
    let length = select(vec![0_usize, 1, 16, 17, 18, 40]);
    let member = prop_oneof![
        length
            .prop_flat_map(|length| vec(bytes(), length))
            .prop_map(Member::Any),
        (any::<Index>(), changes).prop_map(|(which, changes)| Member::Changed(which, changes)),
    ];
    prop_oneof![
        1 => select(vec!["SET", "RPUSH", "SADD", "HSET"]).prop_map(Garbage::OtherType),
        4 => vec((member, score), 1..6).prop_map(Garbage::Members),
    ]
}

fn changed(mut value: Vec<u8>, changes: &[(Index, u8)]) -> Vec<u8> {
    for (index, byte) in changes {
        if !value.is_empty() {
            let position = index.index(value.len());
            value[position] = *byte;
        }
    }
    value
}

impl Garbage {
    fn write(&self, server: &RedisServer, key: &str) {
        let own_key = key.as_bytes();
        let set = |value: &[u8]| drop(server.command_bytes(&[b"SET", own_key, value]));
        let old = || bulk(&server.command_bytes(&[b"GET", own_key]));
        match self {
            Self::Bytes(changes) => set(&changed(old(), changes)),
            Self::Levels(layout, moment, levels) => {
                set(&[&[*layout], &moment.to_le_bytes()[..7], &[1, 2, 3], levels].concat());
            }
            Self::Longer(more) => set(&[old(), more.clone()].concat()),
            Self::Shorter(length) => set(&old()[..length.index(old().len())]),
            Self::Whole(value) => set(value),
            Self::OtherType(command) => {
                server.command(&["DEL", key]);
                let words: &[&str] = match *command {
                    "HSET" => &["HSET", key, "1", "x"],
                    "ZADD" => &["ZADD", key, "1", "x"],
                    other => &[other, key, "x"],
                };
                server.command(words);
            }
            Self::Members(members) => {
                for (member, score) in members {
                    let member = member.bytes(server, key);
                    server.command_bytes(&[b"ZADD", own_key, score.as_bytes(), &member]);
                }
            }
        }
    }
}

impl Member {
    fn bytes(&self, server: &RedisServer, key: &str) -> Vec<u8> {
        match self {
            Self::Any(bytes) => bytes.clone(),
            Self::Changed(which, changes) => {
                let position = which.index(3).to_string();
                let position = position.as_bytes();
                let reply = server.command_bytes(&[b"ZRANGE", key.as_bytes(), position, position]);
                let member = reply
                    .iter()
                    .position(|byte| *byte == b'$')
                    .map(|start| bulk(&reply[start..]));
                changed(member.unwrap_or_default(), changes)
            }
        }
    }
}

/// The bytes of a bulk string.
fn bulk(reply: &[u8]) -> Vec<u8> {
    let end = reply.windows(2).position(|pair| pair == b"\r\n").unwrap();
    let length = std::str::from_utf8(&reply[1..end]).unwrap().parse::<usize>();
    length.map_or_else(|_| vec![], |length| reply[end + 2..end + 2 + length].to_vec())
}

struct Bench {
    server: RedisServer,
    clock: Clock,
    store: RedisStore,
    policies: PolicySet,
}

impl Bench {
    fn new(policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        let server = RedisServer::start();
        let clock = Clock::manual(Timestamp::from_micros(NOW));
        let store = RedisStore::builder(server.url()).connections(1).lease_time(DAY);
        Self {
            store: store.clock(clock.clone()).build().unwrap(),
            server,
            clock,
            policies: set(policies),
        }
    }

    fn plan(&self, cost: u64) -> Plan {
        Plan::new(self.policies.clone(), user("garbage", "alice"), cost)
    }

    async fn decide(&self, cost: u64) -> Result<Decision, StoreError> {
        self.store.decide(self.plan(cost)).await
    }

    /// An empty server, and then some requests.
    async fn start(&self) -> Decision {
        self.clock.set(Timestamp::from_micros(NOW - 2_000));
        self.server.command(&["FLUSHALL"]);
        let mut last = None;
        for cost in [1, 2, 3] {
            last = Some(self.decide(cost).await.unwrap());
            self.clock.advance(Duration::from_micros(1_000));
        }
        self.clock.set(Timestamp::from_micros(NOW));
        last.unwrap()
    }

    /// The keys whose names end like this.
    fn key(&self, end: &str) -> String {
        let keys = self.server.command(&["KEYS", &format!("quota:*{end}")]);
        keys.trim().to_owned()
    }

    /// Returns `true` if the value of the partition may be one of a newer release.
    fn is_newer(&self) -> bool {
        let reply = self.server.command_bytes(&[b"GET", self.key("}").as_bytes()]);
        let value = if reply.starts_with(b"$") { bulk(&reply) } else { vec![] };
        value.len() > 11 && (9..32).contains(&value[0])
    }

    /// Everything that can be done. Returns whether all of it was decided.
    async fn use_all(&self, receipt: &Decision) -> bool {
        let peeked = self.store.peek(self.plan(1)).await.map(drop);
        let late = self.store.settle(Settlement::new(receipt, 9)).await;
        let acquired = self.decide(1).await;
        let settled = match &acquired {
            Ok(decision) => self.store.settle(Settlement::refund_all(decision)).await,
            Err(_) => Ok(()),
        };
        let other = plan([QuotaPolicy::per_day("another", 9)], user("garbage", "alice"), 1);
        let others = self.store.decide(other).await.map(drop);
        let results = [peeked, late, acquired.map(drop), settled, others];
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            assert_eq!(error.kind(), StoreErrorKind::Failed, "{error}");
        }
        results.iter().all(Result::is_ok)
    }
}

fn of(name: &'static str, algorithm: Algorithm) -> QuotaPolicy {
    QuotaPolicy::per_minute(name, 100).with_algorithm(algorithm)
}

fn everything() -> Vec<QuotaPolicy> {
    let mut policies = numbers();
    policies.push(of("log", Algorithm::SlidingWindowLog));
    policies.push(QuotaPolicy::concurrent("slots", 5));
    policies
}

/// All that is kept under the one key of a partition.
fn numbers() -> Vec<QuotaPolicy> {
    vec![
        of("bucket", Algorithm::TokenBucket),
        of("queue", Algorithm::LeakyBucketQueue { max_waiting: 50 }),
        of("window", Algorithm::FixedWindow),
        of("counter", Algorithm::SlidingWindowCounter),
        QuotaPolicy::per_calendar_day("day", 100, "Asia/Kolkata"),
    ]
}

#[test]
fn garbage_under_the_key_of_a_partition_never_costs_a_decision() {
    let sets = [
        Bench::new(numbers()),
        Bench::new([of("bucket", Algorithm::TokenBucket)]),
        Bench::new([QuotaPolicy::per_day("wide", 7_001)]),
        Bench::new([
            QuotaPolicy::per_day("wide", 7_001),
            of("window", Algorithm::FixedWindow),
            QuotaPolicy::per_day("vast", 999_999_999_999).with_algorithm(Algorithm::FixedWindow),
        ]),
    ];
    for_any(RUNS, (0..sets.len(), value()), async |(set, garbage)| {
        let bench = &sets[set];
        let receipt = bench.start().await;
        garbage.write(&bench.server, &bench.key("}"));
        let is_newer = bench.is_newer();
        assert_eq!(bench.use_all(&receipt).await, !is_newer);
    });
}

#[test]
fn garbage_under_the_keys_of_logs_and_slots_is_an_error_of_the_store_at_worst_and_forgotten_by_a_reset() {
    let bench = Bench::new(everything());
    for_any(
        RUNS,
        (value(), sorted_set(), sorted_set()),
        async |(value, log, slots)| {
            let receipt = bench.start().await;
            value.write(&bench.server, &bench.key("}"));
            log.write(&bench.server, &bench.key(":log:*"));
            slots.write(&bench.server, &bench.key(":slots:*"));
            bench.use_all(&receipt).await;
            bench.store.reset(bench.plan(1)).await.unwrap();
            let decision = bench.decide(0).await.unwrap();
            assert_eq!(remaining(&decision)[..5], [100, 51, 100, 100, 100]);
        },
    );
}

#[tokio::test]
async fn other_types_and_unknown_layouts_count_as_never_seen() {
    let bench = Bench::new(everything());
    let full = [100, 51, 100, 100, 100, 100, 5];
    for layout in (0..=255_u8).filter(|layout| !(5..32).contains(layout)) {
        bench.start().await;
        for end in [":log:*", ":slots:*"] {
            Garbage::OtherType(["SET", "RPUSH", "SADD", "HSET"][usize::from(layout % 4)])
                .write(&bench.server, &bench.key(end));
        }
        Garbage::Levels(layout, NOW, vec![layout; 52]).write(&bench.server, &bench.key("}"));
        let decision = bench.decide(1).await.unwrap();
        assert_eq!(decision.outcome(), Outcome::Allowed);
        assert_eq!(remaining(&decision), full.map(|left| left - 1), "layout {layout}");
    }
    for command in ["RPUSH", "SADD", "ZADD", "HSET"] {
        bench.start().await;
        Garbage::OtherType(command).write(&bench.server, &bench.key("}"));
        let decision = bench.decide(1).await.unwrap();
        assert_eq!(remaining(&decision)[..4], [99, 50, 99, 99], "{command}");
    }
}

/// During an upgrade, instances of two releases share the counts.
#[tokio::test]
async fn the_value_of_a_newer_release_stays_and_is_an_error_for_its_caller_alone() {
    let bench = Bench::new(everything());
    for layout in 9..32_u8 {
        for length in [12_usize, 100, 5_000] {
            let receipt = bench.start().await;
            let garbage = Garbage::Whole([vec![layout], vec![layout; length]].concat());
            let key = bench.key("}");
            garbage.write(&bench.server, &key);
            let value = || bench.server.command_bytes(&[b"GET", key.as_bytes()]);
            let before = value();
            let bob = user("garbage", "bob");
            let both = bench.plan(1).and(bench.policies.clone(), bob);
            let others = Plan::new(bench.policies.clone(), bob, 1);
            let (own, both, others) =
                tokio::join!(bench.decide(1), bench.store.decide(both), bench.store.decide(others));
            for error in [own.unwrap_err(), both.unwrap_err()] {
                assert_eq!(error.kind(), StoreErrorKind::Failed);
                assert!(error.to_string().contains("newer release"), "{error}");
            }
            assert_eq!(others.unwrap().outcome(), Outcome::Allowed);
            assert!(bench.store.peek(bench.plan(1)).await.is_err());
            bench.store.settle(Settlement::new(&receipt, 9)).await.unwrap();
            assert_eq!(value(), before, "layout {layout}");
            // No entry of a log and no slot was written; the settlement has released its slot.
            bench.server.command(&["DEL", &key]);
            assert_eq!(remaining(&bench.decide(0).await.unwrap())[5..], [94, 3]);
        }
    }
}
