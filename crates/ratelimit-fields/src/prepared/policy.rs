use super::super::{Unit, draft11, seconds::whole_seconds};

/// A quota policy for [`Prepared`](super::Prepared), created from a draft-11 item.
///
/// The partition key of the item is ignored: see [`with_partition_key`](Self::with_partition_key).
///
/// ```
/// use ratelimit_fields::{Dialect, FieldErrorKind, Prepared, PreparedPolicy, draft11::PolicyItem};
///
/// let policy = PreparedPolicy::from(PolicyItem::new("per minute", 60)?).with_partition_key();
/// assert!(Prepared::new(Dialect::Draft11, [policy.clone()]).is_ok());
/// // The names of this dialect are Tokens.
/// let error = Prepared::new(Dialect::EditorsCopy, [policy]).unwrap_err();
/// assert_eq!(error.kind(), FieldErrorKind::Name);
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PreparedPolicy {
    pub(crate) item: draft11::PolicyItem,
    pub(super) limit: u64,
    pub(super) reset: u64,
    pub(super) has_custom_unit: bool,
    pub(super) shows_partition_key: bool,
}

impl PreparedPolicy {
    /// Marks the policy as one with a unit outside the draft's registry.
    ///
    /// `RateLimit-Policy` omits the policy, and its limit is not merged with those of inner services. Dialects that
    /// report a single limit omit it.
    #[must_use]
    pub fn with_custom_unit(mut self) -> Self {
        self.has_custom_unit = true;
        self
    }

    /// Reports the caller's [partition key](super::Report::partition_key), in dialects with partition keys.
    #[must_use]
    pub fn with_partition_key(mut self) -> Self {
        self.shows_partition_key = true;
        self
    }

    /// Sets the limit in dialects that report a single limit. Default: the quota.
    #[must_use]
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the reset of a limit without one, in dialects that require it. Default: the window, or 0.
    #[must_use]
    pub fn with_reset(mut self, seconds: u64) -> Self {
        self.reset = seconds;
        self
    }

    pub(crate) fn counts_requests(&self) -> bool {
        !self.has_custom_unit && *self.item.unit() == Unit::Requests
    }
}

impl From<draft11::PolicyItem> for PreparedPolicy {
    fn from(item: draft11::PolicyItem) -> Self {
        Self {
            limit: item.quota(),
            reset: item.window().map_or(0, whole_seconds),
            item,
            has_custom_unit: false,
            shows_partition_key: false,
        }
    }
}
