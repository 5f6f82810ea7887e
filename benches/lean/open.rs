//! An open load, which does not wait for responses: requests are due at fixed times, and their latency counts from
//! then.

use std::{
    thread,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tower_quota::Outcome;

use super::decisions::{Bench, Decide, USERS};

const TICK: Duration = Duration::from_micros(250);
/// Tasks that send, as instances of a service would.
const SENDERS: usize = 4;

/// The latencies of one run, sorted, and the requests that were not decided.
pub(super) struct Answers {
    latencies: Vec<Duration>,
    pub(super) undecided: usize,
}

/// Requests that are due at the same time.
struct Batch {
    due: Instant,
    count: usize,
}

/// Sends `rate` requests per second.
pub(super) fn measure(bench: &Bench, decide: &impl Decide, rate: f64) -> Answers {
    bench.flush();
    let (senders, batches): (Vec<_>, Vec<_>) = (0..SENDERS).map(|_| unbounded_channel()).unzip();
    let length = bench.length;
    let pacer = thread::spawn(move || pace(&senders, rate, length));
    let tasks = batches.into_iter().enumerate();
    let running: Vec<_> = tasks
        .map(|(seed, batches)| bench.runtime.spawn(send(decide.clone(), batches, seed as u64 + 1)))
        .collect();
    pacer.join().expect("the pacer does not panic");
    let mut all = Answers {
        latencies: Vec::new(),
        undecided: 0,
    };
    for task in running {
        let answers = bench.runtime.block_on(task).expect("no task panics");
        all.latencies.extend(answers.latencies);
        all.undecided += answers.undecided;
    }
    all.latencies.sort_unstable();
    all
}

impl Answers {
    pub(super) fn count(&self) -> usize {
        self.latencies.len()
    }

    pub(super) fn median_micros(&self) -> f64 {
        let median = self.latencies.get(self.count() / 2);
        median.map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
    }
}

fn pace(senders: &[UnboundedSender<Batch>], rate: f64, length: Duration) {
    let (start, mut sent) = (Instant::now(), 0);
    for tick in 1..(length.as_secs_f64() / TICK.as_secs_f64()) as u32 {
        let due = start + TICK * tick;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let count = (rate * TICK.as_secs_f64() * f64::from(tick)) as usize - sent;
        sent += count;
        let _ = senders[tick as usize % SENDERS].send(Batch { due, count });
    }
}

async fn send(decide: impl Decide, mut batches: UnboundedReceiver<Batch>, seed: u64) -> Answers {
    let (mut random, mut in_flight, mut is_over) =
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), FuturesUnordered::new(), false);
    let mut answers = Answers {
        latencies: Vec::new(),
        undecided: 0,
    };
    while !is_over || !in_flight.is_empty() {
        tokio::select! {
            batch = batches.recv(), if !is_over => match batch {
                None => is_over = true,
                Some(Batch { due, count }) => for _ in 0..count {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let (decide, user) = (decide.clone(), random as usize % USERS);
                    in_flight.push(async move { (decide.decide(user).await, due.elapsed()) });
                },
            },
            Some((outcome, latency)) = in_flight.next() => {
                answers.latencies.push(latency);
                answers.undecided += usize::from(outcome == Outcome::FailedOpen);
            }
        }
    }
    answers
}
