//! Decisions through Redis: the store alone and the whole layer, called by many concurrent tasks.

use std::{
    cell::Cell,
    convert::Infallible,
    future::{Future, Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Request, Response};
use test_kit::RedisServer;
use tokio::{runtime::Runtime, task::JoinSet};
use tower::{Layer, ServiceExt, service_fn, util::ServiceFn};
use tower_quota::{
    Decision, Limiter, Outcome, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimit,
    RateLimitLayerBuilder, RedisStore, Scope, Store, ToPartitionKey, key,
};

use super::rounds::{self, Random, own_seconds, server};

const SCOPE: &str = "bench";
pub(super) const USERS: usize = 250_000;
pub(super) const POLICIES: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("second", 10),
    QuotaPolicy::per_minute("minute", 100),
    QuotaPolicy::per_day("day", 5_000),
];
/// The policies of a second partition.
const OTHERS: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("other second", 10),
    QuotaPolicy::per_minute("other minute", 100),
    QuotaPolicy::per_day("other day", 5_000),
];

pub(super) struct Bench {
    pub(super) server: RedisServer,
    pub(super) runtime: Runtime,
    /// The length of one turn of one side.
    length: Duration,
    /// Requests that passed because the deadline had passed, or because the circuit was open afterwards.
    pub(super) undecided: Cell<u64>,
}

impl Bench {
    /// Starts a dedicated server.
    pub(super) fn start() -> Self {
        Self {
            server: RedisServer::start(),
            runtime: Runtime::new().expect("the runtime starts"),
            length: Duration::from_secs_f64(rounds::setting("SECONDS", 0.5)),
            undecided: Cell::default(),
        }
    }

    pub(super) fn store(&self) -> RedisStore {
        RedisStore::new(self.server.url()).expect("the URL is valid")
    }

    pub(super) fn store_without_sharing(&self) -> RedisStore {
        let builder = RedisStore::builder(self.server.url()).decisions_per_call(1);
        builder.build().expect("the settings are valid")
    }

    /// Decisions per second.
    pub(super) fn measure(&self, decide: &impl Decide, tasks: usize) -> f64 {
        let start = Instant::now();
        self.decisions_per(decide, tasks, || start.elapsed().as_secs_f64())
    }

    /// Decisions per second for which the server used a processor.
    pub(super) fn measure_server(&self, decide: &impl Decide, tasks: usize) -> f64 {
        self.decisions_per(decide, tasks, || server::seconds(&self.server))
    }

    /// Decisions per second of CPU time, where this process and the server are added up.
    pub(super) fn measure_processors(&self, decide: &impl Decide, tasks: usize) -> f64 {
        self.decisions_per(decide, tasks, || server::seconds(&self.server) + own_seconds())
    }

    /// Decisions of `tasks` concurrent tasks, per second of a clock. The server is empty before.
    fn decisions_per(&self, decide: &impl Decide, tasks: usize, seconds: impl Fn() -> f64) -> f64 {
        server::flush(&self.server);
        let (start, is_over) = (seconds(), Arc::default());
        let decided = self.runtime.block_on(async {
            let running = ask(decide, tasks, u64::MAX, &is_over);
            tokio::time::sleep(self.length).await;
            is_over.store(true, Ordering::Relaxed);
            self.sum(running).await
        });
        decided as f64 / (seconds() - start)
    }

    /// Makes `each` decisions in each task, for a profiler.
    pub(super) fn repeat(&self, decide: &impl Decide, tasks: usize, each: u64) {
        server::flush(&self.server);
        self.runtime
            .block_on(async { self.sum(ask(decide, tasks, each, &Arc::default())).await });
    }

    async fn sum(&self, running: JoinSet<(u64, u64)>) -> u64 {
        let counts = running.join_all().await;
        let undecided = counts.iter().map(|(_, undecided)| undecided).sum::<u64>();
        self.undecided.set(self.undecided.get() + undecided);
        counts.iter().map(|(decided, _)| decided).sum()
    }
}

