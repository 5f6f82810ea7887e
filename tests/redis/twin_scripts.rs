//! The script for buckets decides like the script for every algorithm and leaves the same values, for any previous
//! state, and so does Lua 5.4. A server that does not know a script receives it once.

use std::{
    io::{BufReader, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use test_kit::{RedisServer, ScriptCall, ScriptedServer};
use tower_quota::{
    Algorithm, Decision, Outcome, PartitionId, Plan, PolicySet, QuotaPolicy, RedisStore, Settlement, Store,
    clock::{Clock, Timestamp},
};

use super::support::{DAY, set, user};
use crate::scripts;

const START: u64 = 1_700_000_000_000_000;

/// Two servers that get the same calls: one as the store sends them, the other always with the script that has every
/// algorithm, or only the commands of the script, which runs in an interpreter.
struct Twins {
    own: RedisServer,
    full: RedisServer,
    calls: Mutex<Calls>,
    interpreter: Option<Mutex<Interpreter>>,
}

/// A process with `lua54.lua`.
struct Interpreter {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Interpreter {
    fn start() -> Self {
        let lua = std::env::var("LUA").expect("LUA is the path of a Lua 5.4 interpreter");
        let mut command = Command::new(lua);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/redis/lua54.lua"));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self {
            input: process.stdin.take().unwrap(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    fn send(&mut self, word: &[u8]) {
        self.input.write_all(&(word.len() as u64).to_le_bytes()).unwrap();
        self.input.write_all(word).unwrap();
        self.input.flush().unwrap();
    }

    fn number(&mut self) -> usize {
        let mut number = [0; 8];
        self.output.read_exact(&mut number).unwrap();
        u64::from_le_bytes(number) as usize
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        let words = 0..self.number();
        let word = |_| {
            let mut word = vec![0; self.number()];
            self.output.read_exact(&mut word).unwrap();
            word
        };
        words.map(word).collect()
    }

    /// Returns the reply to a call, in the protocol of Redis. `time` is the reply to the command `TIME`.
    fn evaluate(&mut self, words: &[Vec<u8>], server: &RedisServer, time: &[u8]) -> Vec<u8> {
        let all = scripts::Script::texts(Duration::from_millis(scripts::EXPIRY_JITTER));
        let script = |text: &&scripts::Text| [text.hash.as_bytes(), text.source.as_bytes()].contains(&&*words[1]);
        let script = all.iter().find(script).unwrap();
        let keys: usize = std::str::from_utf8(&words[2]).unwrap().parse().unwrap();
        let (keys, arguments) = words[3..].split_at(keys);
        self.send(script.source.as_bytes());
        for list in [keys, arguments] {
            self.send(list.len().to_string().as_bytes());
            list.iter().for_each(|word| self.send(word));
        }
        loop {
            let words = self.receive();
            let (kind, rest) = words.split_first().unwrap();
            match (&**kind, rest) {
                (b"call", [command]) if command == b"TIME" => self.send(time),
                (b"call", command) => self.send(&server.command_bytes(&slices(command))),
                (b"reply", [reply]) => {
                    return [format!("${}\r\n", reply.len()).as_bytes(), reply, b"\r\n"].concat();
                }
                (_, rest) => panic!("{}", String::from_utf8_lossy(&rest.concat())),
            }
        }
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The reply to the command `TIME` of a call with this reply, which begins with half a number and the time.
fn time_of(reply: &[u8]) -> Vec<u8> {
    let start = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1 + 4;
    let time = reply
        .get(start..start + 8)
        .map_or(0.0, |time| f64::from_le_bytes(time.try_into().unwrap())) as u64;
    let parts = [time / 1_000_000, time % 1_000_000].map(|part| part.to_string());
    let parts = parts.map(|part| format!("${}\r\n{part}\r\n", part.len()));
    format!("*2\r\n{}", parts.concat()).into_bytes()
}

#[derive(Default)]
struct Calls {
    of_buckets: usize,
    others: usize,
    differences: Vec<String>,
}

impl Twins {
    fn start(interpreter: Option<Interpreter>) -> Arc<Self> {
        Arc::new(Self {
            own: RedisServer::start(),
            full: RedisServer::start(),
            calls: Mutex::default(),
            interpreter: interpreter.map(Mutex::new),
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
        let expected = if let Some(interpreter) = &self.interpreter {
            let mut interpreter = interpreter.lock().unwrap();
            interpreter.evaluate(&words, &self.full, &time_of(&reply))
        } else {
            if is_of_buckets || words[1] == hash(&scripts::every_algorithm()) {
                words[0] = b"EVAL".to_vec();
                words[1] = scripts::every_algorithm().into_bytes();
            }
            self.full.command_bytes(&slices(&words))
        };
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
    other.push(QuotaPolicy::per_minute("newcomers", 9).with_initial_units(chance.below(9)));
    // Numbers of which 64 bits do not hold the products.
    let slow = QuotaPolicy::new("large", chance.of(&[1, 5_003]), Duration::from_secs(2_678_400)).with_burst_capacity(9);
    let fast = |name, quota| QuotaPolicy::per_second(name, quota);
    let wide = [QuotaPolicy::per_second("odd", 7), narrow("a", chance), slow];
    let keys = [
        QuotaPolicy::per_minute("l", 9).with_algorithm(Algorithm::SlidingWindowLog),
        narrow("b", chance),
        QuotaPolicy::concurrent("k", 5),
        fast("large", 1_000_000).with_burst_capacity(1 << 40),
        fast("fast", 999_999_999_999_989).with_burst_capacity(9),
    ];
    [buckets, other, wide.to_vec(), keys.to_vec()].map(set)
}

fn partition(number: u64) -> PartitionId {
    user("twins", number.to_be_bytes())
}

/// Changes values as foreign programs may have left them.
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
    match chance.below(2) {
        0 => value.truncate(chance.below(value.len() as u64 + 1) as usize),
        _ => value
            .iter_mut()
            .skip(11)
            .for_each(|byte| *byte = chance.below(256) as u8),
    }
    twins.set(key, &value);
}

fn set_of(is_any: bool, sets: &[PolicySet; 4], chance: &mut Chance) -> PolicySet {
    let set = if is_any { chance.of(&[0, 0, 1, 2]) } else { 0 };
    sets[set].clone()
}

fn any_plan(sets: &[PolicySet; 4], chance: &mut Chance) -> Plan {
    let set = sets[chance.of(&[0_usize, 0, 0, 0, 0, 1, 2, 3])].clone();
    Plan::new(set, partition(chance.below(3)), chance.below(4))
}

/// Forty decisions at once, which share calls.
async fn share_calls(store: &RedisStore, sets: &[PolicySet; 4], chance: &mut Chance) {
    let (is_mixed, are_several) = (chance.below(2) == 0, chance.below(2) == 0);
    let plans = (0..40).map(|_| {
        let plan = match is_mixed {
            true => any_plan(sets, chance),
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

async fn step(store: &RedisStore, sets: &[PolicySet; 4], open: &mut Vec<Decision>, chance: &mut Chance) {
    let plan = |chance: &mut Chance| any_plan(sets, chance);
    match chance.below(12) {
        10 => {
            store.peek(plan(chance)).await.unwrap();
        }
        11 => {
            if let Ok(plan) = plan(chance).allow_partial() {
                open.push(store.decide(plan).await.unwrap());
            }
        }
        0..6 => open.push(store.decide(plan(chance)).await.unwrap()),
        6 => {
            let both = plan(chance).and(sets[0].clone(), partition(3));
            open.push(store.decide(both).await.unwrap());
        }
        7 => share_calls(store, sets, chance).await,
        _ => {
            let Some(position) = (open.len() as u64).checked_sub(1 + chance.below(3)) else {
                return;
            };
            let decision = open.remove(position as usize);
            let settlement = match chance.below(2) {
                0 => Settlement::refund_all(&decision),
                _ => Settlement::new(&decision, chance.of(&[0, 1, 2, 3, 5, 1 << 53])),
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
        2 => {
            now + chance
                .of(&[3_600_000_000, 10_000_000_000_000])
                .min(chance.below(20_000_000_000_000))
        }
        3..6 => now + chance.below(2_000_000),
        _ => now,
    };
    clock.set(Timestamp::from_micros(then));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_script_for_buckets_agrees_with_the_one_for_every_algorithm_on_replies_and_values() {
    let twins = agree_on_replies_and_values(None).await;
    let calls = twins.calls.lock().unwrap();
    assert!(calls.of_buckets > 200, "{}", calls.of_buckets);
    assert!(calls.others > 100, "{}", calls.others);
}

/// Some servers have Lua 5.4 in place of 5.1, whose integers wrap and whose division returns floats.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs a Lua 5.4 interpreter; `make lua-test` runs it"]
async fn lua_5_4_and_5_1_agree_on_replies_and_values() {
    let twins = agree_on_replies_and_values(Some(Interpreter::start())).await;
    let renew = [
        b"EVAL".to_vec(),
        scripts::renew().into_bytes(),
        b"1".to_vec(),
        b"slots".to_vec(),
    ];
    for now in [START, START + 1] {
        let arguments = [
            b"60000000".to_vec(),
            [7; 2 * 16 + 8].to_vec(),
            now.to_string().into_bytes(),
        ];
        let (place, number, words) = (0, [7; 8], [&renew[..], &arguments[..]].concat());
        twins.answer(ScriptCall { place, number, words });
    }
    let calls = twins.calls.lock().unwrap();
    assert!(
        calls.of_buckets > 200 && calls.others > 200,
        "{}, {}",
        calls.of_buckets,
        calls.others
    );
    assert!(calls.differences.is_empty(), "{}", calls.differences[0]);
}

async fn agree_on_replies_and_values(interpreter: Option<Interpreter>) -> Arc<Twins> {
    let twins = Twins::start(interpreter);
    let server = {
        let twins = Arc::clone(&twins);
        ScriptedServer::start(move |call| tokio::task::block_in_place(|| twins.answer(call))).await
    };
    let interpreted = twins.interpreter.iter().map(|_| 7);
    for run in (1..=6).chain(interpreted) {
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(run));
        let clock = Clock::manual(Timestamp::from_micros(START));
        let store = RedisStore::builder(server.url())
            .connections(1)
            .key_prefix(format!("{run}:"))
            .lease_time(DAY);
        // The interpreter is told the time of the server.
        let store = if run < 7 { store.clock(clock.clone()) } else { store };
        let store = store.build().unwrap();
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
    twins
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
    let store = RedisStore::builder(server.url()).connections(1);
    let store = store.decisions_per_call(1).build().unwrap();
    let policies = set([QuotaPolicy::per_day("daily", 100)]);
    for times in 1..=5 {
        forgetful.knows.store(false, Ordering::SeqCst);
        let plans = (0..100).map(|user| Plan::new(policies.clone(), partition(user), 1));
        let decisions = join_all(plans.map(|plan| store.decide(plan))).await;
        for decision in decisions {
            assert_eq!(decision.unwrap().outcome(), Outcome::Allowed);
        }
        assert_eq!(forgetful.loaded.load(Ordering::SeqCst), times);
    }
}
