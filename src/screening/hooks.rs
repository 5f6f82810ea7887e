//! Hooks of the application: the capacity for a request, and requests that it does not want.

use std::time::Duration;

use http::request::Parts;

use crate::error::{ConfigError, ConfigErrorKind};

/// The share of its usual capacity that a service has: the answer of a
/// [capacity hook](crate::RateLimitLayerBuilder::capacity) for each request.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use std::{sync::{Arc, atomic::{AtomicU8, Ordering}}, time::Duration};
/// use tower_quota::Capacity;
///
/// # run(async {
/// // Whoever watches the load writes to it.
/// let load = Arc::new(AtomicU8::new(50));
/// let seen = Arc::clone(&load);
/// let quarter = Capacity::reduced_to(25)?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .capacity(move |_request| match seen.load(Ordering::Relaxed) {
///         0..80 => Capacity::full(),
///         80..95 => quarter,
///         _ => Capacity::exhausted(Duration::from_secs(5)),
///     })
///     .build()?;
///
/// let full = send(&layer, Request::get("/")).await;
/// assert_eq!(full.headers()["ratelimit-policy"], r#""hour";q=100;w=3600"#);
///
/// load.store(90, Ordering::Relaxed);
/// let reduced = send(&layer, Request::get("/")).await;
/// assert_eq!(reduced.headers()["ratelimit-policy"], r#""hour";q=25;w=3600"#);
/// assert!(reduced.extensions().get::<Decision>().unwrap().is_capacity_reduced());
///
/// load.store(100, Ordering::Relaxed);
/// let exhausted = send(&layer, Request::get("/")).await;
/// assert_eq!(exhausted.status(), 503);
/// assert_eq!(exhausted.headers()["retry-after"], "5");
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capacity(pub(super) Level);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Level {
    Exhausted(Duration),
    #[default]
    Full,
    /// In percent, from 1 to 99.
    Reduced(u8),
}

impl Capacity {
    /// All of it. The default.
    pub const fn full() -> Self {
        Self(Level::Full)
    }

    /// A part of it, from 1 to 99 percent: all quotas, burst capacities and queues are so many percent of what they usually
    /// are, but at least one unit.
    ///
    /// Used units stay used. Clients see the lowered policies, and rejections have status 503 and
    /// the problem type `temporary-reduced-capacity`.
    ///
    /// ```
    /// use tower_quota::Capacity;
    ///
    /// let error = Capacity::reduced_to(200).unwrap_err();
    /// assert_eq!(error.to_string(), "capacity: 200 percent is outside 1..=99");
    /// ```
    ///
    /// # Errors
    ///
    /// If `percent` is outside 1 to 99. Make the value before the hook runs, or fall back to
    /// [`full`](Self::full) by `unwrap_or_default`.
    pub fn reduced_to(percent: u8) -> Result<Self, ConfigError> {
        if (1..=99).contains(&percent) {
            return Ok(Self(Level::Reduced(percent)));
        }
        let message = format!("capacity: {percent} percent is outside 1..=99");
        Err(ConfigError::new(ConfigErrorKind::Capacity, message))
    }

    /// None: the request is rejected with status 503 and the problem type `temporary-reduced-capacity`, and no store is
    /// asked. The client is told to wait for so long, at least a second.
    pub const fn exhausted(retry_after: Duration) -> Self {
        Self(Level::Exhausted(retry_after))
    }
}

/// A request is a part of a pattern that the application does not want: what a
/// [detection hook](crate::RateLimitLayerBuilder::abnormal_usage) says.
///
/// It is rejected with status 429 and the problem type `abnormal-usage-detected`, and takes no quota.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use std::time::Duration;
/// use tower_quota::AbnormalUsage;
///
/// # run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .abnormal_usage(|request| match request.uri.path() {
///         "/.env" => Some(AbnormalUsage::new().with_retry_after(Duration::from_secs(3_600))),
///         "/wp-login.php" => Some(AbnormalUsage::new()),
///         _ => None,
///     })
///     .build()?;
///
/// let rejected = send(&layer, Request::get("/.env")).await;
/// assert_eq!(rejected.status(), 429);
/// assert_eq!(rejected.headers()["retry-after"], "3600");
/// let rejected = send(&layer, Request::get("/wp-login.php")).await;
/// assert!(!rejected.headers().contains_key("retry-after"));
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AbnormalUsage {
    pub(super) retry_after: Option<Duration>,
}

impl AbnormalUsage {
    /// Abnormal usage that says nothing about when it will end.
    pub const fn new() -> Self {
        Self { retry_after: None }
    }

    /// Tells the client how long to wait, at least a second.
    #[must_use]
    pub const fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

pub(super) type CapacityOf = dyn Fn(&Parts) -> Capacity + Send + Sync;
pub(super) type AbnormalUsageOf = dyn Fn(&Parts) -> Option<AbnormalUsage> + Send + Sync;
