//! The load: requests of all kinds through several instances, each of them checked as it ends.

use std::{
    cell::Cell,
    collections::HashMap,
    convert::Infallible,
    future::{Future, poll_fn},
    ops::AddAssign,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
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
    AcquireFuture, ActualCost, Decision, Outcome, PartitionKey, Plan, QuotaPolicy, RateLimitLayer, RedisStore,
    Settlement, Store, StoreErrorKind, StoreFuture, Tiers, key,
};

use super::machine::Stopwatch;

/// The deadline of a decision, and how far past it a request may come back on a machine with more to do.
const DEADLINE: Duration = Duration::from_millis(50);
const LATEST: Duration = Duration::from_secs(1);

/// Longer than anything here can take unless it hangs.
pub const HANG: Duration = Duration::from_secs(30);

/// The shortest there is, so that lost slots come back while a scenario waits for them.
const LEASE_TIME: Duration = Duration::from_secs(1);

pub const SLOTS: u64 = 3;
pub const SLOT_USERS: u64 = 2;
pub const PROBE: u64 = 10;
pub const LEDGER: u64 = 1_000_000;

/// How many requests each instance has under way at most, and the pause of each sender.
const SENDERS: u64 = 6;
const PAUSE: Duration = Duration::from_millis(10);

/// What a request is subject to. The names are those of tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A second, a minute and a day.
    Windows,
    /// Concurrent requests.
    Slots,
    /// Charges that are changed by the response.
    Refunds,
    /// A quota that nobody uses up: what was charged can be read from it.
    Ledger,
    /// A small quota, which shows whether limits hold.
    Probe,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Windows => "windows",
            Self::Slots => "slots",
            Self::Refunds => "refunds",
            Self::Ledger => "ledger",
            Self::Probe => "probe",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub kind: Kind,
    pub user: u64,
}

impl Caller {
    pub const fn new(kind: Kind, user: u64) -> Self {
        Self { kind, user }
    }

    /// One who uses up a small quota before the fault, and goes on asking.
    pub const fn spender(chapter: u64) -> Self {
        Self::new(Kind::Probe, u64::MAX - chapter)
    }

    pub fn key(self) -> PartitionKey {
        PartitionKey::new(self.kind.name(), self.user.to_be_bytes())
    }

    pub fn tier(self) -> &'static str {
        self.kind.name()
    }
}

fn tiers() -> Tiers {
    let month = Duration::from_secs(30 * 86_400);
    let windows = [
        QuotaPolicy::per_second("second", 20),
        QuotaPolicy::per_minute("minute", 400),
        QuotaPolicy::per_day("day", 100_000),
    ];
    let slots = [
        QuotaPolicy::concurrent("slots", SLOTS),
        QuotaPolicy::per_second("second", 1_000),
    ];
    Tiers::by(|request| request.extensions.get::<Caller>().map(|caller| caller.tier()))
        .tier("windows", windows)
        .tier("slots", slots)
        .tier("refunds", [QuotaPolicy::per_hour("refunds", 100_000)])
        // Next to nothing of it comes back while a scenario runs.
        .tier("ledger", [QuotaPolicy::new("ledger", LEDGER, month * 12)])
        .tier("probe", [QuotaPolicy::per_day("probe", PROBE)])
}

/// What became of the requests of one caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub allowed: u64,
    pub refused: u64,
    /// The store was asked and gave no decision.
    pub undecided: u64,
    /// Of these, those that waited for the whole deadline.
    pub missed: u64,
    /// The store was not asked: the circuit was open.
    pub unasked: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.refused += other.refused;
        self.undecided += other.undecided;
        self.missed += other.missed;
        self.unasked += other.unasked;
    }
}

/// What all instances have seen since they were asked last.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub counts: Counts,
    /// Errors of the store; deadlines that were missed are none.
    pub errors: HashMap<StoreErrorKind, u64>,
    pub longest_wait: Duration,
    /// How many requests of one caller that were allowed to take a slot were inside of the service together.
    pub most_inside: u64,
}

