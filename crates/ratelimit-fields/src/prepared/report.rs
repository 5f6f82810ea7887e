use std::{cmp::Reverse, fmt, time::SystemTime};

/// The numbers of one limit in a response, in whole units and seconds: see [`Report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitNumbers {
    /// The index of the policy in the list passed to [`Prepared::new`](super::Prepared::new). A limit with another
    /// index is not reported.
    pub policy: usize,
    /// The remaining units.
    pub remaining: u64,
    /// The effective window in seconds. `None` if the limit has none.
    pub reset: Option<u64>,
    /// Set if the request exceeds the limit, so that `Retry-After` applies to the limit.
    pub is_violated: bool,
}

/// The limits to report in one response: see [`Prepared::write`](super::Prepared::write).
///
/// ```
/// use std::time::Duration;
/// use http::Response;
/// use ratelimit_fields::{Dialect, LimitNumbers, Prepared, Report, draft11::PolicyItem};
///
/// let minute = PolicyItem::new("minute", 60)?.with_window(Duration::from_secs(60))?;
/// let prepared = Prepared::new(Dialect::Draft06, [minute])?;
///
/// // A request that was rejected, with a `Retry-After` of 10 seconds.
/// let mut response = Response::new(());
/// let limit = LimitNumbers { remaining: 3, reset: Some(40), is_violated: true, ..LimitNumbers::default() };
/// prepared.write(&mut response, &Report { retry_after: Some(10), ..Report::new(&[limit]) });
/// // The reset equals `Retry-After`, and no units remain until then.
/// assert_eq!(response.headers()["ratelimit-reset"], "10");
/// assert_eq!(response.headers()["ratelimit-remaining"], "0");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Report<'a> {
    /// The limits in the order of the field.
    pub limits: &'a [LimitNumbers],
    /// The `Retry-After` of the response in seconds, whether set by this server or by an inner service. Default: none.
    pub retry_after: Option<u64>,
    /// Set if the whole server has no capacity and no limit is known. Default: `false`.
    ///
    /// Dialects that report a single limit then report a limit of zero until `retry_after`.
    pub is_overloaded: bool,
    /// The time of the clock used for the limits, for [`LegacyReset::UnixTime`](super::LegacyReset). Default: the
    /// system clock.
    pub now: Option<SystemTime>,
    /// Returns the caller's partition key for a policy. Default: none.
    ///
    /// Called for policies with [`with_partition_key`](super::PreparedPolicy::with_partition_key). Clients can read the
    /// key, so it should not identify a person. If the keys would make `RateLimit-Policy` longer than
    /// [`MAX_LENGTH`](crate::MAX_LENGTH), they are omitted there.
    pub partition_key: &'a KeyOf<'a>,
}

/// Returns the partition key for the policy with this name.
pub(super) type KeyOf<'a> = dyn Fn(&str) -> Option<Vec<u8>> + 'a;

impl<'a> Report<'a> {
    /// Creates a report of an admitted request.
    #[must_use]
    pub fn new(limits: &'a [LimitNumbers]) -> Self {
        Self {
            limits,
            retry_after: None,
            is_overloaded: false,
            now: None,
            partition_key: &|_| None,
        }
    }
}

impl fmt::Debug for Report<'_> {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report")
            .field("limits", &self.limits)
            .field("retry_after", &self.retry_after)
            .finish_non_exhaustive()
    }
}

impl LimitNumbers {
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
}
