use std::{
    error::Error,
    fmt,
    ops::RangeInclusive,
    time::{Duration, Instant},
};

/// An invalid setting of [`ClientLayerBuilder`](super::ClientLayerBuilder) or [`Caps`](super::Caps).
///
/// The message names the setting, its value and the range.
///
/// ```
/// use tower_ratelimit_client::ClientLayer;
///
/// let error = ClientLayer::builder().max_waiting(0).build().unwrap_err();
/// assert_eq!(error.setting(), "max_waiting");
/// assert_eq!(error.to_string(), "client: max_waiting 0 is outside 1..=1000000");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    setting: &'static str,
    problem: String,
}

/// The error of a [`Client`](super::Client).
///
/// ```
/// use std::{io, time::Duration};
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_ratelimit_client::{ClientError, ClientLayer};
///
/// fn is_worth_another_server<E>(error: &ClientError<E>) -> bool {
///     matches!(error, ClientError::Throttled(_))
/// }
///
/// # tokio_test::block_on(async {
/// let service = service_fn(async |request: Request<()>| match request.uri().path() {
///     "/" => Ok(Response::builder().header("ratelimit", r#""daily";r=0;t=60"#).body(()).unwrap()),
///     _ => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
/// });
/// let client = ClientLayer::builder().queue_timeout(Duration::ZERO).build()?.layer(service);
/// let get = |uri| client.clone().oneshot(Request::get(uri).body(()).unwrap());
///
/// let error = get("http://a.example/away").await.unwrap_err();
/// assert_eq!(error.to_string(), "connection reset");
/// assert!(!is_worth_another_server(&error));
///
/// get("http://a.example/").await?;
/// assert!(is_worth_another_server(&get("http://a.example/").await.unwrap_err()));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError<E> {
    /// The inner service failed.
    Inner(E),
    /// The request was not sent, because it would have waited too long, or too many were waiting.
    Throttled(Throttled),
}

/// The error of a request that was not sent.
///
/// ```
/// use std::time::Duration;
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_ratelimit_client::{ClientError, ClientLayer, ThrottledKind};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // A server with no units for a minute.
/// let server = service_fn(async |_: Request<()>| Response::builder().header("ratelimit", r#""a";r=0;t=60"#).body(()));
/// let layer = ClientLayer::builder().queue_timeout(Duration::from_secs(10)).jitter_percent(0).build()?;
/// let client = layer.layer(server);
/// let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
///
/// get().await?;
/// let ClientError::Throttled(error) = get().await.unwrap_err() else { panic!() };
/// assert_eq!(error.kind(), ThrottledKind::TooLong);
/// assert_eq!(error.retry_after(), Some(Duration::from_secs(60)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttled {
    kind: ThrottledKind,
    retry_after: Option<Duration>,
}

/// The reason for a [`Throttled`] error.
///
/// ```
/// use std::time::Duration;
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_ratelimit_client::{ClientError, ClientLayer, ThrottledKind};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // A server with no units for 30 seconds.
/// let server = service_fn(async |_: Request<()>| Response::builder().header("ratelimit", r#""a";r=0;t=30"#).body(()));
/// let client = ClientLayer::builder().queue_timeout(Duration::from_secs(60)).max_waiting(1).build()?.layer(server);
/// let get = || client.clone().oneshot(Request::get("http://a.example/").body(()).unwrap());
///
/// get().await?;
/// let (first, second) = tokio::join!(get(), get());
/// assert!(first.is_ok(), "the first request waits");
/// let ClientError::Throttled(error) = second.unwrap_err() else { panic!() };
/// assert_eq!(error.kind(), ThrottledKind::TooMany);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ThrottledKind {
    /// The wait exceeds, or has exceeded, the [`queue_timeout`](super::ClientLayerBuilder::queue_timeout).
    TooLong,
    /// The [maximum number of requests](super::ClientLayerBuilder::max_waiting) is already waiting.
    TooMany,
}

impl BuildError {
    pub(super) fn new(setting: &'static str, problem: impl Into<String>) -> Self {
        Self {
            setting,
            problem: problem.into(),
        }
    }

    pub(super) fn check_range<T: PartialOrd + fmt::Debug>(
        setting: &'static str,
        value: T,
        range: RangeInclusive<T>,
    ) -> Result<(), Self> {
        match range.contains(&value) {
            true => Ok(()),
            false => Err(Self::new(setting, format!("{value:?} is outside {range:?}"))),
        }
    }

    /// Returns the setting: a method of the builder, a field of [`Strategy`](super::Strategy), or a parameter of
    /// [`Caps::new`](super::Caps::new).
    pub fn setting(&self) -> &'static str {
        self.setting
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client: {} {}", self.setting, self.problem)
    }
}

impl Error for BuildError {}

impl Throttled {
    pub(super) fn new(kind: ThrottledKind, now: Instant, until: Option<Instant>) -> Self {
        Self {
            kind,
            retry_after: until.map(|until| until.saturating_duration_since(now)),
        }
    }

    /// Returns the reason why the request was not sent.
    pub fn kind(&self) -> ThrottledKind {
        self.kind
    }

    /// Returns the time from this error until the server is expected to have units. `None` if the request only waited
    /// behind others.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("request not sent: ")?;
        f.write_str(match self.kind {
            ThrottledKind::TooLong => "the wait for the server's quota is too long",
            ThrottledKind::TooMany => "too many requests wait for the server's quota",
        })?;
        match self.retry_after {
            Some(wait) => write!(f, "; retry after {wait:?}"),
            None => Ok(()),
        }
    }
}

impl Error for Throttled {}

impl<E: fmt::Display> fmt::Display for ClientError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inner(error) => error.fmt(f),
            Self::Throttled(error) => error.fmt(f),
        }
    }
}

/// `Display` shows the inner error.
impl<E: Error> Error for ClientError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Inner(error) => error.source(),
            Self::Throttled(error) => error.source(),
        }
    }
}

impl<E> From<Throttled> for ClientError<E> {
    fn from(error: Throttled) -> Self {
        Self::Throttled(error)
    }
}
