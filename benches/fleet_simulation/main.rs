//! Three regions with 100 instances each and ten million callers, for one minute: what it costs to have a Redis in each
//! region, or one for all of them, and which of the promises hold.
//!
//!     cargo bench -p tower-quota-tests --bench fleet_simulation
//!
//! Layers, prefetching, the rejection cache and the circuit breaker are the crate's own. Redis is replaced by a
//! `MemoryStore`, which keeps the same counts, some virtual time away. Time is virtual, so the figures do not depend on the
//! machine. Memory is bounded: callers that send a few requests are independent of each other, and come in slices of
//! 100,000 (`CALLERS` is their number); the busy ones, which share instances and connections in time, come together.
//!
//! Each caller may send 60,000 requests in a window of a minute. The columns:
//!
//! - *calls*: calls a second at the busiest Redis.
//! - *no wait*: the part of the requests of busy callers to which the layer adds less than a millisecond.
//! - *over*: requests of a caller beyond its quota, as a part of the quotas of those that sent more.
//! - *unused*: requests within the quota that were rejected, as a part of what busy callers sent within it.
//! - *uncounted*: requests that passed because Redis was out of reach.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod callers;
mod fleet;
#[path = "../rounds/mod.rs"]
mod rounds;

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{Either, select},
    stream::FuturesUnordered,
};
use tokio::{
    runtime::Builder,
    time::{Instant, sleep_until},
};
use tower_quota::{
    Outcome,
    clock::{Clock, Timestamp},
};

use self::{
    callers::{Due, QUOTA, REGIONS, WINDOW},
    fleet::{Answer, Fleet, Variant},
};

const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

fn main() {
    if !rounds::is_asked_for() {
        return;
    }
    let few = rounds::setting("CALLERS", 10_000_000_u64);
    println!("| | calls a second | no wait | over | unused | uncounted |\n|---|---|---|---|---|---|");
    for variant in &fleet::VARIANTS {
        let mut report = Report::default();
        quiet(variant, few, &mut report);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("the runtime starts");
        runtime.block_on(busy(variant, &mut report));
        report.print(variant.name);
    }
}

/// The results of one variant.
#[derive(Default)]
struct Report {
    requests: u64,
    uncounted: u64,
    /// Requests of busy callers, and those that did not wait.
    busy: u64,
    without_wait: u64,
    over: u64,
    over_of: u64,
    unused: u64,
    unused_of: u64,
    calls: [u64; REGIONS],
}

impl Report {
    fn answered(&mut self, outcome: Outcome) {
        self.requests += 1;
        self.uncounted += u64::from(outcome == Outcome::FailedOpen);
    }

    fn add_calls(&mut self, fleet: &Fleet) {
        for (store, calls) in fleet.calls() {
            self.calls[store] += calls;
        }
    }

    fn print(&self, name: &str) {
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        println!(
            "| {name} | {} | {:.1}% | {:.1}% | {:.1}% | {:.2}% |",
            self.calls.iter().max().copied().unwrap_or(0) / WINDOW.as_secs(),
            percent(self.without_wait, self.busy),
            percent(self.over, self.over_of),
            percent(self.unused, self.unused_of),
            percent(self.uncounted, self.requests),
        );
    }
}

/// The callers that send a few requests. Each request calls the store when it is due, and waits for the round trip.
fn quiet(variant: &Variant, callers: u64, report: &mut Report) {
    for first in (0..callers).step_by(callers::SLICE as usize) {
        let clock = Clock::manual(START);
        let fleet = Fleet::new(variant, &clock, false);
        let slice = first..callers.min(first + callers::SLICE);
        for due in callers::quiet(slice.clone()) {
            clock.set(START.saturating_add(due.at));
            let decided = pin!(fleet.send(&due));
            let Poll::Ready(answer) = decided.poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("a store that answers at once keeps no request waiting");
            };
            report.answered(answer.outcome);
        }
        report.add_calls(&fleet);
    }
}

/// The callers that send many, all at the same time.
async fn busy(variant: &Variant, report: &mut Report) {
    let clock = Clock::tokio();
    let into_it = clock.now().as_micros() % WINDOW.as_micros() as u64;
    let start = Instant::now() + WINDOW - Duration::from_micros(into_it);
    sleep_until(start).await;
    let fleet = Fleet::new(variant, &clock, true);
    let mut passed = Passed::new(window_of(clock.now()), report);
    let (dues, mut waiting) = (callers::busy(), FuturesUnordered::new());
    for due in &dues {
        let tick = async {
            if Instant::now() < start + due.at {
                sleep_until(start + due.at).await;
            }
        };
        tokio::pin!(tick);
        loop {
            match select(waiting.next(), &mut tick).await {
                Either::Left((Some((due, answer, wait)), _)) => passed.count(due, &answer, wait),
                Either::Left((None, tick)) => break tick.await,
                Either::Right(_) => break,
            }
        }
        let (mut decided, since) = (Box::pin(fleet.send(due)), Instant::now());
        match decided.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => passed.count(due, &answer, Duration::ZERO),
            Poll::Pending => waiting.push(async move {
                let answer = decided.await;
                (due, answer, since.elapsed())
            }),
        }
    }
    while let Some((due, answer, wait)) = waiting.next().await {
        passed.count(due, &answer, wait);
    }
    passed.judge();
    report.add_calls(&fleet);
}

/// The number of the window of a moment.
fn window_of(at: Timestamp) -> u64 {
    at.as_micros() / WINDOW.as_micros() as u64
}

/// The requests of busy callers that have passed.
struct Passed<'a> {
    window: u64,
    /// By the caller.
    requests: Vec<u64>,
    report: &'a mut Report,
}

impl<'a> Passed<'a> {
    fn new(window: u64, report: &'a mut Report) -> Self {
        Self {
            window,
            requests: vec![0; callers::BUSY],
            report,
        }
    }

    fn count(&mut self, due: &Due, answer: &Answer, wait: Duration) {
        // One that has reached the store after the end of the window belongs to the next one.
        let is_of_it = answer.decided_at.is_none_or(|at| window_of(at) == self.window);
        self.requests[due.caller as usize] += u64::from(is_of_it && answer.outcome.is_admitted());
        self.report.answered(answer.outcome);
        self.report.busy += 1;
        self.report.without_wait += u64::from(wait < Duration::from_millis(1));
    }

    fn judge(self) {
        let Self { requests, report, .. } = self;
        for (caller, passed) in requests.into_iter().enumerate() {
            let sent = callers::sent(caller);
            report.over += passed.saturating_sub(QUOTA);
            report.over_of += if sent > QUOTA { QUOTA } else { 0 };
            report.unused += sent.min(QUOTA).saturating_sub(passed);
            report.unused_of += sent.min(QUOTA);
        }
    }
}
