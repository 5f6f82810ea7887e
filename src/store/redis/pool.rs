//! Few connections, opened when they are needed and replaced when they have ended.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use ::redis::{ConnectionInfo, ErrorKind, RedisError};
use bb8_redis::bb8::{self, ManageConnection, QueueStrategy, RunError};
use tokio::{runtime::Handle, sync::Notify, task::AbortHandle};

use super::{
    client::Opener,
    connection::{Generation, SharedConnection, Unanswered, WeakConnection, store_error},
    script::{Call, Reply},
    sentinel::Sentinels,
    wire::Wire,
};
use crate::{
    breaker::jittered,
    error::{StoreError, StoreErrorKind},
    mutex::Mutex,
    telemetry,
};

/// Connections to one server, or to whichever server is the primary.
pub(super) struct Pool(Arc<Shared>);

/// What those who open connections have in common with those who use them.
struct Shared {
    manager: Manager,
    count: u32,
    /// Opening connections takes a runtime, which need not be there when a store is made.
    pool: OnceLock<bb8::Pool<Manager>>,
    /// All that may be open.
    opened: Mutex<Vec<WeakConnection>>,
    is_filling: AtomicBool,
    filling: Mutex<Option<AbortHandle>>,
    /// The connection for what has to be carried out in the order in which it is sent.
    ordered: Mutex<Option<SharedConnection>>,
}

/// Where connections lead.
#[derive(Clone)]
pub(super) enum Target {
    Server(Box<ConnectionInfo>),
    /// The sentinels are asked for it each time.
    Primary(Arc<Sentinels>),
}

impl Pool {
    pub(super) fn new(target: Target, opener: Opener, count: u32) -> Self {
        let generation = matches!(target, Target::Primary(_)).then(Generation::default);
        let shared = Arc::new_cyclic(|shared| Shared {
            manager: Manager {
                target,
                opener,
                generation,
                failures: Arc::default(),
                shared: shared.clone(),
            },
            count,
            pool: OnceLock::new(),
            opened: Mutex::default(),
            is_filling: AtomicBool::new(false),
            filling: Mutex::default(),
            ordered: Mutex::default(),
        });
        if Handle::try_current().is_ok() {
            shared.pool();
        }
        Self(shared)
    }

    /// A connection to share: it goes back to the pool at once.
    pub(super) async fn get(&self) -> Result<SharedConnection, StoreError> {
        self.0.get().await
    }

    /// The same connection each time, as long as it is not broken: what is sent on it later is carried out later.
    pub(super) async fn get_ordered(&self) -> Result<SharedConnection, StoreError> {
        self.0.get_ordered().await
    }

    /// Sends a call, on another connection where the first one had ended before any of the call's bytes were written.
    pub(super) async fn send(&self, mut connection: SharedConnection, call: &Call) -> Result<Reply, RedisError> {
        // All of them may have ended at the same moment.
        let mut others = self.0.count;
        loop {
            match call.send(&mut connection).await {
                Err(Unanswered::Unsent(error)) if others > 0 => {
                    others -= 1;
                    connection = connection.replaced_by(self.get().await.map_err(|_| error)?);
                }
                reply => return reply.map_err(RedisError::from),
            }
        }
    }

    /// The bytes of all connections that may be open.
    pub(super) fn wires(&self) -> Vec<Arc<Wire>> {
        self.0.opened.lock().iter().filter_map(WeakConnection::wire).collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(filling) = self.0.filling.lock().take() {
            filling.abort();
        }
    }
}

