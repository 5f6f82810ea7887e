//! A source of tiers that can be slow and broken, and time that a test moves.

use std::{
    collections::HashMap,
    convert::Infallible,
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::Request;
use tokio::time::Instant;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_quota::{
    PartitionKey, ResolvedTier, ToPartitionKey,
    clock::{Clock, Timestamp},
    tier::{TierLayer, TierLayerBuilder},
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UserId(pub(crate) u64);

impl ToPartitionKey for UserId {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("user", self.0.to_be_bytes())
    }
}

/// A clock that follows Tokio's virtual time when `sync` or `pass` is called.
#[derive(Clone)]
pub(crate) struct Time {
    pub(crate) clock: Clock,
    start: Instant,
}

impl Time {
    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    pub(crate) fn new() -> Self {
        Self {
            clock: Clock::manual(Self::START),
            start: Instant::now(),
        }
    }

    /// Since the beginning of the test.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Tokio's time has moved by itself while everybody was waiting.
    pub(crate) fn sync(&self) {
        self.clock.set(Self::START.saturating_add(self.now()));
    }

    /// Lets everybody begin what they can, time go by, and everybody do what is due.
    pub(crate) async fn pass(&self, duration: Duration) {
        settle().await;
        self.clock.set(Self::START.saturating_add(self.now() + duration));
        tokio::time::advance(duration).await;
        settle().await;
    }
}

/// Runs all tasks that can make progress.
pub(crate) async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// How a source responds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mood {
    Answers,
    AnswersAfter(Duration),
    Fails,
    Hangs,
    Panics,
}

#[derive(Default)]
struct Database {
    plans: HashMap<u64, String>,
    mood: Option<Mood>,
    asked: Vec<u64>,
    running: usize,
}

/// The database that knows who has paid.
#[derive(Clone)]
pub(crate) struct Source {
    database: Arc<Mutex<Database>>,
    time: Time,
}

struct Running(Source);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.database.lock().unwrap().running -= 1;
    }
}

impl Source {
    fn new(time: Time) -> Self {
        Self {
            database: Arc::default(),
            time,
        }
    }

    pub(crate) fn set(&self, user: u64, plan: &str) {
        self.database.lock().unwrap().plans.insert(user, plan.to_owned());
    }

    pub(crate) fn mood(&self, mood: Mood) {
        self.database.lock().unwrap().mood = Some(mood);
    }

    /// The number of started lookups.
    pub(crate) fn asked(&self) -> usize {
        self.database.lock().unwrap().asked.len()
    }

    /// The number of look-ups that have begun and not ended.
    pub(crate) fn running(&self) -> usize {
        self.database.lock().unwrap().running
    }

    /// Reads the tier when the lookup starts, as a database does.
    pub(crate) async fn tier_of(self, UserId(user): UserId) -> Result<Option<String>, &'static str> {
        let (plan, mood, _running) = {
            let mut database = self.database.lock().unwrap();
            database.asked.push(user);
            database.running += 1;
            let plan = database.plans.get(&user).cloned();
            (plan, database.mood.unwrap_or(Mood::Answers), Running(self.clone()))
        };
        match mood {
            Mood::Answers => Ok(plan),
            Mood::AnswersAfter(delay) => {
                tokio::time::sleep(delay).await;
                self.time.sync();
                Ok(plan)
            }
            Mood::Fails => Err("the database is down"),
            Mood::Hangs => pending().await,
            Mood::Panics => panic!("the resolver of a test panics"),
        }
    }
}

pub(crate) struct Scene {
    pub(crate) time: Time,
    pub(crate) source: Source,
    pub(crate) layer: TierLayer,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(|builder| builder)
    }

    pub(crate) fn with(settings: impl FnOnce(TierLayerBuilder) -> TierLayerBuilder) -> Self {
        let time = Time::new();
        let source = Source::new(time.clone());
        let resolver = source.clone();
        let builder = TierLayer::by_extension(move |user: UserId| resolver.clone().tier_of(user));
        let layer = settings(builder.clock(time.clock.clone())).build().unwrap();
        Self { time, source, layer }
    }

    /// The tier with which a request of the user reaches the inner service.
    pub(crate) async fn request(&self, user: u64) -> Option<String> {
        self.time.sync();
        let tier = request(&self.layer, user).await;
        self.time.sync();
        tier
    }

    /// The tier of a request, and how long it was held up.
    pub(crate) async fn timed_request(&self, user: u64) -> (Option<String>, Duration) {
        let start = self.time.now();
        let tier = self.request(user).await;
        (tier, self.time.now() - start)
    }
}

pub(crate) async fn request(layer: &TierLayer, user: u64) -> Option<String> {
    let mut request = Request::new(String::new());
    request.extensions_mut().insert(UserId(user));
    tier_of_request(layer, request).await
}

pub(crate) async fn tier_of_request(layer: &TierLayer, request: Request<String>) -> Option<String> {
    let inner = service_fn(async |request: Request<String>| {
        let tier = request.extensions().get::<ResolvedTier>();
        Ok::<_, Infallible>(tier.map(|tier| tier.as_str().to_owned()))
    });
    layer.layer(inner).oneshot(request).await.unwrap()
}