#[derive(Debug, Default)]
struct Seen {
    by_caller: HashMap<Caller, Counts>,
    inside: [u64; SLOT_USERS as usize],
    totals: Totals,
}

/// All that was seen, by all instances.
#[derive(Clone, Debug, Default)]
pub struct Record(Arc<Mutex<Seen>>);

impl Record {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn of(&self, caller: Caller) -> Counts {
        self.lock().by_caller.get(&caller).copied().unwrap_or_default()
    }

    /// Begins new totals and returns those up to now.
    pub fn take_totals(&self) -> Totals {
        let mut seen = self.lock();
        let most_inside = seen.inside.into_iter().max().unwrap_or(0);
        let next = Totals {
            most_inside,
            ..Totals::default()
        };
        std::mem::replace(&mut seen.totals, next)
    }

    fn count(&self, caller: Caller, counts: Counts, waited: Duration) {
        let mut seen = self.lock();
        *seen.by_caller.entry(caller).or_default() += counts;
        seen.totals.counts += counts;
        seen.totals.longest_wait = seen.totals.longest_wait.max(waited);
    }

    fn enter(&self, user: u64) -> Inside {
        let mut seen = self.lock();
        let inside = &mut seen.inside[user as usize];
        *inside += 1;
        let inside = *inside;
        seen.totals.most_inside = seen.totals.most_inside.max(inside);
        drop(seen);
        Inside(self.clone(), user)
    }
}

/// Inside of the service until it is dropped, which happens to cancelled requests, too.
struct Inside(Record, u64);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.lock().inside[self.1 as usize] -= 1;
    }
}

/// What one request learns on its way.
#[derive(Debug, Default)]
struct Call {
    polls: Cell<u32>,
    store_was_asked: Cell<bool>,
    store_has_failed: Cell<bool>,
    /// When the inner service was called, in polls and in time.
    passed: Cell<Option<(u32, Duration)>>,
}

tokio::task_local! {
    static CALL: Call;
}

/// Notes which requests ask the store, and what it says.
#[derive(Debug)]
struct Watched {
    store: RedisStore,
    record: Record,
}

impl Store for Watched {
    fn acquire(&self, plan: Plan) -> AcquireFuture {
        CALL.with(|call| call.store_was_asked.set(true));
        let (answer, record) = (self.store.acquire(plan), self.record.clone());
        AcquireFuture::boxed(async move {
            let answer = answer.await;
            if let Err(error) = &answer {
                CALL.with(|call| call.store_has_failed.set(true));
                *record.lock().totals.errors.entry(error.kind()).or_default() += 1;
            }
            answer
        })
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }

    fn peek(&self, plan: Plan) -> AcquireFuture {
        self.store.peek(plan)
    }
}

/// One instance of a service: a store of its own, a layer of its own.
#[derive(Clone, Debug)]
pub struct Client {
    pub layer: RateLimitLayer,
    record: Record,
}

impl Client {
    pub fn new(url: &str, record: &Record) -> Self {
        let store = RedisStore::builder(url).lease_time(LEASE_TIME).build().unwrap();
        let watched = Watched {
            store,
            record: record.clone(),
        };
        let layer = RateLimitLayer::builder(watched)
            .scope("outages")
            .key(key::from_fn(|request| {
                request.extensions.get::<Caller>().map(|caller| caller.key())
            }))
            .tiers(tiers())
            .deadline(DEADLINE)
            .decision_in_request()
            .build()
            .unwrap();
        Self {
            layer,
            record: record.clone(),
        }
    }

    /// Sends a request and checks whatever has to hold for every one, whatever happens to Redis.
    pub async fn ask(&self, caller: Caller) -> Outcome {
        let asked = Stopwatch::start();
        let asking = CALL.scope(Call::default(), self.send(caller, asked));
        let (outcome, counts, waited) = timeout(HANG, asking).await.expect("no request hangs");
        assert!(waited < LATEST, "{caller:?} waited {waited:?}: {outcome:?}");
        self.record.count(caller, counts, waited);
        outcome
    }

