//! From a URL to a client that can open connections.

use std::time::Duration;

use ::redis::{Client, ConnectionInfo, IntoConnectionInfo, io::tcp::TcpSettings};

use crate::error::{ConfigError, ConfigErrorKind};

pub(super) fn client(url: &str, connection_timeout: Duration) -> Result<Client, ConfigError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(url: &str) -> String {
        client(url, Duration::from_secs(1)).map(drop).unwrap_err().to_string()
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
