//! Ten minutes of mixed load with a fault every 20 seconds, and nothing grows. `make soak` runs it; it is no part of
//! `make test`. `SOAK_SECONDS` makes it shorter or longer, `SOAK_SEED` repeats the order of the faults.
//! `make soak ARGS="--json $PWD/soak.json --svg $PWD/soak.svg"` writes what was seen for machines, and as a picture.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(
    clippy::disallowed_methods,
    reason = "servers fail in real time, not in that of a test"
)]
#![allow(unreachable_pub, reason = "nothing here is part of the crate's interface")]
#![allow(dead_code, reason = "the scenarios use all of it")]

#[path = "../examples/results/mod.rs"]
mod results;

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
    env, fmt, fs,
    hash::{BuildHasher, RandomState},
    process::exit,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Stats, StatsAlloc};
use tokio::time::{sleep, sleep_until};

use self::{
    fault::Fault,
    harness::Scene,
    load::Load,
    results::{
        outputs::{Outputs, USAGE, rounded},
        progress::Progress,
    },
    scenario::{rest, suffer},
};

const PERIOD: Duration = Duration::from_secs(20);

/// The faults before growth is measured: they have taken every way through the code.
const WARM_UP_FAULTS: usize = 2;

/// The bytes that may be allocated and not freed at the end: buffers of connections, the notes about each probe, and the
/// probes in the rejection caches, which know for a day that they are exhausted.
const GROWTH_OF_HEAP: u64 = 1 << 20;

/// The growth of this process after warming up: the bytes that the allocator keeps for itself.
const GROWTH_OF_PROCESS: u64 = 32 << 20;

