use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    mem,
    pin::pin,
    sync::{Arc, Weak, atomic::AtomicBool},
    task::Poll,
    time::Duration,
};

use ::redis::{ConnectionInfo, ErrorKind, RedisError};
use tokio::{
    runtime::Handle,
    sync::Notify,
    task::{AbortHandle, yield_now},
    time::timeout,
};

use super::{
    super::script::{Call, Reply},
    connection::{SharedConnection, Unanswered, connection_error},
    failures::ConnectionFailures,
    generation::Generations,
    opener::Opener,
    sentinel::Sentinels,
    wire::Wire,
};
use crate::{error::StoreError, sync::mutex::Mutex};

pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Pool(Arc<PoolState>);

pub(super) struct PoolState {
    pub(super) connector: Connector,
    failures: ConnectionFailures,
    count: usize,
    opened: Mutex<Opened>,
    /// Notifies of each attempt that ends.
    attempted: Notify,
    pub(super) is_refilling: AtomicBool,
    pub(super) refill: Mutex<Option<AbortHandle>>,
    pub(super) listening: Mutex<Option<AbortHandle>>,
    ordered: Mutex<Option<SharedConnection>>,
    pub(super) this: Weak<Self>,
}

#[derive(Default)]
struct Opened {
    /// In the order in which they are used.
    connections: VecDeque<SharedConnection>,
    /// Has a clone per attempt in progress.
    attempts: Arc<()>,
}

#[derive(Clone)]
pub(crate) enum Endpoint {
    Address(Box<ConnectionInfo>),
    Primary(Arc<Sentinels>),
}

#[derive(Clone, Copy)]
pub(crate) enum Lane {
    Any,
    /// The same connection until it breaks, so that the server executes calls in order.
    Ordered,
}

impl Pool {
    pub(crate) fn new(endpoint: Endpoint, opener: Opener, count: u32) -> Self {
        let state = Arc::new_cyclic(|this| PoolState {
            connector: Connector {
                endpoint,
                opener,
                generations: Generations::default(),
            },
            failures: ConnectionFailures::default(),
            count: count as usize,
            opened: Mutex::default(),
            attempted: Notify::new(),
            is_refilling: AtomicBool::new(false),
            refill: Mutex::default(),
            listening: Mutex::default(),
            ordered: Mutex::default(),
            this: this.clone(),
        });
        state.refill(Duration::ZERO);
        Self(state)
    }

    pub(crate) async fn get(&self, lane: Lane) -> Result<SharedConnection, StoreError> {
        let connection = match lane {
            Lane::Any => match self.0.next_usable() {
                Some(connection) => return Ok(connection),
                None => Box::pin(self.0.get(1)).await,
            },
            Lane::Ordered => Box::pin(self.0.get_ordered()).await,
        };
        connection.map_err(connection_error)
    }

    pub(crate) async fn opened(&self, count: usize) {
        // A connection that cannot be opened does not fail the others.
        let _ = self.0.get(count.min(self.0.count)).await;
    }

    pub(crate) fn follows_primary(&self) -> bool {
        matches!(self.0.connector.endpoint, Endpoint::Primary(_))
    }

    /// Repeats the call on another connection only if this one ended before any byte was written.
    pub(crate) async fn send(&self, mut connection: SharedConnection, call: &Call) -> Result<Reply, RedisError> {
        // All connections may have ended together, and the first new connection may end, too.
        let mut others = self.0.count + 1;
        loop {
            match call.send(&mut connection).await {
                Err(Unanswered::Unsent(_)) if others > 0 => {
                    others -= 1;
                    connection = connection.replaced_by(Box::pin(self.0.get_another()).await?);
                }
                reply => return reply.map_err(RedisError::from),
            }
        }
    }

    pub(crate) fn wires(&self) -> Vec<Arc<Wire>> {
        let opened = self.0.opened.lock();
        let connections = opened.connections.iter();
        connections
            .filter_map(|connection| connection.wire().cloned())
            .collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for task in [&self.0.refill, &self.0.listening] {
            if let Some(task) = task.lock().take() {
                task.abort();
            }
        }
    }
}

impl PoolState {
    async fn get_ordered(&self) -> Result<SharedConnection, RedisError> {
        let usable = || {
            let ordered = self.ordered.lock();
            ordered.clone().filter(|connection| !connection.is_broken())
        };
        if let Some(connection) = usable() {
            return Ok(connection);
        }
        let new = self.get(1).await?;
        let mut ordered = self.ordered.lock();
        // A concurrent call may have replaced the connection.
        let ordered = match &*ordered {
            Some(known) if !known.is_broken() => known,
            _ => ordered.insert(new),
        };
        Ok(ordered.clone())
    }

    fn next_usable(&self) -> Option<SharedConnection> {
        let mut opened = self.opened.lock();
        let next = opened.connections.front().filter(|next| !next.is_broken());
        let next = next.cloned()?;
        opened.connections.rotate_left(1);
        Some(next)
    }

