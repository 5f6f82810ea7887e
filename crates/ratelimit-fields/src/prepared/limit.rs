use std::{cmp::Reverse, time::SystemTime};

/// The state of a limit to report in a response, in whole units and seconds.
///
/// ```
/// use http::Response;
/// use ratelimit_fields::{Dialect, Prepared, PreparedPolicy, ReportedLimit};
///
/// let unprepared = Prepared::new(Dialect::Draft06, [] as [PreparedPolicy; 0])?;
/// let mut response = Response::new(());
/// let tokens = ReportedLimit::new("tokens", 1_000, 2).with_custom_unit();
/// unprepared.write(&mut response, &[tokens, ReportedLimit::new("minute", 60, 7).with_reset(30)][..]);
/// // This dialect has no units, so clients expect requests.
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
    /// Creates the state of a limit of `quota` requests with `remaining` units.
    ///
    /// `policy` is the name of the quota policy.
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

    /// Sets the effective window: the seconds until the quota resets. Default: not reported.
    #[inline]
    #[must_use]
    pub const fn with_reset(mut self, seconds: u64) -> Self {
        self.reset = Some(seconds);
        self
    }

    /// Sets the reset of a limit without an effective window, in dialects that require a reset. Default: 0.
    #[inline]
    #[must_use]
    pub const fn with_window(mut self, seconds: u64) -> Self {
        self.window = seconds;
        self
    }

    /// Marks the limit as violated: the request exceeds the limit, and `Retry-After` applies to the limit.
    #[inline]
    #[must_use]
    pub const fn violated(mut self) -> Self {
        self.is_violated = true;
        self
    }

    /// Marks the limit as one that does not count requests. Dialects that report a single limit omit it.
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

    /// Replaces the reset with `Retry-After`. If `Retry-After` is earlier, no remaining units are reported, because the
    /// same units with an earlier reset would look like a higher limit.
    pub(super) fn resetting_after(self, seconds: u64) -> Self {
        let is_earlier = self.reset.is_some_and(|reset| seconds < reset);
        Self {
            remaining: if is_earlier { 0 } else { self.remaining },
            reset: Some(seconds),
            ..self
        }
    }

    /// Smaller for limits closer to exhaustion.
    pub(super) fn distance(&self) -> (u64, Reverse<Option<u64>>) {
        (self.remaining, Reverse(self.reset))
    }

    pub(super) fn reset_or_window(&self) -> u64 {
        self.reset.unwrap_or(self.window)
    }
}

/// The limits to report in one response: see [`Prepared::write`](super::Prepared::write).
///
/// Use a slice of [`ReportedLimit`]s for an admitted request. Implement the trait for rejections, which have
/// `Retry-After`, and for partition keys.
///
/// ```
/// use http::Response;
/// use ratelimit_fields::{Dialect, LimitReport, Prepared, PreparedPolicy, ReportedLimit};
///
/// /// A request that was rejected by a limit of 60 per minute, with a `Retry-After` of 10 seconds.
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
/// // The reset equals `Retry-After`, and no units remain until then.
/// assert_eq!(response.headers()["ratelimit-reset"], "10");
/// assert_eq!(response.headers()["ratelimit-remaining"], "0");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
pub trait LimitReport {
    /// Returns the limits in the order of the field. May be called several times per response.
    fn limits(&self) -> impl Iterator<Item = ReportedLimit<'_>>;

    /// Returns the caller's partition key for a policy. Default: none.
    ///
    /// Called for policies with [`with_partition_key`](super::PreparedPolicy::with_partition_key). Clients can read the
    /// key, so it should not identify a person. If the keys would make `RateLimit-Policy` longer than
    /// [`MAX_LENGTH`](crate::MAX_LENGTH), they are omitted there.
    fn partition_key(&self, policy: &str) -> Option<Vec<u8>> {
        let _ = policy;
        None
    }

    /// Returns the `Retry-After` of the response in seconds, whether set by this server or by an inner service.
    ///
    /// Default: none.
    fn retry_after(&self) -> Option<u64> {
        None
    }

    /// Returns `true` if the whole server has no capacity and no limit is known. Default: `false`.
    ///
    /// Dialects that report a single limit then report a limit of zero until [`retry_after`](Self::retry_after).
    fn is_overloaded(&self) -> bool {
        false
    }

    /// Returns the time of the clock used for the limits, for [`LegacyReset::UnixTime`](super::LegacyReset).
    ///
    /// Default: [`SystemTime::now`].
    #[expect(clippy::disallowed_methods, reason = "implementations with a clock override this")]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl LimitReport for [ReportedLimit<'_>] {
    fn limits(&self) -> impl Iterator<Item = ReportedLimit<'_>> {
        self.iter().copied()
    }
}
