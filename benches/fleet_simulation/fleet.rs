//! The instances of all regions, and the stores that they call.

use std::{
    convert::Infallible,
    future::{Ready, pending, ready},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use tower::{Layer, Service, util::ServiceFn};
use tower_quota::{
    Algorithm, Decision, Limiter, Measurement, MemoryStore, Outcome, Plan, QuotaPolicy, RateLimit,
    RateLimitLayerBuilder, Settlement, Store, StoreError, StoreErrorKind, StoreFuture,
    clock::{Clock, Timestamp},
    key,
};

use super::callers::{Due, QUOTA, REGIONS, WINDOW};

const INSTANCES: usize = 100;
/// The number of instances in a region to which the requests of one caller go, where they go to few.
const FEW: usize = 4;
const BLOCK: u64 = 500;
/// One way to the home of the counters, and to a Redis in the region.
const FAR: [Duration; REGIONS] = [
    Duration::from_millis(1),
    Duration::from_millis(40),
    Duration::from_millis(75),
];
const NEAR: Duration = Duration::from_millis(1);
/// The time in which the last region is cut off, in seconds of the minute.
const CUT: Range<u64> = 20..40;

/// A way to spread limits over regions.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    /// The part of the quota that each region has in its own Redis, or `None` for a single Redis with the whole quota.
    own: Option<u64>,
    has_prefetch: bool,
    /// The number of instances in each region to which the requests of one caller go.
    instances: usize,
    is_cut: bool,
}

const ONE_HOME: Variant = Variant {
    name: "one Redis",
    own: None,
    has_prefetch: false,
    instances: INSTANCES,
    is_cut: false,
};

pub(crate) const VARIANTS: [Variant; 6] = [
    Variant {
        name: "a Redis in each region, a third of the quota each",
        own: Some(QUOTA / 3),
        ..ONE_HOME
    },
    Variant {
        name: "a Redis in each region, the whole quota each",
        own: Some(QUOTA),
        ..ONE_HOME
    },
    ONE_HOME,
    Variant {
        name: "one Redis, prefetching",
        has_prefetch: true,
        ..ONE_HOME
    },
    Variant {
        name: "one Redis, prefetching, 4 instances per caller",
        has_prefetch: true,
        instances: FEW,
        ..ONE_HOME
    },
    Variant {
        name: "the same, the third region cut off for 20 s",
        has_prefetch: true,
        instances: FEW,
        is_cut: true,
        ..ONE_HOME
    },
];

/// A store that is some way off.
#[derive(Debug)]
struct FarStore {
    store: MemoryStore,
    /// `None` for a store that answers at once.
    way: Option<Duration>,
    cut: Range<u64>,
    clock: Clock,
    calls: Arc<AtomicU64>,
}

impl FarStore {
    fn is_cut(&self) -> bool {
        let into_it = self.clock.now().as_micros() % WINDOW.as_micros() as u64;
        self.cut.contains(&(into_it / 1_000_000))
    }
}

impl Store for FarStore {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        let is_cut = self.is_cut();
        self.calls.fetch_add(u64::from(!is_cut), Ordering::Relaxed);
        match self.way {
            None if is_cut => StoreFuture::ready(Err(StoreError::new(StoreErrorKind::Unreachable, "cut off"))),
            Some(_) if is_cut => StoreFuture::boxed(pending()),
            None => self.store.acquire(plan),
            Some(way) => {
                let store = self.store.clone();
                StoreFuture::boxed(async move {
                    tokio::time::sleep(way).await;
                    let measured = store.acquire(plan).await;
                    tokio::time::sleep(way).await;
                    measured
                })
            }
        }
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        if self.is_cut() {
            return StoreFuture::ready(Err(StoreError::new(StoreErrorKind::Unreachable, "cut off")));
        }
        self.calls
            .fetch_add(u64::from(!settlement.is_empty()), Ordering::Relaxed);
        self.store.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.store.reset(plan)
    }
}

type Inner = ServiceFn<fn(Request<String>) -> Ready<Result<Response<String>, Infallible>>>;

pub(crate) struct Fleet {
    instances: Vec<RateLimit<Inner>>,
    per_caller: usize,
    /// The calls of each store, with its number.
    calls: [(usize, Arc<AtomicU64>); REGIONS],
}

/// The answer to a request.
pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    pub(crate) decided_at: Option<Timestamp>,
}

impl Fleet {
    pub(crate) fn new(variant: &Variant, clock: &Clock, has_distance: bool) -> Self {
        let store = || {
            MemoryStore::builder()
                .clock(clock.clone())
                .build()
                .expect("the defaults are valid")
        };
        let home = store();
        let calls = std::array::from_fn(|region| (if variant.own.is_some() { region } else { 0 }, Arc::default()));
        let instances = (0..REGIONS).flat_map(|region| {
            let (own, (_, calls)) = (variant.own.map(|_| store()), &calls[region]);
            let way = if own.is_some() { NEAR } else { FAR[region] };
            let far = || FarStore {
                store: own.clone().unwrap_or_else(|| home.clone()),
                way: has_distance.then_some(way),
                cut: if variant.is_cut && region == REGIONS - 1 {
                    CUT
                } else {
                    0..0
                },
                clock: clock.clone(),
                calls: Arc::clone(calls),
            };
            (0..INSTANCES)
                .map(|_| instance(variant, far(), clock))
                .collect::<Vec<_>>()
        });
        Self {
            instances: instances.collect(),
            per_caller: variant.instances,
            calls,
        }
    }

    /// The number of calls to each store, by the number of the store.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (usize, u64)> {
        self.calls
            .iter()
            .map(|(store, calls)| (*store, calls.load(Ordering::Relaxed)))
    }

    pub(crate) fn send(&self, due: &Due) -> impl Future<Output = Answer> + use<> {
        let chosen = due.caller as usize * 7 + due.chance as usize % self.per_caller;
        let mut service = self.instances[due.region * INSTANCES + chosen % INSTANCES].clone();
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(due.caller);
        let response = service.call(request);
        async move {
            let response = response.await.expect("it cannot fail");
            let decision = response.extensions().get::<Decision>().expect("it was decided");
            Answer {
                outcome: decision.outcome(),
                decided_at: decision.decided_at(),
            }
        }
    }
}

fn instance(variant: &Variant, store: FarStore, clock: &Clock) -> RateLimit<Inner> {
    let quota = variant.own.unwrap_or(QUOTA);
    let policy = QuotaPolicy::new("minute", quota, WINDOW).with_algorithm(Algorithm::FixedWindow);
    let policy = match variant.has_prefetch {
        true => policy.with_prefetch(BLOCK),
        false => policy,
    };
    let layer = RateLimitLayerBuilder::from(
        Limiter::builder(store)
            .deadline(Duration::from_millis(500))
            .clock(clock.clone()),
    )
    .decision_in_response()
    .scope("fleet")
    .key(key::extension::<u64>())
    .policy(policy)
    .build()
    .expect("the settings are valid");
    layer.layer(tower::service_fn(|_| ready(Ok(Response::new(String::new())))))
}
