use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, ServerErrorKind, Value,
    aio::{MultiplexedConnection, PubSub, PubSubStream},
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use futures_core::Stream;
use tokio::{
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::{
    stream::{self, TlsSettings},
    wire::{Watched, Wire},
};
use crate::{
    decision::Plan,
    error::{ConfigError, ConfigErrorKind},
};

/// Further requests wait for capacity, within their deadline.
const WRITE_QUEUE: usize = 4096;

type ByProgram<T> = Pin<Box<dyn Future<Output = Result<T, RedisError>> + Send>>;

pub(crate) type Connect = Arc<dyn Fn(ConnectionInfo) -> ByProgram<MultiplexedConnection> + Send + Sync>;

pub(crate) type Prepare = Arc<dyn Fn(ConnectionInfo) -> ByProgram<ConnectionInfo> + Send + Sync>;

/// Longer than any deadline: a stopped server whose buffers are full acknowledges nothing, but may resume in time.
const UNACKNOWLEDGED: Duration = Plan::LONGEST_DEADLINE.saturating_add(Duration::from_secs(15));

const SILENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct OpenConnection {
    connection: MultiplexedConnection,
    watch: Option<Arc<Watch>>,
}

struct Watch {
    wire: Arc<Wire>,
    task: AbortHandle,
}

impl Watch {
    async fn reply<T>(
        watch: Option<&Self>,
        reply: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let Some(watch) = watch else {
            return reply.await;
        };
        // A call sent while the driver is dropped can remain in its channel, where nothing else would end it.
        let (mut reply, mut ended) = (pin!(reply), pin!(watch.wire.ended()));
        poll_fn(|cx| {
            if let Poll::Ready(reply) = reply.as_mut().poll(cx) {
                return Poll::Ready(reply);
            }
            ready!(ended.as_mut().poll(cx));
            // The last replies may have arrived between the two.
            match reply.as_mut().poll(cx) {
                Poll::Pending => Poll::Ready(Err((ErrorKind::Io, "connection closed").into())),
                reply => reply,
            }
        })
        .await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl OpenConnection {
    pub(crate) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let reply = self.connection.send_packed_command(command);
        Watch::reply(self.watch.as_deref(), reply)
            .await
            .and_then(Value::extract_error)
            .map_err(without_user)
    }

    pub(crate) async fn send_after_asking(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let mut both = ::redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let replies = self.connection.send_packed_commands(&both, 0, 2);
        let mut replies = Watch::reply(self.watch.as_deref(), replies).await?;
        let missing = || (ErrorKind::Parse, "missing reply").into();
        let reply = replies.pop().ok_or_else(missing).and_then(Value::extract_error);
        reply.map_err(without_user)
    }

    pub(crate) fn wire(&self) -> Option<&Arc<Wire>> {
        Some(&self.watch.as_ref()?.wire)
    }

    pub(crate) fn end(&self) {
        if let Some(watch) = &self.watch {
            watch.wire.end();
            watch.task.abort();
        }
    }
}

pub(crate) struct Subscription(PubSubStream);

impl Subscription {
    pub(crate) async fn next(&mut self) -> Option<String> {
        let message = poll_fn(|cx| Pin::new(&mut self.0).poll_next(cx)).await?;
        // What is not text is none of the known messages.
        Some(message.get_payload().unwrap_or_default())
    }
}

#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) timeout: Duration,
    pub(crate) prepare: Option<Prepare>,
    pub(crate) connect: Option<Connect>,
    pub(crate) tls: TlsSettings,
}

impl Opener {
    pub(crate) async fn open(&self, mut to: ConnectionInfo) -> Result<OpenConnection, RedisError> {
        if let Some(prepare) = &self.prepare {
            let prepare = Arc::clone(prepare);
            to = self.by_program(move || prepare(to)).await?;
        }
        match &self.connect {
            Some(connect) => {
                let connect = Arc::clone(connect);
                Ok(OpenConnection {
                    connection: self.by_program(move || connect(to)).await?,
                    watch: None,
                })
            }
            None => self.by_itself(to).await,
        }
    }

    pub(crate) async fn by_itself(&self, to: ConnectionInfo) -> Result<OpenConnection, RedisError> {
        let too_late = |_| Err((ErrorKind::Io, "connection attempt timed out").into());
        let opening = self.first_of_two(to);
        let opened = timeout(self.timeout, opening).await.unwrap_or_else(too_late);
        opened.map_err(without_user)
    }

    pub(crate) async fn subscribe(&self, to: ConnectionInfo, channel: &str) -> Result<Subscription, RedisError> {
        // Nothing is sent on the connection, so only this shows that the network is interrupted.
        let alive = TcpKeepalive::new().with_time(SILENCE);
        let settings = to.tcp_settings().clone().set_keepalive(alive);
        let to = to.set_tcp_settings(settings);
        let opening = async {
            let unknown = || RedisError::from((ErrorKind::InvalidClientConfig, "address has no stream"));
            let stream = stream::open(&to, &self.tls).await?.ok_or_else(unknown)?;
            let mut connection = PubSub::new(&nameless(&to), stream).await?;
            connection.subscribe(channel).await?;
            Ok(Subscription(connection.into_on_message()))
        };
        let too_late = |_| Err((ErrorKind::Io, "subscription timed out").into());
        timeout(self.timeout, opening)
            .await
            .unwrap_or_else(too_late)
            .map_err(without_user)
    }

    /// A lost packet would otherwise use up the timeout.
    async fn first_of_two(&self, to: ConnectionInfo) -> Result<OpenConnection, RedisError> {
        let mut first = pin!(self.watched(&to));
        if let Ok(ended) = timeout(self.timeout / 4, &mut first).await {
            return ended;
        }
        let mut second = pin!(self.watched(&to));
        poll_fn(|cx| match first.as_mut().poll(cx) {
            Poll::Pending => second.as_mut().poll(cx),
            ended => ended,
        })
        .await
    }

    async fn watched(&self, to: &ConnectionInfo) -> Result<OpenConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            // The layer's deadline covers the whole decision.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE);
        let Some(stream) = stream::open(to, &self.tls).await? else {
            let connection = Client::open(to.clone())?
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            return Ok(OpenConnection {
                connection,
                watch: None,
            });
        };
        let (stream, wire) = Watched::new(stream);
        let (connection, driver) = MultiplexedConnection::new_with_config(&nameless(to), stream, config).await?;
        let task = tokio::spawn(driver).abort_handle();
        let mut opened = OpenConnection {
            connection,
            watch: Some(Arc::new(Watch { wire, task })),
        };
        let ping = ::redis::cmd("PING");
        let has_ended = |error: &RedisError| matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse);
        match opened.send(&ping).await {
            // Any reply shows that the server responds, even a denial. But before a server closes a connection that it
            // rejects, it replies with the reason.
            Err(error) if has_ended(&error) || opened.send(&ping).await.is_err_and(|next| has_ended(&next)) => {
                Err(error)
            }
            _ => Ok(opened),
        }
    }

    /// In a separate task: a panic in the pool's task would leave the attempt pending forever.
    async fn by_program<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> ByProgram<T> + Send + 'static,
    ) -> Result<T, RedisError> {
        let mut opening = JoinSet::new();
        opening.spawn(async move { call().await });
        match timeout(self.timeout, opening.join_next()).await {
            Ok(Some(Ok(opened))) => opened,
            Ok(_) => Err((ErrorKind::Io, "the custom connect function panicked").into()),
            Err(_) => Err((ErrorKind::Io, "the custom connect function timed out").into()),
        }
    }
}

