//! Three regions with 100 instances each and ten million callers, for one minute: what it costs to have a Redis in each
//! region, or one for all of them, and which of the promises hold.
//!
//!     cargo bench -p tower-quota-tests --bench fleet_simulation
//!     CALLERS=100000 cargo bench -p tower-quota-tests --bench fleet_simulation -- --json FILE --svg FILE
//!
//! Layers, prefetching, the rejection cache and the circuit breaker are the crate's own. Redis is replaced by a
//! `MemoryStore`, which keeps the same counts, some virtual time away. Time is virtual, so the figures do not depend on the
//! machine. Memory is bounded: callers that send a few requests are independent of each other, and come in slices of
//! 100 000; the busy ones, which share instances and connections in time, come together. Progress goes to stderr.
//!
//! Each caller may send 60 000 requests in a window of a minute. The columns:
//!
//! - *calls*: calls a second of all instances, and those at the busiest Redis.
//! - *wait*: what the layer adds to the requests of busy callers, in milliseconds: the part that does not wait, p50 and p99.
//! - *over*: requests of a caller beyond its quota, as a part of the quotas of those that sent more.
//! - *unused*: requests within the quota that were rejected, as a part of what busy callers sent within it.
//! - *uncounted*: requests that passed because Redis was out of reach.

#![allow(clippy::disallowed_methods, reason = "a benchmark takes the real time")]

mod callers;
mod fleet;
mod report;
#[path = "../../examples/results/mod.rs"]
mod results;
#[path = "../rounds/mod.rs"]
mod rounds;

use std::{
    env,
    future::Future,
    pin::pin,
    process::exit,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{Either, select},
    stream::FuturesUnordered,
};
use serde_json::json;
use tokio::{
    runtime::Builder,
    time::{Instant, sleep_until},
};
use tower_quota::{
    Outcome,
    clock::{Clock, Timestamp},
};

use self::{
    callers::{Due, QUOTA, WINDOW},
    fleet::{Answer, Fleet, Variant},
    report::Report,
    results::{
        outputs::{Outputs, USAGE},
        progress::Progress,
    },
};

const START: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

fn main() {
    let Some(outputs) = Outputs::of_benchmark(env::args().skip(1)) else {
        return;
    };
    let outputs = outputs.unwrap_or_else(|mistake| {
        eprint!("{mistake}\n\n{USAGE}");
        exit(2);
    });
    let (few, mut progress) = (rounds::setting("CALLERS", 10_000_000_u64), Progress::new());
    let reports: Vec<_> = (0..fleet::VARIANTS.len())
        .map(|number| run(number, few, &mut progress))
        .collect();
    progress.clear();
    let named = || fleet::VARIANTS.iter().map(|variant| variant.name).zip(&reports);
    let rows: String = named().map(|(name, report)| report.row(name)).collect();
    let variants: Vec<_> = named().map(|(name, report)| report.json(name)).collect();
    let json = json!({
        "program": "fleet_simulation", "schema": 1, "callers_with_few_requests": few, "variants": variants,
    });
    let written = outputs.write(&format!("{}{rows}", report::HEAD), &json);
    written.expect("the results are written");
}

/// One way to spread limits over regions, with all callers.
fn run(number: usize, few: u64, progress: &mut Progress) -> Report {
    let (variant, mut report) = (&fleet::VARIANTS[number], Report::new());
    let all = (callers::quiet_requests(few) + callers::busy().len() as u64) as f64;
    let mut show = |report: &Report| {
        let part = (number as f64 + report.requests as f64 / all) / fleet::VARIANTS.len() as f64;
        let stage = format!("{} of {}, {}", number + 1, fleet::VARIANTS.len(), variant.name);
        progress.show(&stage, Some(part), report);
    };
    quiet(variant, few, &mut report, &mut show);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("the runtime starts");
    runtime.block_on(busy(variant, &mut report, &mut show));
    report
}

/// The callers that send a few requests. Each request calls the store when it is due, and waits for the round trip.
fn quiet(variant: &Variant, callers: u64, report: &mut Report, show: &mut impl FnMut(&Report)) {
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
            report.uncounted += u64::from(answer.outcome == Outcome::FailedOpen);
            report.requests += 1;
        }
        report.add_calls(&fleet);
        show(report);
    }
}

/// The callers that send many, all at the same time.
async fn busy(variant: &Variant, report: &mut Report, show: &mut impl FnMut(&Report)) {
    let clock = Clock::tokio();
    let into_it = clock.now().as_micros() % WINDOW.as_micros() as u64;
    let start = Instant::now() + WINDOW - Duration::from_micros(into_it);
    sleep_until(start).await;
    let fleet = Fleet::new(variant, &clock, true);
    let mut passed = Passed::new(window_of(clock.now()), report);
    let (dues, mut waiting) = (callers::busy(), FuturesUnordered::new());
    for (number, due) in dues.iter().enumerate() {
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
        if number % 100 == 0 {
            show(passed.report);
        }
    }
    while let Some((due, answer, wait)) = waiting.next().await {
        passed.count(due, &answer, wait);
    }
    passed.judge();
    report.add_calls(&fleet);
    show(report);
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
        self.report.answered(answer.outcome, wait);
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
