//! This version of the crate reads documents and Redis values that earlier versions have written. The files under
//! `formats` have one directory for each format; none of them is ever changed.
//!
//! `WRITE_FORMAT=2 cargo test -p tower-quota-fleet --all-features --test fleet formats` writes what this version of the
//! crate writes. A new format needs that: a service that is deployed instance by instance has two versions of the crate
//! at once.

use std::{env, fmt::Write as _, fs, path::PathBuf, time::Duration};

use test_kit::RedisServer;
use tower_quota::{
    Algorithm, Direction, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Store,
    clock::{Clock, Timestamp},
};
use tower_quota_fleet::{RulesDocument, RulesSource, RulesVersion};

use crate::{
    document::whole,
    servers::{key, rules_at},
};

/// The time at which all values were written, and are read.
const TIME: u64 = 1_700_000_000_000_000;

fn directory(format: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/formats")).join(format)
}

/// The names of all formats, the newest last.
fn formats() -> Vec<String> {
    let entries = fs::read_dir(directory("")).unwrap();
    let mut formats: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    formats.sort();
    assert!(!formats.is_empty());
    formats
}

fn read(format: &str, file: &str) -> String {
    fs::read_to_string(directory(format).join(file)).unwrap()
}

/// One policy of each kind that stores represent differently.
fn policies() -> Vec<QuotaPolicy> {
    use Algorithm::*;

    let algorithms = [
        ("token bucket", TokenBucket),
        ("strict token bucket", StrictTokenBucket),
        ("leaky bucket meter", LeakyBucketMeter),
        ("leaky bucket queue", LeakyBucketQueue { max_waiting: 5 }),
        ("fixed window", FixedWindow),
        ("sliding window counter", SlidingWindowCounter),
        ("sliding window log", SlidingWindowLog),
    ];
    let hour = |name: &'static str| QuotaPolicy::per_hour(name, 10);
    let mut policies: Vec<_> = algorithms
        .map(|(name, algorithm)| hour(name).with_algorithm(algorithm))
        .into();
    policies.push(hour("blocking").with_lockout(Duration::from_secs(600)));
    policies.push(hour("bytes").with_content_bytes(Direction::Both));
    policies.push(hour("tokens").with_unit("tokens"));
    policies.push(QuotaPolicy::concurrent("slots", 10));
    policies.push(QuotaPolicy::per_calendar_month("month", 10, "Europe/Berlin"));
    policies
}

fn store(server: &RedisServer) -> RedisStore {
    let clock = Clock::manual(Timestamp::from_micros(TIME));
    RedisStore::builder(server.url()).clock(clock).build().unwrap()
}

fn plan(policy: &QuotaPolicy) -> Plan {
    let caller = Scope::new("formats").partition(&PartitionKey::new("policy", policy.name()));
    let set = PolicySet::new([policy.clone()]).unwrap();
    Plan::new(set, caller, 1)
        .with_content_bytes(1, 2)
        .with_units("tokens", 4)
}

/// The units that each policy has left, a line for each.
async fn left(server: &RedisServer) -> String {
    let (store, mut text) = (store(server), String::new());
    for policy in policies() {
        let decision = store.peek(plan(&policy)).await.unwrap();
        let left = decision.allowances().next().unwrap().remaining();
        writeln!(text, "{}: {left}", policy.name()).unwrap();
    }
    text
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// The bulk strings of a reply.
fn bulks(mut reply: &[u8]) -> Vec<Vec<u8>> {
    let mut bulks = Vec::new();
    while let Some(end) = reply.windows(2).position(|pair| pair == b"\r\n") {
        let (head, rest) = (&reply[..end], &reply[end + 2..]);
        reply = rest;
        if let Some(length) = head.strip_prefix(b"$") {
            let length = str::from_utf8(length).unwrap().parse().unwrap();
            bulks.push(rest[..length].to_vec());
            reply = &rest[length + 2..];
        }
    }
    bulks
}

/// Commands that write what a server holds, with all arguments in hexadecimal digits.
fn dump(server: &RedisServer) -> String {
    let mut keys = bulks(&server.command_bytes(&[b"KEYS", b"*"]));
    keys.sort();
    let mut text = String::new();
    for key in keys {
        let words = match &*server.command_bytes(&[b"TYPE", &key]) {
            b"+string\r\n" => vec![
                b"SET".to_vec(),
                key.clone(),
                bulks(&server.command_bytes(&[b"GET", &key])).remove(0),
            ],
            b"+zset\r\n" => {
                let range = bulks(&server.command_bytes(&[b"ZRANGE", &key, b"0", b"-1", b"WITHSCORES"]));
                let members = range.chunks(2).flat_map(|pair| [pair[1].clone(), pair[0].clone()]);
                [b"ZADD".to_vec(), key.clone()].into_iter().chain(members).collect()
            }
            other => panic!("{}", String::from_utf8_lossy(other)),
        };
        writeln!(
            text,
            "{}",
            words.iter().map(|word| to_hex(word)).collect::<Vec<_>>().join(" ")
        )
        .unwrap();
    }
    text
}

/// Writes the format of this version of the crate if `WRITE_FORMAT` is set.
async fn write_format() {
    let Ok(format) = env::var("WRITE_FORMAT") else {
        return;
    };
    let server = RedisServer::start();
    let store = store(&server);
    for policy in policies() {
        store.decide(plan(&policy)).await.unwrap();
    }
    fs::create_dir_all(directory(&format)).unwrap();
    let write = |file: &str, text: &str| fs::write(directory(&format).join(file), text).unwrap();
    write("values.txt", &dump(&server));
    write("left.txt", &left(&server).await);
    let document = whole().to_json().unwrap();
    write(
        "head.txt",
        &RulesVersion::of(whole().version(), document.as_bytes()).to_string(),
    );
    write("document.json", &document);
}

#[tokio::test]
async fn counts_of_every_format_go_on() {
    write_format().await;
    for format in formats() {
        let server = RedisServer::start();
        for line in read(&format, "values.txt").lines() {
            let words: Vec<_> = line.split(' ').map(from_hex).collect();
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            assert!(!server.command_bytes(&words).starts_with(b"-"), "{line}");
        }
        let expected = read(&format, "left.txt");
        assert_eq!(left(&server).await, expected, "format {format}");
        // Something is used of each.
        assert!(expected.lines().all(|line| !line.ends_with(": 10")), "{expected}");
    }
}

/// The document of the newest format is also written to the byte as it was: other bytes are another format.
#[tokio::test]
async fn documents_of_every_format_are_read_and_the_newest_is_the_one_that_is_written() {
    let server = RedisServer::start();
    for format in formats() {
        let (document, head) = (read(&format, "document.json"), read(&format, "head.txt"));
        let [head_key, document_key] = ["head", "document"].map(|kind| key("formats", kind));
        server.command(&["MSET", &head_key, &head, &document_key, &document]);
        let rules = rules_at(RedisStore::builder(server.url()), "formats");
        let version = rules.state().await.unwrap().version().unwrap().unwrap();
        let bytes = rules.document(version).await.unwrap();
        assert_eq!(version, RulesVersion::of(version.number(), &bytes), "format {format}");
        let parsed = RulesDocument::parse(&bytes).unwrap();
        assert_eq!(parsed.version(), version.number(), "format {format}");
        parsed.check().unwrap();
    }
    let newest = read(formats().last().unwrap(), "document.json");
    assert_eq!(newest, whole().to_json().unwrap());
    assert_eq!(RulesDocument::parse(newest.as_bytes()).unwrap(), whole());
}
