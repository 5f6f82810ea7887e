//! Connections: few, shared by all requests, and replaced when they are broken.
//!
//! This is the only module in which types of the `redis` crate meet those of the pool.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind,
    Value, aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use bb8_redis::bb8;
use tokio::runtime::Handle;

use crate::{
    clock::{Clock, Timestamp},
    error::{ConfigError, ConfigErrorKind, StoreError, StoreErrorKind},
};

/// How many requests may wait for the writer of one connection; beyond it they wait for a place, inside their deadline.
const WRITE_QUEUE: usize = 4096;

/// A connection that many requests use at the same time, each waiting for its own reply.
#[derive(Clone)]
pub(super) struct SharedConnection {
    connection: MultiplexedConnection,
    health: Arc<Health>,
}

/// What the users of one connection have seen of it.
#[derive(Default)]
struct Health {
    is_broken: AtomicBool,
    missed: AtomicU32,
}

impl Health {
    /// This many calls in a row without a reply, and a connection is not believed in any more: bytes may vanish on the
    /// way without the connection being closed.
    const MISSES: u32 = 3;

    fn answered(&self) {
        if self.missed.load(Ordering::Relaxed) != 0 {
            self.missed.store(0, Ordering::Relaxed);
        }
    }

    fn missed(&self) {
        if self.missed.fetch_add(1, Ordering::Relaxed) + 1 >= Self::MISSES {
            self.broken();
        }
    }

    fn broken(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
    }
}

/// Counts a call that its caller gave up, unless it was so short that the caller rather than the server was in a hurry.
struct InFlight<'a> {
    health: &'a Health,
    since: Timestamp,
    is_answered: bool,
}

impl InFlight<'_> {
    const IMPATIENT_MICROS: u64 = 1_000;

    fn answered(mut self) {
        self.is_answered = true;
        self.health.answered();
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.is_answered && Clock::system().now().micros_since(self.since) >= Self::IMPATIENT_MICROS {
            self.health.missed();
        }
    }
}

impl SharedConnection {
    /// Sends a command and waits for its reply; marks the connection if that shows it to be broken.
    pub(super) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let in_flight = InFlight {
            health: &self.health,
            since: Clock::system().now(),
            is_answered: false,
        };
        let reply = self
            .connection
            .send_packed_command(command)
            .await
            .and_then(Value::extract_error);
        in_flight.answered();
        if let Err(error) = &reply {
            // A server that has become a replica keeps its connections, and none of them is of use any more.
            let is_replica = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
            if is_replica || error.is_unrecoverable_error() || error.is_io_error() {
                self.health.broken();
            }
        }
        reply
    }
}

/// Opens connections for the pool and tells it which ones to throw away.
pub(super) struct Manager {
    client: Client,
    connection_timeout: Duration,
}

impl Manager {
    fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connection_timeout))
            // The guard's deadline covers the whole decision; a second timer for each call would only cost.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE)
    }
}

impl bb8::ManageConnection for Manager {
    type Connection = SharedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<SharedConnection, RedisError> {
        let config = self.config();
        let connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(SharedConnection {
            connection,
            health: Arc::default(),
        })
    }

    /// Without a round trip: the requests that use a connection are the ones that find out.
    async fn is_valid(&self, connection: &mut SharedConnection) -> Result<(), RedisError> {
        if self.has_broken(connection) {
            return Err((ErrorKind::Io, "the connection was found broken").into());
        }
        Ok(())
    }

    fn has_broken(&self, connection: &mut SharedConnection) -> bool {
        connection.health.is_broken.load(Ordering::Relaxed)
    }
}

/// The connections of one store.
pub(super) struct Connections {
    /// Opening connections takes a runtime, which need not be there when a store is made.
    pool: OnceLock<bb8::Pool<Manager>>,
    client: Client,
    count: u32,
    connection_timeout: Duration,
}

