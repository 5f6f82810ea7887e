use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinError, JoinSet},
    time::{Instant, timeout},
};

use super::super::script::Call;
use crate::{
    decision::{Measurement, Plan},
    error::{StoreError, StoreErrorKind},
    round_trips::RoundTrips,
    sync::deadline::longest_wait,
};

/// Without waiting, there would be nothing to combine. With a single call in flight, the server would be idle while
/// this process handles the reply.
const CALLS_PER_CONNECTION: usize = 2;

const MOST_CALLS_PER_CONNECTION: usize = 32;

/// Tokio's timers add up to a millisecond.
const SHARING: Duration = Duration::from_millis(1);

const LATE_TIMER: Duration = Duration::from_millis(5);

/// Long enough for all tasks to run a few times after a late timer.
const BUSY_PROCESS: Duration = Duration::from_millis(250);

const DISTANCE_WINDOW: Duration = Duration::from_secs(10);

const IDLE: Duration = Duration::from_secs(1);

pub(super) type Acquired = Result<Measurement, StoreError>;

#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) decisions: usize,
    /// Decisions wait for a shared call while this number of calls is in flight.
    pub(super) calls: usize,
    most_calls: usize,
}

impl Bounds {
    pub(super) fn new(decisions: usize, connections: u32) -> Self {
        Self {
            decisions,
            calls: CALLS_PER_CONNECTION * connections as usize,
            most_calls: MOST_CALLS_PER_CONNECTION * connections as usize,
        }
    }
}

pub(super) struct QueuedPlan {
    pub(super) plan: Plan,
    pub(super) answer: oneshot::Sender<Acquired>,
    pub(super) since: Instant,
    pub(super) position: usize,
}

#[derive(Default)]
pub(super) struct Pace {
    nanos_per_decision: AtomicU64,
}

impl Pace {
    /// With fewer decisions, a short pause would look like a low rate.
    const FEWEST: usize = 1_024;

    fn taken(&self, plans: &[QueuedPlan]) {
        if let Some(last) = plans.last() {
            let nanos = last.since.elapsed().as_nanos() as u64 / last.position.max(Self::FEWEST) as u64;
            self.nanos_per_decision.store(nanos, Ordering::Relaxed);
        }
    }

    pub(super) fn is_too_slow_for(&self, plan: &QueuedPlan) -> bool {
        let nanos = self
            .nanos_per_decision
            .load(Ordering::Relaxed)
            .saturating_mul(plan.position as u64);
        let deadline = plan.plan.deadline();
        deadline.is_some_and(|deadline| Duration::from_nanos(nanos) > longest_wait(deadline) * 4 / 5)
    }
}

impl QueuedPlan {
    fn is_over(&self) -> bool {
        self.answer.is_closed()
            && self
                .plan
                .deadline()
                .is_some_and(|deadline| self.since.elapsed() >= deadline)
    }

    pub(super) fn reject(self) {
        let message = "too many decisions queued for the server";
        let _ = self
            .answer
            .send(Err(StoreError::new(StoreErrorKind::Overloaded, message)));
    }
}

pub(super) async fn work<F, C>(call: F, mut queue: mpsc::Receiver<QueuedPlan>, bounds: Bounds, pace: Arc<Pace>)
where
    F: FnOnce(Vec<QueuedPlan>) -> C + Clone + Send + 'static,
    C: Future<Output = ()> + Send,
{
    let mut calls = Calls {
        bounds,
        in_flight: JoinSet::new(),
        round_trips: RoundTrips::new(DISTANCE_WINDOW),
        busy_until: None,
    };
    let mut waiting = Vec::with_capacity(bounds.decisions);
    loop {
        match timeout(IDLE, queue.recv_many(&mut waiting, bounds.decisions)).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) => queue.close(),
        }
        let is_full = waiting.len() + queue.len() >= bounds.decisions;
        calls.turn(is_full).await;
        fill(&mut waiting, &mut queue, bounds.decisions).await;
        pace.taken(&waiting);
        // Includes cancelled decisions, because cancelled requests are charged.
        while !waiting.is_empty() {
            calls.start(call.clone(), next_call(&mut waiting, bounds.decisions));
        }
    }
    // `join_all` would panic if the runtime ends and cancels the calls.
    while calls.in_flight.join_next().await.is_some() {}
}

struct Calls {
    bounds: Bounds,
    in_flight: JoinSet<Duration>,
    round_trips: RoundTrips,
    /// Replies may be unread until then, because timers are late.
    busy_until: Option<Instant>,
}

