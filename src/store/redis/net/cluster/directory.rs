use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::redis::{ConnectionAddr, ConnectionInfo, Value};
use arc_swap::{ArcSwapOption, Guard};
use tokio::{runtime::Handle, sync::watch, task::JoinSet, time::timeout};

use super::{
    super::{
        connection::{connection_error, store_error},
        pool::Lane,
    },
    map::SlotMap,
    node::{Node, NodeAttempt, NodeTelemetry},
    settings::Settings,
    slots::{self, Address, Range},
};
use crate::{
    breaker::{Breaker, jittered},
    clock::{Clock, Timestamp},
    error::{StoreError, StoreErrorKind},
    sync::{mutex::Mutex, random},
    telemetry,
};

const ASKED: usize = 3;

pub(super) struct Directory {
    settings: Settings,
    map: ArcSwapOption<SlotMap>,
    first_map: Breaker,
    schedule: Mutex<Schedule>,
    is_looking: AtomicBool,
    looked: watch::Sender<()>,
}

#[derive(Default)]
struct Schedule {
    next: Timestamp,
    pause: Duration,
    last_error: Option<StoreError>,
}

impl Schedule {
    const FIRST_PAUSE: Duration = Duration::from_millis(400);
    const LONGEST_PAUSE: Duration = Duration::from_millis(800);
}