impl Connections {
    pub(super) fn new(url: &str, count: u32, connection_timeout: Duration) -> Result<Self, ConfigError> {
        let client = client(url, connection_timeout)?;
        let connections = Self {
            pool: OnceLock::new(),
            client,
            count,
            connection_timeout,
        };
        if Handle::try_current().is_ok() {
            connections.pool();
        }
        Ok(connections)
    }

    fn pool(&self) -> &bb8::Pool<Manager> {
        let manager = || Manager {
            client: self.client.clone(),
            connection_timeout: self.connection_timeout,
        };
        self.pool.get_or_init(|| {
            bb8::Pool::builder()
                .max_size(self.count)
                .min_idle(self.count)
                // In turn, so that all connections carry the same load.
                .queue_strategy(bb8::QueueStrategy::Fifo)
                .connection_timeout(self.connection_timeout)
                // One attempt for each request that finds none; the guard's circuit breaker spaces them out.
                .retry_connection(false)
                .test_on_check_out(true)
                // Nothing is wrong with an old connection, and without lifetimes the pool needs no task of its own.
                .max_lifetime(None)
                .idle_timeout(None)
                .error_sink(Box::new(LogErrors))
                .build_unchecked(manager())
        })
    }

    /// A connection to share: it goes back to the pool at once.
    pub(super) async fn get(&self) -> Result<SharedConnection, StoreError> {
        match self.pool().get().await {
            Ok(connection) => Ok(connection.clone()),
            Err(bb8::RunError::User(error)) => Err(store_error(error)),
            Err(bb8::RunError::TimedOut) => Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "no connection to Redis could be opened in time",
            )),
        }
    }
}

#[derive(Clone, Debug)]
struct LogErrors;

impl bb8::ErrorSink<RedisError> for LogErrors {
    fn sink(&self, error: RedisError) {
        crate::telemetry::connection_failed(&error);
    }

    fn boxed_clone(&self) -> Box<dyn bb8::ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}

fn client(url: &str, connection_timeout: Duration) -> Result<Client, ConfigError> {
    let error = |message: String| ConfigError::new(ConfigErrorKind::Store, format!("redis store: {message}"));
    let info = url
        .into_connection_info()
        .map_err(|cause| error(format!("the URL is not understood: {cause}")))?;
    check_tls(&info)?;
    // Data that is not acknowledged within this time ends a connection whose other side has silently gone.
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let tcp = tcp.set_user_timeout(connection_timeout);
    Client::open(info.set_tcp_settings(tcp)).map_err(|cause| error(cause.to_string()))
}

#[cfg(not(feature = "redis-rustls"))]
fn check_tls(_: &ConnectionInfo) -> Result<(), ConfigError> {
    Ok(())
}

/// rustls panics at the first connection if it has no provider or cannot choose between two.
#[cfg(feature = "redis-rustls")]
fn check_tls(info: &ConnectionInfo) -> Result<(), ConfigError> {
    let is_tls = matches!(info.addr(), ::redis::ConnectionAddr::TcpTls { .. });
    if is_tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        let message = "redis store: TLS needs a rustls crypto provider; install one first, for example with \
                       rustls::crypto::ring::default_provider().install_default()";
        return Err(ConfigError::new(ConfigErrorKind::Store, message));
    }
    Ok(())
}

/// What an error of the `redis` crate means for the next call.
pub(super) fn store_error(error: RedisError) -> StoreError {
    let kind = match error.kind() {
        ErrorKind::Io | ErrorKind::AuthenticationFailed => StoreErrorKind::Unreachable,
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::TryAgain,
        ) => StoreErrorKind::Unavailable,
        _ if matches!(error.code(), Some("BUSY" | "MISCONF" | "NOREPLICAS" | "OOM")) => StoreErrorKind::Unavailable,
        _ if error.is_unrecoverable_error() => StoreErrorKind::Unreachable,
        _ => StoreErrorKind::Rejected,
    };
    StoreError::new(kind, error.to_string()).with_source(error)
}
