//! What needs processes of its own. Not a libtest program, because it starts itself as each of them.
//!
//! `cargo test --all-features --test processes tls` runs one part.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod concurrency;
mod instances;
mod load;
mod tls;

use std::{
    env,
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering},
};

use load::support;

const PARTS: [(&str, fn()); 4] = [
    ("concurrency", concurrency::run),
    ("instances", instances::run),
    ("load", load::run),
    ("tls", tls::run),
];

static PASSED: AtomicU32 = AtomicU32::new(0);

fn passed(test: &str) {
    println!("test {test} ... ok");
    PASSED.fetch_add(1, Ordering::Relaxed);
}

fn main() -> ExitCode {
    if let Some(code) = load::child() {
        return code;
    }
    if concurrency::child() || instances::child() || tls::child() {
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
