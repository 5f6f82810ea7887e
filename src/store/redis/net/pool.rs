//! Few connections, opened when they are needed and replaced when they have ended.

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

/// The pause before the first attempt to replace connections.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Connections to one server, or to whichever server is the primary.
pub(crate) struct Pool(Arc<PoolState>);

/// The state of a pool, which the tasks that open connections share with those that use them.
pub(super) struct PoolState {
    pub(super) manager: Manager,
    pub(super) count: u32,
    /// `None` before the first use, because opening connections takes a runtime, and after a runtime has ended together with
    /// attempts to connect.
    pool: Mutex<Option<bb8::Pool<Manager>>>,
    /// All that may be open.
    opened: Mutex<Vec<Weak<Health>>>,
    pub(super) is_refilling: AtomicBool,
    pub(super) refill: Mutex<Option<AbortHandle>>,
    /// The task that polls the server. It ends with its runtime.
    pub(super) info: Mutex<Option<AbortHandle>>,
    pub(super) refuses_info: AtomicBool,
    /// The connection for what has to be carried out in the order in which it is sent.
    ordered: Mutex<Option<SharedConnection>>,
}

/// The server that the connections of a pool lead to.
#[derive(Clone)]
pub(crate) enum Endpoint {
    Address(Box<ConnectionInfo>),
    /// The primary. The sentinels are asked for its address each time.
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

/// The choice of a connection.
#[derive(Clone, Copy)]
pub(crate) enum Lane {
    /// The connections in turn.
    Any,
    /// The same connection each time, until it is broken: the server carries out calls in the order in which they are sent.
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
            info: Mutex::default(),
            refuses_info: AtomicBool::new(false),
            ordered: Mutex::default(),
        });
        if Handle::try_current().is_ok() {
            state.pool();
        }
        Self(state)
    }

    /// Returns a connection to share: it goes back to the pool at once.
    pub(crate) async fn get(&self, lane: Lane) -> Result<SharedConnection, StoreError> {
        match lane {
            Lane::Any => self.0.get().await,
            Lane::Ordered => Box::pin(self.0.get_ordered()).await,
        }
    }

    /// Returns `true` if its server may change.
    pub(crate) fn follows_primary(&self) -> bool {
        matches!(self.0.manager.endpoint, Endpoint::Primary(_))
    }

    /// Sends a call, on another connection where the first one had ended before any of the call's bytes were written.
    pub(crate) async fn send(&self, mut connection: SharedConnection, call: &Call) -> Result<Reply, RedisError> {
        // All of them may have ended at the same moment, and the first new one since.
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

    /// Returns the byte streams of all connections that may be open.
    pub(crate) fn wires(&self) -> Vec<Arc<Wire>> {
        let opened = self.0.opened.lock();
        opened
            .iter()
            .filter_map(|health| health.upgrade()?.wire.clone())
            .collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(refill) = self.0.refill.lock().take() {
            refill.abort();
        }
        if let Some(info) = self.0.info.lock().take() {
            info.abort();
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
        // Ends together with the attempts that the pool has just begun, if their runtime does.
        self.refill(FIRST_PAUSE);
        new
    }

    fn new_pool(&self) -> bb8::Pool<Manager> {
        bb8::Pool::builder()
            .max_size(self.count)
            .min_idle(self.count)
            // In turn, so that all connections carry the same load.
            .queue_strategy(QueueStrategy::Fifo)
            .connection_timeout(self.manager.opener.timeout)
            // One attempt for each request that finds none, spaced out by a circuit breaker, and those of `fill`.
            .retry_connection(false)
            .test_on_check_out(true)
            // Nothing is wrong with an old connection, and without lifetimes the pool needs no task of its own.
            .max_lifetime(None)
            .idle_timeout(None)
            .build_unchecked(self.manager.clone())
    }

    /// Replaces the pool at the next use. bb8 counts attempts until they end, and those of a runtime that has ended never
    /// do: the pool would wait for them and make no others.
    pub(super) fn forget_attempts(&self) {
        let old = self.pool.lock().take();
        // Dropped outside the lock, because its connections report their end.
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
        // Another call may have been quicker.
        let ordered = match &*ordered {
            Some(known) if !known.is_broken() => known,
            _ => ordered.insert(new),
        };
        Ok(ordered.clone())
    }

    pub(super) async fn get(&self) -> Result<SharedConnection, StoreError> {
        let (pool, failures) = (self.pool(), &self.manager.failures);
        let mut failed = pin!(failures.next.notified());
        let mut connection = pin!(pool.get());
        poll_fn(|cx| {
            if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                return Poll::Ready(match result {
                    Ok(connection) => Ok(connection.clone()),
                    Err(RunError::User(error)) => Err(connection_error(error)),
                    Err(RunError::TimedOut) => Err(failures.last()),
                });
            }
            // The pool lets requests wait although there is nothing to wait for: the attempt that was made for them has
            // failed. While another connection is open, it will be theirs in a moment.
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

    /// Returns a connection for a call of which nothing was written. What has ended other connections may also end a new
    /// one while it opens, so one more is opened, unless the server rejects connections.
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

    fn opened(&self, connection: &SharedConnection) {
        self.usable().push(connection.downgrade());
        // A broken one would stay open until the next call that is sent in order.
        let broken = self.ordered.lock().take_if(|ordered| ordered.is_broken());
        drop(broken);
    }

    pub(super) fn is_full(&self) -> bool {
        self.usable().len() >= self.count as usize
    }

    /// Returns the connections that are open and may be used.
    fn usable(&self) -> MutexGuard<'_, Vec<Weak<Health>>> {
        let mut opened = self.opened.lock();
        opened.retain(|health| health.upgrade().is_some_and(|health| !health.is_broken()));
        opened
    }
}

/// Opens connections for the pool and tells it which ones to drop.
#[derive(Clone)]
pub(super) struct Manager {
    pub(super) endpoint: Endpoint,
    pub(super) opener: Opener,
    generations: Generations,
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
        let generation = self.generations.current();
        let (opened, named) = sentinels.connect(&self.opener).await?;
        let stale = || RedisError::from((ErrorKind::Io, "a sentinel named the old primary"));
        let generation = generation.admit(named).ok_or_else(stale)?;
        Ok(SharedConnection::new(opened, Some(generation)))
    }
}

impl ManageConnection for Manager {
    type Connection = SharedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<SharedConnection, RedisError> {
        let attempt = Attempt(Some(&self.state));
        let opened = self.open().await;
        attempt.ended();
        match opened {
            Ok(connection) => {
                if let Some(state) = self.state.upgrade() {
                    state.opened(&connection);
                    state.poll_info();
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

    /// Without a round trip: the connection itself knows when it has ended.
    async fn is_valid(&self, connection: &mut SharedConnection) -> Result<(), RedisError> {
        if connection.is_broken() {
            return Err((ErrorKind::Io, "the connection was found broken").into());
        }
        Ok(())
    }

    fn has_broken(&self, connection: &mut SharedConnection) -> bool {
        connection.is_broken()
    }
}

/// An attempt to connect. The pool must not wait for it if it is dropped because its runtime ends.
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

/// Returns the error of the `redis` crate that is the reason why there is no connection.
fn cause(error: &StoreError) -> RedisError {
    let mut cause = error.source();
    while let Some(next) = cause {
        if let Some(error) = next.downcast_ref::<RedisError>() {
            return error.clone();
        }
        cause = next.source();
    }
    (ErrorKind::Io, "no connection could be opened", error.to_string()).into()
}
