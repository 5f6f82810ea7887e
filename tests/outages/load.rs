//! The load: requests of all kinds through several instances, each of them checked as it ends.

use std::{
    cell::Cell,
    convert::Infallible,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    ActualCost, Decision, Limiter, Measurement, Outcome, Plan, RateLimitLayer, RateLimitLayerBuilder, RedisStore,
    RedisStoreBuilder, Settlement, Store, StoreErrorKind, StoreFuture, key,
};

use super::{
    callers::{Caller, Kind, LEASE_TIME, SCOPE, tiers},
    history::Answer,
    machine::Stopwatch,
    record::{Counts, Entry, Record},
};

/// The deadline of a decision.
pub const DEADLINE: Duration = Duration::from_millis(50);

/// A deadline that no busy machine misses.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longer than anything here can take unless it hangs.
pub const HANG: Duration = Duration::from_secs(30);

/// The most requests in flight per instance, and the pause of each sender.
const SENDERS: u64 = 6;
const PAUSE: Duration = Duration::from_millis(10);

/// The observations of one request in flight.
#[derive(Debug)]
struct Call {
    entry: Entry,
    /// Of a caller whose charges are settled.
    actual_cost: u64,
    polls: Cell<u32>,
    store_was_asked: Cell<bool>,
    store_has_failed: Cell<bool>,
    /// The circuit of the store's server was open.
    was_unsent: Cell<bool>,
    /// When the inner service was called, in polls and in time.
    passed: Cell<Option<(u32, Duration)>>,
}

impl Call {
    fn new(entry: Entry) -> Self {
        Self {
            entry,
            actual_cost: match entry.caller.kind {
                // Refunded in full, in part, not at all; and corrected upwards.
                Kind::Refunds => entry.number() as u64 % 4,
                _ => entry.caller.cost(),
            },
            polls: Cell::default(),
            store_was_asked: Cell::default(),
            store_has_failed: Cell::default(),
            was_unsent: Cell::default(),
            passed: Cell::default(),
        }
    }
}

tokio::task_local! {
    static CALL: Call;
}

thread_local! {
    /// The request whose decision was made last on this thread without it: its slot is released next, on the same thread.
    static DECIDED_ALONE: Cell<Option<Entry>> = const { Cell::new(None) };
}

/// Does nothing for a decision that outlives its request.
fn note(what: impl FnOnce(&Call)) {
    let _ = CALL.try_with(what);
}

/// A call of the store, until there is a decision: it counts as unanswered if there never is one.
struct Calling {
    record: Record,
    entry: Option<Entry>,
    answer: Answer,
}

impl Calling {
    fn ended(mut self, answer: Answer) {
        self.answer = answer;
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        if matches!(self.answer, Answer::Lost | Answer::Unsent) {
            self.record.unanswered();
        }
        if let Some(entry) = self.entry {
            self.record.call_ended(entry, self.answer);
        }
    }
}

/// Records the calls of the store, and its answers.
#[derive(Clone, Debug)]
struct Watched {
    store: RedisStore,
    record: Record,
}