/// Some proxies close a connection that reports the name of the library (`CLIENT SETINFO`).
fn nameless(to: &ConnectionInfo) -> RedisConnectionInfo {
    to.redis_settings().clone().set_skip_set_lib_name()
}

/// The user name is as confidential as the password. Older servers than Redis 7 write `this user`, and give no code if
/// a script lacks a permission.
fn without_user(error: RedisError) -> RedisError {
    if let Some((_, denied)) = error
        .detail()
        .and_then(|detail| detail.split_once("user executing the script can't "))
    {
        let kind = ErrorKind::Server(ServerErrorKind::NoPerm);
        return (kind, "missing permission", format!("this user can't {denied}")).into();
    }
    let parts = error.detail().and_then(|detail| {
        let (before, rest) = detail.split_once("User ")?;
        let (_, after) = rest.split_once(" has no permissions")?;
        Some(format!("{before}this user has no permissions{after}"))
    });
    match parts {
        Some(detail) => ::redis::make_extension_error("NOPERM".to_owned(), Some(detail)),
        None => error,
    }
}

pub(crate) fn config_error(message: impl AsRef<str>) -> ConfigError {
    ConfigError::new(ConfigErrorKind::Store, format!("redis store: {}", message.as_ref()))
}

pub(crate) fn connection_info(url: &str) -> Result<ConnectionInfo, ConfigError> {
    let info = url.into_connection_info().map_err(|cause| misunderstood(url, cause))?;
    check_tls(&info)?;
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let tcp = tcp.set_user_timeout(UNACKNOWLEDGED);
    let info = info.set_tcp_settings(tcp);
    Client::open(info.clone()).map_err(|cause| config_error(cause.to_string()).with_source(cause))?;
    Ok(info)
}

