//! Redis Cluster: which node has which slot, and few connections to each.
//!
//! The `redis` crate has a client for clusters, too. One task of it speaks with all nodes, and while it looks for a slot's
//! new place it holds a lock that every request needs, until a node that hangs has used up its time; what its caller gave
//! up stays in its queue; and it asks any node where a slot's own is away. Here a lost node costs only those whose slots
//! it has, and a call that is given up is gone.

mod node;
mod redirection;
mod slots;

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::redis::{ConnectionAddr, ConnectionInfo, RedisError, Value};
use arc_swap::ArcSwapOption;
use tokio::{runtime::Handle, sync::watch, task::JoinSet, time::timeout};

pub(super) use self::{node::Ready, slots::slot};
use self::{
    node::{Attempt, Node, NodeTelemetry},
    redirection::{Redirection, Redirections},
    slots::{Range, SlotMap},
};
use super::{
    client::Opener,
    connection::{code, store_error},
    pool::connection_error,
    script::{Call, Reply},
    wire::Wire,
};
use crate::{
    breaker::{Breaker, jittered},
    clock::{Clock, Timestamp},
    error::{StoreError, StoreErrorKind},
    mutex::Mutex,
    random, telemetry,
};

/// How many nodes are asked at the same time who has which slot; the first answer counts.
const ASKED: usize = 3;

/// Settings of a cluster's connections.
pub(super) struct Settings {
    /// Addresses of any of its nodes, with how to speak to all of them.
    pub(super) seeds: Vec<ConnectionInfo>,
    pub(super) opener: Opener,
    /// To each node.
    pub(super) connections: u32,
}

pub(super) struct Cluster {
    settings: Settings,
    map: ArcSwapOption<SlotMap>,
    /// Who waits for the first map stops waiting after a while.
    discovery: Breaker,
    look: Mutex<Schedule>,
    is_looking: AtomicBool,
    /// Tells when a look for the map has ended.
    looked: watch::Sender<()>,
}

/// When the nodes may be asked again.
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

