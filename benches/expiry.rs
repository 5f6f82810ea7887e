//! The latency of a server while the windows of a million callers end simultaneously.
//!
//!     cargo bench -p tower-quota-tests --bench expiry                      # with the default jitter
//!     JITTER_SECONDS=0 cargo bench -p tower-quota-tests --bench expiry     # without
//!
//! Starts a dedicated server: `REDIS_SERVER`, or the server from the `PATH`. A million callers (`CALLERS`) are charged
//! in one fixed window of a minute, with the calls that a store sends. Another connection sends a `PING` every
//! millisecond and measures the latency from the time it was due: before the window ends, and while the keys expire.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod rounds;

use std::{
    io::{BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant, SystemTime},
};

use test_kit::{RedisServer, ScriptCall, ScriptedServer, encode, read_reply};
use tokio::runtime::Runtime;
use tower_quota::{Algorithm, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Store};

const WINDOW: u64 = 60;
const MILLISECOND: Duration = Duration::from_millis(1);
const BATCH: u64 = 500;

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let (jitter, callers) = (
        rounds::setting("JITTER_SECONDS", 60),
        rounds::setting("CALLERS", 1_000_000_u64),
    );
    let server = RedisServer::start();
    let call = recorded(Duration::from_secs(jitter));
    // A window that has just begun.
    thread::sleep(left_of_the_window());
    let filling = Instant::now();
    fill(&server, &call, callers);
    println!(
        "{callers} callers in {:.1} s, jitter of up to {jitter} s",
        filling.elapsed().as_secs_f64()
    );
    let left = left_of_the_window();
    assert!(
        filling.elapsed() + left < Duration::from_secs(WINDOW),
        "the callers are of several windows"
    );
    thread::sleep(left.saturating_sub(Duration::from_secs(5)));
    report(
        "before",
        &pings(&server, left_of_the_window().saturating_sub(MILLISECOND * 500)),
    );
    thread::sleep(left_of_the_window());
    let mut all = Vec::new();
    for second in 0..2 * WINDOW {
        let late = pings(&server, Duration::from_secs(1));
        let keys = server.command(&["DBSIZE"]);
        if second < 10 || second % 10 == 0 {
            report(&format!("{second} s, {keys} keys"), &late);
        }
        all.extend(late);
        if keys == "0" {
            break;
        }
    }
    all.sort();
    report("while keys expire", &all);
}

/// The call that a store sends about a caller.
fn recorded(jitter: Duration) -> Vec<Vec<u8>> {
    let recorded = Arc::<Mutex<Option<Vec<Vec<u8>>>>>::default();
    let record = {
        let recorded = Arc::clone(&recorded);
        move |call: ScriptCall| {
            let reply = call.reply(&[1.0; 4]);
            if call.words[0] == b"EVALSHA" {
                // Unknown here, so that it is sent in full.
                return b"-NOSCRIPT\r\n".to_vec();
            }
            *recorded.lock().expect("nothing has panicked") = Some(call.words);
            reply
        }
    };
    let window = QuotaPolicy::new("window", 1_000, Duration::from_secs(WINDOW));
    let policies = PolicySet::new([window.with_algorithm(Algorithm::FixedWindow)]).expect("the policy is valid");
    let caller = Scope::new("expiry").partition(&PartitionKey::new("user", "somebody"));
    Runtime::new().expect("the runtime starts").block_on(async {
        let server = ScriptedServer::start(record).await;
        let store = RedisStore::builder(server.url()).expiry_jitter(jitter).build();
        let store = store.expect("the settings are valid");
        store
            .decide(Plan::new(policies, caller, 1))
            .await
            .expect("the server answers");
    });
    let call = recorded.lock().expect("nothing has panicked").take();
    call.expect("the script was sent in full")
}

/// Makes the call once per caller, each with its own key and number.
fn fill(server: &RedisServer, call: &[Vec<u8>], callers: u64) {
    let hash = server.command(&[
        "SCRIPT",
        "LOAD",
        std::str::from_utf8(&call[1]).expect("a script is text"),
    ]);
    let mut connection = connect(server);
    let mut replies = BufReader::new(connection.try_clone().expect("a connection has two sides"));
    let (charge, _) = call[4].split_at(call[4].len() - 8);
    for first in (0..callers).step_by(BATCH as usize) {
        let batch = first..callers.min(first + BATCH);
        let mut bytes = Vec::new();
        for caller in batch.clone() {
            let number = caller.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            let key = format!("quota:{{{caller:022}}}");
            let words = [
                b"EVALSHA",
                hash.as_bytes(),
                b"1",
                key.as_bytes(),
                &[charge, &number].concat(),
            ];
            bytes.extend(encode(&words));
        }
        connection.write_all(&bytes).expect("the server reads");
        for _ in batch {
            let mut reply = Vec::new();
            read_reply(&mut replies, &mut reply).expect("the server answers");
            assert_eq!(reply[0], b'$', "{}", String::from_utf8_lossy(&reply));
        }
    }
}

fn connect(server: &RedisServer) -> TcpStream {
    let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).expect("the server listens");
    connection.set_nodelay(true).expect("a connection has this setting");
    connection
}

fn left_of_the_window() -> Duration {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Duration::from_secs(WINDOW).saturating_sub(Duration::from_nanos(
        (now.as_nanos() % (u128::from(WINDOW) * 1_000_000_000)) as u64,
    ))
}

/// A `PING` each millisecond, and how much later than due each was answered, in order.
fn pings(server: &RedisServer, time: Duration) -> Vec<Duration> {
    let mut connection = connect(server);
    let (start, mut due, mut late) = (Instant::now(), Duration::ZERO, Vec::new());
    while due < time {
        thread::sleep(due.saturating_sub(start.elapsed()));
        connection.write_all(b"PING\r\n").expect("the server reads");
        connection.read_exact(&mut [0; 7]).expect("the server answers");
        late.push(start.elapsed().saturating_sub(due));
        due += MILLISECOND;
    }
    late.sort();
    late
}

fn report(when: &str, late: &[Duration]) {
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize].as_secs_f64() * 1_000.0;
    println!(
        "{when:>24}: p50 {:7.2} ms, p99 {:7.2} ms, most {:7.2} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