fn misunderstood(url: &str, cause: RedisError) -> ConfigError {
    let shown = without_secrets(url);
    let message = match url.split_once("://").map(|(scheme, _)| scheme) {
        Some("rediss" | "valkeys") if !HAS_TLS => {
            format!("URL {shown:?} requires TLS; enable the feature `redis-rustls` of tower-quota")
        }
        Some("redis" | "rediss" | "redis+unix" | "unix" | "valkey" | "valkeys" | "valkey+unix") => {
            format!("cannot parse URL {shown:?}: {cause}")
        }
        _ => format!(
            "invalid URL {shown:?}: must start with \"redis://\" (\"rediss://\" for TLS, \"redis+unix://\" for a Unix \
             socket)"
        ),
    };
    config_error(message).with_source(cause)
}

/// Also removes an invalid port, because it may be a password if the host is missing.
fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.find("://").map_or(("", url), |end| url.split_at(end + 3));
    let (rest, parameters) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    if parameters.contains('@') {
        // The password contains an unencoded `?` or `#`.
        return format!("{scheme}…");
    }
    let (user, place) = rest.rsplit_once('@').map_or(("", rest), |(_, place)| ("…@", place));
    let (address, path) = place.find('/').map_or((place, ""), |end| place.split_at(end));
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, if is_port(port) { port } else { "…" }),
        _ => return format!("{scheme}{user}{address}{path}"),
    };
    format!("{scheme}{user}{host}:{port}{path}")
}

#[cfg(not(feature = "redis-rustls"))]
const HAS_TLS: bool = false;
#[cfg(feature = "redis-rustls")]
const HAS_TLS: bool = true;

#[cfg(not(feature = "redis-rustls"))]
fn check_tls(_: &ConnectionInfo) -> Result<(), ConfigError> {
    Ok(())
}

/// rustls panics at the first connection if there is no crypto provider or more than one.
#[cfg(feature = "redis-rustls")]
fn check_tls(info: &ConnectionInfo) -> Result<(), ConfigError> {
    let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    if is_tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err(config_error(
            "TLS requires a rustls crypto provider; install one first, for example with \
             rustls::crypto::ring::default_provider().install_default()",
        ));
    }
    Ok(())
}