/// Starts `tasks` tasks, each of which makes at most `most` decisions, or fewer if `is_over` is set earlier. A task
/// returns its numbers of decisions and of undecided requests.
fn ask(decide: &impl Decide, tasks: usize, most: u64, is_over: &Arc<AtomicBool>) -> JoinSet<(u64, u64)> {
    let (mut running, users) = (JoinSet::new(), rounds::setting("USERS", USERS));
    for seed in 1..=tasks as u64 {
        let (decide, is_over) = (decide.clone(), Arc::clone(is_over));
        running.spawn(async move {
            let (mut decided, mut undecided) = (0, 0);
            for random in Random::new(seed) {
                if decided + undecided >= most || is_over.load(Ordering::Relaxed) {
                    break;
                }
                match decide.decide(random as usize % users).await {
                    Outcome::Allowed => decided += 1,
                    Outcome::FailedOpen => {
                        undecided += 1;
                        // The circuit may be open, and then nothing else would give way to the other tasks.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    outcome => panic!("{outcome:?}"),
                }
            }
            (decided, undecided)
        });
    }
    running
}

pub(super) trait Decide: Clone + Send + 'static {
    fn decide(&self, user: usize) -> impl Future<Output = Outcome> + Send;
}

#[derive(Clone)]
pub(super) struct StoreAlone {
    pub(super) store: RedisStore,
    policies: PolicySet,
    partitions: Arc<[PartitionId]>,
}

impl StoreAlone {
    pub(super) fn new(store: RedisStore, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        let scope = Scope::new(SCOPE);
        Self {
            store,
            policies: PolicySet::new(policies).expect("the policies are valid"),
            partitions: (0..USERS)
                .map(|user| scope.partition(&UserId(user).to_partition_key()))
                .collect(),
        }
    }

    pub(super) async fn acquire(&self, user: usize) -> Decision {
        let plan = Plan::new(self.policies.clone(), self.partitions[user], 1);
        self.store.decide(plan).await.expect("the server answers")
    }
}

impl Decide for StoreAlone {
    async fn decide(&self, user: usize) -> Outcome {
        self.acquire(user).await.outcome()
    }
}

type Answer = fn(Request<String>) -> Ready<Result<Response<String>, Infallible>>;

#[derive(Clone)]
pub(super) struct WholeLayer(RateLimit<ServiceFn<Answer>>);

impl WholeLayer {
    pub(super) fn new(store: RedisStore, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        Self::of(RateLimitLayerBuilder::from(Limiter::builder(store)), policies)
    }

    /// With a deadline that it also meets in a profiler, which makes the program slow.
    pub(super) fn patient(store: RedisStore, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        let limiter = Limiter::builder(store).deadline(Duration::from_secs(30));
        Self::of(RateLimitLayerBuilder::from(limiter), policies)
    }

    /// Two partitions per request, each with its own policies.
    pub(super) fn of_two_partitions(store: RedisStore) -> Self {
        let other = key::from_fn(|parts| Some(parts.extensions.get::<UserId>()?.key("account")));
        let builder = RateLimitLayerBuilder::from(Limiter::builder(store)).named_key("other", other);
        let others = OTHERS.map(|policy| policy.keyed_by("other"));
        Self::of(builder, POLICIES.into_iter().chain(others))
    }

    fn of(builder: RateLimitLayerBuilder, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        let builder = builder.scope(SCOPE).key(key::extension::<UserId>());
        let builder = policies
            .into_iter()
            .fold(builder, |builder, policy| builder.policy(policy));
        let layer = builder.build().expect("the settings are valid");
        let answer: Answer = |_| ready(Ok(Response::default()));
        Self(layer.layer(service_fn(answer)))
    }
}

impl Decide for WholeLayer {
    async fn decide(&self, user: usize) -> Outcome {
        let mut request = Request::default();
        request.extensions_mut().insert(UserId(user));
        let Ok(response) = self.0.clone().oneshot(request).await;
        let decision = response.extensions().get();
        let outcome = decision.map_or(Outcome::Allowed, Decision::outcome);
        assert_eq!(
            response.headers().contains_key("ratelimit"),
            outcome == Outcome::Allowed
        );
        outcome
    }
}

#[derive(Clone)]
struct UserId(usize);

impl UserId {
    fn key(&self, kind: &str) -> PartitionKey {
        PartitionKey::new(kind, self.0.to_le_bytes())
    }
}

impl ToPartitionKey for UserId {
    fn to_partition_key(&self) -> PartitionKey {
        self.key("user")
    }
}