impl Shared {
    fn pool(&self) -> &bb8::Pool<Manager> {
        self.pool.get_or_init(|| {
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
        })
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

    async fn get(&self) -> Result<SharedConnection, StoreError> {
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

    fn opened(&self, connection: &SharedConnection) {
        {
            let mut opened = self.opened.lock();
            opened.retain(WeakConnection::is_usable);
            opened.push(connection.downgrade());
        }
        // A broken one would stay open until the next call that is sent in order.
        let broken = self.ordered.lock().take_if(|ordered| ordered.is_broken());
        drop(broken);
    }

    fn is_full(&self) -> bool {
        self.opened
            .lock()
            .iter()
            .filter(|connection| connection.is_usable())
            .count()
            >= self.count as usize
    }

    /// Sees to it that connections are replaced, in a task of its own, which ends when all are open.
    fn fill(&self, after: Duration) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !self.is_filling.swap(true, Ordering::AcqRel) {
            let filling = Filling(self.manager.shared.clone());
            let task = runtime.spawn(async move { filling.fill(after).await });
            *self.filling.lock() = Some(task.abort_handle());
        }
    }
}

/// Opens connections until there are as many as there should be.
struct Filling(Weak<Shared>);

impl Filling {
    const FIRST_PAUSE: Duration = Duration::from_millis(100);
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);

    #[allow(
        clippy::disallowed_methods,
        reason = "a server that cannot be reached is not asked again at once"
    )]
    async fn fill(self, after: Duration) {
        let mut pause = Self::FIRST_PAUSE;
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        let mut known = None;
        while let Some(shared) = self.0.upgrade() {
            let failures = shared.manager.failures.count();
            // A connection that has just been opened may be closed again, so it is looked at after a pause.
            if known.is_some() && shared.is_full() {
                drop(self);
                // What has ended since then has found that this is under way.
                if !shared.is_full() {
                    shared.fill(Self::FIRST_PAUSE);
                }
                return;
            }
            // Where requests have tried meanwhile, this need not.
            if known.is_none_or(|known| known == failures) {
                // Those that have ended are found on the way.
                for _ in 0..shared.count {
                    if shared.get().await.is_err() {
                        break;
                    }
                }
            }
            known = Some(shared.manager.failures.count());
            drop(shared);
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(Self::LONGEST_PAUSE);
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.is_filling.store(false, Ordering::Release);
        }
    }
}

/// Opens connections for the pool and tells it which ones to throw away.
#[derive(Clone)]
struct Manager {
    target: Target,
    opener: Opener,
    generation: Option<Generation>,
    failures: Arc<ConnectionFailures>,
    shared: Weak<Shared>,
}

impl Manager {
    async fn open(&self) -> Result<SharedConnection, RedisError> {
        let generation = self.generation.as_ref().map(Generation::current);
        let connection = match &self.target {
            Target::Server(info) => self.opener.open((**info).clone()).await,
            Target::Primary(sentinels) => sentinels.connect(&self.opener).await,
        };
        connection.map(|connection| SharedConnection::new(connection, generation))
    }

    fn fill(&self, after: Duration) {
        if let Some(shared) = self.shared.upgrade() {
            shared.fill(after);
        }
    }
}

impl ManageConnection for Manager {
    type Connection = SharedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<SharedConnection, RedisError> {
        match self.open().await {
            Ok(connection) => {
                if let Some(shared) = self.shared.upgrade() {
                    shared.opened(&connection);
                }
                let manager = self.clone();
                connection.when_it_is_lost(Box::new(move || manager.fill(Duration::ZERO)));
                Ok(connection)
            }
            Err(error) => {
                self.failures.record(&error);
                self.fill(Filling::FIRST_PAUSE);
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

/// Whatever a server says instead of letting a connection be opened, asking again at once would only cost time.
pub(super) fn connection_error(error: RedisError) -> StoreError {
    let error = store_error(error);
    if error.opens_circuit() {
        return error;
    }
    let message = format!("no connection could be opened: {error}");
    StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
}

/// Attempts to open a connection that have failed. The pool tells nobody who waits for one.
#[derive(Default)]
struct ConnectionFailures {
    next: Notify,
    count: AtomicU64,
    last: Mutex<Option<RedisError>>,
}

impl ConnectionFailures {
    fn record(&self, error: &RedisError) {
        telemetry::connection_failed(error);
        *self.last.lock() = Some(error.clone());
        self.count.fetch_add(1, Ordering::Relaxed);
        self.next.notify_waiters();
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The last of them, as the reason why there is no connection.
    fn last(&self) -> StoreError {
        let last = self.last.lock().clone();
        let none = || StoreError::new(StoreErrorKind::Unreachable, "no connection could be opened in time");
        last.map_or_else(none, connection_error)
    }
}
