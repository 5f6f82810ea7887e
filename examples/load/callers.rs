//! Many callers at the same moment, each with one request: what Redis and this process keep of them.
//!
//! The loop is closed, unlike that of the other modes: nothing is said about latency, so all callers are through as soon
//! as the machine can.

use std::{
    error::Error,
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use http::Request;
use tokio::task::JoinHandle;
use tower::ServiceExt;
use tower_quota::{Decision, Outcome, RateLimit};

use super::{
    Test,
    instances::{Bare, limited},
    report::{megabytes, per},
    tally::Tally,
    users::UserId,
};

/// The requests of each instance that wait at a time, so that decisions share calls.
const WAITING: usize = 512;

pub(crate) fn run(test: &mut Test<'_>) -> Result<(), Box<dyn Error>> {
    let (empty, services) = (test.server.figures()?, limited(test, test.options)?);
    let (began, process) = (Instant::now(), own_resident_memory());
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
    let all = watch(test, &senders, &tally, began);
    for sender in senders {
        test.runtime.block_on(sender)?;
    }
    let (took, after) = (began.elapsed(), test.server.figures()?);
    test.progress.clear();

    println!("allowed            {}", all.allowed.count());
    println!("rejected            {}", all.rejected.count());
    println!("failed open        {}", all.failed_open.count());
    println!("seconds            {:.1}\n", took.as_secs_f64());
    println!("{}", after.version);
    println!("  live keys        {}", after.keys.saturating_sub(empty.keys));
    let used = after.used_memory.saturating_sub(empty.used_memory);
    println!(
        "  used memory      {}, {:.0} bytes for each caller",
        megabytes(used),
        per(used as f64, callers)
    );
    println!("  resident         {}", megabytes(after.resident_memory));
    match (process, own_resident_memory()) {
        (Some(before), Some(after)) => println!(
            "this process       {} resident, {} before the first caller",
            megabytes(after),
            megabytes(before)
        ),
        _ => println!("this process       the system does not say how much it has"),
    }
    Ok(())
}

/// Shows how far it is each second, until all have been sent.
fn watch(test: &mut Test<'_>, senders: &[JoinHandle<()>], tally: &Mutex<Tally>, began: Instant) -> Tally {
    let (mut total, mut last) = (Tally::new(), began);
    loop {
        let is_over = senders.iter().all(JoinHandle::is_finished);
        if is_over || last.elapsed() >= Duration::from_secs(1) {
            let taken = std::mem::replace(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner), Tally::new());
            test.progress.show("callers", began.elapsed(), last.elapsed(), &taken);
            last = Instant::now();
            total.add(&taken);
        }
        if is_over {
            return total;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

async fn send_all(service: RateLimit<Bare>, next: Arc<AtomicU64>, callers: u64, tally: Arc<Mutex<Tally>>) {
    loop {
        let caller = next.fetch_add(1, Ordering::Relaxed);
        if caller > callers {
            return;
        }
        let mut request = Request::new(());
        request.extensions_mut().insert(UserId(caller));
        let due = Instant::now();
        let Ok(response) = service.clone().oneshot(request).await;
        let outcome = response.extensions().get().map_or(Outcome::Allowed, Decision::outcome);
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.record(outcome, due, Instant::now());
    }
}

/// Bytes of this process that are in memory, if the system says so.
fn own_resident_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}
