use std::{borrow::Cow, error::Error, fmt, ops::RangeInclusive, sync::Arc};

/// An invalid configuration, detected before the first request.
///
/// The message names the policy or setting, the value and the allowed range. Match on [`kind`](Self::kind), not on the
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
/// An underlying error, such as of a URL, is the [`source`](std::error::Error::source). Errors are equal if their kinds
/// and messages are.
#[derive(Clone, Debug)]
pub struct ConfigError {
    kind: ConfigErrorKind,
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The category of a [`ConfigError`].
///
/// ```
/// use tower_quota::{PolicySet, ConfigErrorKind, QuotaPolicy};
///
/// /// Returns the invalid column of a table of limits.
/// fn column(name: &'static str, requests: u64) -> &'static str {
///     match PolicySet::new([QuotaPolicy::per_hour(name, requests)]) {
///         Ok(_) => "",
///         Err(error) if error.kind() == ConfigErrorKind::Quota => "requests per hour",
///         Err(error) if error.kind() == ConfigErrorKind::PolicyName => "name",
///         Err(_) => "unknown",
///     }
/// }
///
/// assert_eq!(column("mails", u64::MAX), "requests per hour");
/// assert_eq!(column("", 5), "name");
/// assert_eq!(column("mails", 5), "");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// An access list: an invalid network, too many rules, or a second list for one layer.
    AccessRules,
    /// The algorithm of a policy.
    Algorithm,
    /// The duration for which a policy [locks out](crate::QuotaPolicy::with_lockout) callers.
    Lockout,
    /// The burst capacity of a policy.
    BurstCapacity,
    /// The current capacity of a service.
    Capacity,
    /// A cost of every request above what a policy can admit.
    Cost,
    /// A timeout, such as the deadline of a decision or of a connection.
    Deadline,
    /// The size of the rejection cache.
    RejectionCache,
    /// The maximum number of requests that wait for a store.
    MaxWaiting,
    /// No policies, or more than a layer can have.
    Policies,
    /// Two policies of a layer with the same name, or with names that a store cannot distinguish.
    DuplicatePolicy,
    /// Two tiers with the same name.
    DuplicateTier,
    /// An exemption: an invalid path or network, or too many of them.
    Exemption,
    /// A second claim of a limiter's rules: see [`RulesHandle::claim`](crate::RulesHandle::claim).
    Claim,
    /// The key: missing, or with an invalid network, prefix length or header name.
    Key,
    /// The name of a policy.
    PolicyName,
    /// The quota of a policy.
    Quota,
    /// The status of requests rejected by a quota or an access list.
    RejectionStatus,
    /// The response fields: an invalid setting, or a policy that the chosen dialect cannot express.
    ResponseFields,
    /// The scope of a layer.
    Scope,
    /// A setting of a store, such as its address, credentials, TLS or size.
    Store,
    /// A setting of a [`TierLayer`](crate::tier::TierLayer).
    Tier,
    /// A custom unit: an invalid name, a missing cost, or too many units.
    Unit,
    /// The number of units that an instance may prefetch.
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

    pub(crate) fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn within(mut self, whole: impl fmt::Display) -> Self {
        self.message.insert_str(0, &format!("{whole}: "));
        self
    }

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

    /// Returns the category of the error.
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

/// The reason why a store could not make a decision. The [`FailureMode`](crate::FailureMode) then determines what
/// happens to the request; clients never see the error.
///
/// ```
/// use std::{error::Error, io};
/// use tower_quota::{StoreError, StoreErrorKind};
///
/// let cut = io::Error::from(io::ErrorKind::ConnectionReset);
/// let error = StoreError::new(StoreErrorKind::Unreachable, "no reply from shard 3").with_source(cut);
///
/// assert_eq!(error.kind(), StoreErrorKind::Unreachable);
/// assert_eq!(error.to_string(), "store unreachable: no reply from shard 3");
/// assert_eq!(error.source().map(|cause| cause.to_string()), Some("connection reset".to_owned()));
/// ```
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The kind of a [`StoreError`], which determines how the circuit breaker treats it.
///
/// [`TimedOut`](Self::TimedOut), [`Unavailable`](Self::Unavailable) and [`Unreachable`](Self::Unreachable) count as
/// [failures](crate::LimiterBuilder::deadline), a timeout only if no other call has completed since the late call
/// began. [`Failed`](Self::Failed) resets the count, like any response; [`Overloaded`](Self::Overloaded) does not
/// affect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The circuit breaker is open, so the store was not called.
    CircuitOpen,
    /// Too many requests are waiting: more than the store can decide in time, or more than
    /// [`max_waiting`](crate::LimiterBuilder::max_waiting). Also returned if the store only replied to other calls
    /// until the end of the [extended deadline](crate::LimiterBuilder::deadline).
    Overloaded,
    /// The store responded without a decision, for example because of a script error or a missing permission.
    Failed,
    /// The store did not respond within the deadline.
    TimedOut,
    /// The store is not operational, for example because it is read-only or loading.
    Unavailable,
    /// The store has no memory for another charge (`OOM` from Redis). Exhausted callers are still rejected, so the
    /// circuit stays closed. See [`fallback`](crate::LimiterBuilder::fallback) for the store that decides instead.
    OutOfMemory,
    /// The store could not be reached, the connection broke, or it delivered a reply to a different call.
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
    /// Creates an error. `message` should describe what was attempted and the response.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Adds the underlying error.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    pub(crate) fn beside(mut self, other: Self) -> Self {
        self.message = format!("{}; {}", self.message, other.message).into();
        self
    }

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
