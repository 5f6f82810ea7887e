//! Errors: of a configuration, found by `build()`; and of a store, at run time.

use std::{borrow::Cow, error::Error, fmt, ops::RangeInclusive, sync::Arc};

/// A mistake in the configuration, found before the first request.
///
/// The message names the policy or setting, the value and the bound. Match on [`kind`](Self::kind) rather than on the
/// text.
///
/// ```
/// use tower_quota::{ConfigErrorKind, MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// let error = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::client_ip())
///     .policy(QuotaPolicy::per_minute("minute", 10).with_burst_capacity(0))
///     .build()
///     .unwrap_err();
///
/// assert_eq!(error.kind(), ConfigErrorKind::BurstCapacity);
/// assert_eq!(error.to_string(), "policy \"minute\": burst capacity 0 is outside 1..=999999999999999");
/// ```
///
/// If another error is behind it, from reading a URL for example, that is its
/// [`source`](std::error::Error::source). Two errors are equal if kind and message are.
#[derive(Clone, Debug)]
pub struct ConfigError {
    kind: ConfigErrorKind,
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The category of a [`ConfigError`].
///
/// You want it where settings come from outside of the program, to say which of them is to be mended.
///
/// ```
/// use tower_quota::{PolicySet, ConfigErrorKind, QuotaPolicy};
///
/// /// Which column of a table of limits is to be mended.
/// fn column(name: &'static str, requests: u64) -> &'static str {
///     match PolicySet::new([QuotaPolicy::per_hour(name, requests)]) {
///         Ok(_) => "",
///         Err(error) if error.kind() == ConfigErrorKind::Quota => "requests per hour",
///         Err(error) if error.kind() == ConfigErrorKind::PolicyName => "name",
///         Err(_) => "another",
///     }
/// }
/// assert_eq!(column("mails", u64::MAX), "requests per hour");
/// assert_eq!(column("", 5), "name");
/// assert_eq!(column("mails", 5), "");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// An access list: a network in it that cannot be read, one rule too many, or a second list for one layer.
    AccessRules,
    /// The algorithm of a policy.
    Algorithm,
    /// The time for which a policy [blocks](crate::QuotaPolicy::with_lockout).
    Lockout,
    /// The burst capacity of a policy.
    BurstCapacity,
    /// The current capacity of a service.
    Capacity,
    /// The cost of every request, which a policy could never let pass.
    Cost,
    /// A time limit: the deadline of a decision, a connection time.
    Deadline,
    /// The size of the rejection cache.
    RejectionCache,
    /// The number of requests that may wait for a store.
    MaxWaiting,
    /// No policies, or more than one layer can hold.
    Policies,
    /// Two policies of one layer with the same name, or with names that cannot be told apart in a store.
    DuplicatePolicy,
    /// Two tiers with the same name.
    DuplicateTier,
    /// Requests that are not counted: a path or network that cannot be read, or too many exemptions.
    Exemption,
    /// A second claim of the rules of one limiter: see [`RulesHandle::claim`](crate::RulesHandle::claim).
    Claim,
    /// The attribution of requests: a missing key, an unreadable network, a prefix length, a header name.
    Key,
    /// The name of a policy.
    PolicyName,
    /// The quota of a policy.
    Quota,
    /// The status of rejections, because of a quota or of an access list.
    RejectionStatus,
    /// The response fields: a setting, or a policy that the chosen dialect cannot express.
    ResponseFields,
    /// The scope of a layer.
    Scope,
    /// A setting of a store: its address, credentials, TLS, size.
    Store,
    /// A setting of a [`TierLayer`](crate::tier::TierLayer).
    Tier,
    /// A unit of your own: its name, its cost, or one too many.
    Unit,
    /// The number of units that an instance may prefetch at once.
    Prefetch,
    /// The window of a policy.
    Window,
}

impl ConfigError {
    pub(crate) fn new(kind: ConfigErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The same error with its cause.
    pub(crate) fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The same error about a part of something: `policy "a": …`.
    pub(crate) fn within(mut self, whole: impl fmt::Display) -> Self {
        self.message.insert_str(0, &format!("{whole}: "));
        self
    }

    /// An error of this kind if `value` is outside `range`; `name` is that of the setting.
    pub(crate) fn check_range<T: PartialOrd + fmt::Debug>(
        kind: ConfigErrorKind,
        name: impl fmt::Display,
        value: T,
        range: RangeInclusive<T>,
    ) -> Result<(), Self> {
        match range.contains(&value) {
            true => Ok(()),
            false => Err(Self::new(kind, format!("{name} {value:?} is outside {range:?}"))),
        }
    }

    /// The category of the error.
    pub fn kind(&self) -> ConfigErrorKind {
        self.kind
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl PartialEq for ConfigError {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.message) == (other.kind, &other.message)
    }
}

impl Eq for ConfigError {}

impl Error for ConfigError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_deref()?)
    }
}

