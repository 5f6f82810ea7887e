//! From a URL to an open connection.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use ::redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError,
    aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use tokio::{task::JoinSet, time::timeout};

use crate::error::{ConfigError, ConfigErrorKind};

/// How many requests may wait for the writer of one connection; beyond it they wait for a place, inside their deadline.
const WRITE_QUEUE: usize = 4096;

type Opening = Pin<Box<dyn Future<Output = Result<MultiplexedConnection, RedisError>> + Send>>;

/// What a program has said about how connections are opened.
pub(super) type Connect = Arc<dyn Fn(ConnectionInfo) -> Opening + Send + Sync>;

/// Opens connections.
#[derive(Clone)]
pub(super) struct Opener {
    pub(super) timeout: Duration,
    pub(super) connect: Option<Connect>,
}

impl Opener {
    pub(super) async fn open(&self, to: ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
        match &self.connect {
            Some(connect) => self.by_program(Arc::clone(connect), to).await,
            None => self.by_client(to).await,
        }
    }

    /// Whatever the program does about other connections.
    pub(super) async fn by_client(&self, to: ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // The guard's deadline covers the whole decision; a second timer for each call would only cost.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE);
        Client::open(to)?
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// In a task of its own: a panic there must not end the pool's, which would count an attempt that never ends.
    async fn by_program(&self, connect: Connect, to: ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
        let mut opening = JoinSet::new();
        opening.spawn(async move { connect(to).await });
        match timeout(self.timeout, opening.join_next()).await {
            Ok(Some(Ok(opened))) => opened,
            Ok(_) => Err((ErrorKind::Io, "the program's way to connect has panicked").into()),
            Err(_) => Err((ErrorKind::Io, "the program's way to connect has taken too long").into()),
        }
    }
}

pub(super) fn error(message: impl AsRef<str>) -> ConfigError {
    ConfigError::new(ConfigErrorKind::Store, format!("redis store: {}", message.as_ref()))
}

/// What a URL says, checked as far as that is possible without a server.
pub(super) fn connection_info(url: &str, connection_timeout: Duration) -> Result<ConnectionInfo, ConfigError> {
    let info = url
        .into_connection_info()
        .map_err(|cause| error(format!("the URL is not understood: {cause}")))?;
    check_tls(&info)?;
    // Data that is not acknowledged within this time ends a connection whose other side has silently gone.
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let tcp = tcp.set_user_timeout(connection_timeout);
    let info = info.set_tcp_settings(tcp);
    Client::open(info.clone()).map_err(|cause| error(cause.to_string()))?;
    Ok(info)
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
        return Err(error(
            "TLS needs a rustls crypto provider; install one first, for example with \
             rustls::crypto::ring::default_provider().install_default()",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(url: &str) -> String {
        connection_info(url, Duration::from_secs(1))
            .map(drop)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_url_that_is_not_understood_is_an_error_that_does_not_show_its_password() {
        for url in [
            "",
            "127.0.0.1",
            "http://user:secret@127.0.0.1/",
            "redis://user:secret@127.0.0.1:port/",
            "redis://:secret@/x",
        ] {
            let error = error_of(url);
            assert!(
                error.starts_with("redis store: the URL is not understood: "),
                "{url}: {error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
    }

    /// This test program installs no rustls provider, and is built with TLS or without.
    #[test]
    fn tls_that_is_not_set_up_is_an_error_and_not_a_panic() {
        let error = error_of("rediss://127.0.0.1/");
        assert!(error.contains("TLS"), "{error}");
    }
}
