//! An open-loop load generator: the due times of requests do not depend on earlier responses.
//!
//! At each tick, a thread sends one instance the number of due requests, which follows a Poisson process on a grid of a
//! quarter of a millisecond. A thread is used because Tokio timers have a resolution of one millisecond. A task for
//! each instance sends the requests and awaits their responses concurrently.

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use http::{Request, Response};
use tokio::{
    runtime::Runtime,
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
};
use tower::{Service, ServiceExt};
use tower_quota::{Decision, Outcome};

use super::{
    instances::INSTANCES,
    options::{Mode, Options},
    tally::Tally,
    users::{Random, UserId, Users},
};

/// The instances take turns, so each receives its requests every millisecond.
const TICK: Duration = Duration::from_micros(250);

/// The maximum backlog of an instance before the thread waits for it: one second of batches.
const QUEUE: usize = 1_000;

/// Requests that are due at the same time at one instance.
struct Batch {
    due: Instant,
    count: u32,
}

/// The responses in a period, relative to the start of the load.
pub(crate) struct Slice {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    pub(crate) tally: Tally,
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, tally } = self;
        write!(
            f,
            "{:.0}/s  p99 {:.3} ms  rejected {}  failed open {}",
            tally.answered() as f64 / (*to - *from).as_secs_f64(),
            tally.latencies().percentile(99.0).as_secs_f64() * 1_000.0,
            tally.rejected.count(),
            tally.failed_open.count(),
        )
    }
}

/// Load on four services until `finish`.
pub(crate) struct Load<'a> {
    runtime: &'a Runtime,
    start: Instant,
    /// The time since the start up to which responses have been taken from the tallies.
    watched: Duration,
    tallies: Vec<Arc<Mutex<Tally>>>,
    instances: Vec<JoinHandle<()>>,
    pacer: thread::JoinHandle<(u64, Tally)>,
    is_over: Arc<AtomicBool>,
}

impl<'a> Load<'a> {
    /// Equal rounds have the same due times and the same users in the same order.
    pub(crate) fn start<S, B>(runtime: &'a Runtime, services: [S; INSTANCES], options: &Options, round: u64) -> Self
    where
        S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
        B: Send + 'static,
    {
        let (mut tallies, mut instances, mut senders) = (Vec::new(), Vec::new(), Vec::new());
        for (seed, service) in (round * INSTANCES as u64..).zip(services) {
            let (sender, batches) = mpsc::channel(QUEUE);
            let tally = Arc::new(Mutex::new(Tally::new()));
            instances.push(runtime.spawn(send_batches(
                service,
                batches,
                Senders::new(options, seed),
                Arc::clone(&tally),
            )));
            tallies.push(tally);
            senders.push(sender);
        }
        let start = Instant::now();
        let is_over = Arc::new(AtomicBool::new(false));
        let pacer = Pacer {
            rate: options.rate,
            round,
            start,
            end: start + Duration::from_secs(options.seconds),
            is_over: Arc::clone(&is_over),
        };
        Self {
            runtime,
            start,
            watched: Duration::ZERO,
            tallies,
            instances,
            pacer: thread::spawn(move || pacer.run(&senders)),
            is_over,
        }
    }

    /// Returns the responses since the last call, up to a time since the start. Calls `seen` for each step.
    pub(crate) fn watch(&mut self, until: Duration, step: Duration, mut seen: impl FnMut(&Slice)) -> Tally {
        let mut total = Tally::new();
        while self.watched < until {
            // Ends at the next full step, even if the current step started late.
            let steps = self.watched.as_millis() / step.as_millis() + 1;
            let end = until.min(step * steps as u32);
            thread::sleep(end.saturating_sub(self.start.elapsed()));
            let (from, tally, to) = (self.watched, self.take(), self.start.elapsed());
            total.add(&tally);
            seen(&Slice { from, to, tally });
            self.watched = to;
        }
        total
    }

    /// Waits for the outstanding responses. Due requests that have not been sent are dropped.
    ///
    /// Returns the total number of due requests, and their outcomes since the last `watch`.
    pub(crate) fn finish(mut self) -> (u64, Tally) {
        self.is_over.store(true, Ordering::Relaxed);
        let (due, mut rest) = self.pacer.join().expect("the pacer does not panic");
        for instance in self.instances.drain(..) {
            self.runtime.block_on(instance).expect("no instance panics");
        }
        for tally in &self.tallies {
            rest.add(&tally.lock().unwrap_or_else(PoisonError::into_inner));
        }
        (due, rest)
    }

    fn take(&self) -> Tally {
        let mut total = Tally::new();
        for tally in &self.tallies {
            let new = Tally::new();
            let taken = std::mem::replace(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner), new);
            total.add(&taken);
        }
        total
    }
}

/// Determines the number of due requests per tick.
struct Pacer {
    rate: u64,
    round: u64,
    start: Instant,
    end: Instant,
    is_over: Arc<AtomicBool>,
}

impl Pacer {
    /// Returns the number of due requests and the tally of unsent ones.
    fn run(self, senders: &[Sender<Batch>]) -> (u64, Tally) {
        let (mut random, mut all, mut unsent) = (Random::new(u64::MAX - self.round), 0, Tally::new());
        let mean = self.rate as f64 * TICK.as_secs_f64();
        let turns = (0..senders.len()).cycle();
        for (tick, turn) in (0..).zip(turns) {
            let due = self.start + TICK * tick;
            if due >= self.end {
                break;
            }
            let count = random.poisson(mean);
            if count == 0 {
                continue;
            }
            all += u64::from(count);
            let early = due.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                thread::sleep(early);
            }
            let is_over = self.is_over.load(Ordering::Relaxed);
            if is_over || senders[turn].blocking_send(Batch { due, count }).is_err() {
                unsent.give_up(count, due);
            }
        }
        (all, unsent)
    }
}

struct Senders {
    users: Users,
    random: Random,
    is_one: bool,
}

impl Senders {
    /// Equal seeds choose the same users in the same order.
    fn new(options: &Options, seed: u64) -> Self {
        Self {
            users: Users::new(options.users, options.skew),
            random: Random::new(seed),
            is_one: options.mode == Mode::HotKey,
        }
    }

    fn request(&mut self) -> Request<String> {
        let user = match self.is_one {
            true => UserId(1),
            false => self.users.choose(&mut self.random),
        };
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(user);
        request
    }
}

async fn send_batches<S, B>(service: S, mut batches: Receiver<Batch>, mut senders: Senders, tally: Arc<Mutex<Tally>>)
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible> + Clone,
{
    let record = |(outcome, due, answered)| {
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.record(outcome, due, answered);
    };
    // Bounded by the layer's deadline.
    let mut in_flight = FuturesUnordered::new();
    loop {
        tokio::select! {
            batch = batches.recv() => {
                let Some(Batch { due, count }) = batch else { break };
                for _ in 0..count {
                    in_flight.push(send(service.clone(), senders.request(), due));
                }
            }
            Some(answer) = in_flight.next() => record(answer),
        }
    }
    while let Some(answer) = in_flight.next().await {
        record(answer);
    }
}

async fn send<S, B>(service: S, request: Request<String>, due: Instant) -> (Outcome, Instant, Instant)
where
    S: Service<Request<String>, Response = Response<B>, Error = Infallible>,
{
    let Ok(response) = service.oneshot(request).await;
    let answered = Instant::now();
    // Responses without a decision were counted and admitted, or come from the bare service.
    let outcome = response.extensions().get().map_or(Outcome::Allowed, Decision::outcome);
    (outcome, due, answered)
}