/// The reason why a store gave no decision.
///
/// No client ever sees it: the layer's [`FailureMode`](crate::FailureMode) decides what happens to the request. You
/// meet it when you ask a store yourself, and make it in a [`Store`](crate::Store) of your own.
///
/// ```
/// use std::{error::Error, io};
/// use tower_quota::{StoreError, StoreErrorKind};
///
/// let cut = io::Error::from(io::ErrorKind::ConnectionReset);
/// let error = StoreError::new(StoreErrorKind::Unreachable, "no answer from shard 3").with_source(cut);
///
/// assert_eq!(error.kind(), StoreErrorKind::Unreachable);
/// assert_eq!(error.to_string(), "store unreachable: no answer from shard 3");
/// assert_eq!(error.source().map(|cause| cause.to_string()), Some("connection reset".to_owned()));
/// ```
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The kinds of [`StoreError`], by what they say about the next call.
///
/// After five errors in a row that are [`TimedOut`](Self::TimedOut), [`Unavailable`](Self::Unavailable) or
/// [`Unreachable`](Self::Unreachable), the circuit breaker of a layer opens, and the store is left alone for a while.
/// A missed deadline counts only if the store has answered no call since this one began: a store that answers others is
/// there, and it is the process or the network that was late. [`Failed`](Self::Failed) is an answer like any other:
/// the count resets. [`Overloaded`](Self::Overloaded) changes nothing.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
/// use tower_quota::{Measurement, Plan, QuotaPolicy, RateLimitLayer, Store, StoreError, StoreErrorKind, StoreFuture, key};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # use tower_quota::{Limiter, RateLimitLayerBuilder, Settlement, clock::{Clock, Timestamp}};
///
/// /// Always fails, and counts how often.
/// #[derive(Clone, Debug)]
/// struct Failing(StoreErrorKind, Arc<AtomicUsize>);
///
/// impl Store for Failing {
///     fn acquire(&self, _: Plan) -> StoreFuture<Measurement> {
///         self.1.fetch_add(1, Ordering::Relaxed);
///         StoreFuture::ready(Err(StoreError::new(self.0, "injected")))
///     }
///     # fn settle(&self, _: Settlement) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
///     # fn reset(&self, _: Plan) -> StoreFuture<()> { StoreFuture::ready(Ok(())) }
///     // …
/// }
///
/// // The number of calls that it gets from twenty requests.
/// let calls = async |kind| {
///     let store = Failing(kind, Arc::default());
/// #   let layer = RateLimitLayerBuilder::from(Limiter::builder(store.clone()).clock(Clock::manual(Timestamp::from_micros(0))))
/// #       .scope("api").key(key::header("x-user-id")).policy(QuotaPolicy::per_minute("minute", 5)).build().unwrap();
/// #   let service = service_fn(async |_: http::Request<()>| {
/// #       Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// #   });
/// #   let service = layer.layer(service);
/// #   for _ in 0..20 {
/// #       let request = http::Request::get("/").header("x-user-id", "alice").body(()).unwrap();
/// #       assert_eq!(service.clone().oneshot(request).await.unwrap().status(), 200);
/// #   }
///     // … a layer around a service, and the requests
///     store.1.load(Ordering::Relaxed)
/// };
///
/// # tokio_test::block_on(async {
/// assert_eq!(calls(StoreErrorKind::Unreachable).await, 5);
/// assert_eq!(calls(StoreErrorKind::Failed).await, 20);
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The circuit breaker is open: the store was not asked.
    CircuitOpen,
    /// The store was not asked, because more requests wait for it than it decides in time, or than
    /// [may wait](crate::LimiterBuilder::max_waiting), or the process had no time to read the answer. This kind says
    /// nothing about the server's health and does not open the circuit.
    Overloaded,
    /// The store answered, but not with a decision: a script error, a missing permission. The next call may well succeed,
    /// so this kind does not open the circuit.
    Failed,
    /// No answer within the deadline.
    TimedOut,
    /// The store answered that it cannot work now: read-only, loading.
    Unavailable,
    /// The store has no memory for another charge (`OOM` from Redis). It still rejects callers whose quota is exhausted, so
    /// this kind does not open the circuit. See [`fallback`](crate::LimiterBuilder::fallback) for what decides then.
    OutOfMemory,
    /// The store could not be reached: connection refused, cut or reset, or a reply on it was not that of its call.
    Unreachable,
}

impl StoreErrorKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::CircuitOpen => "circuit open",
            Self::Overloaded => "overloaded",
            Self::Failed => "failed",
            Self::TimedOut => "timed out",
            Self::Unavailable => "unavailable",
            Self::OutOfMemory => "out of memory",
            Self::Unreachable => "unreachable",
        }
    }
}

impl StoreError {
    /// An error of this kind, without a cause; `message` should say what was attempted and what came back.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The category of the error: its meaning for the next call.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Both errors in one, of this kind.
    pub(crate) fn beside(mut self, other: Self) -> Self {
        self.message = format!("{}; {}", self.message, other.message).into();
        self
    }

    /// Returns `true` if the whole store is affected, so that another call at once would only cost time.
    pub(crate) fn opens_circuit(&self) -> bool {
        use StoreErrorKind::{TimedOut, Unavailable, Unreachable};

        matches!(self.kind, TimedOut | Unavailable | Unreachable)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {}: {}", self.kind.as_str(), self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.source.as_deref()?)
    }
}
