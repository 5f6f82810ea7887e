//! Tests the reports of the program `load` in each mode. The tests do not depend on the speed of the machine.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../load/users.rs"]
mod users;

use std::{
    io::{BufRead, BufReader},
    net::{Ipv4Addr, TcpStream},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;
use test_kit::RedisServer;
use users::{Random, UserId, Users};

/// The random numbers have a fixed seed, so the test is deterministic.
#[test]
fn few_users_send_many_requests_as_the_skew_says() {
    const REQUESTS: u64 = 100_000;
    let few = [(1, 1.0), (10, 0.0), (10, 1.0), (10, 10.0)];
    let many = [0.5, 1.0, 2.0].map(|skew| (1_000_000, skew));
    for (count, skew) in few.into_iter().chain(many) {
        let (users, mut random) = (Users::new(count, skew), Random::new(7));
        let mut heaviest = 0;
        for _ in 0..REQUESTS {
            let UserId(user) = users.choose(&mut random);
            assert!((1..=count).contains(&user), "{count} {skew}: {user}");
            heaviest += u64::from(user == 1);
        }
        let [part, expected] = [heaviest as f64 / REQUESTS as f64, users.heaviest()];
        assert!((part - expected).abs() < 0.003, "{count} {skew}: {part} {expected}");
    }
    assert!((Users::new(10, 0.0).heaviest() - 0.1).abs() < 1e-9);
    assert!((0.001..0.002).contains(&Users::new(1_000_000, 1.0).heaviest()));
}

#[test]
fn requests_come_by_chance_at_the_rate() {
    for mean in [0.01, 7.5, 250.0] {
        let mut random = Random::new(7);
        let counts: Vec<_> = (0..100_000).map(|_| f64::from(random.poisson(mean))).collect();
        let average = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / counts.len() as f64;
        // In a Poisson distribution, the average and the variance both equal the mean.
        let found = average(&mut counts.iter().copied());
        let variance = average(&mut counts.iter().map(|count| (count - found).powi(2)));
        for value in [found, variance] {
            assert!((value / mean - 1.0).abs() < 0.05, "{mean}: {found} {variance}");
        }
    }
}

fn start(arguments: &[&str], redis_url: Option<&str>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
    command.args(arguments).env_remove("REDIS_URL");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.envs(redis_url.map(|url| ("REDIS_URL", url))).spawn().unwrap()
}

fn finish(child: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn what_is_not_understood_prints_the_usage_and_exits_with_2() {
    let delay = "--delay takes a server of its own that stays up: unset REDIS_URL, and no --mode outage";
    let mode = "--mode fast is none of normal, rejection, outage, hot-key, find, callers";
    for (arguments, message) in [
        (
            "--json no/such/folder/a",
            "--json no/such/folder/a: there can be no such file",
        ),
        ("--json - --svg -", "--json and --svg both go to -"),
        ("--rat 5", "--rat is no option"),
        ("--rate", "--rate has no value"),
        ("--rate many", "--rate many is not a number"),
        ("--rate 0", "--rate 0 is outside 1..=1000000"),
        ("--rate -1", "--rate -1 is not a number"),
        ("--seconds 0", "--seconds 0 is outside 1..=86400"),
        ("--users 0", "--users 0 is outside 1..=1000000000"),
        ("--together 65", "--together 65 is outside 1..=64"),
        ("--delay 40 --mode outage", delay),
        ("--skew NaN", "--skew NaN is outside 0..=10"),
        ("--mode fast", mode),
        (
            "--mode outage --seconds 6",
            "--seconds 6: the five phases of --mode outage take 7",
        ),
    ] {
        let arguments: Vec<_> = arguments.split(' ').collect();
        let (code, output, errors) = finish(start(&arguments, None));
        assert_eq!((code, &*output), (Some(2), ""), "{errors}");
        assert!(errors.starts_with(&format!("{message}\n\nUsage: ")), "{errors}");
    }
    let (code, _, errors) = finish(start(&["--mode", "outage"], Some("redis://127.0.0.1/")));
    assert_eq!(code, Some(2));
    assert!(errors.starts_with("--mode outage stops Redis, so it does not take the one of REDIS_URL"));

    let (code, output, errors) = finish(start(&["--help"], None));
    assert_eq!((code, &*errors), (Some(0), ""));
    assert!(output.starts_with("Usage: "));
    // No server listens on port 1.
    let (code, _, errors) = finish(start(&["--seconds", "1"], Some("redis://127.0.0.1:1/")));
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("Connection refused"), "{errors}");
}

#[test]
fn every_mode_reports_what_it_is_for() {
    let small = ["--rate", "500", "--seconds", "1", "--users", "10"];
    let with = |more: &[&str]| start(&[&small, more].concat(), None);
    // The programs run concurrently, because they mostly wait.
    let outage = with(&["--mode", "outage", "--seconds", "7"]);
    let given = RedisServer::start();
    let normal = start(&small, Some(&given.url()));
    let (rejection, hot_key) = (with(&["--mode", "rejection"]), with(&["--mode", "hot-key"]));

    check_normal(&report(normal));
    check_json(start(&[&small[..], &["--json", "-"]].concat(), None));
    assert_eq!(given.command(&["DBSIZE"]), "0", "what the test has left is removed");

    let rejection = report(rejection);
    assert!(count(&rejection, "rejected") > 0, "{rejection}");
    assert!(has_line(&rejection, "what rejections cost"), "{rejection}");

    let hot_key = report(hot_key);
    // The warm-up exhausts the quota, and few units refill within the run.
    assert!(count(&hot_key, "allowed") < count(&hot_key, "rejected"), "{hot_key}");
    assert!(has_line(&hot_key, "local rejections "), "{hot_key}");

    check_outage(&report(outage));

    let callers = report(start(&["--mode", "callers", "--users", "20000"], None));
    assert_eq!(count(&callers, "allowed"), 20_000, "{callers}");
    assert_eq!(count(&callers, "failed open"), 0, "{callers}");
    // One more key belongs to the request that opened the connections.
    assert_eq!(count(&callers, "live keys"), 20_001, "{callers}");
    assert_has_lines(&callers, "used memory |this process ");
}

fn check_normal(report: &str) {
    let due = count(report, "due");
    assert!(due > 0 && count(report, "answered in time") <= due, "{report}");
    // If the machine stalls at the end, some requests remain unsent.
    let unsent = has_line(report, "never sent ").then(|| count(report, "never sent"));
    let answered = count(report, "allowed") + count(report, "failed open");
    assert_eq!(answered + unsent.unwrap_or(0), due, "{report}");
    assert_eq!(count(report, "rejected"), 0, "{report}");
    // One more key belongs to the request that opened the connections.
    assert_eq!(count(report, "live keys"), 11, "{report}");
    assert_has_lines(report, "bare service |with limits |added |processor |calls |commands ");
    assert_has_lines(
        report,
        "bytes per key |used memory |memory of Redis |processors of Redis ",
    );
}

/// `--json -` writes nothing but the results to stdout.
fn check_json(child: Child) {
    let results: Value = serde_json::from_str(&report(child)).unwrap();
    let number = |path: &str| results.pointer(path).and_then(Value::as_f64);
    assert_eq!(
        (&results["program"], &results["mode"]),
        (&"load".into(), &"normal".into())
    );
    let numbers = ["/schema", "/rate_per_second", "/instances"].map(number);
    assert_eq!(numbers, [Some(1.0), Some(500.0), Some(4.0)]);
    let of = |name: &str| number(&format!("/requests/{name}")).unwrap();
    let all = of("allowed") + of("rejected") + of("failed_open") + of("never_sent");
    assert_eq!(all, of("due"), "{results}");
    assert!(number("/latency_from_due/limited/p99_ms") > Some(0.0), "{results}");
    // The noise cannot be estimated from one round, so no difference is reported.
    assert_eq!(results["rounds"].as_array().unwrap().len(), 1);
    assert_eq!(results["added"]["p99"]["median_ms"], Value::Null, "{results}");
}

fn check_outage(report: &str) {
    let phases = report.split_once("\nphase ").unwrap().1;
    for name in ["paused", "resumed", "killed", "restarted"] {
        let is_up = ["resumed", "restarted"].contains(&name);
        let line = phases.lines().find(|line| line.starts_with(name)).unwrap();
        let numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
        let [allowed, _, failed_open, _, failed_connections] = numbers.collect::<Vec<f64>>()[..] else {
            panic!("{report}");
        };
        assert!(is_up || failed_open > 0.0, "{name}: {report}");
        assert!(!is_up || allowed > 0.0, "{name}: {report}");
        assert!(name != "killed" || failed_connections > 0.0, "{name}: {report}");
    }
    for name in ["resumed", "restarted"] {
        assert_has_lines(report, &format!("limits hold again, {name}: "));
    }
}

#[test]
fn the_server_that_it_started_ends_with_it() {
    let mut child = start(&["--rate", "100"], None);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let port = lines.find_map(|line| line.strip_prefix("Redis started for this on port ")?.parse().ok());
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port.unwrap()));
    assert!(connect().is_ok());
    child.kill().unwrap();
    child.wait().unwrap();
    let is_gone = (0..2_000).any(|_| {
        thread::sleep(Duration::from_millis(5));
        connect().is_err()
    });
    assert!(is_gone, "the server is still there");
}

/// Returns the output of a successful run.
fn report(child: Child) -> String {
    let (code, output, errors) = finish(child);
    assert_eq!(code, Some(0), "{output}{errors}");
    for part in ["/s  p99 ", " ms  rejected ", "  failed open "] {
        assert!(errors.contains(part), "no progress was shown: {errors}");
    }
    output
}

/// Returns the first number on the line that begins with the name.
fn count(report: &str, name: &str) -> u64 {
    let values = report.lines().filter_map(|line| line.trim_start().strip_prefix(name));
    let mut numbers = values.filter_map(|value| value.split([' ', ',']).find_map(|word| word.parse().ok()));
    numbers.next().unwrap_or_else(|| panic!("no {name}: {report}"))
}

/// The beginnings of the lines are separated by `|`.
fn assert_has_lines(report: &str, beginnings: &str) {
    for line in beginnings.split('|') {
        assert!(has_line(report, line), "{line}: {report}");
    }
}

fn has_line(report: &str, beginning: &str) -> bool {
    report.lines().any(|line| line.trim_start().starts_with(beginning))
}