impl Store for Watched {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        note(|call| call.store_was_asked.set(true));
        let record = self.record.clone();
        let entry = CALL.try_with(|call| call.entry).ok();
        entry.iter().for_each(|entry| record.called(*entry));
        let answer = self.store.acquire(plan);
        StoreFuture::boxed(async move {
            let calling = Calling {
                record: record.clone(),
                entry,
                answer: Answer::Lost,
            };
            let answer = answer.await;
            match &answer {
                Ok(measurement) if measurement.is_allowed() => {
                    calling.ended(Answer::Allowed);
                    if CALL.try_with(|_| ()).is_err() {
                        DECIDED_ALONE.set(entry);
                    }
                }
                Ok(_) => calling.ended(Answer::Rejected),
                Err(error) if error.kind() == StoreErrorKind::CircuitOpen => {
                    note(|call| call.was_unsent.set(true));
                    calling.ended(Answer::Unsent);
                }
                // `Overloaded` reports early what a missed deadline would report later.
                Err(error) if error.kind() == StoreErrorKind::Overloaded => {}
                Err(error) => {
                    note(|call| call.store_has_failed.set(true));
                    record.failed(error.kind());
                }
            }
            answer
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        let of_request = CALL.try_with(|call| (call.entry, call.actual_cost));
        let alone = || DECIDED_ALONE.take().map(|entry| (entry, entry.caller.cost()));
        let settled = of_request.ok().or_else(alone);
        let settled = settled.filter(|(entry, _)| settlement.partition() == Some(entry.caller.partition()));
        let (entry, actual) = settled.expect("each settlement is that of a request");
        self.record.settles(entry, actual);
        let (settling, record) = (self.store.settle(settlement), self.record.clone());
        // The task completes on its own, and the layer does not wait for it.
        let settling = tokio::spawn(async move {
            let settled = settling.await;
            record.settled(entry, settled.is_ok());
            settled
        });
        StoreFuture::boxed(async { settling.await.unwrap() })
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }

    fn peek(&self, plan: Plan) -> StoreFuture<Decision> {
        self.store.peek(plan)
    }

    fn silence(&self) -> StoreFuture<Option<Duration>> {
        self.store.silence()
    }
}

/// One instance of a service, with a separate store and layer.
#[derive(Clone, Debug)]
pub struct Client {
    pub layer: RateLimitLayer,
    store: Watched,
    instance: usize,
    record: Record,
}

fn layer(store: Watched, deadline: Duration) -> RateLimitLayer {
    RateLimitLayerBuilder::from(Limiter::builder(store).deadline(deadline))
        .decision_in_response()
        .scope(SCOPE)
        .key(key::from_fn(|request| {
            request.extensions.get::<Caller>().map(|caller| caller.key())
        }))
        .tiers(tiers())
        .cost_by(|request| request.extensions.get::<Caller>().map_or(1, |caller| caller.cost()))
        .decision_in_request()
        .build()
        .unwrap()
}

impl Client {
    pub fn new(instance: usize, url: &str, record: &Record) -> Self {
        Self::with_store(instance, RedisStore::builder(url), record)
    }

    pub fn with_store(instance: usize, store: RedisStoreBuilder, record: &Record) -> Self {
        let store = store.lease_time(LEASE_TIME).build().unwrap();
        let store = Watched {
            store,
            record: record.clone(),
        };
        Self {
            layer: layer(store.clone(), DEADLINE),
            store,
            instance,
            record: record.clone(),
        }
    }

    /// Uses a deadline that no busy machine misses: a request is decided late rather than not at all, unless its
    /// connection fails.
    pub fn patient(&self) -> Self {
        Self {
            layer: layer(self.store.clone(), PATIENCE),
            ..self.clone()
        }
    }

    /// Sends a request and checks what must be true of every request during any fault of Redis.
    pub async fn ask(&self, caller: Caller) -> Outcome {
        let (entry, asked) = (self.record.begin(self.instance, caller), Stopwatch::start());
        let asking = CALL.scope(Call::new(entry), self.send(caller, asked));
        let (decision, counts, waited) = timeout(HANG, asking).await.expect("no request hangs");
        let outcome = decision.outcome();
        let (remaining, violated) = told(caller, &decision);
        self.record.end(entry, counts.fate(), remaining, violated);
        self.record.count(caller, counts, waited);
        outcome
    }

    /// Sends a request that is cancelled after `after`, and returns whether the store was called.
    pub async fn cancel(&self, caller: Caller, after: Duration) -> bool {
        let entry = self.record.begin(self.instance, caller);
        let asking = async {
            let _ = timeout(after, self.send(caller, Stopwatch::start())).await;
            CALL.with(|call| call.store_was_asked.get())
        };
        CALL.scope(Call::new(entry), asking).await
    }

