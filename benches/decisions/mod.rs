//! The measured decisions through Redis: the store alone and the whole layer, called by many concurrent tasks.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every benchmark includes this module and uses a part of it"
)]

use std::{
    cell::Cell,
    convert::Infallible,
    fmt, fs,
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
    Decision, Outcome, PartitionId, PartitionKey, Plan, PolicySet, QuotaPolicy, RateLimit, RateLimitLayer,
    RateLimitLayerBuilder, RedisStore, Scope, Store, ToPartitionKey, key,
};

use super::rounds::{self, Side};

pub const SCOPE: &str = "bench";
pub const USERS: usize = 250_000;
pub const POLICIES: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("second", 10),
    QuotaPolicy::per_minute("minute", 100),
    QuotaPolicy::per_day("day", 5_000),
];

pub fn store(server: &RedisServer) -> RedisStore {
    RedisStore::new(server.url()).expect("the URL is valid")
}

pub fn store_without_sharing(server: &RedisServer) -> RedisStore {
    let builder = RedisStore::builder(server.url()).decisions_per_call(1);
    builder.build().expect("the settings are valid")
}

pub struct Bench {
    pub server: RedisServer,
    pub runtime: Runtime,
    /// The length of one turn of one side.
    pub length: Duration,
    /// Requests that were passed on because the decision had not come within the deadline.
    pub undecided: Cell<u64>,
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bench").finish_non_exhaustive()
    }
}

impl Bench {
    /// Starts a dedicated server.
    pub fn start() -> Self {
        Self {
            server: RedisServer::start(),
            runtime: Runtime::new().expect("the runtime starts"),
            length: Duration::from_secs_f64(rounds::setting("SECONDS", 0.5)),
            undecided: Cell::default(),
        }
    }

    /// The same with different numbers of tasks.
    pub fn sides<'a>(&'a self, name: &str, note: &str, decide: &'a impl Decide, tasks: &'a [usize]) -> Vec<Side<'a>> {
        let sides = tasks.iter().map(|tasks| {
            let mut side = Side::new(format!("{name}, tasks: {tasks}"), || self.measure(decide, *tasks));
            side.note = note.to_owned();
            side
        });
        sides.collect()
    }

    pub fn flush(&self) {
        assert_eq!(self.server.command(&["FLUSHALL"]), "OK");
    }

    /// Decisions per second.
    pub fn measure(&self, decide: &impl Decide, tasks: usize) -> f64 {
        self.flush();
        let start = Instant::now();
        let (decided, undecided) = self.runtime.block_on(self.decide(decide, tasks));
        self.undecided.set(self.undecided.get() + undecided);
        decided as f64 / start.elapsed().as_secs_f64()
    }

    /// Decisions per second that the server's processor was busy.
    pub fn measure_server(&self, decide: &impl Decide, tasks: usize) -> f64 {
        self.flush();
        let start = self.server_seconds();
        let (decided, _) = self.runtime.block_on(self.decide(decide, tasks));
        decided as f64 / (self.server_seconds() - start)
    }

    /// Decisions per second of CPU time, where this process and the server are added up.
    pub fn measure_processors(&self, decide: &impl Decide, tasks: usize) -> f64 {
        self.flush();
        let seconds = || self.server_seconds() + own_seconds();
        let start = seconds();
        let (decided, _) = self.runtime.block_on(self.decide(decide, tasks));
        decided as f64 / (seconds() - start)
    }

    /// Microseconds of the server's script time per decision.
    pub fn measure_script(&self, decide: &impl Decide, tasks: usize) -> f64 {
        assert_eq!(self.server.command(&["CONFIG", "RESETSTAT"]), "OK");
        self.flush();
        let (decided, _) = self.runtime.block_on(self.decide(decide, tasks));
        self.script_stat("usec=") / decided as f64
    }

    /// The calls of scripts since the start of the server, or since the last measurement of scripts.
    pub fn script_calls(&self) -> f64 {
        self.script_stat("calls=")
    }

    fn script_stat(&self, name: &str) -> f64 {
        let info = self.server.command(&["INFO", "commandstats"]);
        let scripts = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let stat = scripts.and_then(|stats| stats.split(',').find_map(|stat| stat.strip_prefix(name)));
        stat.map_or(0.0, |stat| stat.parse().expect("a number"))
    }

    /// Makes `each` decisions in each task, for a profiler.
    pub fn repeat(&self, decide: &impl Decide, tasks: usize, each: u64) {
        self.flush();
        let (_, undecided) = self.runtime.block_on(async {
            let running = ask(decide, tasks, each, &Arc::default());
            sum(running).await
        });
        self.undecided.set(self.undecided.get() + undecided);
    }

    /// The processor time that the server has used.
    pub fn server_seconds(&self) -> f64 {
        let info = self.server.command(&["INFO", "cpu"]);
        let seconds = |name| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok())
        };
        let [user, system] = ["used_cpu_user:", "used_cpu_sys:"].map(|name| seconds(name).expect("a number"));
        user + system
    }

    async fn decide(&self, decide: &impl Decide, tasks: usize) -> (u64, u64) {
        run(decide, tasks, self.length).await
    }
}

