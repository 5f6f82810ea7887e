//! Ten minutes of mixed load with a fault every 20 seconds, and nothing grows. `make soak` runs it; it is no part of
//! `make test`. `SOAK_SECONDS` makes it shorter or longer, `SOAK_SEED` repeats the order of the faults.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(
    clippy::disallowed_methods,
    reason = "servers fail in real time, not in that of a test"
)]
#![allow(unreachable_pub, reason = "nothing here is part of the crate's interface")]
#![allow(dead_code, reason = "the scenarios use all of it")]

mod support;

#[path = "outages/callers.rs"]
mod callers;
#[path = "outages/fault.rs"]
mod fault;
#[path = "outages/happening.rs"]
mod happening;
#[path = "outages/harness.rs"]
mod harness;
#[path = "outages/history.rs"]
mod history;
#[path = "outages/load.rs"]
mod load;
#[path = "outages/machine.rs"]
mod machine;
#[path = "outages/record.rs"]
mod record;
#[path = "outages/scenario.rs"]
mod scenario;

use std::{
    alloc::System,
    env, fs,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use stats_alloc::{INSTRUMENTED_SYSTEM, Stats, StatsAlloc};
use tokio::time::{sleep, sleep_until};

use self::{
    fault::Fault,
    harness::Scene,
    load::Load,
    scenario::{rest, suffer},
};

const PERIOD: Duration = Duration::from_secs(20);

/// The faults before growth is measured: they have taken every way through the code.
const WARM_UP_FAULTS: u32 = 2;

/// The bytes that may be allocated and not freed at the end: the notes about each probe and connection.
const GROWTH_OF_HEAP: u64 = 1 << 20;

/// The growth of this process after warming up: the bytes that the allocator keeps for itself.
const GROWTH_OF_PROCESS: u64 = 32 << 20;

/// The growth of Redis: buffers of connections, and some hundred callers of probes, at 120 bytes each.
const GROWTH_OF_REDIS: u64 = 4 << 20;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[tokio::main]
async fn main() {
    let seconds = number("SOAK_SECONDS").unwrap_or(600);
    let seed = number("SOAK_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    println!("soak: {seconds} seconds, SOAK_SEED={seed}");
    let start = Instant::now();
    let scene = Scene::start().await;
    let before = scene.resources().await;
    let (files, quiet) = (file_descriptors(), Memory::now(&scene));
    let load = Load::start(&scene.clients);
    let mut warm = None;
    let mut round = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        let next = Instant::now() + PERIOD;
        sleep(PERIOD / 20).await;
        let fault = Fault::ALL[(scrambled(seed + u64::from(round)) % Fault::ALL.len() as u64) as usize];
        suffer(&scene, fault).await;
        let memory = Memory::now(&scene);
        println!(
            "soak: {:4} s, {memory:?}, {:?}",
            start.elapsed().as_secs(),
            scene.resources_now()
        );
        round += 1;
        if round == WARM_UP_FAULTS {
            warm = Some(memory);
        }
        sleep_until(next.into()).await;
    }
    load.stop().await;
    rest(&scene, before).await;
    assert!(
        file_descriptors() <= files,
        "{} files, {files} before",
        file_descriptors()
    );
    let (warm, end) = (warm.expect("a soak has some faults"), Memory::now(&scene));
    println!("soak: {quiet:?} before, {warm:?} when warm, {end:?} at the end");
    assert!(end.heap <= quiet.heap + GROWTH_OF_HEAP, "memory was not freed");
    assert!(
        end.process <= warm.process + GROWTH_OF_PROCESS,
        "this process has grown"
    );
    assert!(end.redis <= warm.redis + GROWTH_OF_REDIS, "Redis has grown");
    println!("soak: ok, {round} faults");
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|value| value.parse().expect(variable))
}

/// No pattern, but the same for the same seed.
fn scrambled(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}

/// In bytes.
#[derive(Clone, Copy, Debug)]
struct Memory {
    heap: u64,
    process: u64,
    redis: u64,
}

impl Memory {
    /// Zero for the process where there is no `/proc`.
    fn now(scene: &Scene) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let process = field(&status, "VmRSS:").map_or(0, |kilobytes| kilobytes << 10);
        let redis = field(&scene.command("INFO memory"), "used_memory:").unwrap();
        let Stats {
            bytes_allocated,
            bytes_deallocated,
            ..
        } = ALLOCATOR.stats();
        // The counters are read one after the other.
        let heap = bytes_allocated.saturating_sub(bytes_deallocated) as u64;
        Self { heap, process, redis }
    }
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn file_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
