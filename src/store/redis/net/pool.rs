use std::{
    error::Error,
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, MutexGuard, Weak, atomic::AtomicBool},
    task::Poll,
    time::Duration,
};

use ::redis::{ConnectionInfo, ErrorKind, RedisError};
use bb8_redis::bb8::{self, ManageConnection, QueueStrategy, RunError};
use tokio::{runtime::Handle, task::AbortHandle};

use super::{
    super::script::{Call, Reply},
    connection::{Health, SharedConnection, Unanswered, connection_error},
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
    pub(super) manager: Manager,
    pub(super) count: u32,
    /// `None` before the first use, because opening connections needs a runtime.
    pool: Mutex<Option<bb8::Pool<Manager>>>,
    opened: Mutex<Opened>,
    pub(super) is_refilling: AtomicBool,
    pub(super) refill: Mutex<Option<AbortHandle>>,
    pub(super) listening: Mutex<Option<AbortHandle>>,
    ordered: Mutex<Option<SharedConnection>>,
}

#[derive(Default)]
struct Opened {
    connections: Vec<OpenedConnection>,
    turn: usize,
}

struct OpenedConnection {
    health: Weak<Health>,
    pooled: Weak<SharedConnection>,
}

#[derive(Clone)]
pub(crate) enum Endpoint {
    Address(Box<ConnectionInfo>),
    Primary(Arc<Sentinels>),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(info) => info.addr().fmt(f),
            Self::Primary(sentinels) => write!(f, "primary of {}", sentinels.service),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Lane {
    Any,
    /// The same connection until it breaks, so that the server executes calls in order.
    Ordered,
}

impl Pool {
    pub(crate) fn new(endpoint: Endpoint, opener: Opener, count: u32) -> Self {
        let state = Arc::new_cyclic(|state| PoolState {
            manager: Manager {
                endpoint,
                opener,
                generations: Generations::default(),
                failures: Arc::default(),
                state: state.clone(),
            },
            count,
            pool: Mutex::default(),
            opened: Mutex::default(),
            is_refilling: AtomicBool::new(false),
            refill: Mutex::default(),
            listening: Mutex::default(),
            ordered: Mutex::default(),
        });
        if Handle::try_current().is_ok() {
            state.pool();
        }
        Self(state)
    }

    pub(crate) async fn get(&self, lane: Lane) -> Result<SharedConnection, StoreError> {
        match lane {
            Lane::Any => match self.0.next_usable() {
                Some(connection) => Ok(connection),
                None => Box::pin(self.0.get()).await,
            },
            Lane::Ordered => Box::pin(self.0.get_ordered()).await,
        }
    }

    pub(crate) async fn opened(&self, count: usize) {
        let (pool, failures) = (self.0.pool(), &self.0.manager.failures);
        let mut failed = pin!(failures.next.notified());
        // The pool does not hand out a connection twice.
        let mut held = Vec::new();
        while held.len() < count.min(self.0.count as usize) {
            let mut connection = pin!(pool.get());
            let next = poll_fn(|cx| match connection.as_mut().poll(cx) {
                Poll::Ready(result) => Poll::Ready(result.ok()),
                Poll::Pending => failed.as_mut().poll(cx).map(|()| None),
            });
            let Some(next) = next.await else { return };
            held.push(next);
        }
    }

    pub(crate) fn follows_primary(&self) -> bool {
        matches!(self.0.manager.endpoint, Endpoint::Primary(_))
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
        let healths = opened.connections.iter().map(|connection| &connection.health);
        healths.filter_map(|health| health.upgrade()?.wire.clone()).collect()
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
    fn pool(&self) -> bb8::Pool<Manager> {
        let mut pool = self.pool.lock();
        if let Some(pool) = &*pool {
            return pool.clone();
        }
        let new = pool.insert(self.new_pool()).clone();
        drop(pool);
        // A refill task dropped with its runtime discards the pool.
        self.refill(FIRST_PAUSE);
        new
    }

    fn new_pool(&self) -> bb8::Pool<Manager> {
        bb8::Pool::builder()
            .max_size(self.count)
            .min_idle(self.count)
            // Connections are used in rotation, to distribute the load evenly.
            .queue_strategy(QueueStrategy::Fifo)
            .connection_timeout(self.manager.opener.timeout)
            // A circuit breaker limits these attempts, and `refill` makes further ones.
            .retry_connection(false)
            .test_on_check_out(true)
            // Without lifetimes the pool needs no maintenance task.
            .max_lifetime(None)
            .idle_timeout(None)
            .build_unchecked(self.manager.clone())
    }

    /// bb8 would wait forever for attempts of an ended runtime.
    pub(super) fn forget_attempts(&self) {
        let old = self.pool.lock().take();
        // Dropped outside the lock, because its connections call back when they end.
        drop(old);
    }

    async fn get_ordered(&self) -> Result<SharedConnection, StoreError> {
        let usable = || {
            let ordered = self.ordered.lock();
            ordered.clone().filter(|connection| !connection.is_broken())
        };
        if let Some(connection) = usable() {
            return Ok(connection);
        }
        let new = self.get().await?;
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
        let next = opened.turn.checked_rem(opened.connections.len())?;
        opened.turn = opened.turn.wrapping_add(1);
        let connection = opened.connections[next].pooled.upgrade()?;
        drop(opened);
        (!connection.is_broken()).then(|| SharedConnection::clone(&connection))
    }

    /// bb8 discards broken connections when they are taken out.
    pub(super) async fn get(&self) -> Result<SharedConnection, StoreError> {
        let (pool, failures) = (self.pool(), &self.manager.failures);
        let mut failed = pin!(failures.next.notified());
        let mut connection = pin!(pool.get());
        poll_fn(|cx| {
            if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                return Poll::Ready(match result {
                    Ok(connection) => Ok(SharedConnection::clone(&connection)),
                    Err(RunError::User(error)) => Err(connection_error(error)),
                    Err(RunError::TimedOut) => Err(failures.last()),
                });
            }
            // bb8 does not report failed attempts to waiting requests.
            while failed.as_mut().poll(cx).is_ready() {
                if pool.state().connections == 0 {
                    return Poll::Ready(Err(failures.last()));
                }
                failed.set(failures.next.notified());
            }
            Poll::Pending
        })
        .await
    }