    async fn send(&self, caller: Caller, asked: Stopwatch) -> (Decision, Counts, Duration) {
        let record = self.record.clone();
        let service = service_fn(move |request| serve(request, asked, record.clone()));
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(caller);
        let mut response = pin!(self.layer.layer(service).oneshot(request));
        let response = poll_fn(|cx| {
            CALL.with(|call| call.polls.set(call.polls.get() + 1));
            response.as_mut().poll(cx)
        });
        let response = response.await.unwrap();
        let (store_was_asked, passed) = CALL.with(|call| (call.store_was_asked.get(), call.passed.get()));
        let was_unsent = CALL.with(|call| call.was_unsent.get());
        let decision = response.extensions().get::<Decision>().unwrap().clone();
        let outcome = decision.outcome();
        let is_limited = response.headers().contains_key("ratelimit");
        let mut counts = Counts::default();
        match (outcome, response.status(), is_limited) {
            // A store of this instance alone: no decision of the one that all share.
            (Outcome::Allowed | Outcome::Rejected, _, true) if decision.is_by_fallback() => counts.undecided = 1,
            (Outcome::Allowed, StatusCode::OK, true) => counts.allowed = 1,
            (Outcome::Rejected, StatusCode::TOO_MANY_REQUESTS, true) => counts.rejected = 1,
            (Outcome::FailedOpen, StatusCode::OK, false) if was_unsent => counts.unasked = 1,
            (Outcome::FailedOpen, StatusCode::OK, false) if store_was_asked => {
                counts.undecided = 1;
                counts.missed = u64::from(!CALL.with(|call| call.store_has_failed.get()));
            }
            (Outcome::FailedOpen, StatusCode::OK, false) => {
                let (polls, _) = passed.expect("it was passed on");
                assert_eq!(polls, 1, "{caller:?} waited although the circuit was open");
                counts.unasked = 1;
            }
            other => panic!("{caller:?} was answered {other:?}"),
        }
        assert_eq!(passed.is_some(), outcome != Outcome::Rejected, "{caller:?} {outcome:?}");
        let waited = passed.map_or_else(|| asked.elapsed(), |(_, waited)| waited);
        if caller.user.is_multiple_of(2) {
            response.into_body().collect().await.unwrap();
        }
        (decision, counts, waited)
    }
}

/// The remaining units of each policy, if the store has decided, and the policies that have rejected the request. All
/// of them must belong to this caller.
fn told(caller: Caller, decision: &Decision) -> (Vec<u64>, Vec<usize>) {
    if decision.outcome() == Outcome::FailedOpen || decision.is_by_fallback() {
        return (Vec::new(), Vec::new());
    }
    let (allowances, own) = (|| decision.allowances(), caller.limits());
    let limits: Vec<_> = allowances()
        .map(|it| (it.policy().name(), it.policy().quota()))
        .collect();
    let is_cached = decision.is_cached() && !limits.is_empty();
    assert!(limits == own || is_cached, "{caller:?} was told of {limits:?}");
    for allowance in allowances() {
        assert_eq!(allowance.partition(), caller.partition(), "{caller:?}");
        assert!(
            allowance.remaining() <= allowance.policy().quota(),
            "{caller:?}: {allowance:?}"
        );
    }
    let place = |name| own.iter().position(|(own, _)| *own == name);
    let violated = decision.violated().map(|it| place(it.policy().name()));
    let violated = violated.collect::<Option<Vec<_>>>().expect("a policy of this caller");
    assert_eq!(
        violated.is_empty(),
        decision.outcome() != Outcome::Rejected,
        "{decision:?}"
    );
    let remaining = allowances().map(|it| it.remaining()).collect();
    (if is_cached { Vec::new() } else { remaining }, violated)
}

/// The service inside of the layer.
async fn serve(
    request: Request<String>,
    asked: Stopwatch,
    record: Record,
) -> Result<Response<Full<Bytes>>, Infallible> {
    CALL.with(|call| call.passed.set(Some((call.polls.get(), asked.elapsed()))));
    let caller: &Caller = request.extensions().get().unwrap();
    let decision: &Decision = request.extensions().get().unwrap();
    let mut response = Response::new(Full::from("hello"));
    match caller.kind {
        Kind::Slots => {
            let is_counted = decision.outcome() == Outcome::Allowed && !decision.is_by_fallback();
            let inside = is_counted.then(|| record.enter(*caller));
            sleep(PAUSE / 2).await;
            drop(inside);
        }
        Kind::Refunds => {
            let actual_cost = CALL.with(|call| call.actual_cost);
            response.extensions_mut().insert(ActualCost(actual_cost));
        }
        Kind::Windows | Kind::Ledger | Kind::Probe | Kind::Quiet => {}
    }
    Ok(response)
}

/// Requests of all kinds through all instances, until it is stopped.
#[derive(Debug)]
pub struct Load {
    is_over: Arc<AtomicBool>,
    senders: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(clients: &[Client]) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let senders = clients
            .iter()
            .flat_map(|client| (0..SENDERS).map(move |number| (client, number)));
        let start =
            |(client, number): (&Client, u64)| tokio::spawn(send_on(client.clone(), number, Arc::clone(&is_over)));
        Self {
            senders: senders.map(start).collect(),
            is_over,
        }
    }