impl Directory {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        let directory = Arc::new(Self {
            settings,
            map: ArcSwapOption::empty(),
            first_map: Breaker::new(Clock::system(), Arc::new(NodeTelemetry::new("any"))),
            schedule: Mutex::default(),
            is_looking: AtomicBool::new(false),
            looked: watch::Sender::new(()),
        });
        directory.refresh();
        directory
    }

    pub(super) fn known_map(&self) -> Guard<Option<Arc<SlotMap>>> {
        self.map.load()
    }

    pub(super) async fn map(self: &Arc<Self>) -> Result<Arc<SlotMap>, StoreError> {
        match self.map.load_full() {
            Some(map) => Ok(map),
            None => self.discovered().await,
        }
    }

    pub(super) fn moved(&self, slot: u16, address: Address) -> Arc<Node> {
        self.with_node(address, |map, node| map.assign(slot, slot, node))
    }

    /// A node that is importing its first slots is not in the map yet.
    pub(super) fn importing(&self, address: Address) -> Arc<Node> {
        let known = self.map.load().as_ref().and_then(|map| map.node(&address).cloned());
        known.unwrap_or_else(|| {
            self.with_node(address, |map, node| {
                map.add(node);
            })
        })
    }

    fn with_node(&self, address: Address, change: impl FnOnce(&mut SlotMap, &Arc<Node>)) -> Arc<Node> {
        let _changing = self.schedule.lock();
        let mut map = self.map.load_full().map_or_else(SlotMap::new, |map| (*map).clone());
        let known = map.node(&address).cloned();
        let node = known.unwrap_or_else(|| self.node(address));
        change(&mut map, &node);
        self.map.store(Some(Arc::new(map)));
        node
    }

    fn node(&self, address: Address) -> Arc<Node> {
        Arc::new(Node::new(&self.settings, address))
    }

    async fn discovered(self: &Arc<Self>) -> Result<Arc<SlotMap>, StoreError> {
        let Some(attempt) = NodeAttempt::start(&self.first_map) else {
            let message = "no cluster node was called";
            return Err(StoreError::new(StoreErrorKind::CircuitOpen, message));
        };
        if attempt.is_trial() {
            self.schedule.lock().next = Timestamp::default();
        }
        let mut looked = self.looked.subscribe();
        loop {
            self.refresh();
            // Loaded before the map, because a query that ends in between has already stored its map.
            let is_looking = self.is_looking.load(Ordering::Acquire);
            if let Some(map) = self.map.load_full() {
                attempt.end(None);
                return Ok(map);
            }
            if !is_looking {
                let none = || StoreError::new(StoreErrorKind::Unreachable, "no cluster node was reachable");
                let error = self.schedule.lock().last_error.clone().unwrap_or_else(none);
                attempt.end(Some(&error));
                return Err(error);
            }
            let _ = looked.changed().await;
        }
    }

    pub(super) fn refresh(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut schedule = self.schedule.lock();
        let now = Clock::system().now();
        if now < schedule.next || self.is_looking.swap(true, Ordering::AcqRel) {
            return;
        }
        schedule.next = now.saturating_add(jittered(schedule.pause.max(Schedule::FIRST_PAUSE)));
        drop(schedule);
        let looking = Looking {
            directory: Arc::clone(self),
            is_over: false,
        };
        runtime.spawn(looking.run());
    }

    fn found(&self, found: Result<Vec<Range>, StoreError>) {
        let mut schedule = self.schedule.lock();
        match found {
            Ok(ranges) => {
                let known = self.map.load_full();
                let mut map = SlotMap::new();
                for range in ranges {
                    let same = |map: &SlotMap| map.node(&range.address).cloned();
                    let node = same(&map).or_else(|| same(known.as_deref()?));
                    let node = node.unwrap_or_else(|| self.node(range.address));
                    map.assign(range.first, range.last, &node);
                }
                self.map.store(Some(Arc::new(map)));
                schedule.pause = Schedule::FIRST_PAUSE;
            }
            Err(error) => {
                schedule.pause = (schedule.pause * 2).clamp(Schedule::FIRST_PAUSE, Schedule::LONGEST_PAUSE);
                schedule.next = Clock::system().now().saturating_add(jittered(schedule.pause));
                schedule.last_error = Some(error);
            }
        }
    }

    async fn ask(self: &Arc<Self>) -> Result<Vec<Range>, StoreError> {
        let believed = self.map.load_full().map_or_else(Vec::new, |map| {
            let believed = map.nodes().iter().filter(|node| node.is_believed());
            believed.cloned().collect()
        });
        let asked = from_any(&believed).map(|node| Arc::clone(self).ask_node(Arc::clone(node)));
        if let Ok(ranges) = first(asked.collect()).await {
            return Ok(ranges);
        }
        let asked = from_any(&self.settings.seeds).map(|seed| Arc::clone(self).ask_seed(seed.clone()));
        first(asked.collect()).await
    }

    async fn ask_node(self: Arc<Self>, node: Arc<Node>) -> Result<Vec<Range>, StoreError> {
        let asking = async {
            let mut connection = node.pool.get(Lane::Any).await?;
            let reply = connection.send(::redis::cmd("CLUSTER").arg("SLOTS")).await;
            reply.map_err(|unanswered| store_error(unanswered.into()))
        };
        self.ranges(asking, &node.address.0).await
    }

    async fn ask_seed(self: Arc<Self>, seed: ConnectionInfo) -> Result<Vec<Range>, StoreError> {
        let host = match seed.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            _ => String::new(),
        };
        let asking = async {
            let opened = self.settings.opener.open(seed).await;
            let mut connection = opened
                .inspect_err(|error| telemetry::connection_failed(error))
                .map_err(connection_error)?;
            let reply = connection.send(::redis::cmd("CLUSTER").arg("SLOTS")).await;
            reply.map_err(connection_error)
        };
        self.ranges(asking, &host).await
    }

    async fn ranges(
        &self,
        asking: impl Future<Output = Result<Value, StoreError>>,
        host: &str,
    ) -> Result<Vec<Range>, StoreError> {
        let reply = timeout(self.settings.opener.timeout, asking).await;
        let ranges = slots::read(&reply.map_err(|_| no_answer())??, host);
        if ranges.is_empty() {
            let message = "a cluster node reported no slots";
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        }
        Ok(ranges)
    }
}

/// Ends a query even if its runtime ends first.
struct Looking {
    directory: Arc<Directory>,
    is_over: bool,
}

impl Looking {
    async fn run(mut self) {
        self.directory.found(self.directory.ask().await);
        self.is_over = true;
        drop(self);
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let directory = &*self.directory;
        if !self.is_over {
            // Another runtime can start a query immediately.
            directory.schedule.lock().next = Timestamp::default();
        }
        directory.is_looking.store(false, Ordering::Release);
        directory.looked.send_replace(());
    }
}

/// Cancelled queries would count as calls without a reply.
async fn first(mut asked: JoinSet<Result<Vec<Range>, StoreError>>) -> Result<Vec<Range>, StoreError> {
    let mut last = no_answer();
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(ranges)) => {
                asked.detach_all();
                return Ok(ranges);
            }
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}

fn from_any<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let start = random::number() as usize % all.len().max(1);
    all.iter().cycle().skip(start).take(ASKED.min(all.len()))
}

fn no_answer() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "no cluster node responded")
}
