//! Few connections, opened when they are needed and replaced when they are broken.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::Poll,
    time::Duration,
};

use ::redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError};
use bb8_redis::bb8::{ManageConnection, Pool, QueueStrategy, RunError};
use tokio::{runtime::Handle, sync::Notify};

use super::{
    client::client,
    connection::{SharedConnection, store_error},
};
use crate::{
    error::{ConfigError, StoreError, StoreErrorKind},
    telemetry,
};

/// How many requests may wait for the writer of one connection; beyond it they wait for a place, inside their deadline.
const WRITE_QUEUE: usize = 4096;

/// The connections of one store.
pub(super) struct Connections {
    manager: Manager,
    count: u32,
    /// Opening connections takes a runtime, which need not be there when a store is made.
    pool: OnceLock<Pool<Manager>>,
}

impl Connections {
    pub(super) fn new(url: &str, count: u32, timeout: Duration) -> Result<Self, ConfigError> {
        let manager = Manager {
            client: client(url, timeout)?,
            timeout,
            failures: Arc::default(),
        };
        let connections = Self {
            manager,
            count,
            pool: OnceLock::new(),
        };
        if Handle::try_current().is_ok() {
            connections.pool();
        }
        Ok(connections)
    }

    fn pool(&self) -> &Pool<Manager> {
        self.pool.get_or_init(|| {
            Pool::builder()
                .max_size(self.count)
                .min_idle(self.count)
                // In turn, so that all connections carry the same load.
                .queue_strategy(QueueStrategy::Fifo)
                .connection_timeout(self.manager.timeout)
                // One attempt for each request that finds none; the guard's circuit breaker spaces them out.
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
                    Err(RunError::User(error)) => Err(store_error(error)),
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
    client: Client,
    timeout: Duration,
    failures: Arc<ConnectionFailures>,
}

impl Manager {
    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // The guard's deadline covers the whole decision; a second timer for each call would only cost.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE)
    }
}

impl ManageConnection for Manager {
    type Connection = SharedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<SharedConnection, RedisError> {
        let config = self.config();
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await;
        connection
            .map(SharedConnection::new)
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
        last.map_or_else(none, store_error)
    }
}
