//! The script for buckets decides like the script for every algorithm and leaves the same values, for any previous
//! state. A server that does not know a script receives it once.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use test_kit::{RedisServer, ScriptCall, ScriptedServer};
use tower_quota::{
    Algorithm, Decision, Outcome, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope,
    Settlement, Store,
    clock::{Clock, Timestamp},
};

use crate::scripts;

const START: u64 = 1_700_000_000_000_000;

/// Two servers that get the same calls: one as the store sends them, the other always with the script that has every
/// algorithm.
struct Twins {
    own: RedisServer,
    full: RedisServer,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    of_buckets: usize,
    others: usize,
    differences: Vec<String>,
}

impl Twins {
    fn start() -> Arc<Self> {
        Arc::new(Self {
            own: RedisServer::start(),
            full: RedisServer::start(),
            calls: Mutex::default(),
        })
    }

    /// Runs the call on both servers and returns the reply of the first one.
    fn answer(&self, call: ScriptCall) -> Vec<u8> {
        let mut words = call.words;
        let reply = self.own.command_bytes(&slices(&words));
        if reply.starts_with(b"-NOSCRIPT") {
            return reply;
        }
        let is_of_buckets = words[1] == hash(&scripts::buckets()) || words[1] == scripts::buckets().as_bytes();
        if is_of_buckets || words[1] == hash(&scripts::every_algorithm()) {
            words[0] = b"EVAL".to_vec();
            words[1] = scripts::every_algorithm().into_bytes();
        }
        let expected = self.full.command_bytes(&slices(&words));
        let mut calls = self.calls.lock().unwrap();
        if is_of_buckets {
            calls.of_buckets += 1;
        } else {
            calls.others += 1;
        }
        if reply != expected {
            let difference = format!("{reply:?} in place of {expected:?} to {:?}", &words[2..]);
            calls.differences.push(difference);
        }
        let keys: usize = std::str::from_utf8(&words[2]).unwrap().parse().unwrap();
        for key in &words[3..3 + keys] {
            let [own, full] = [&self.own, &self.full].map(|server| kept(server, key));
            if own.0 != full.0 || (own.1 - full.1).abs() > 20_000 {
                let difference = format!("{own:?} in place of {full:?} after {:?}", &words[2..]);
                calls.differences.push(difference);
            }
        }
        reply
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        for server in [&self.own, &self.full] {
            server.command_bytes(&[b"SET", key, value, b"PX", b"86400000"]);
        }
    }
}

fn slices(words: &[Vec<u8>]) -> Vec<&[u8]> {
    words.iter().map(Vec::as_slice).collect()
}

fn hash(source: &str) -> Vec<u8> {
    redis::Script::new(source).get_hash().as_bytes().to_vec()
}

/// The value of a key in a server, and its remaining milliseconds.
fn kept(server: &RedisServer, key: &[u8]) -> (Vec<u8>, i64) {
    let life = server.command_bytes(&[b"PTTL", key]);
    let life = std::str::from_utf8(&life[1..]).unwrap().trim().parse().unwrap();
    (server.command_bytes(&[b"DUMP", key]), life)
}

/// Numbers by chance, the same in each run of the test.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A policy whose level is narrow.
fn narrow(name: &'static str, chance: &mut Chance) -> QuotaPolicy {
    let policy = match chance.below(4) {
        0 => QuotaPolicy::per_second(name, chance.of(&[1, 5, 20])),
        1 => QuotaPolicy::per_minute(name, chance.of(&[3, 10, 60])),
        _ => QuotaPolicy::per_hour(name, chance.of(&[4, 40, 100])),
    };
    match chance.below(6) {
        0 => policy.with_algorithm(Algorithm::LeakyBucketQueue { max_waiting: 3 }),
        1 => policy.with_algorithm(Algorithm::LeakyBucketMeter),
        2 => policy.shadow(),
        3 if chance.below(8) == 0 => QuotaPolicy::per_minute(name, 0),
        3 if chance.below(8) == 0 => QuotaPolicy::per_minute(name, 0).shadow(),
        _ => policy,
    }
}