/// Returns the numbers of decisions and of undecided requests that `tasks` concurrent tasks reach in `length`.
pub async fn run(decide: &impl Decide, tasks: usize, length: Duration) -> (u64, u64) {
    let is_over = Arc::default();
    let running = ask(decide, tasks, u64::MAX, &is_over);
    tokio::time::sleep(length).await;
    is_over.store(true, Ordering::Relaxed);
    sum(running).await
}

/// Starts `tasks` tasks, each of which makes at most `most` decisions, or fewer if `is_over` is set earlier. A task
/// returns its numbers of decisions and of undecided requests.
fn ask(decide: &impl Decide, tasks: usize, most: u64, is_over: &Arc<AtomicBool>) -> JoinSet<(u64, u64)> {
    let (mut running, users) = (JoinSet::new(), rounds::setting("USERS", USERS));
    for seed in 1..=tasks as u64 {
        let (decide, is_over) = (decide.clone(), Arc::clone(is_over));
        running.spawn(async move {
            let (mut decided, mut undecided, mut random) = (0, 0, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            while decided + undecided < most && !is_over.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
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

async fn sum(running: JoinSet<(u64, u64)>) -> (u64, u64) {
    let counts = running.join_all().await;
    counts
        .iter()
        .fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
}

/// The time for which the threads of this process have run.
pub fn own_seconds() -> f64 {
    let threads = fs::read_dir("/proc/self/task").expect("this is Linux");
    let nanos = threads.flatten().filter_map(|thread| {
        let schedule = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        schedule.split(' ').next()?.parse::<u64>().ok()
    });
    nanos.sum::<u64>() as f64 / 1e9
}

pub trait Decide: Clone + Send + 'static {
    fn decide(&self, user: usize) -> impl Future<Output = Outcome> + Send;
}

#[derive(Clone, Debug)]
pub struct StoreAlone {
    pub store: RedisStore,
    policies: PolicySet,
    partitions: Arc<[PartitionId]>,
    /// The same of a second partition, if there is one.
    others: Option<Arc<Self>>,
}

impl StoreAlone {
    pub fn new(server: &RedisServer, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        Self::of_kind(UserId::KIND, server, policies)
    }

    fn of_kind(kind: &str, server: &RedisServer, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        let scope = Scope::new(SCOPE);
        Self {
            store: store(server),
            policies: PolicySet::new(policies).expect("the policies are valid"),
            partitions: (0..USERS)
                .map(|user| scope.partition(&UserId(user).key(kind)))
                .collect(),
            others: None,
        }
    }

    /// Two partitions per request, each with its own policies.
    pub fn of_two_partitions(server: &RedisServer) -> Self {
        let others = Self::of_kind(UserId::OTHER_KIND, server, OTHERS);
        Self {
            others: Some(Arc::new(others)),
            ..Self::new(server, POLICIES)
        }
    }

    pub async fn acquire(&self, user: usize) -> Decision {
        let plan = Plan::new(self.policies.clone(), self.partitions[user], 1);
        let plan = match &self.others {
            Some(others) => plan.and(others.policies.clone(), others.partitions[user]),
            None => plan,
        };
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
pub struct WholeLayer(RateLimit<ServiceFn<Answer>>);

impl fmt::Debug for WholeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeLayer").finish_non_exhaustive()
    }
}

impl WholeLayer {
    pub fn new(store: RedisStore, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        Self::of(RateLimitLayer::builder(store), policies)
    }

    /// Two partitions per request, each with its own policies.
    pub fn of_two_partitions(store: RedisStore) -> Self {
        Self::of_two(RateLimitLayer::builder(store))
    }

    pub fn of_two(builder: RateLimitLayerBuilder) -> Self {
        let other = key::from_fn(|parts| {
            let user = parts.extensions.get::<UserId>()?;
            Some(user.key(UserId::OTHER_KIND))
        });
        let builder = builder.named_key("other", other);
        let others = OTHERS.map(|policy| policy.keyed_by("other"));
        Self::of(builder, POLICIES.into_iter().chain(others))
    }

    pub fn of(builder: RateLimitLayerBuilder, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        let builder = builder.scope(SCOPE).key(key::extension::<UserId>());
        let builder = policies
            .into_iter()
            .fold(builder, |builder, policy| builder.policy(policy));
        let answer: Answer = |_| ready(Ok(Response::default()));
        Self(
            builder
                .build()
                .expect("the settings are valid")
                .layer(service_fn(answer)),
        )
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

/// The policies of a second partition.
pub const OTHERS: [QuotaPolicy; 3] = [
    QuotaPolicy::per_second("other second", 10),
    QuotaPolicy::per_minute("other minute", 100),
    QuotaPolicy::per_day("other day", 5_000),
];

#[derive(Clone)]
struct UserId(usize);

impl UserId {
    const KIND: &str = "user";
    /// The kind of a second partition.
    const OTHER_KIND: &str = "account";

    fn key(&self, kind: &str) -> PartitionKey {
        PartitionKey::new(kind, self.0.to_le_bytes())
    }
}

impl ToPartitionKey for UserId {
    fn to_partition_key(&self) -> PartitionKey {
        self.key(Self::KIND)
    }
}