impl Calls {
    /// `call` creates the future inside the task, because an argument would be copied ten times.
    fn start<C>(&mut self, call: impl FnOnce(Vec<QueuedPlan>) -> C + Send + 'static, plans: Vec<QueuedPlan>)
    where
        C: Future<Output = ()> + Send,
    {
        let since = Instant::now();
        self.in_flight.spawn(Box::pin(async move {
            call(plans).await;
            since.elapsed()
        }));
    }

    /// In an overloaded process, replies stay unread for longer than the server's response time, so the number of calls
    /// in flight does not reflect its load.
    async fn turn(&mut self, is_full: bool) {
        while let Some(ended) = self.in_flight.try_join_next() {
            self.ended(ended);
        }
        if !is_full && !self.is_process_busy() && self.in_flight.len() >= self.bounds.calls {
            self.wait_for_one().await;
        }
        while self.in_flight.len() >= self.most() {
            self.wait_for_one().await;
        }
    }

    fn most(&self) -> usize {
        let Bounds { calls, most_calls, .. } = self.bounds;
        if self.is_process_busy() {
            return most_calls;
        }
        self.round_trips.shortest().map_or(most_calls, |round_trip| {
            let distance = round_trip.as_micros().div_ceil(SHARING.as_micros());
            most_calls.min(calls.saturating_add(distance as usize))
        })
    }

    async fn wait_for_one(&mut self) {
        let since = Instant::now();
        let returned = timeout(SHARING, self.in_flight.join_next()).await;
        if since.elapsed() > SHARING + LATE_TIMER {
            self.busy_until = Some(Instant::now() + BUSY_PROCESS);
        }
        if let Ok(Some(ended)) = returned {
            self.ended(ended);
        }
    }

    fn is_process_busy(&self) -> bool {
        self.busy_until.is_some_and(|until| Instant::now() < until)
    }

    fn ended(&mut self, call: Result<Duration, JoinError>) {
        if let Ok(round_trip) = call {
            self.round_trips.record(round_trip, Instant::now());
        }
    }
}

/// A larger call would block the server for too long.
fn next_call(waiting: &mut Vec<QueuedPlan>, capacity: usize) -> Vec<QueuedPlan> {
    let mut work = 0;
    let is_too_much = |waiting: &QueuedPlan| {
        work += Call::work(&waiting.plan);
        work > Call::MOST_WORK
    };
    let count = waiting.iter().position(is_too_much).unwrap_or(waiting.len());
    // At least one, even if it exceeds the limit alone.
    let mut rest = waiting.split_off(count.max(1));
    rest.reserve(capacity);
    std::mem::replace(waiting, rest)
}

async fn fill(waiting: &mut Vec<QueuedPlan>, queue: &mut mpsc::Receiver<QueuedPlan>, most: usize) {
    loop {
        if waiting.len() < most && !queue.is_empty() {
            queue.recv_many(waiting, most - waiting.len()).await;
        }
        let before = waiting.len();
        waiting.retain(|waiting| !waiting.is_over());
        if waiting.len() == before {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "simulates the latency of a server")]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use futures_util::future::join_all;
    use tokio::{
        sync::Semaphore,
        time::{advance, sleep},
    };

    use super::{
        super::{QUEUE, Queue, shared_answer},
        *,
    };
    use crate::{
        algorithm::Moments,
        decision::Measurement,
        partition::{PartitionKey, Scope},
        policy::{Algorithm, PolicySet, QuotaPolicy},
    };

    const DEADLINE: Duration = Duration::from_millis(50);

    #[derive(Clone)]
    struct Server(Arc<Inner>);

    struct Inner {
        round_trips: Box<dyn Fn(usize) -> Duration + Send + Sync>,
        at_once: Semaphore,
        calls: Mutex<Vec<(usize, usize)>>,
        in_flight: AtomicUsize,
    }

    impl Server {
        fn new(at_once: usize, round_trips: impl Fn(usize) -> Duration + Send + Sync + 'static) -> Self {
            Self(Arc::new(Inner {
                round_trips: Box::new(round_trips),
                at_once: Semaphore::new(at_once),
                calls: Mutex::default(),
                in_flight: AtomicUsize::new(0),
            }))
        }

        async fn call(self, waiting: Vec<QueuedPlan>) {
            let inner = &*self.0;
            let in_flight = inner.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
            let number = {
                let mut calls = inner.calls.lock().unwrap();
                calls.push((waiting.len(), in_flight));
                calls.len()
            };
            let _carried_out = inner.at_once.acquire().await.unwrap();
            sleep((inner.round_trips)(number)).await;
            inner.in_flight.fetch_sub(1, Ordering::SeqCst);
            for waiting in waiting {
                let measurement = Measurement::of_readings(waiting.plan, Moments::new(), [], None);
                let _ = waiting.answer.send(Ok(measurement));
            }
        }

        fn queue(&self) -> Queue {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let (server, pace) = (self.clone(), Arc::<Pace>::default());
            let call = move |waiting| server.call(waiting);
            tokio::spawn(work(call, receiver, Bounds::new(32, 2), Arc::clone(&pace)));
            Queue { sender, pace }
        }

        fn calls(&self) -> usize {
            self.0.calls.lock().unwrap().len()
        }

        fn most_in_flight(&self) -> usize {
            let calls = self.0.calls.lock().unwrap();
            calls.iter().map(|(_, in_flight)| *in_flight).max().unwrap()
        }
    }

    fn plan() -> Plan {
        let policies = PolicySet::new([QuotaPolicy::per_day("daily", 3)]).unwrap();
        let alice = Scope::new("shared").partition(&PartitionKey::new("user", "alice"));
        Plan::new(policies, alice, 1)
    }

    #[test]
    fn a_call_has_as_many_decisions_as_keep_the_server_busy_for_a_moment() {
        const MINUTE: Duration = Duration::from_secs(60);
        let plans = |policies: Vec<QuotaPolicy>, count: usize| {
            let alice = Scope::new("shared").partition(&PartitionKey::new("user", "alice"));
            let plan = Plan::new(PolicySet::new(policies).unwrap(), alice, 1);
            let queued = (0..count).map(move |_| QueuedPlan {
                plan: plan.clone(),
                answer: oneshot::channel().0,
                since: Instant::now(),
                position: 0,
            });
            queued.collect::<Vec<_>>()
        };
        let names = |count: u8| (0..count).map(|number| char::from(b'a' + number).to_string());
        let sizes = |mut waiting: Vec<QueuedPlan>| {
            let mut sizes = Vec::new();
            while !waiting.is_empty() {
                sizes.push(next_call(&mut waiting, 64).len());
            }
            sizes
        };
        let windows = |count| names(count).map(|name| QuotaPolicy::new(name, 3, MINUTE)).collect();
        let log = |name| QuotaPolicy::new(name, 3, MINUTE).with_algorithm(Algorithm::SlidingWindowLog);
        assert_eq!(sizes(plans(windows(3), 64)), [64]);
        assert_eq!(sizes(plans(windows(16), 40)), [16, 16, 8]);
        let logs = plans(names(16).map(log).collect(), 3);
        assert_eq!(sizes(logs.into_iter().chain(plans(windows(1), 40)).collect()), [2, 41]);
    }

    fn queued(queue: &Queue, plan: Plan) -> (QueuedPlan, oneshot::Receiver<Acquired>) {
        let (answer, answered) = oneshot::channel();
        let position = queue.sender.max_capacity() - queue.sender.capacity();
        let since = Instant::now();
        let waiting = QueuedPlan {
            plan,
            answer,
            since,
            position,
        };
        (waiting, answered)
    }

    async fn ask(queue: Queue, plan: Plan, deadline: Duration) -> (Option<Acquired>, Duration) {
        let since = Instant::now();
        let (waiting, answered) = queued(&queue, plan.within(deadline));
        if queue.pace.is_too_slow_for(&waiting) {
            waiting.reject();
        } else {
            assert!(queue.sender.try_send(waiting).is_ok());
        }
        let answer = timeout(longest_wait(deadline), answered).await.ok().map(shared_answer);
        (answer, since.elapsed())
    }

    type Answers = Vec<(Option<Acquired>, Duration)>;

    fn decided(answers: &Answers) -> usize {
        let is_decided = |answer: &Option<Acquired>| matches!(answer, Some(Ok(_)));
        answers.iter().filter(|(answer, _)| is_decided(answer)).count()
    }

    fn longest_of(answers: &Answers) -> Duration {
        answers.iter().map(|(_, after)| *after).max().unwrap()
    }

    async fn load(server: &Server, per_milli: impl Fn(u64) -> usize, millis: u64) -> Answers {
        let (queue, plan) = (server.queue(), plan());
        let mut asked = Vec::new();
        for milli in 0..millis {
            for _ in 0..per_milli(milli) {
                asked.push(tokio::spawn(ask(queue.clone(), plan.clone(), DEADLINE)));
            }
            sleep(Duration::from_millis(1)).await;
        }
        join_all(asked).await.into_iter().map(Result::unwrap).collect()
    }

    fn usual(milli: u64) -> usize {
        1 + usize::from(milli.is_multiple_of(2)) + if milli.is_multiple_of(100) { 20 } else { 0 }
    }

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_about_a_distant_server_waits_a_few_milliseconds_and_not_a_round_trip_more() {
        for (from, to) in [(20, 20), (24, 24), (30, 30), (40, 40), (25, 35)] {
            let server = Server::new(usize::MAX >> 4, move |call| {
                millis(from + (call as u64 * 7) % (to - from + 1))
            });
            let answers = load(&server, usual, 1_000).await;
            let longest = longest_of(&answers);
            assert_eq!(decided(&answers), answers.len(), "{to} ms");
            assert!(longest <= millis(to + 5), "{to} ms: {longest:?}");
            // At most one call per millisecond.
            let (calls, in_flight) = (server.calls(), server.most_in_flight());
            assert!(calls <= 1_000, "{to} ms: {calls} calls");
            assert!(in_flight <= 4 + usize::try_from(to).unwrap(), "{to} ms: {in_flight}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_distant_server_is_asked_for_as_many_decisions_as_a_near_one() {
        let server = Server::new(usize::MAX >> 4, |_| millis(30));
        let answers = load(&server, |_| 30, 500).await;
        let longest = longest_of(&answers);
        assert_eq!(decided(&answers), answers.len());
        assert!(longest <= millis(35), "{longest:?}");
        assert!(server.calls() <= 600, "{}", server.calls());
    }

    #[tokio::test(start_paused = true)]
    async fn an_overloaded_server_gets_full_calls_few_at_a_time_and_makes_as_many_decisions_as_it_can() {
        // The server executes one call per millisecond, so 32,000 decisions per second. The load is 50% higher.
        let server = Server::new(1, |_| millis(1));
        let answers = load(&server, |_| 48, 300).await;
        let made = decided(&answers);
        assert!(made >= 32 * 300 * 98 / 100, "{made} of {}", answers.len());
        let is_overloaded = |answer: &Acquired| {
            let error = answer.as_ref().err();
            error.is_none_or(|error| error.kind() == StoreErrorKind::Overloaded)
        };
        let mut answers = answers.iter().map(|(answer, _)| answer.as_ref());
        assert!(answers.all(|answer| answer.is_some_and(is_overloaded)));
        let calls = server.calls();
        assert!(calls <= made.div_ceil(32) * 11 / 10, "{calls} for {made}");
        assert!(server.most_in_flight() <= 6, "{}", server.most_in_flight());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_while_the_server_is_stopped_is_decided_when_it_goes_on() {
        let start = Instant::now();
        let server = Server::new(usize::MAX >> 4, move |_| {
            let resumes_in = millis(6_000).saturating_sub(start.elapsed());
            resumes_in.max(millis(1))
        });
        let (queue, plan) = (server.queue(), plan());
        let asked = (0..1_000).map(|_| ask(queue.clone(), plan.clone(), millis(10_000)));
        assert_eq!(decided(&join_all(asked).await), 1_000);
        assert!(server.most_in_flight() <= 64);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_decided_to_its_end_and_not_taken_for_an_overload() {
        let server = Server::new(4, |_| millis(1));
        let answers = load(&server, |milli| if milli == 0 { 1_000 } else { 0 }, 50).await;
        assert_eq!((answers.len(), decided(&answers)), (1_000, 1_000));
    }

    #[tokio::test(start_paused = true)]
    async fn decisions_that_a_busy_process_has_kept_waiting_are_sent_within_a_few_turns_and_not_rejected() {
        let server = Server::new(usize::MAX >> 4, |_| millis(1));
        let (queue, plan) = (server.queue(), plan().within(DEADLINE));
        let mut answers = Vec::new();
        for _ in 0..1_500 {
            let (waiting, answered) = queued(&queue, plan.clone());
            assert!(queue.sender.try_send(waiting).is_ok());
            answers.push(answered);
        }
        // Each task runs every 100 ms.
        for _ in 0..12 {
            advance(millis(100)).await;
        }
        let decided = answers.iter_mut().map(oneshot::Receiver::try_recv);
        let undecided = decided.filter(|answer| !matches!(answer, Ok(Ok(_)))).count();
        assert_eq!(undecided, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_without_a_deadline_waits_for_as_long_as_it_takes() {
        let server = Server::new(1, |_| millis(20));
        let queue = server.queue();
        let asked = (0..2_000).map(|_| {
            let (waiting, answered) = queued(&queue, plan());
            assert!(queue.sender.try_send(waiting).is_ok());
            async { shared_answer(answered.await) }
        });
        assert!(join_all(asked).await.iter().all(Result::is_ok));
    }
}