/// Configurations of the same service: the first one has narrow buckets only.
fn configurations(chance: &mut Chance) -> [PolicySet; 4] {
    let names = ["a", "b", "c", "d", "e"];
    let count = 1 + chance.below(5) as usize;
    let buckets: Vec<_> = names[..count].iter().map(|name| narrow(name, chance)).collect();
    let mut other: Vec<_> = buckets.iter().skip(1).cloned().collect();
    other.push(QuotaPolicy::per_minute("w", 20).with_algorithm(Algorithm::FixedWindow));
    other.push(QuotaPolicy::per_calendar_day("day", 40, "UTC"));
    other.push(QuotaPolicy::per_hour("s", 30).with_algorithm(Algorithm::SlidingWindowCounter));
    let minutes = Duration::from_secs(60 * chance.of(&[1, 100]));
    other.push(QuotaPolicy::per_minute("lockouts", 2).with_lockout(minutes));
    let wide = [QuotaPolicy::per_second("odd", 7), narrow("a", chance)];
    let keys = [
        QuotaPolicy::per_minute("l", 9).with_algorithm(Algorithm::SlidingWindowLog),
        narrow("b", chance),
        QuotaPolicy::concurrent("k", 5),
    ];
    [buckets, other, wide.to_vec(), keys.to_vec()].map(|policies| PolicySet::new(policies).unwrap())
}

fn partition(number: u64) -> PartitionId {
    Scope::new("twins").partition(&PartitionKey::new("user", number.to_be_bytes()))
}

/// The value of a key of narrow buckets as older instances have written it: without a birth, with whole weights.
fn in_the_older_layout(value: &[u8]) -> Option<Vec<u8>> {
    let (head, levels) = value.split_first_chunk::<11>()?;
    if head[0] != 5 || levels.len() % 11 != 0 {
        return None;
    }
    let mut older = vec![1];
    older.extend_from_slice(&head[1..8]);
    for level in levels.chunks(11) {
        let short = u32::from_le_bytes([level[4], level[5], level[6], 0]);
        let weight = (short / 16).checked_mul(5_u32.checked_pow(short % 16)?)?;
        older.extend_from_slice(&level[..4]);
        older.extend_from_slice(&weight.to_le_bytes());
        older.extend_from_slice(&level[7..]);
    }
    Some(older)
}

/// Changes values as instances with other rules, older instances or foreign programs may have left them.
fn meddle(twins: &Twins, chance: &mut Chance) {
    let keys = twins.own.command(&["KEYS", "*}"]);
    let keys: Vec<_> = keys.lines().filter(|key| key.ends_with('}')).collect();
    if keys.is_empty() {
        return;
    }
    let key = chance.of(&keys).as_bytes();
    let reply = twins.own.command_bytes(&[b"GET", key]);
    let Some(start) = reply.windows(2).position(|pair| pair == b"\r\n") else {
        return;
    };
    let mut value = reply.get(start + 2..reply.len() - 2).unwrap_or_default().to_vec();
    match chance.below(4) {
        0 => value.truncate(chance.below(value.len() as u64 + 1) as usize),
        1 => value
            .iter_mut()
            .skip(11)
            .for_each(|byte| *byte = chance.below(256) as u8),
        _ => match in_the_older_layout(&value) {
            Some(older) => value = older,
            None => return,
        },
    }
    twins.set(key, &value);
}

fn set_of(is_any: bool, sets: &[PolicySet; 4], chance: &mut Chance) -> PolicySet {
    let set = if is_any { chance.of(&[0, 0, 1, 2]) } else { 0 };
    sets[set].clone()
}

async fn step(store: &RedisStore, sets: &[PolicySet; 4], open: &mut Vec<Decision>, chance: &mut Chance) {
    let set = |chance: &mut Chance| sets[chance.of(&[0_usize, 0, 0, 0, 0, 1, 2, 3])].clone();
    let plan = |chance: &mut Chance| Plan::new(set(chance), partition(chance.below(3)), chance.below(4));
    match chance.below(10) {
        0..6 => open.push(store.decide(plan(chance)).await.unwrap()),
        6 => {
            let both = plan(chance).and(sets[0].clone(), partition(3));
            open.push(store.decide(both).await.unwrap());
        }
        7 => {
            let (is_mixed, are_several) = (chance.below(2) == 0, chance.below(2) == 0);
            let plans = (0..40).map(|_| {
                let plan = match is_mixed {
                    true => plan(chance),
                    false => Plan::new(sets[0].clone(), partition(chance.below(9)), 1),
                };
                match are_several && chance.below(3) > 0 {
                    true => plan.and(set_of(is_mixed, sets, chance), partition(chance.below(9))),
                    false => plan,
                }
            });
            let plans: Vec<_> = plans.collect();
            for decision in join_all(plans.into_iter().map(|plan| store.decide(plan))).await {
                decision.unwrap();
            }
        }
        _ => {
            let Some(position) = (open.len() as u64).checked_sub(1 + chance.below(3)) else {
                return;
            };
            let decision = open.remove(position as usize);
            let settlement = match chance.below(2) {
                0 => Settlement::refund_all(&decision),
                _ => Settlement::new(&decision, chance.below(6)),
            };
            store.settle(settlement).await.unwrap();
        }
    }
}