    /// The event that ended other connections may also end a new one while it is opened, so a second attempt follows,
    /// unless the server rejected the first one or did not respond.
    async fn get_another(&self) -> Result<SharedConnection, RedisError> {
        let first = match self.get().await {
            Ok(connection) => return Ok(connection),
            Err(error) => cause(&error),
        };
        if first.is_connection_refusal() || first.is_timeout() {
            return Err(first);
        }
        self.get().await.map_err(|error| cause(&error))
    }

    fn opened(&self, connection: &Arc<SharedConnection>) {
        self.usable().connections.push(OpenedConnection {
            health: connection.downgrade(),
            pooled: Arc::downgrade(connection),
        });
        // A broken connection would stay open until the next ordered call.
        let broken = self.ordered.lock().take_if(|ordered| ordered.is_broken());
        drop(broken);
    }

    pub(super) fn is_full(&self) -> bool {
        self.usable().connections.len() >= self.count as usize
    }

    fn usable(&self) -> MutexGuard<'_, Opened> {
        let mut opened = self.opened.lock();
        let is_usable = |health: &Weak<Health>| health.upgrade().is_some_and(|health| !health.is_broken());
        opened.connections.retain(|connection| is_usable(&connection.health));
        opened
    }
}

#[derive(Clone)]
pub(super) struct Manager {
    pub(super) endpoint: Endpoint,
    pub(super) opener: Opener,
    pub(super) generations: Generations,
    pub(super) failures: Arc<ConnectionFailures>,
    pub(super) state: Weak<PoolState>,
}

impl Manager {
    fn refill(&self, after: Duration) {
        if let Some(state) = self.state.upgrade() {
            state.refill(after);
        }
    }

    pub(super) async fn open(&self) -> Result<SharedConnection, RedisError> {
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

impl ManageConnection for Manager {
    type Connection = Arc<SharedConnection>;
    type Error = RedisError;

    async fn connect(&self) -> Result<Arc<SharedConnection>, RedisError> {
        let attempt = Attempt(Some(&self.state));
        let opened = self.open().await;
        attempt.ended();
        match opened {
            Ok(connection) => {
                let connection = Arc::new(connection);
                if let Some(state) = self.state.upgrade() {
                    state.opened(&connection);
                    state.hear_switches();
                }
                let manager = self.clone();
                connection.when_it_is_lost(Box::new(move || manager.refill(Duration::ZERO)));
                Ok(connection)
            }
            Err(error) => {
                self.failures.record(&error);
                self.refill(FIRST_PAUSE);
                Err(error)
            }
        }
    }

    async fn is_valid(&self, connection: &mut Arc<SharedConnection>) -> Result<(), RedisError> {
        if connection.is_broken() {
            return Err((ErrorKind::Io, "connection is broken").into());
        }
        Ok(())
    }

    fn has_broken(&self, connection: &mut Arc<SharedConnection>) -> bool {
        connection.is_broken()
    }
}

/// If its runtime ends, the pool would wait for the attempt forever, and is discarded.
struct Attempt<'a>(Option<&'a Weak<PoolState>>);

impl Attempt<'_> {
    fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.0.and_then(Weak::upgrade) {
            state.forget_attempts();
        }
    }
}

fn cause(error: &StoreError) -> RedisError {
    let mut cause = error.source();
    while let Some(next) = cause {
        if let Some(error) = next.downcast_ref::<RedisError>() {
            return error.clone();
        }
        cause = next.source();
    }
    (ErrorKind::Io, "connection failed", error.to_string()).into()
}
