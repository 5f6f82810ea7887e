//! Decisions per second on one Redis server: through `RedisStore` alone and through the whole layer, next to
//! `redis-benchmark` with the same script.
//!
//!     cargo bench -p tower-quota-tests --bench redis
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. Needs `redis-benchmark` beside it or on
//! the `PATH`. There are three windows (10 per second, 100 per minute, 5,000 per day) and users at random out of
//! 250,000. Every side begins with an empty server. The sides are measured in turns, `ROUNDS` (11) times for `SECONDS`
//! (0.5) each; the table shows medians.
//!
//! - *redis-benchmark*: one thread, 50 connections, pipelines of 16, so 800 decisions in flight; random keys as long as
//!   ours. It finds the place for the random part of a key with `strstr`, so a request must not contain a zero byte:
//!   the charges are not sent with each request, but are a constant at the head of the script. That spares the server
//!   140 of about 250 bytes per request and so favors `redis-benchmark` a little. It reads only the length of the
//!   replies.
//! - *RedisStore*: `acquire` with default settings (two connections) for a digest that was made before, and the
//!   outcome of its `Decision`. No deadline, no circuit breaker, no fields.
//! - *whole layer*: a request with a user id in its extensions through `RateLimit` around a service that responds
//!   immediately: the key and its digest, the plan, guard with breaker and the default deadline, decision, fields and
//!   response. Concurrent decisions share calls of the script, except in the sides with a separate call for each
//!   decision.
//!
//! Both run on a Tokio runtime with as many threads as there are cores, which the server has to share with them. Only
//! decisions that were made count. The last line has the number of requests that ran into the deadline, at a moment
//! when the machine was busy with something else, or met the open circuit afterwards; a rejection or an error ends the
//! run.
//!
//! A second table compares the algorithms, each with one policy of 100 per minute unless its name indicates otherwise,
//! through `RedisStore` alone: how many decisions the server makes in a second of its CPU time, including reading from
//! and writing to the network. Acquired slots are released, which is a second call. The end of the output shows how
//! many bytes the server stores per caller.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod algorithms;
mod decisions;
mod rounds;
#[path = "../src/store/redis/scripts/mod.rs"]
#[allow(dead_code, reason = "three buckets need one of them")]
mod scripts;

use std::{
    env,
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    process::{self, Command},
};

use tower_quota::Outcome;

use self::{
    decisions::{Bench, Decide, POLICIES, StoreAlone, USERS, WholeLayer, store, store_without_sharing},
    rounds::Side,
};

const TASKS: [usize; 3] = [1, 64, 512];

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let program = find_redis_benchmark().unwrap_or_else(|| {
        eprintln!("redis-benchmark was found neither beside $REDIS_SERVER nor on the PATH; it comes with Redis");
        process::exit(1);
    });
    let bench = Bench::start();
    let (store, layer) = (
        StoreAlone::new(&bench.server, POLICIES),
        WholeLayer::new(store(&bench.server), POLICIES),
    );
    let layer_without_sharing = WholeLayer::new(store_without_sharing(&bench.server), POLICIES);
    let redis_benchmark = RedisBenchmark::prepare(program, &bench, &store);
    // `redis-benchmark` takes the number of requests, not a duration.
    let requests = (redis_benchmark.measure(50_000) * bench.length.as_secs_f64()) as u64;
    let mut sides = vec![Side::new("redis-benchmark -P 16 -c 50", || {
        redis_benchmark.measure(requests)
    })];
    sides.extend(bench.sides("RedisStore alone", "digest given; plan, acquire", &store, &TASKS));
    let all = "key, digest, plan, guard, deadline, fields, response";
    sides.extend(bench.sides("whole layer", all, &layer, &TASKS));
    let name = "whole layer, one decision per call";
    sides.extend(bench.sides(name, "the same", &layer_without_sharing, &TASKS[1..]));
    // A round that opens the connections and does not count.
    rounds::measure(1, &mut sides);
    let rounds = rounds::setting("ROUNDS", 11);
    let values = rounds::measure(rounds, &mut sides);
    let threads = bench.runtime.metrics().num_workers();
    let title = format!("{rounds} rounds of {:?}, threads: {threads}", bench.length);
    rounds::print(&title, "decisions/s", &sides, &values);
    println!("requests without a decision: {}", bench.undecided.get());
    algorithms::measure(&bench, rounds);
    algorithms::print_sizes(&bench);
    algorithms::print_bytes_of_many(&bench);
}

/// Beside the server or on the `PATH`.
fn find_redis_benchmark() -> Option<PathBuf> {
    let server = env::var_os("REDIS_SERVER").map(PathBuf::from).unwrap_or_default();
    let beside = server.parent().map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = beside.into_iter().chain(env::split_paths(&path));
    directories
        .flat_map(|directory| ["redis-benchmark", "valkey-benchmark"].map(|name| directory.join(name)))
        .find(|program| program.is_file())
}

