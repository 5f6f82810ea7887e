//! Settings of a client, checked as a whole.

use std::{
    fmt,
    ops::RangeInclusive,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use http::request::Parts;

use super::{
    Caps, ClientLayer, NoRetries, Retries, Strategy,
    origin::Hall,
    origins::{Origins, PartitionOf},
    pacing::Pacing,
};
use crate::{
    clock::Clock,
    error::{ConfigError, ConfigErrorKind},
};

/// Settings of a [`ClientLayer`]. All have a default.
#[must_use = "a builder does nothing until `build` is called"]
pub struct ClientLayerBuilder<R = NoRetries> {
    strategy: Strategy,
    wait_cap: Duration,
    unit_cap: u64,
    trusts_dates: bool,
    patience: Duration,
    max_waiting: usize,
    max_origins: usize,
    jitter_percent: u8,
    partition_of: Option<Box<PartitionOf>>,
    clock: Clock,
    retries: u8,
    retry: R,
}

impl ClientLayerBuilder {
    pub(super) fn new() -> Self {
        Self {
            strategy: Strategy::default(),
            wait_cap: Caps::default().wait(),
            unit_cap: Caps::default().units(),
            trusts_dates: Caps::default().trusts_dates(),
            patience: Duration::from_secs(120),
            max_waiting: 1_024,
            max_origins: 1_024,
            jitter_percent: 10,
            partition_of: None,
            clock: Clock::tokio(),
            retries: 0,
            retry: NoRetries,
        }
    }
}

impl<R> ClientLayerBuilder<R> {
    const PATIENCES: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);
    const COUNTS: RangeInclusive<usize> = 1..=1_000_000;

    /// How the units that are left are used. Default: [`Strategy::Wait`].
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// The longest wait that a server is believed, one second to one day. Default: ten minutes.
    ///
    /// After it a request is sent, even if `Retry-After` or a window is longer.
    pub fn wait_cap(mut self, wait: Duration) -> Self {
        self.wait_cap = wait;
        self
    }

    /// The most units that a server is believed to have left, at least one. Default: 10 000.
    pub fn unit_cap(mut self, units: u64) -> Self {
        self.unit_cap = units;
        self
    }

    /// Whether `Date` fields are compared with this computer's time: see [`Caps::trusting_dates`]. Default: no.
    pub fn trust_dates(mut self, trusts_dates: bool) -> Self {
        self.trusts_dates = trusts_dates;
        self
    }

    /// How long a request waits for its turn, at most one day. Default: two minutes.
    ///
    /// It begins when the service is called, and no turn comes after it, neither the first nor that of a retry. It does
    /// not bound the time for the response. A request that is known to have to wait longer fails at once. Zero lets no
    /// request wait.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How many requests may wait at the same time, in all clones and for all origins together, 1 to a million.
    /// Default: 1 024. One more fails at once.
    pub fn max_waiting(mut self, requests: usize) -> Self {
        self.max_waiting = requests;
        self
    }

    /// How many origins, or partitions of origins, are remembered, 1 to a million. Default: 1 024.
    ///
    /// One more makes another be forgotten: one of which nothing is known, if possible.
    pub fn max_origins(mut self, origins: usize) -> Self {
        self.max_origins = origins;
        self
    }

    /// Makes each wait longer by a random part of it, up to so many percent, at most 100. Default: 10.
    ///
    /// So not all clients of a server return at one moment. All requests of this client that wait for one origin wait
    /// equally long.
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.jitter_percent = percent;
        self
    }

    /// Whose quota a request uses at its server: a user, an API key, a tenant. Default: all requests to one origin
    /// share what is known of it.
    ///
    /// You want it if one client sends with the credentials of several users: then one of them who has used up a quota
    /// does not hold back the others. Compute what the server computes for the parameter `pk` of its fields, if you
    /// know how; where its responses speak of several partitions, the client then finds its own. Anything else that
    /// tells the users apart will do, too. What it returns never leaves the process.
    ///
    /// ```
    /// use tower_quota::client::ClientLayer;
    ///
    /// let layer = ClientLayer::builder()
    ///     .partition_by(|request| {
    ///         let key = request.headers.get("authorization")?;
    ///         Some(key.as_bytes().to_vec())
    ///     })
    ///     .build()?;
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    pub fn partition_by(mut self, partition_of: impl Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        self.partition_of = Some(Box::new(partition_of));
        self
    }

    /// The clock. Default: [`Clock::tokio`], which is the clock of the timers that requests wait with.
    ///
    /// Requests wait for as long as another clock stands still.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sends requests again that were refused, up to 10 times each. Default: never.
    ///
    /// A request is sent again after a response 429 with `Retry-After`, whatever its method, since it was not
    /// processed; and after 503 with `Retry-After` if its method is idempotent, since a server may have begun with it.
    /// The response is dropped, and the request waits as others do. If it cannot wait that long, or `clone_body` gives
    /// nothing, you get the response.
    ///
    /// `clone_body` gives the content once more; `None` if it cannot be had. It is called for each request before it is
    /// sent.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::Full;
    /// use tower_quota::client::ClientLayer;
    ///
    /// let layer = ClientLayer::builder()
    ///     .retries(3, |body: &Full<Bytes>| Some(body.clone()))
    ///     .build()?;
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// ```
    pub fn retries<B, F>(self, count: u8, clone_body: F) -> ClientLayerBuilder<Retries<F>>
    where
        F: Fn(&B) -> Option<B>,
    {
        ClientLayerBuilder {
            strategy: self.strategy,
            wait_cap: self.wait_cap,
            unit_cap: self.unit_cap,
            trusts_dates: self.trusts_dates,
            patience: self.patience,
            max_waiting: self.max_waiting,
            max_origins: self.max_origins,
            jitter_percent: self.jitter_percent,
            partition_of: self.partition_of,
            clock: self.clock,
            retries: count,
            retry: Retries::new(count, clone_body),
        }
    }

    /// The layer, if the settings are sound.
    ///
    /// # Errors
    ///
    /// The first setting that is out of its range. The message names the setting, the value and the bound.
    pub fn build(self) -> Result<ClientLayer<R>, ConfigError> {
        let caps = Caps::new(self.wait_cap, self.unit_cap)?.trusting_dates(self.trusts_dates);
        if let Strategy::Pace { below_percent } = self.strategy {
            check("pace below_percent", below_percent, 1..=100)?;
        }
        check("patience", self.patience, Self::PATIENCES)?;
        check("max_waiting", self.max_waiting, Self::COUNTS)?;
        check("max_origins", self.max_origins, Self::COUNTS)?;
        check("jitter_percent", self.jitter_percent, 0..=100)?;
        check("retries", self.retries, 0..=Retries::<()>::MAX)?;
        let (strategy, jitter) = (self.strategy, self.jitter_percent);
        let new_pacing = move || Pacing::new(strategy, caps).with_jitter(jitter);
        let hall = Hall {
            clock: self.clock,
            caps,
            patience: self.patience,
            max_waiting: self.max_waiting,
            waiting: AtomicUsize::new(0),
        };
        Ok(ClientLayer {
            origins: Arc::new(Origins::new(self.max_origins, self.partition_of, new_pacing)),
            hall: Arc::new(hall),
            retry: self.retry,
        })
    }
}

fn check<T: PartialOrd + fmt::Debug>(name: &str, value: T, range: RangeInclusive<T>) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("client: {name} {value:?} is outside {range:?}");
    Err(ConfigError::new(ConfigErrorKind::Client, message))
}

impl<R> fmt::Debug for ClientLayerBuilder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientLayerBuilder")
            .field("strategy", &self.strategy)
            .field("patience", &self.patience)
            .field("max_waiting", &self.max_waiting)
            .finish_non_exhaustive()
    }
}
