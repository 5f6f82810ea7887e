//! The scene of a scenario: a private Redis server, several instances, and a proxy in front of Redis for each instance.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use test_kit::{Mode, Proxy, RedisServer};
use tokio::{
    runtime::{self, Handle, Runtime},
    task::block_in_place,
    time::{sleep, timeout},
};
use tower_quota::Outcome;

use super::{
    callers::{Caller, Kind, LEDGER, PROBE, SLOT_USERS, SLOTS},
    history::Lost,
    load::{Client, HANG},
    machine::{Stopwatch, sockets},
    record::{Counts, Record},
};

const INSTANCES: usize = 3;

/// The time after which the machine counts as too busy for the usual deadline. Later requests wait longer.
const BUSY_AFTER: Duration = Duration::from_secs(3);

pub struct Scene {
    server: RedisServer,
    /// Without users, the instances have no password.
    pub has_users: bool,
    pub proxies: Vec<Proxy>,
    /// Of the proxies, which have their turn also when the instances do not.
    outside: Option<Runtime>,
    pub clients: Vec<Client>,
    pub record: Record,
    probes: AtomicU64,
}

/// The fates of requests whose callers were gone before there was a decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cancelled {
    pub asked: u64,
    pub unanswered: u64,
    pub charged: u64,
}

impl Cancelled {
    /// Each request is charged once, unless the store could not be called in time.
    pub fn are_charged(self) -> bool {
        let least = self.asked.saturating_sub(self.unanswered);
        self.asked > 0 && (least..=self.asked).contains(&self.charged)
    }
}

/// The resources that must not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    pub tasks: usize,
    pub connections: usize,
    pub sockets: usize,
}

impl Resources {
    fn is_within(self, other: Self) -> bool {
        self.tasks <= other.tasks && self.connections <= other.connections && self.sockets <= other.sockets
    }
}

impl Scene {
    /// Starts connected instances that authenticate as a user that can be deleted on the server.
    pub async fn start() -> Self {
        let scene = Self::with_server_down().await;
        scene.restart();
        scene.warm_up().await;
        scene
    }

    /// Like [`Self::start`], before the server runs.
    pub async fn with_server_down() -> Self {
        let server = block_in_place(RedisServer::start);
        let has_users = block_in_place(|| server.has_users());
        block_in_place(|| server.kill());
        let login = if has_users { "limits:password@" } else { "" };
        let outside = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (mut proxies, mut clients, record) = (vec![], vec![], Record::default());
        for instance in 0..INSTANCES {
            let proxy = outside.spawn(Proxy::start(server.port())).await.unwrap();
            let url = proxy.url().replace("redis://", &format!("redis://{login}"));
            clients.push(Client::new(instance, &url, &record));
            proxies.push(proxy);
        }
        Self {
            server,
            has_users,
            proxies,
            outside: Some(outside),
            clients,
            record,
            probes: AtomicU64::new(0),
        }
    }

    /// Every kind of request through every instance, until all of them decide.
    async fn warm_up(&self) {
        self.until_limits_hold().await;
        for client in &self.clients {
            for kind in Kind::ALL {
                client.ask(Caller::new(kind, 0)).await;
            }
        }
    }

    /// Does something to the server; nothing else has to wait for it.
    pub fn server<T>(&self, act: impl FnOnce(&RedisServer) -> T) -> T {
        block_in_place(|| act(&self.server))
    }

    /// A command that has to succeed.
    pub fn command(&self, command: &str) -> String {
        let reply = self.server(|server| server.command(&command.split(' ').collect::<Vec<_>>()));
        assert!(!reply.starts_with('-'), "{command}: {reply}");
        reply
    }

    /// A new server, which knows nothing but the user of the instances.
    pub fn restart(&self) {
        self.server(RedisServer::restart);
        if self.has_users {
            self.server(|server| server.set_documented_user(&[]));
        }
    }