/// `redis-benchmark` with the script as it is, except for where it finds the charges.
struct RedisBenchmark<'a> {
    program: PathBuf,
    bench: &'a Bench,
    hash: String,
    /// With a part that is replaced by random digits.
    key: String,
}

impl<'a> RedisBenchmark<'a> {
    /// Looks at what the store sends for a decision, and sees to it that this comes to the same.
    fn prepare(program: PathBuf, bench: &'a Bench, store: &StoreAlone) -> Self {
        let server = &bench.server;
        let [verb, hash, keys, key, charges] = sent_by(store, bench);
        let load = |source: &str| server.command(&["SCRIPT", "LOAD", source]);
        assert_eq!((verb.as_slice(), keys.as_slice()), (&b"EVALSHA"[..], &b"1"[..]));
        assert_eq!(
            load(&scripts::buckets()).as_bytes(),
            hash,
            "this is not the script that the store uses"
        );

        let mut source = "local ARGV = {\"".to_owned();
        for byte in &charges {
            let _ = write!(source, "\\{byte:03}");
        }
        let baked = load(&(source + "\"}\n" + &scripts::buckets()));
        let reply = |arguments: &[&[u8]]| {
            bench.flush();
            let reply = server.command_bytes(&[&[&b"EVALSHA"[..]], arguments].concat());
            let (_, decision) = reply
                .split_at_checked(b"$40\r\n".len() + 4 + 8)
                .expect("half the call's number, a time, three numbers, and the other half");
            let value = server.command_bytes(&[b"GET", &key]);
            let (_, levels) = value
                .split_at_checked(b"$44\r\n".len() + 8)
                .expect("a time and three levels");
            (decision.to_vec(), levels.to_vec())
        };
        assert_eq!(
            reply(&[baked.as_bytes(), b"1", &key]),
            reply(&[&hash, b"1", &key, &charges])
        );

        let mut key = String::from_utf8(key).expect("a key is text");
        let place = key.len() - "__rand_int__}".len();
        key.replace_range(place.., "__rand_int__}");
        Self {
            program,
            bench,
            hash: baked,
            key,
        }
    }

    /// Decisions per second.
    fn measure(&self, requests: u64) -> f64 {
        self.bench.flush();
        let server = &self.bench.server;
        let output = Command::new(&self.program)
            .args(["-h", "127.0.0.1", "-p", &server.port().to_string()])
            .args(["-P", "16", "-c", "50", "-q"])
            .args(["-r", &USERS.to_string(), "-n", &requests.to_string()])
            .args(["EVALSHA", &self.hash, "1", &self.key])
            .output()
            .expect("redis-benchmark starts");
        let printed = String::from_utf8_lossy(&output.stdout);
        let before = printed.rsplit_once(" requests per second").map(|(before, _)| before);
        let rate = before.and_then(|before| before.rsplit(' ').next()?.parse().ok());
        let rate = rate.unwrap_or_else(|| panic!("redis-benchmark: {output:?}"));
        let keys: u64 = server.command(&["DBSIZE"]).parse().expect("a number");
        assert!(keys > requests.min(USERS as u64) / 4, "the keys were not random");
        rate
    }
}

/// The words of the request for one decision.
fn sent_by(store: &StoreAlone, bench: &Bench) -> [Vec<u8>; 5] {
    let mut monitor = TcpStream::connect((Ipv4Addr::LOCALHOST, bench.server.port())).expect("the server listens");
    monitor.write_all(b"MONITOR\r\n").expect("the server reads");
    let mut lines = BufReader::new(monitor)
        .split(b'\n')
        .map(|line| line.expect("the server writes"));
    assert_eq!(lines.next().as_deref(), Some(&b"+OK\r"[..]));
    let asked = bench.runtime.block_on(store.decide(0));
    assert_eq!(asked, Outcome::Allowed);
    // The first request is answered with NOSCRIPT, and the store sends the script itself.
    let words = lines
        .map(|line| quoted_words(&line))
        .find(|words| words.len() == 5 && words[0] == b"EVALSHA");
    words
        .and_then(|words| words.try_into().ok())
        .expect("the store asks the server")
}

/// The words of a line of MONITOR, which are in quotation marks.
fn quoted_words(line: &[u8]) -> Vec<Vec<u8>> {
    let (mut words, mut word) = (Vec::new(), None);
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, &mut word) {
            (b'"', None) => word = Some(Vec::new()),
            (b'"', Some(_)) => words.extend(word.take()),
            (b'\\', Some(word)) => word.push(match bytes.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'a') => 7,
                Some(b'b') => 8,
                Some(b'x') => {
                    let digits =
                        [bytes.next(), bytes.next()].map(|digit| char::from(digit.unwrap_or(b'?')).to_digit(16));
                    digits
                        .iter()
                        .fold(0, |value, digit| value * 16 + digit.expect("a hexadecimal digit") as u8)
                }
                other => other.expect("something after a backslash"),
            }),
            (byte, Some(word)) => word.push(byte),
            (_, None) => {}
        }
    }
    words
}
