//! The limits that a response reports.

use std::{cmp::Reverse, time::SystemTime};

/// The state of one limit as a response reports it, in whole units and whole seconds.
///
/// ```
/// use http::Response;
/// use ratelimit_fields::{Dialect, Prepared, PreparedPolicy, ReportedLimit};
///
/// let unprepared = Prepared::new(Dialect::Draft06, [] as [PreparedPolicy; 0])?;
/// let mut response = Response::new(());
/// let tokens = ReportedLimit::new("tokens", 1_000, 2).with_custom_unit();
/// unprepared.write(&mut response, &[tokens, ReportedLimit::new("minute", 60, 7).with_reset(30)][..]);
/// // This dialect has no units, so its readers expect requests.
/// assert_eq!(response.headers()["ratelimit-remaining"], "7");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReportedLimit<'a> {
    pub(super) policy: &'a str,
    pub(super) quota: u64,
    pub(super) remaining: u64,
    pub(super) reset: Option<u64>,
    window: u64,
    pub(super) is_violated: bool,
    pub(super) counts_requests: bool,
    pub(super) shows_partition_key: bool,
}

impl<'a> ReportedLimit<'a> {
    /// A limit of `quota` requests, of which `remaining` are left, by the name of its policy.
    #[inline]
    #[must_use]
    pub const fn new(policy: &'a str, quota: u64, remaining: u64) -> Self {
        Self {
            policy,
            quota,
            remaining,
            reset: None,
            window: 0,
            is_violated: false,
            counts_requests: true,
            shows_partition_key: false,
        }
    }

    /// Sets the seconds until the quota resets: the *effective window* of draft-11. Default: not reported.
    #[inline]
    #[must_use]
    pub const fn with_reset(mut self, seconds: u64) -> Self {
        self.reset = Some(seconds);
        self
    }

    /// Sets the seconds that a dialect which requires a reset reports for a limit without one. Default: 0.
    #[inline]
    #[must_use]
    pub const fn with_window(mut self, seconds: u64) -> Self {
        self.window = seconds;
        self
    }

    /// Marks the limit as one that has rejected the request, so that `Retry-After` is about it.
    #[inline]
    #[must_use]
    pub const fn violated(mut self) -> Self {
        self.is_violated = true;
        self
    }

    /// Marks the limit as one in another unit than requests: dialects that report one number leave it out.
    #[inline]
    #[must_use]
    pub const fn with_custom_unit(mut self) -> Self {
        self.counts_requests = false;
        self
    }

    /// Reports the caller's partition key with the limit: see [`LimitReport::partition_key`].
    #[inline]
    #[must_use]
    pub const fn with_partition_key(mut self) -> Self {
        self.shows_partition_key = true;
        self
    }

    /// With the moment of `Retry-After` in place of its own. Where that is earlier, nothing remains until then: units that
    /// have to last longer would look more.
    pub(super) fn resetting_after(self, seconds: u64) -> Self {
        let is_earlier = self.reset.is_some_and(|reset| seconds < reset);
        Self {
            remaining: if is_earlier { 0 } else { self.remaining },
            reset: Some(seconds),
            ..self
        }
    }

    /// Smaller for what is closer to exhaustion.
    pub(super) fn distance(&self) -> (u64, Reverse<Option<u64>>) {
        (self.remaining, Reverse(self.reset))
    }

    pub(super) fn reset_or_window(&self) -> u64 {
        self.reset.unwrap_or(self.window)
    }
}

/// The content of one response: see [`Prepared::write`](super::Prepared::write).
///
/// A slice of [`ReportedLimit`]s is a report of a request that was admitted. Implement the trait for rejections, which have a
/// `Retry-After`, and for partition keys.
///
/// ```
/// use http::Response;
/// use ratelimit_fields::{Dialect, LimitReport, Prepared, PreparedPolicy, ReportedLimit};
///
/// /// A request that was rejected for 10 seconds by a limit of 60 a minute.
/// struct Rejected;
///
/// impl LimitReport for Rejected {
///     fn limits(&self) -> impl Iterator<Item = ReportedLimit<'_>> {
///         [ReportedLimit::new("minute", 60, 3).with_reset(40).violated()].into_iter()
///     }
///
///     fn retry_after(&self) -> Option<u64> {
///         Some(10)
///     }
/// }
///
/// let mut response = Response::new(());
/// let prepared = Prepared::new(Dialect::Draft06, [] as [PreparedPolicy; 0])?;
/// prepared.write(&mut response, &Rejected);
/// // The reset names the moment of `Retry-After`, and until then nothing remains.
/// assert_eq!(response.headers()["ratelimit-reset"], "10");
/// assert_eq!(response.headers()["ratelimit-remaining"], "0");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub trait LimitReport {
    /// Returns the limits to list, in the order of the field. May be called several times for one response.
    fn limits(&self) -> impl Iterator<Item = ReportedLimit<'_>>;

    /// Returns the key of the partition that the policy counts for; called for policies with
    /// [`with_partition_key`](super::PreparedPolicy::with_partition_key). Every client can read it: it should not identify a person.
    /// Where keys would make `RateLimit-Policy` longer than [`MAX_LENGTH`](crate::MAX_LENGTH), its items have none.
    fn partition_key(&self, policy: &str) -> Option<Vec<u8>> {
        let _ = policy;
        None
    }

    /// Returns the seconds of the response's `Retry-After`, of this server or of the inner service.
    fn retry_after(&self) -> Option<u64> {
        None
    }

    /// Returns `true` if the server as a whole has no capacity, and no limit is known: dialects with numbers report a limit of
    /// zero until [`retry_after`](Self::retry_after).
    fn is_overloaded(&self) -> bool {
        false
    }

    /// Returns the time by the clock that the limits are counted with, for [`LegacyReset::UnixTime`](super::LegacyReset).
    #[expect(
        clippy::disallowed_methods,
        reason = "an implementation with a clock of its own overrides it"
    )]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl LimitReport for [ReportedLimit<'_>] {
    fn limits(&self) -> impl Iterator<Item = ReportedLimit<'_>> {
        self.iter().copied()
    }
}