/// Advances the clock by a little or by much, or steps it back.
fn pass(clock: &Clock, chance: &mut Chance) {
    let now = clock.now().as_micros();
    let then = match chance.below(12) {
        0 => now - chance.below(4_000_000),
        1 => now - chance.below(40_000_000),
        2 => now + chance.below(3_600_000_000),
        3..6 => now + chance.below(2_000_000),
        _ => now,
    };
    clock.set(Timestamp::from_micros(then));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_script_for_buckets_agrees_with_the_one_for_every_algorithm_on_replies_and_values() {
    let twins = Twins::start();
    let server = {
        let twins = Arc::clone(&twins);
        ScriptedServer::start(move |call| tokio::task::block_in_place(|| twins.answer(call))).await
    };
    for run in 1..=6 {
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(run));
        let clock = Clock::manual(Timestamp::from_micros(START));
        let store = RedisStore::builder(server.url())
            .connections(1)
            .key_prefix(format!("{run}:"))
            .lease_time(Duration::from_secs(86_400))
            .clock(clock.clone())
            .build()
            .unwrap();
        let (sets, mut open) = (configurations(&mut chance), Vec::new());
        for _ in 0..120 {
            pass(&clock, &mut chance);
            step(&store, &sets, &mut open, &mut chance).await;
            if chance.below(20) == 0 {
                meddle(&twins, &mut chance);
            }
        }
        let calls = twins.calls.lock().unwrap();
        assert!(calls.differences.is_empty(), "run {run}: {}", calls.differences[0]);
    }
    let calls = twins.calls.lock().unwrap();
    assert!(calls.of_buckets > 200, "{}", calls.of_buckets);
    assert!(calls.others > 100, "{}", calls.others);
}

/// A server that forgets its scripts on request, and counts how often it receives one in full.
#[derive(Default)]
struct Forgetful {
    knows: AtomicBool,
    loaded: AtomicUsize,
}

impl Forgetful {
    fn answer(&self, call: &ScriptCall) -> Vec<u8> {
        if call.words[0] == b"EVAL" {
            self.knows.store(true, Ordering::SeqCst);
            self.loaded.fetch_add(1, Ordering::SeqCst);
        } else if !self.knows.load(Ordering::SeqCst) {
            return b"-NOSCRIPT No matching script. Please use EVAL.\r\n".to_vec();
        }
        call.reply(&[START as f64, 0.0, 1.0, 0.0])
    }
}

#[tokio::test]
async fn a_server_that_forgets_a_script_gets_it_once_however_many_calls_are_under_way() {
    let forgetful = Arc::new(Forgetful::default());
    let server = {
        let forgetful = Arc::clone(&forgetful);
        ScriptedServer::start(move |call| forgetful.answer(&call)).await
    };
    let store = RedisStore::builder(server.url())
        .connections(1)
        .decisions_per_call(1)
        .build()
        .unwrap();
    let policies = PolicySet::new([QuotaPolicy::per_day("daily", 100)]).unwrap();
    for times in 1..=5 {
        forgetful.knows.store(false, Ordering::SeqCst);
        let plans = (0..100).map(|user| Plan::new(policies.clone(), partition(user), 1));
        let decisions = join_all(plans.map(|plan| store.decide(plan))).await;
        assert!(
            decisions
                .iter()
                .all(|it| it.as_ref().unwrap().outcome() == Outcome::Allowed)
        );
        assert_eq!(forgetful.loaded.load(Ordering::SeqCst), times);
    }
}