    async fn send(&self, caller: Caller, asked: Stopwatch) -> (Outcome, Counts, Duration) {
        let record = self.record.clone();
        let service = service_fn(move |request| serve(request, asked, record.clone()));
        let mut request = Request::new(());
        request.extensions_mut().insert(caller);
        let mut response = pin!(self.layer.layer(service).oneshot(request));
        let response = poll_fn(|cx| {
            CALL.with(|call| call.polls.set(call.polls.get() + 1));
            response.as_mut().poll(cx)
        });
        let response = response.await.unwrap();
        let (store_was_asked, passed) = CALL.with(|call| (call.store_was_asked.get(), call.passed.get()));
        let outcome = response.extensions().get::<Decision>().unwrap().outcome();
        let is_limited = response.headers().contains_key("ratelimit");
        let mut counts = Counts::default();
        match (outcome, response.status(), is_limited) {
            (Outcome::Allowed, StatusCode::OK, true) => counts.allowed = 1,
            (Outcome::Refused, StatusCode::TOO_MANY_REQUESTS, true) => counts.refused = 1,
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
        assert_eq!(passed.is_some(), outcome != Outcome::Refused, "{caller:?} {outcome:?}");
        let waited = passed.map_or_else(|| asked.elapsed(), |(_, waited)| waited);
        if caller.user.is_multiple_of(2) {
            response.into_body().collect().await.unwrap();
        }
        (outcome, counts, waited)
    }
}

/// The service inside of the layer.
async fn serve(request: Request<()>, asked: Stopwatch, record: Record) -> Result<Response<Full<Bytes>>, Infallible> {
    CALL.with(|call| call.passed.set(Some((call.polls.get(), asked.elapsed()))));
    let caller: &Caller = request.extensions().get().unwrap();
    let decision: &Decision = request.extensions().get().unwrap();
    let mut response = Response::new(Full::from("hello"));
    match caller.kind {
        Kind::Slots => {
            let is_counted = decision.outcome() == Outcome::Allowed;
            let inside = is_counted.then(|| record.enter(caller.user));
            sleep(PAUSE / 2).await;
            drop(inside);
        }
        Kind::Refunds => {
            response.extensions_mut().insert(ActualCost(caller.user % 3));
        }
        Kind::Windows | Kind::Ledger | Kind::Probe => {}
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
    pub fn start(clients: &[Client], chapter: &Arc<AtomicU64>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let senders = clients
            .iter()
            .flat_map(|client| (0..SENDERS).map(move |number| (client, number)));
        let start = |(client, number): (&Client, u64)| {
            tokio::spawn(send_on(
                client.clone(),
                number,
                Arc::clone(chapter),
                Arc::clone(&is_over),
            ))
        };
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

async fn send_on(client: Client, number: u64, chapter: Arc<AtomicU64>, is_over: Arc<AtomicBool>) {
    let mut round = number;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        let (user, chapter) = (round / 6, chapter.load(Ordering::Relaxed));
        match round % 6 {
            0 => _ = client.ask(Caller::new(Kind::Windows, user % 8)).await,
            1 => _ = client.ask(Caller::new(Kind::Refunds, user % 8)).await,
            2 => _ = client.ask(Caller::new(Kind::Slots, user % SLOT_USERS)).await,
            3 => {
                // Given up before the decision, after it, or inside of the service.
                let asking = client.ask(Caller::new(Kind::Slots, user % SLOT_USERS));
                let _ = timeout(Duration::from_millis(user % 4), asking).await;
            }
            4 => _ = client.ask(Caller::spender(chapter)).await,
            _ => _ = client.ask(Caller::new(Kind::Ledger, chapter)).await,
        }
        sleep(PAUSE).await;
    }
}