pub(crate) fn at(template: &ConnectionAddr, (to_host, to_port): (String, u16)) -> ConnectionAddr {
    let mut address = template.clone();
    match &mut address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            *host = to_host;
            *port = to_port;
        }
        _ => address = ConnectionAddr::Tcp(to_host, to_port),
    }
    address
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    fn opener() -> Opener {
        Opener {
            timeout: Duration::from_secs(10),
            prepare: None,
            connect: None,
            tls: TlsSettings::default(),
        }
    }

    #[tokio::test]
    async fn a_call_that_nobody_answers_ends_with_its_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = connection_info(&format!("redis://{}/", listener.local_addr().unwrap())).unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut ping = [0; b"*1\r\n$4\r\nPING\r\n".len()];
            stream.read_exact(&mut ping).await.unwrap();
            stream.write_all(b"+PONG\r\n").await.unwrap();
            stream.read_exact(&mut ping).await.unwrap();
            stream
        });
        let mut connection = opener().by_itself(to).await.unwrap();
        let wire = Arc::clone(connection.wire().unwrap());
        let ping = ::redis::cmd("PING");
        let mut call = pin!(connection.send(&ping));
        let stream = tokio::select! {
            reply = &mut call => panic!("nobody has answered: {reply:?}"),
            stream = server => stream.unwrap(),
        };
        wire.end();
        let ended = timeout(opener().timeout, call).await.expect("the call ends");
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Io);
        drop(stream);
    }

    fn error_of(url: &str) -> String {
        connection_info(url).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn a_url_that_is_not_understood_is_an_error_that_names_it_without_its_password() {
        let (no_scheme, no_url) = ("invalid URL: must start with", "cannot parse URL: ");
        for (url, shown, says) in [
            ("", "", "invalid URL: must start with \"redis://\""),
            ("127.0.0.1", "127.0.0.1", no_scheme),
            ("localhost:6379", "localhost:6379", no_scheme),
            ("localhost:6379/1", "localhost:6379/1", no_scheme),
            ("[::1]:6379", "[::1]:6379", no_scheme),
            ("[::1]", "[::1]", no_scheme),
            ("user:secret@localhost:6379", "…@localhost:6379", no_scheme),
            ("http://user:secret@127.0.0.1/", "http://…@127.0.0.1/", no_scheme),
            ("redis:/user:secret@127.0.0.1/", "…@127.0.0.1/", no_scheme),
            ("redis:secret", "redis:…", no_scheme),
            ("redis://user:my?secret@127.0.0.1/", "redis://…", no_url),
            ("redis://user:secret@127.0.0.1:port/", "redis://…@127.0.0.1:…/", no_url),
            ("redis://user:secret/", "redis://user:…/", no_url),
            ("redis://user:sec@secret@/", "redis://…@/", no_url),
            ("redis://:secret@/x", "redis://…@/x", no_url),
            ("redis://10.0.0.1/x?pass=secret", "redis://10.0.0.1/x", no_url),
        ] {
            let error = error_of(url);
            let begins = format!("redis store: {}", says.replace("URL", &format!("URL {shown:?}")));
            assert!(error.starts_with(&begins), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn an_error_has_its_cause_and_that_shows_no_password_either() {
        use std::error::Error;

        let error = connection_info("redis://user:secret@127.0.0.1:port/")
            .map(drop)
            .unwrap_err();
        let source = error.source().unwrap();
        assert!(error.to_string().ends_with(&source.to_string()), "{error}: {source}");
        assert!(!format!("{error:?} {source} {source:?}").contains("secret"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernel_does_not_end_a_connection_within_any_deadline() {
        let info = connection_info("redis://127.0.0.1/").unwrap();
        assert!(info.tcp_settings().user_timeout() > Some(Plan::LONGEST_DEADLINE));
        assert!(info.tcp_settings().nodelay());
    }

    #[test]
    fn tls_that_is_not_set_up_is_an_error_and_not_a_panic() {
        let error = error_of("rediss://127.0.0.1/");
        assert!(error.contains("TLS"), "{error}");
        assert!(HAS_TLS || error.contains("`redis-rustls`"), "{error}");
    }
}