    /// Panics if any sender has.
    pub async fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for sender in self.senders {
            sender.await.unwrap();
        }
    }
}

/// The load of instances that belong to no scene, and its history.
pub struct Observed {
    pub record: Record,
    load: Load,
    clients: Vec<Client>,
}

impl Observed {
    pub fn start(instances: usize, client: impl Fn(usize, &Record) -> Client) -> Self {
        let record = Record::default();
        let clients: Vec<_> = (0..instances).map(|instance| client(instance, &record)).collect();
        Self {
            load: Load::start(&clients),
            clients,
            record,
        }
    }

    /// Waits until callers of all kinds have been charged, and slots and refunds have been settled.
    pub async fn is_under_way(&self) {
        let spent = async || {
            while self.record.of(Caller::new(Kind::Ledger, 0)).allowed < 30 {
                sleep(PAUSE).await;
            }
        };
        timeout(HANG, spent()).await.expect("requests are decided");
    }

    /// Waits until every instance has had a decision again, which ends the fault. Then ends the load and checks its history.
    pub async fn check(self) {
        for client in &self.clients {
            let decided = async || while client.ask(Caller::new(Kind::Probe, 0)).await == Outcome::FailedOpen {};
            timeout(HANG, decided()).await.expect("requests are decided again");
        }
        self.record.fault_ends();
        // The limits hold afterwards, too.
        sleep(20 * PAUSE).await;
        self.load.stop().await;
        self.record.check_history();
    }
}

async fn send_on(client: Client, number: u64, is_over: Arc<AtomicBool>) {
    let mut round = number;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        let (user, chapter) = (round / 7, client.record.chapter());
        let of_chapter = |kind| Caller::of_chapter(kind, chapter, user);
        match round % 7 {
            0 => _ = client.ask(of_chapter(Kind::Windows)).await,
            1 => _ = client.ask(of_chapter(Kind::Refunds)).await,
            2 => _ = client.ask(Caller::with_slots(chapter, user)).await,
            3 => {
                // Cancelled before the decision, after it, or inside of the service.
                let asking = client.ask(Caller::with_slots(chapter, user));
                let _ = timeout(Duration::from_millis(user % 4), asking).await;
            }
            4 => _ = client.ask(Caller::spender(chapter)).await,
            5 => _ = client.ask(of_chapter(Kind::Quiet)).await,
            _ => _ = client.ask(Caller::new(Kind::Ledger, chapter)).await,
        }
        sleep(PAUSE).await;
    }
}
