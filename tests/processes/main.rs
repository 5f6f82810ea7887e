//! Tests that need separate processes. This is not a libtest program, because it starts itself as each of them.
//!
//! `cargo test -p tower-quota-tests --all-features --test processes tls` runs one part.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod concurrency;
#[path = "../../crates/tower-quota-anonymous/tests/privacy_pass/holder.rs"]
#[allow(dead_code, reason = "only some of what a holder can do is needed here")]
mod holder;
mod instances;
#[path = "../../crates/tower-quota-anonymous/tests/privacy_pass/instances.rs"]
mod origins;
mod rules;
mod tls;
mod tokens;

use std::{
    env,
    fmt::Debug,
    io::{BufRead, BufReader, Write},
    process::{Command, ExitCode, Stdio},
    str::FromStr,
    sync::atomic::{AtomicU32, Ordering},
};

const PARTS: [(&str, fn()); 5] = [
    ("concurrency", concurrency::run),
    ("instances", instances::run),
    ("rules", rules::run),
    ("tls", tls::run),
    ("tokens", tokens::run),
];

static PASSED: AtomicU32 = AtomicU32::new(0);

fn passed(test: &str) {
    println!("test {test} ... ok");
    PASSED.fetch_add(1, Ordering::Relaxed);
}

/// Starts processes of this program, which know by the variable what to do, lets them begin when all of them are ready,
/// and returns what they print.
fn together<N: FromStr<Err: Debug>>(processes: usize, variable: &str, told: &str) -> Vec<N> {
    let start = || {
        let mut command = Command::new(env::current_exe().unwrap());
        command.env(variable, told).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut children: Vec<_> = (0..processes).map(|_| start()).collect();
    let mut outputs: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().unwrap()).lines())
        .collect();
    for output in &mut outputs {
        assert_eq!(output.next().unwrap().unwrap(), "ready");
    }
    for child in &mut children {
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
    let printed = outputs.iter_mut().map(|output| output.next().unwrap().unwrap());
    let printed = printed.map(|line| line.parse().unwrap()).collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success(), "an instance failed");
    }
    printed
}

/// One of these processes is ready, and begins with the others.
fn wait_for_the_others() {
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

fn main() -> ExitCode {
    if concurrency::child() || instances::child() || rules::child() || tls::child() || tokens::child() {
        return ExitCode::SUCCESS;
    }
    let filter = env::args().skip(1).find(|argument| !argument.starts_with('-'));
    for (name, run) in PARTS {
        if filter.as_ref().is_none_or(|filter| name.contains(filter)) {
            run();
        }
    }
    println!("test result: ok. {} passed", PASSED.load(Ordering::Relaxed));
    ExitCode::SUCCESS
}