impl Cluster {
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        let cluster = Arc::new(Self {
            settings,
            map: ArcSwapOption::empty(),
            discovery: Breaker::new(Clock::system(), Arc::new(NodeTelemetry::new("any"))),
            look: Mutex::default(),
            is_looking: AtomicBool::new(false),
            looked: watch::Sender::new(()),
        });
        cluster.look_again();
        cluster
    }

    /// A connection to the node that has the slot.
    pub(super) async fn get(self: &Arc<Self>, slot: u16) -> Result<Ready, StoreError> {
        let node = self.owner(slot).await?;
        self.connect(&node).await
    }

    /// The same, always the same one to that node.
    pub(super) async fn get_ordered(self: &Arc<Self>, slot: u16) -> Result<Ready, StoreError> {
        let node = self.owner(slot).await?;
        node.connect_ordered().await.inspect_err(|_| self.look_again())
    }

    async fn owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Node>, StoreError> {
        let map = match self.map.load_full() {
            Some(map) => map,
            None => self.discovered().await?,
        };
        let Some(node) = map.owner(slot) else {
            self.look_again();
            let message = format!("no node of the cluster has slot {slot}");
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        };
        Ok(Arc::clone(node))
    }

    /// Sends a call; again where the reply says who has the slot by now, or where that is known meanwhile. What was
    /// answered like that was not carried out.
    pub(super) async fn send(self: &Arc<Self>, ready: Ready, call: &Call) -> Result<Reply, StoreError> {
        let slot = slot(call.key());
        let (mut ready, mut redirections) = (ready, Redirections::default());
        loop {
            let asked = Arc::clone(&ready.node);
            let error = match finish(ready, call).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let redirection = self.redirection(&asked, slot, &error);
            let error = store_error(error);
            // A slot that is being moved belongs to whom it has belonged.
            let is_moving = matches!(redirection, Some(Redirection::Asking(_) | Redirection::Later));
            if error.opens_circuit() && !is_moving {
                self.look_again();
            }
            ready = match redirections.follow(redirection).await {
                Some(Redirection::Owner(node)) => self.connect(&node).await?,
                Some(Redirection::Asking(node)) => self.connect(&node).await?.asking(),
                Some(Redirection::Later) => self.get(slot).await?,
                None => return Err(error),
            };
        }
    }

    /// The bytes of all connections to all nodes.
    pub(super) fn wires(&self) -> Vec<Arc<Wire>> {
        let map = self.map.load();
        let nodes = map.as_ref().map_or(&[][..], |map| map.nodes());
        nodes.iter().flat_map(|node| node.pool.wires()).collect()
    }

    async fn connect(self: &Arc<Self>, node: &Arc<Node>) -> Result<Ready, StoreError> {
        // A node that does not answer may have lost its slots to another one.
        node.connect().await.inspect_err(|_| self.look_again())
    }

    /// Where a call goes next, if the node that was asked has proved that it did nothing because it is not the one.
    fn redirection(&self, asked: &Arc<Node>, slot: u16, error: &RedisError) -> Option<Redirection> {
        let address = || {
            let (redirect, _) = error.redirect_node()?;
            slots::address(redirect, &asked.host)
        };
        match code(error)? {
            "MOVED" => {
                let (host, port) = address()?;
                Some(Redirection::Owner(self.moved(slot, host, port)))
            }
            "ASK" => {
                let (host, port) = address()?;
                Some(Redirection::Asking(self.importing(host, port)))
            }
            "TRYAGAIN" => Some(Redirection::Later),
            "LOADING" | "READONLY" => {
                let map = self.map.load();
                let owner = map.as_ref()?.owner(slot)?;
                (!Arc::ptr_eq(owner, asked)).then(|| Redirection::Owner(Arc::clone(owner)))
            }
            _ => None,
        }
    }

    fn moved(&self, slot: u16, host: String, port: u16) -> Arc<Node> {
        self.with_node(host, port, |map, node| map.assign(slot, slot, node))
    }

    /// The node of this address. A node that gets its first slots just now is not on the map yet.
    fn importing(&self, host: String, port: u16) -> Arc<Node> {
        let known = self.map.load().as_ref().and_then(|map| map.node(&host, port).cloned());
        known.unwrap_or_else(|| {
            self.with_node(host, port, |map, node| {
                map.add(node);
            })
        })
    }

    /// Changes the map in something that is about the node of this address.
    fn with_node(&self, host: String, port: u16, change: impl FnOnce(&mut SlotMap, &Arc<Node>)) -> Arc<Node> {
        let _look = self.look();
        let mut map = self.map.load_full().map_or_else(SlotMap::new, |map| (*map).clone());
        let known = map.node(&host, port).cloned();
        let node = known.unwrap_or_else(|| self.node(host, port));
        change(&mut map, &node);
        self.map.store(Some(Arc::new(map)));
        node
    }

    fn node(&self, host: String, port: u16) -> Arc<Node> {
        let Settings {
            seeds,
            opener,
            connections,
        } = &self.settings;
        Arc::new(Node::new(&seeds[0], host, port, opener, *connections))
    }

    fn look(&self) -> MutexGuard<'_, Schedule> {
        self.look.lock()
    }

    /// The first map.
    async fn discovered(self: &Arc<Self>) -> Result<Arc<SlotMap>, StoreError> {
        let Some(attempt) = Attempt::start(&self.discovery) else {
            let message = "no node of the cluster was asked";
            return Err(StoreError::new(StoreErrorKind::CircuitOpen, message));
        };
        if attempt.is_trial() {
            self.look().next = Timestamp::default();
        }
        let mut looked = self.looked.subscribe();
        loop {
            self.look_again();
            // Asked first: a look that ends in between has left its map.
            let is_looking = self.is_looking.load(Ordering::Acquire);
            if let Some(map) = self.map.load_full() {
                attempt.end(None);
                return Ok(map);
            }
            if !is_looking {
                let none = || StoreError::new(StoreErrorKind::Unreachable, "no node of the cluster was reached");
                let error = self.look().last_error.clone().unwrap_or_else(none);
                attempt.end(Some(&error));
                return Err(error);
            }
            let _ = looked.changed().await;
        }
    }

    /// Has the nodes asked who has which slot, in the background, unless that was done just now.
    fn look_again(self: &Arc<Self>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut schedule = self.look();
        let now = Clock::system().now();
        if now < schedule.next || self.is_looking.swap(true, Ordering::AcqRel) {
            return;
        }
        schedule.next = now.saturating_add(jittered(schedule.pause.max(Schedule::FIRST_PAUSE)));
        drop(schedule);
        let looking = Looking(Arc::clone(self));
        runtime.spawn(async move { looking.look().await });
    }

    fn found(&self, found: Result<Vec<Range>, StoreError>) {
        let mut schedule = self.look();
        match found {
            Ok(ranges) => {
                let known = self.map.load_full();
                let mut map = SlotMap::new();
                for range in ranges {
                    let same = |map: &SlotMap| map.node(&range.host, range.port).cloned();
                    let node = same(&map).or_else(|| same(known.as_deref()?));
                    let node = node.unwrap_or_else(|| self.node(range.host.clone(), range.port));
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

    /// Nodes that answer are asked over connections that they have; only without any, new ones are opened.
    async fn ask(self: &Arc<Self>) -> Result<Vec<Range>, StoreError> {
        let believed = self.map.load_full().map_or_else(Vec::new, |map| {
            let believed = map.nodes().iter().filter(|node| node.is_believed());
            believed.cloned().collect()
        });
        let mut asked = JoinSet::new();
        for node in from_any(&believed) {
            let (cluster, node) = (Arc::clone(self), Arc::clone(node));
            asked.spawn(async move { cluster.ask_node(&node).await });
        }
        if let Ok(ranges) = first(asked).await {
            return Ok(ranges);
        }
        let mut asked = JoinSet::new();
        for seed in from_any(&self.settings.seeds) {
            let (cluster, seed) = (Arc::clone(self), seed.clone());
            asked.spawn(async move { cluster.ask_seed(seed).await });
        }
        first(asked).await
    }

    async fn ask_node(&self, node: &Node) -> Result<Vec<Range>, StoreError> {
        let asking = async {
            let mut connection = node.pool.get().await?;
            let reply = connection.send(&cluster_slots()).await;
            reply.map_err(|unanswered| store_error(unanswered.into()))
        };
        let reply = timeout(self.settings.opener.timeout, asking).await;
        ranges(&reply.unwrap_or_else(|_| Err(no_answer()))?, &node.host)
    }

    async fn ask_seed(&self, seed: ConnectionInfo) -> Result<Vec<Range>, StoreError> {
        let host = match seed.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
            _ => String::new(),
        };
        let opener = &self.settings.opener;
        let asking = async {
            let mut connection = opener
                .open(seed)
                .await
                .inspect_err(|error| telemetry::connection_failed(error))?;
            connection.send(&cluster_slots()).await
        };
        let reply = timeout(opener.timeout, asking).await;
        let reply = reply.map_or_else(|_| Err(no_answer()), |reply| reply.map_err(connection_error));
        ranges(&reply?, &host)
    }
}

/// Ends a look also where the runtime ends before it.
struct Looking(Arc<Cluster>);

impl Looking {
    async fn look(self) {
        let found = self.0.ask().await;
        self.0.found(found);
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.is_looking.store(false, Ordering::Release);
        self.0.looked.send_replace(());
    }
}

/// Sends a call and tells the node's breaker what came of it. What is about a slot says nothing against the node.
async fn finish(ready: Ready, call: &Call) -> Result<Reply, RedisError> {
    let Ready {
        node,
        connection,
        attempt,
    } = ready;
    let reply = node.pool.send(connection, call).await;
    let is_about_slot = |error: &RedisError| matches!(code(error), Some("ASK" | "CLUSTERDOWN" | "MOVED" | "TRYAGAIN"));
    let failure = reply.as_ref().err().filter(|error| !is_about_slot(error));
    attempt.end(failure.cloned().map(store_error).as_ref());
    reply
}

/// The first that is a map, or the reason why none is. Others may go on: to end them would look like a call without an
/// answer.
async fn first(mut asked: JoinSet<Result<Vec<Range>, StoreError>>) -> Result<Vec<Range>, StoreError> {
    let mut last = no_answer();
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(ranges)) => {
                asked.detach_all();
                return Ok(ranges);
            }
            Ok(Err(error)) => last = error,
            // A task that has panicked has nothing to say.
            Err(_) => {}
        }
    }
    Err(last)
}

/// A few of them, not always the same ones.
fn from_any<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let start = random::number() as usize % all.len().max(1);
    all.iter().cycle().skip(start).take(ASKED.min(all.len()))
}

fn cluster_slots() -> ::redis::Cmd {
    let mut command = ::redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

fn ranges(reply: &Value, host: &str) -> Result<Vec<Range>, StoreError> {
    let ranges = slots::read(reply, host);
    if ranges.is_empty() {
        let message = "a node of the cluster knows no slots";
        return Err(StoreError::new(StoreErrorKind::Unavailable, message));
    }
    Ok(ranges)
}

fn no_answer() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "no node of the cluster has answered")
}
