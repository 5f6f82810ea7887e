use std::{borrow::Cow, time::Duration};

use http::request::Parts;

use crate::error::{ConfigError, ConfigErrorKind};

/// The current capacity of a service, returned by the closure of
/// [`RateLimitLayerBuilder::capacity`](crate::RateLimitLayerBuilder::capacity).
///
/// ```
/// use std::{
///     sync::{Arc, atomic::{AtomicU8, Ordering}},
///     time::Duration,
/// };
/// use tower_quota::{Capacity, MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let load = Arc::new(AtomicU8::new(50)); // set by a task that monitors the load
/// let current = Arc::clone(&load);
/// let quarter = Capacity::reduced_to(25)?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .capacity(move |_request| match current.load(Ordering::Relaxed) {
///         0..80 => Capacity::full(),
///         80..95 => quarter,
///         _ => Capacity::exhausted(Duration::from_secs(5)),
///     })
///     .build()?;
/// # let request = || http::Request::get("/");
/// # let full = set_up::send(&layer, request()).await;
/// # assert_eq!(full.headers()["ratelimit-policy"], r#""hour";q=100;w=3600"#);
/// # load.store(90, Ordering::Relaxed);
/// # let reduced = set_up::send(&layer, request()).await;
/// # assert_eq!(reduced.headers()["ratelimit-policy"], r#""hour";q=25;w=3600"#);
/// # load.store(100, Ordering::Relaxed);
/// # let exhausted = set_up::send(&layer, request()).await;
/// # assert_eq!(exhausted.status(), 503);
/// # assert_eq!(exhausted.headers()["retry-after"], "5");
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capacity(pub(super) Level);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Level {
    Exhausted(Duration),
    #[default]
    Full,
    Reduced(u8),
}

impl Capacity {
    /// The full capacity. The default.
    pub const fn full() -> Self {
        Self(Level::Full)
    }

    /// Reduces all quotas, burst capacities and queues to `percent` percent, at least to one unit. Units used before
    /// still count. Clients see the reduced policies, and rejections have status 503 and the problem type
    /// `temporary-reduced-capacity`.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigErrorKind::Capacity`] if `percent` is outside 1 to 99. Create the value outside the hook, or use
    /// `unwrap_or_default` for [`full`](Self::full).
    pub fn reduced_to(percent: u8) -> Result<Self, ConfigError> {
        if (1..=99).contains(&percent) {
            return Ok(Self(Level::Reduced(percent)));
        }
        let message = format!("capacity: percentage {percent} is outside 1..=99");
        Err(ConfigError::new(ConfigErrorKind::Capacity, message))
    }

    /// Rejects the request with status 503, without calling the store.
    ///
    /// `Retry-After` is set to `retry_after`, at least one second. The problem type is `temporary-reduced-capacity`.
    pub const fn exhausted(retry_after: Duration) -> Self {
        Self(Level::Exhausted(retry_after))
    }
}

/// The classification of a request as abnormal usage, returned by the closure of
/// [`RateLimitLayerBuilder::abnormal_usage`](crate::RateLimitLayerBuilder::abnormal_usage).
///
/// The request is rejected with status 429 and the problem type `abnormal-usage-detected`, and is not counted.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{AbnormalUsage, MemoryStore, QuotaPolicy, RateLimitLayer, key};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .abnormal_usage(|request| match request.uri.path() {
///         "/.env" => Some(AbnormalUsage::new().with_retry_after(Duration::from_secs(3_600))),
///         "/search" if !request.headers.contains_key("user-agent") => {
///             Some(AbnormalUsage::new().with_violated_policy("hour"))
///         }
///         _ => None,
///     })
///     .build()?;
/// # use set_up::BodyExt;
/// # let rejected = set_up::send(&layer, http::Request::get("/.env")).await;
/// # assert_eq!((rejected.status().as_u16(), &rejected.headers()["retry-after"]), (429, &3_600.into()));
/// # let rejected = set_up::send(&layer, http::Request::get("/search")).await;
/// # assert!(!rejected.headers().contains_key("retry-after"));
/// # let problem: serde_json::Value = serde_json::from_slice(&rejected.into_body().collect().await?.to_bytes())?;
/// # assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#abnormal-usage-detected");
/// # assert_eq!(problem["violated-policies"], serde_json::json!(["hour"]));
/// # let request = http::Request::get("/search").header("user-agent", "curl");
/// # assert!(set_up::is_counted(&layer, request).await);
/// # Ok(()) });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AbnormalUsage {
    retry_after: Option<Duration>,
    violated: Vec<Cow<'static, str>>,
}

impl AbnormalUsage {
    /// Creates a value without `Retry-After` and without violated policies.
    pub const fn new() -> Self {
        Self {
            retry_after: None,
            violated: Vec::new(),
        }
    }

    /// Adds the name of a violated policy to the response.
    ///
    /// The name appears in `violated-policies` of the problem, as in draft-11, section Abnormal Usage Detected, or in
    /// the details of a gRPC status. Clients should know it from `RateLimit-Policy` or your documentation. Any name is
    /// accepted, but [hidden](crate::QuotaPolicy::hidden) policies are omitted.
    #[must_use]
    pub fn with_violated_policy(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.violated.push(name.into());
        self
    }

    /// Sets the `Retry-After` of the response, at least one second.
    #[must_use]
    pub const fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    pub(crate) fn into_parts(self) -> (Vec<Cow<'static, str>>, Option<Duration>) {
        (self.violated, self.retry_after)
    }
}

pub(super) type CapacityOf = dyn Fn(&Parts) -> Capacity + Send + Sync;
pub(super) type AbnormalUsageOf = dyn Fn(&Parts) -> Option<AbnormalUsage> + Send + Sync;