/// The growth of Redis: buffers of connections, and some hundred callers of probes, at 120 bytes each.
const GROWTH_OF_REDIS: u64 = 4 << 20;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[tokio::main]
async fn main() {
    let outputs = Outputs::parse(env::args().skip(1)).unwrap_or_else(|mistake| {
        eprint!("{mistake}\n\n{USAGE}");
        exit(2);
    });
    let seconds = number("SOAK_SECONDS").unwrap_or(600);
    let seed = number("SOAK_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    eprintln!("soak: {seconds} seconds, SOAK_SEED={seed}");
    let scene = Scene::start().await;
    let before = scene.resources().await;
    let (files, quiet) = (file_descriptors(), Memory::now(&scene));
    let load = Load::start(&scene.clients);
    let mut soak = Soak::new(seed, Duration::from_secs(seconds));
    while soak.start.elapsed() < soak.length {
        soak.suffer_one(&scene).await;
    }
    load.stop().await;
    // The history since the last fault is checked, too. It would otherwise count as growth.
    scene.close_chapter(0).await;
    rest(&scene, before).await;
    soak.progress.clear();
    let found = Found {
        seconds,
        seed,
        quiet,
        end: Memory::now(&scene),
        samples: soak.samples,
    };
    outputs.write(&found.to_string(), &found.json()).unwrap();
    assert!(
        file_descriptors() <= files,
        "{} files, {files} before",
        file_descriptors()
    );
    for growth in found.growth() {
        assert!(
            growth.bytes <= growth.most,
            "{} has grown by {} bytes",
            growth.of,
            growth.bytes
        );
    }
}

/// Faults, one after the other.
struct Soak {
    seed: u64,
    start: Instant,
    length: Duration,
    progress: Progress,
    samples: Vec<Sample>,
}

/// The state after a fault.
struct Sample {
    /// After the start.
    at: Duration,
    fault: Fault,
    held_after: Duration,
    memory: Memory,
}

impl Soak {
    fn new(seed: u64, length: Duration) -> Self {
        Self {
            seed,
            start: Instant::now(),
            length,
            progress: Progress::new(),
            samples: Vec::new(),
        }
    }

    async fn suffer_one(&mut self, scene: &Scene) {
        let (next, round) = (Instant::now() + PERIOD, self.samples.len() as u64);
        sleep(PERIOD / 20).await;
        let fault = Fault::ALL[(scrambled(self.seed + round) % Fault::ALL.len() as u64) as usize];
        self.show(&format!("{fault:?}"));
        let suffered = suffer(scene, fault).await;
        let (held_after, missed) = (suffered.held_after, suffered.missed_bounds());
        assert!(missed.is_empty(), "{fault:?}: {missed:?}");
        self.samples.push(Sample {
            at: self.start.elapsed(),
            fault,
            held_after,
            memory: Memory::now(scene),
        });
        while Instant::now() < next {
            self.show("load without a fault");
            sleep_until(next.min(Instant::now() + Duration::from_secs(1)).into()).await;
        }
    }

    fn show(&mut self, stage: &str) {
        let memory = self
            .samples
            .last()
            .map_or(String::new(), |sample| format!(", {}", sample.memory));
        let found = format!("{} faults survived{memory}", self.samples.len());
        // The last period is not cut short.
        let periods = self.length.as_secs().div_ceil(PERIOD.as_secs()) as u32;
        self.progress.show_of(stage, PERIOD * periods, &found);
    }
}

/// The results.
struct Found {
    seconds: u64,
    seed: u64,
    /// Before the load, and after it.
    quiet: Memory,
    end: Memory,
    samples: Vec<Sample>,
}

/// The growth of something in bytes, and the most that is accepted.
struct Growth {
    of: &'static str,
    bytes: u64,
    most: u64,
}

impl Found {
    fn growth(&self) -> [Growth; 3] {
        let last = self.samples.iter().take(WARM_UP_FAULTS).next_back();
        let warm = last.expect("a soak has some faults").memory;
        let growth = |of, from: u64, to: u64, most| Growth {
            of,
            bytes: to.saturating_sub(from),
            most,
        };
        [
            growth("the heap", self.quiet.heap, self.end.heap, GROWTH_OF_HEAP),
            growth("this process", warm.process, self.end.process, GROWTH_OF_PROCESS),
            growth("Redis", warm.redis, self.end.redis, GROWTH_OF_REDIS),
        ]
    }

    fn json(&self) -> Value {
        let samples = self.samples.iter().map(|sample| {
            let held_after = rounded(sample.held_after.as_secs_f64());
            let Memory { heap, process, redis } = sample.memory;
            json!({
                "at_seconds": rounded(sample.at.as_secs_f64()), "fault": format!("{:?}", sample.fault),
                "limits_hold_after_seconds": held_after,
                "heap_bytes": heap, "process_bytes": process, "redis_bytes": redis,
            })
        });
        let growth = self.growth();
        let growth = growth
            .iter()
            .map(|Growth { of, bytes, most }| json!({"of": of, "bytes": bytes, "bytes_at_most": most}));
        json!({
            "program": "soak", "schema": 1, "seconds": self.seconds, "seed": self.seed,
            "growth": growth.collect::<Vec<_>>(), "samples": samples.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "soak: {} seconds, SOAK_SEED={}", self.seconds, self.seed)?;
        for Sample {
            at,
            fault,
            held_after,
            memory,
        } in &self.samples
        {
            let [at, held_after] = [at, held_after].map(Duration::as_secs_f64);
            writeln!(
                f,
                "  {at:5.0} s  {memory}  limits held {held_after:.2} s after {fault:?}"
            )?;
        }
        for Growth { of, bytes, most } in self.growth() {
            let verdict = if bytes <= most { "within" } else { "BEYOND" };
            writeln!(f, "growth of {of}: {}, {verdict} {}", megabytes(bytes), megabytes(most))?;
        }
        writeln!(f, "soak: {} faults", self.samples.len())
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
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

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heap, process, redis } = *self;
        let [heap, process, redis] = [heap, process, redis].map(megabytes);
        write!(f, "heap {heap}, process {process}, Redis {redis}")
    }
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
