//! Few connections, opened when they are needed and replaced when they are broken.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::Poll,
};

use ::redis::{ConnectionInfo, ErrorKind, RedisError};
use bb8_redis::bb8::{self, ManageConnection, QueueStrategy, RunError};
use tokio::{runtime::Handle, sync::Notify};

use super::{
    client::Opener,
    connection::{Generation, SharedConnection, store_error},
    sentinel::Sentinels,
};
use crate::{
    error::{StoreError, StoreErrorKind},
    telemetry,
};

/// Connections to one server, or to whichever server is the primary.
pub(super) struct Pool {
    manager: Manager,
    count: u32,
    /// Opening connections takes a runtime, which need not be there when a store is made.
    pool: OnceLock<bb8::Pool<Manager>>,
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
        let manager = Manager {
            target,
            opener,
            generation,
            failures: Arc::default(),
        };
        let pool = Self {
            manager,
            count,
            pool: OnceLock::new(),
        };
        if Handle::try_current().is_ok() {
            pool.pool();
        }
        pool
    }

    fn pool(&self) -> &bb8::Pool<Manager> {
        self.pool.get_or_init(|| {
            bb8::Pool::builder()
                .max_size(self.count)
                .min_idle(self.count)
                // In turn, so that all connections carry the same load.
                .queue_strategy(QueueStrategy::Fifo)
                .connection_timeout(self.manager.opener.timeout)
                // One attempt for each request that finds none; a circuit breaker spaces them out.
                .retry_connection(false)
                .test_on_check_out(true)
                // Nothing is wrong with an old connection, and without lifetimes the pool needs no task of its own.
                .max_lifetime(None)
                .idle_timeout(None)
                .build_unchecked(self.manager.clone())
        })
    }

    /// A connection to share: it goes back to the pool at once.
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
}

/// Opens connections for the pool and tells it which ones to throw away.
#[derive(Clone)]
struct Manager {
    target: Target,
    opener: Opener,
    generation: Option<Generation>,
    failures: Arc<ConnectionFailures>,
}

impl ManageConnection for Manager {
    type Connection = SharedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<SharedConnection, RedisError> {
        let generation = self.generation.as_ref().map(Generation::current);
        let connection = match &self.target {
            Target::Server(info) => self.opener.open((**info).clone()).await,
            Target::Primary(sentinels) => sentinels.connect(&self.opener).await,
        };
        connection
            .map(|connection| SharedConnection::new(connection, generation))
            .inspect_err(|error| self.failures.record(error))
    }

    /// Without a round trip: the requests that use a connection are the ones that find out.
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
    last: Mutex<Option<RedisError>>,
}

impl ConnectionFailures {
    fn record(&self, error: &RedisError) {
        telemetry::connection_failed(error);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        self.next.notify_waiters();
    }

    /// The last of them, as the reason why there is no connection.
    fn last(&self) -> StoreError {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let none = || StoreError::new(StoreErrorKind::Unreachable, "no connection could be opened in time");
        last.map_or_else(none, connection_error)
    }
}