    pub fn set_mode(&self, mode: Mode) {
        for proxy in &self.proxies {
            proxy.set_mode(mode);
        }
    }

    pub async fn cut(&self) {
        join_all(self.proxies.iter().map(Proxy::cut)).await;
    }

    /// Until every instance has had a decision.
    pub async fn until_decided(&self) {
        for client in &self.clients {
            let caller = Caller::new(Kind::Windows, 0);
            eventually("the store decides", async || {
                client.ask(caller).await != Outcome::FailedOpen
            })
            .await;
        }
    }

    /// A request of a quiet caller through each instance, which has time enough.
    pub async fn ask_all(&self) {
        let caller = Caller::of_chapter(Kind::Quiet, self.record.chapter(), 0);
        join_all(
            self.clients
                .iter()
                .map(async |client| client.patient().ask(caller).await),
        )
        .await;
    }

    pub async fn reset(&self) {
        join_all(self.proxies.iter().map(Proxy::reset)).await;
    }

    /// Sends requests as a new caller until every answer is a decision; then exactly the quota has passed. The number
    /// of allowed requests never exceeds the quota.
    pub async fn until_limits_hold(&self) {
        let start = Stopwatch::start();
        loop {
            let mut clients = self.clients.clone();
            if start.elapsed() > BUSY_AFTER {
                self.until_decided().await;
                clients = clients.iter().map(Client::patient).collect();
            }
            let caller = Caller::new(Kind::Probe, self.probes.fetch_add(1, Ordering::Relaxed));
            let requests = clients
                .iter()
                .flat_map(|client| (0..PROBE).map(move |_| client.ask(caller)));
            let outcomes = join_all(requests).await;
            let count = |outcome| outcomes.iter().filter(|seen| **seen == outcome).count() as u64;
            let (allowed, undecided) = (count(Outcome::Allowed), count(Outcome::FailedOpen));
            assert!(allowed <= PROBE, "{allowed} of {PROBE}");
            if undecided == 0 {
                assert_eq!(allowed, PROBE, "{outcomes:?}");
                return;
            }
            assert!(start.elapsed() < HANG, "limits never hold: {undecided} undecided");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Closes a chapter and compares the server's state with the answers. Each decision is charged once, and a
    /// cancelled call at most once. Used units stay used, unless the server has lost its data `losses` times.
    pub async fn close_chapter(&self, losses: u64) {
        let chapter = self.record.chapter();
        self.record.check_history();
        let spent = self.record.of(Caller::spender(chapter));
        assert!(spent.allowed <= PROBE * (1 + losses), "{spent:?} of {PROBE}");
        let caller = Caller::new(Kind::Ledger, chapter);
        let mut last = (0, Counts::default());
        let is_right = async || {
            // The last requests may be in flight.
            let used = LEDGER - self.remaining(caller).await;
            let seen = self.record.of(caller);
            last = (used, seen);
            // A unit comes back every half minute.
            let least = if losses > 0 { 0 } else { seen.allowed.saturating_sub(2) };
            seen.rejected == 0 && (least..=seen.allowed + seen.undecided).contains(&used)
        };
        if timeout(HANG, until(is_right)).await.is_err() {
            panic!("{} charged: {:?}", last.0, last.1);
        }
    }

    /// Does something by which the server loses all of its data.
    pub async fn losing_everything(&self, act: impl AsyncFnOnce()) {
        let start = self.record.now();
        act().await;
        self.record.has_lost(Lost::Everything, start, None);
    }

    /// Sends requests that are cancelled within two milliseconds, for `time`. Returns how many of them called the
    /// store, how many of these the store may have left undecided, and how many were charged.
    pub async fn cancel_requests(&self, time: Duration) -> Cancelled {
        let unanswered = self.record.all_unanswered();
        let caller = Caller::new(Kind::Ledger, u64::MAX - self.probes.fetch_add(1, Ordering::Relaxed));
        let (end, mut asked) = (Instant::now() + time, 0);
        while Instant::now() < end {
            let after = |turn: u64| Duration::from_micros(100 * turn);
            let sent = self
                .clients
                .iter()
                .flat_map(|client| (0..20).map(move |turn| client.cancel(caller, after(turn))));
            asked += join_all(sent).await.into_iter().filter(|asked| *asked).count() as u64;
            sleep(Duration::from_millis(5)).await;
        }
        let cancelled = async || Cancelled {
            asked,
            unanswered: self.record.all_unanswered() - unanswered,
            charged: LEDGER - self.remaining(caller).await,
        };
        // Requests without an answer of the store need not be charged, and the others eventually are.
        let all_are_charged = async || cancelled().await.charged == asked;
        if timeout(HANG / 10, until(all_are_charged)).await.is_err() {
            let _ = timeout(HANG, until(async || cancelled().await.are_charged())).await;
        }
        cancelled().await
    }

    pub async fn assert_no_slot_is_held(&self) {
        // Requests of the chapter before may have gone on into this one.
        let chapter = self.record.chapter();
        for chapter in chapter.saturating_sub(1)..=chapter {
            for user in 0..SLOT_USERS {
                eventually("no slot is held", async || {
                    self.remaining(Caller::with_slots(chapter, user)).await == SLOTS
                })
                .await;
            }
        }
    }

    /// By the first policy of a caller.
    async fn remaining(&self, caller: Caller) -> u64 {
        let admin = self.clients[0].layer.limiter();
        let key = caller.key();
        let mut remaining = 0;
        eventually("the store says what is left", async || {
            let decision = admin.caller(&key).tier(caller.tier()).peek().await;
            let Ok(decision) = decision else {
                return false;
            };
            remaining = decision.unwrap().allowances().next().unwrap().remaining();
            true
        })
        .await;
        remaining
    }

    /// Waits until the numbers are stable.
    pub async fn resources(&self) -> Resources {
        let mut last = self.resources_now();
        eventually("nothing is going on", async || {
            sleep(Duration::from_millis(50)).await;
            let now = self.resources_now();
            std::mem::replace(&mut last, now) == now
        })
        .await;
        last
    }

    pub fn resources_now(&self) -> Resources {
        Resources {
            tasks: Handle::current().metrics().num_alive_tasks(),
            connections: self
                .command("CLIENT LIST TYPE normal")
                .lines()
                .filter(|line| line.contains("user=limits"))
                .count(),
            sockets: self.proxies.iter().map(|proxy| sockets(proxy.port())).sum(),
        }
    }

    pub async fn assert_nothing_is_left_over(&self, before: Resources) {
        let is_within = async || self.resources_now().is_within(before);
        if timeout(HANG, until(is_within)).await.is_err() {
            panic!("{before:?} before, {:?} afterwards", self.resources_now());
        }
    }

    /// The most attempts to connect that one instance has made within any second of this time.
    pub fn most_attempts_in_a_second(&self, time: Range<Instant>) -> usize {
        let most = |proxy: &Proxy| {
            let attempts: Vec<_> = proxy.accepted().into_iter().filter(|at| time.contains(at)).collect();
            let within_a_second = |from: &Instant| {
                let second = *from..*from + Duration::from_secs(1);
                attempts.iter().filter(|at| second.contains(*at)).count()
            };
            attempts.iter().map(within_a_second).max().unwrap_or(0)
        };
        self.proxies.iter().map(most).max().unwrap_or(0)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Inside of another runtime, nothing may wait for its end.
        self.outside.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn until(mut condition: impl AsyncFnMut() -> bool) {
    while !condition().await {
        sleep(Duration::from_millis(10)).await;
    }
}

pub async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    timeout(HANG, until(condition))
        .await
        .unwrap_or_else(|_| panic!("still not so: {what}"));
}
