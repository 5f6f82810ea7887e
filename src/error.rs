//! What can go wrong: in a configuration, found by `build()`; and in a store, met at run time.

use std::{borrow::Cow, error::Error, fmt, sync::Arc};

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
///     .policy(QuotaPolicy::per_minute("minute", 0))
///     .build()
///     .unwrap_err();
///
/// assert_eq!(error.kind(), ConfigErrorKind::Quota);
/// assert_eq!(error.to_string(), "policy \"minute\": quota 0 is outside 1..=999999999999999");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    kind: ConfigErrorKind,
    message: String,
}

/// What a [`ConfigError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// A rule of an access list: a network that cannot be read, or one rule too many.
    AccessRules,
    /// The algorithm of a policy.
    Algorithm,
    /// The burst capacity of a policy.
    BurstCapacity,
    /// A setting of a client: how long it waits, how much it believes.
    Client,
    /// A time limit: the deadline of a decision, a connection time.
    Deadline,
    /// How many refusals are remembered.
    DenialCache,
    /// No policies, or more than one layer can hold.
    Policies,
    /// Two policies of one layer with the same name, or with names that cannot be told apart in a store.
    DuplicatePolicy,
    /// Two tiers with the same name.
    DuplicateTier,
    /// Requests that are not counted: a path or network that cannot be read, or too many exemptions.
    Exemption,
    /// More for one caller than the rules say.
    Grant,
    /// How requests are attributed: a missing key, an unreadable network, a prefix length, a header name.
    Key,
    /// The name of a policy.
    PolicyName,
    /// The quota of a policy.
    Quota,
    /// The status of refusals, because of a quota or of an access list.
    RefusalStatus,
    /// What responses tell clients: a setting, or a policy that the chosen dialect cannot say.
    ResponseFields,
    /// The scope of a layer.
    Scope,
    /// A setting of a store: its address, credentials, TLS, size.
    Store,
    /// A setting of a [`TierLayer`](crate::TierLayer).
    Tier,
    /// How many units of a policy an instance may take at once.
    UnitBlock,
    /// The window of a policy.
    Window,
}

impl ConfigError {
    pub(crate) fn new(kind: ConfigErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// What the error is about.
    pub fn kind(&self) -> ConfigErrorKind {
        self.kind
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for ConfigError {}

/// Why a store gave no decision.
///
/// No client ever sees it: the layer's [`FailureMode`](crate::FailureMode) decides what happens to the request.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The kinds of [`StoreError`], by what they say about the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The circuit breaker is open: the store was not asked.
    CircuitOpen,
    /// The store answered, but not with a decision: a script error, a missing permission, an unreadable reply. The
    /// next call may well succeed, so this kind does not open the circuit.
    Rejected,
    /// No answer within the deadline.
    TimedOut,
    /// The store answered that it cannot work now: read-only, loading, out of memory.
    Unavailable,
    /// The store could not be reached: connection refused, cut or reset.
    Unreachable,
}

impl StoreErrorKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::CircuitOpen => "circuit open",
            Self::Rejected => "rejected",
            Self::TimedOut => "timed out",
            Self::Unavailable => "unavailable",
            Self::Unreachable => "unreachable",
        }
    }
}

impl StoreError {
    /// An error of this kind; `message` should say what was attempted and what came back.
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

    /// What the error says about the next call.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the store as a whole is in trouble, so that asking it again at once would only cost time.
    pub(crate) fn opens_circuit(&self) -> bool {
        match self.kind {
            StoreErrorKind::TimedOut | StoreErrorKind::Unavailable | StoreErrorKind::Unreachable => true,
            StoreErrorKind::CircuitOpen | StoreErrorKind::Rejected => false,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {}: {}", self.kind.as_str(), self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_ref()
            .map(|source| source.as_ref() as &(dyn Error + 'static))
    }
}