    /// Waits until `count` connections are usable, or an attempt fails.
    async fn get(&self, count: usize) -> Result<SharedConnection, RedisError> {
        let (before, attempts) = (self.failures.count(), self.attempts());
        let opening = async {
            loop {
                let attempted = self.attempted.notified();
                if self.usable() >= count
                    && let Some(connection) = self.next_usable()
                {
                    return Ok(connection);
                }
                if self.failures.count() != before {
                    return Err(self.failures.last());
                }
                self.open_missing();
                attempted.await;
                // While a runtime shuts down, its attempts end at once.
                yield_now().await;
            }
        };
        timeout(self.connector.opener.timeout, opening)
            .await
            .unwrap_or_else(|_| {
                // The attempts may be those of a runtime that nobody runs. If each request that waited for them gave
                // them up again, each could start others.
                if self.failures.count() == before && self.attempts().ptr_eq(&attempts) {
                    self.opened.lock().attempts = Arc::default();
                }
                Err(self.failures.last())
            })
    }

    fn attempts(&self) -> Weak<()> {
        Arc::downgrade(&self.opened.lock().attempts)
    }

    /// Attempts that are in progress count as connections.
    pub(super) fn open_missing(&self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let usable = self.usable();
        let opened = self.opened.lock();
        for _ in usable + Arc::strong_count(&opened.attempts)..=self.count {
            let attempt = Attempt {
                state: self.this.clone(),
                counted: Some(Arc::clone(&opened.attempts)),
            };
            runtime.spawn(attempt.make(self.connector.clone()));
        }
    }

    /// The event that ended other connections may also end a new one while it is opened, so a second attempt follows,
    /// unless the server rejected the first one or did not respond.
    async fn get_another(&self) -> Result<SharedConnection, RedisError> {
        match self.get(1).await {
            Err(error) if !error.is_connection_refusal() && !error.is_timeout() => self.get(1).await,
            first => first,
        }
    }

    fn opened(&self, connection: SharedConnection) {
        // Attempts that count no longer may still succeed.
        if self.is_full() {
            return;
        }
        self.opened.lock().connections.push_back(connection.clone());
        // A broken connection would stay open until the next ordered call.
        let broken = self.ordered.lock().take_if(|ordered| ordered.is_broken());
        drop(broken);
        self.hear_switches();
        let this = self.this.clone();
        connection.when_it_is_lost(Box::new(move || {
            if let Some(state) = this.upgrade() {
                state.refill(Duration::ZERO);
            }
        }));
        if connection.wire().is_some_and(|wire| wire.has_ended()) {
            // Without a pause, the waiting requests would open others.
            let ended = (ErrorKind::Io, "connection closed as soon as it was open");
            self.failures.record(&ended.into());
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.usable() >= self.count
    }

    /// Also closes connections that have broken.
    fn usable(&self) -> usize {
        let mut opened = self.opened.lock();
        let all = mem::take(&mut opened.connections).into_iter();
        // Dropped outside the lock, because connections call back when they end.
        let (usable, _broken): (_, VecDeque<_>) = all.partition(|connection| !connection.is_broken());
        opened.connections = usable;
        let count = opened.connections.len();
        drop(opened);
        count
    }
}

/// Counts until it is dropped, also with its runtime.
struct Attempt {
    state: Weak<PoolState>,
    counted: Option<Arc<()>>,
}

impl Attempt {
    async fn make(self, connector: Connector) {
        let opened = connector.open().await;
        let Some(state) = self.state.upgrade() else {
            return;
        };
        match opened {
            Ok(connection) => state.opened(connection),
            Err(error) => {
                state.failures.record(&error);
                state.refill(FIRST_PAUSE);
            }
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.counted = None;
        if let Some(state) = self.state.upgrade() {
            state.attempted.notify_waiters();
        }
    }
}

#[derive(Clone)]
pub(super) struct Connector {
    pub(super) endpoint: Endpoint,
    pub(super) opener: Opener,
    pub(super) generations: Generations,
}

impl Connector {
    async fn open(&self) -> Result<SharedConnection, RedisError> {
        let sentinels = match &self.endpoint {
            Endpoint::Address(info) => {
                let opened = self.opener.open((**info).clone()).await?;
                return Ok(SharedConnection::new(opened, None));
            }
            Endpoint::Primary(sentinels) => sentinels,
        };
        let (generation, (opened, named)) = loop {
            let (mut switched, generation) = (pin!(self.generations.switched()), self.generations.current());
            let mut connecting = pin!(sentinels.connect(&self.opener));
            // An attempt that a failover has overtaken may lead to the old primary.
            let connected = poll_fn(|cx| match switched.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => connecting.as_mut().poll(cx).map(Some),
            });
            if let Some(connected) = connected.await {
                break (generation, connected?);
            }
        };
        let stale = || RedisError::from((ErrorKind::Io, "a sentinel reported the old primary"));
        let generation = generation.admit(named).ok_or_else(stale)?;
        Ok(SharedConnection::new(opened, Some(generation)))
    }
}
