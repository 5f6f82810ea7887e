//! Memory of Redis and of this process for many concurrent callers with one request each.
//!
//! Unlike the other modes, this mode uses a closed loop, because it does not measure latency.

use std::{
    error::Error,
    fmt, fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use http::Request;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower::ServiceExt;
use tower_quota::{Decision, Outcome, RateLimit};

use super::{
    Found, Test,
    generator::Slice,
    instances::{Bare, limited},
    report::{megabytes, per},
    results::outputs::rounded,
    server::Figures,
    tally::Tally,
    users::UserId,
};

/// Concurrent requests per instance: enough for decisions to share Redis calls.
const WAITING: usize = 512;

/// The number of memory samples.
const LOOKS: u64 = 40;

pub(crate) fn run(test: &mut Test<'_>) -> Result<Found, Box<dyn Error>> {
    let (empty, services) = (test.server.figures()?, limited(test, test.options)?);
    let (began, before) = (Instant::now(), own_resident_memory());
    let (callers, tally) = (test.options.users, Arc::new(Mutex::new(Tally::new())));
    let next = Arc::new(AtomicU64::new(1));
    let senders: Vec<JoinHandle<()>> = services
        .into_iter()
        .flat_map(|service| (0..WAITING).map(move |_| service.clone()))
        .map(|service| {
            let all = send_all(service, Arc::clone(&next), callers, Arc::clone(&tally));
            test.runtime.spawn(all)
        })
        .collect();
    let (all, mut samples) = watch(test, &senders, &tally, &empty)?;
    for sender in senders {
        test.runtime.block_on(sender)?;
    }
    let (took, after) = (began.elapsed(), test.server.figures()?);
    samples.push(Sample::new(all.answered(), &empty, &after));
    let kept = Kept {
        callers,
        all,
        took,
        empty,
        after,
        process: before.zip(own_resident_memory()),
        samples,
    };
    Ok(Found {
        text: kept.to_string(),
        json: kept.json(),
    })
}

/// Memory usage after a number of callers.
struct Sample {
    callers: u64,
    live_keys: u64,
    /// The bytes that Redis has allocated since the first caller.
    used: u64,
    /// Bytes.
    process: Option<u64>,
}

impl Sample {
    fn new(callers: u64, empty: &Figures, now: &Figures) -> Self {
        Self {
            callers,
            live_keys: now.keys.saturating_sub(empty.keys),
            used: now.used_memory.saturating_sub(empty.used_memory),
            process: own_resident_memory(),
        }
    }
}

struct Kept {
    callers: u64,
    all: Tally,
    took: Duration,
    empty: Figures,
    after: Figures,
    /// Resident memory of this process before the first caller and after the last.
    process: Option<(u64, u64)>,
    samples: Vec<Sample>,
}

impl Kept {
    fn used(&self) -> u64 {
        self.after.used_memory.saturating_sub(self.empty.used_memory)
    }

    fn live_keys(&self) -> u64 {
        self.after.keys.saturating_sub(self.empty.keys)
    }

    fn json(&self) -> Value {
        let samples = self.samples.iter().map(|sample| {
            json!({
                "callers": sample.callers, "live_keys": sample.live_keys, "redis_used_bytes": sample.used,
                "process_resident_bytes": sample.process,
            })
        });
        json!({
            "requests": {
                "allowed": self.all.allowed.count(), "rejected": self.all.rejected.count(),
                "failed_open": self.all.failed_open.count(),
            },
            "took_seconds": rounded(self.took.as_secs_f64()),
            "redis": {
                "version": self.after.version, "live_keys": self.live_keys(), "used_bytes": self.used(),
                "used_bytes_per_caller": rounded(per(self.used() as f64, self.callers)),
                "resident_bytes": self.after.resident_memory,
            },
            "samples": samples.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "allowed            {}", self.all.allowed.count())?;
        writeln!(f, "rejected            {}", self.all.rejected.count())?;
        writeln!(f, "failed open        {}", self.all.failed_open.count())?;
        writeln!(f, "seconds            {:.1}\n", self.took.as_secs_f64())?;
        writeln!(f, "{}", self.after.version)?;
        writeln!(f, "  live keys        {}", self.live_keys())?;
        writeln!(
            f,
            "  used memory      {}, {:.0} bytes for each caller",
            megabytes(self.used()),
            per(self.used() as f64, self.callers)
        )?;
        writeln!(f, "  resident         {}", megabytes(self.after.resident_memory))?;
        match self.process {
            Some((before, after)) => writeln!(
                f,
                "this process       {} resident, {} before the first caller",
                megabytes(after),
                megabytes(before)
            ),
            None => writeln!(f, "this process       the system does not say how much it has"),
        }
    }
}

/// Shows the progress and samples Redis until all requests have been sent.
fn watch(
    test: &mut Test<'_>,
    senders: &[JoinHandle<()>],
    tally: &Mutex<Tally>,
    empty: &Figures,
) -> Result<(Tally, Vec<Sample>), Box<dyn Error>> {
    let (mut total, mut samples, start) = (Tally::new(), Vec::new(), Instant::now());
    let (callers, mut from) = (test.options.users, Duration::ZERO);
    loop {
        let is_over = senders.iter().all(JoinHandle::is_finished);
        let tally = std::mem::replace(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner), Tally::new());
        total.add(&tally);
        let (to, part) = (start.elapsed(), total.answered() as f64 / callers as f64);
        test.progress.show("callers", Some(part), &Slice { from, to, tally });
        from = to;
        if is_over {
            return Ok((total, samples));
        }
        if total.answered() * LOOKS >= callers * samples.len() as u64 {
            samples.push(Sample::new(total.answered(), empty, &test.server.figures()?));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

async fn send_all(service: RateLimit<Bare>, next: Arc<AtomicU64>, callers: u64, tally: Arc<Mutex<Tally>>) {
    loop {
        let caller = next.fetch_add(1, Ordering::Relaxed);
        if caller > callers {
            return;
        }
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(UserId(caller));
        let due = Instant::now();
        let Ok(response) = service.clone().oneshot(request).await;
        let outcome = response.extensions().get().map_or(Outcome::Allowed, Decision::outcome);
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.record(outcome, due, Instant::now());
    }
}

/// Returns `None` if the system does not report it.
fn own_resident_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}
