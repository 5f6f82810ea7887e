use std::{cmp::Reverse, fmt, time::SystemTime};

/// The numbers of one limit in a [`Report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitNumbers {
    /// The index of the policy in [`Prepared::new`](super::Prepared::new). Limits with another index are omitted.
    pub policy: usize,
    /// The remaining units.
    pub remaining: u64,
    /// The effective window in seconds.
    pub reset: Option<u64>,
    /// `true` if the request exceeds this limit, which `Retry-After` then takes into account.
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
    /// The `Retry-After` of the response, in seconds. Default: none.
    pub retry_after: Option<u64>,
    /// `true` if the server has no capacity left. Default: `false`.
    ///
    /// Draft-06 and draft-07 then report a limit of zero until `retry_after`.
    pub is_overloaded: bool,
    /// The time for [`LegacyReset::UnixTime`](crate::LegacyReset). Default: the system clock.
    pub now: Option<SystemTime>,
    /// Returns the partition key for a policy [that reports it](super::PreparedPolicy::with_partition_key). Default:
    /// none.
    ///
    /// Clients can read the key, so it should not identify a person. Keys that would make `RateLimit-Policy` longer
    /// than [`MAX_LENGTH`](crate::MAX_LENGTH) are omitted there.
    pub partition_key: &'a KeyOf<'a>,
}

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
    /// Without remaining units if `Retry-After` is earlier, because an earlier reset would look like a higher limit.
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
