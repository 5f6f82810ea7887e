//! The `redis` crate does not expose its own stream.

use std::{io, mem::MaybeUninit, net::SocketAddr};

use ::redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, RedisError,
    io::tcp::{TcpSettings, socket2::SockRef},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    task::JoinSet,
};

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {
    /// Asks the kernel, because the runtime may not have processed the event yet.
    fn is_closed(&self) -> bool;
}

fn is_closed<'a, S>(socket: &'a S) -> bool
where
    SockRef<'a>: From<&'a S>,
{
    match SockRef::from(socket).peek(&mut [MaybeUninit::uninit()]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

impl Stream for TcpStream {
    fn is_closed(&self) -> bool {
        is_closed(self)
    }
}

#[cfg(unix)]
impl Stream for tokio::net::UnixStream {
    fn is_closed(&self) -> bool {
        is_closed(self)
    }
}

#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    #[cfg(feature = "redis-rustls")]
    pub(crate) config: Option<std::sync::Arc<rustls::ClientConfig>>,
}

#[cfg_attr(not(feature = "redis-rustls"), allow(unused_variables, reason = "used for TLS only"))]
pub(crate) async fn open(to: &ConnectionInfo, tls: &TlsSettings) -> Result<Option<Box<dyn Stream>>, RedisError> {
    Ok(match to.addr() {
        ConnectionAddr::Tcp(host, port) => Some(Box::new(tcp(host, *port, to.tcp_settings()).await?)),
        #[cfg(feature = "redis-rustls")]
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        } => {
            let stream = tcp(host, *port, to.tcp_settings()).await?;
            Some(Box::new(tls::handshake(host, stream, tls).await?))
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Some(Box::new(tokio::net::UnixStream::connect(path).await?)),
        _ => None,
    })
}

/// Tries all addresses at once: one may not respond.
async fn tcp(host: &str, port: u16, settings: &TcpSettings) -> Result<TcpStream, RedisError> {
    let mut connecting = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        connecting.spawn(connect(address, settings.clone()));
    }
    let mut last = RedisError::from((ErrorKind::InvalidClientConfig, "host has no address"));
    while let Some(connected) = connecting.join_next().await {
        match connected {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error.into(),
            Err(_) => {}
        }
    }
    Err(last)
}

async fn connect(address: SocketAddr, settings: TcpSettings) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(stream)
}

#[cfg(feature = "redis-rustls")]
mod tls {
    use std::sync::Arc;

    use redis::{ErrorKind, RedisError};
    use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
    use tokio::net::TcpStream;
    use tokio_rustls::{TlsConnector, client::TlsStream};

    impl super::Stream for TlsStream<TcpStream> {
        fn is_closed(&self) -> bool {
            super::is_closed(self.get_ref().0)
        }
    }

    pub(super) async fn handshake(
        host: &str,
        stream: TcpStream,
        settings: &super::TlsSettings,
    ) -> Result<TlsStream<TcpStream>, RedisError> {
        let config = settings.config.clone().map_or_else(usual, Ok)?;
        let name = ServerName::try_from(host).map_err(|error| unusable(&error))?.to_owned();
        Ok(TlsConnector::from(config).connect(name, stream).await?)
    }

    fn usual() -> Result<Arc<ClientConfig>, RedisError> {
        let mut trusted = rustls_native_certs::load_native_certs();
        if let Some(error) = trusted.errors.pop() {
            return Err(unusable(&error));
        }
        let mut roots = RootCertStore::empty();
        for certificate in trusted.certs {
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        Ok(Arc::new(config.with_no_client_auth()))
    }

    fn unusable(error: &dyn std::error::Error) -> RedisError {
        (ErrorKind::InvalidClientConfig, "TLS setup failed", error.to_string()).into()
    }
}
