use super::super::{Unit, draft11};

/// A quota policy for [`Prepared`](super::Prepared), created from a draft-11 item.
///
/// The partition key of the item is ignored, because it differs between responses: see
/// [`with_partition_key`](Self::with_partition_key).
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
    pub(super) item: draft11::PolicyItem,
    pub(super) has_custom_unit: bool,
    pub(super) shows_partition_key: bool,
}

impl PreparedPolicy {
    /// Marks the policy as one with a custom unit, which is not in the draft's registry.
    ///
    /// `RateLimit-Policy` omits the policy. Its limit is reported by name only, next to a limit of the same name from
    /// an inner service.
    #[must_use]
    pub fn with_custom_unit(mut self) -> Self {
        self.has_custom_unit = true;
        self
    }

    /// Reports the caller's partition key with the policy, in dialects with partition keys.
    ///
    /// See [`LimitReport::partition_key`](super::LimitReport::partition_key).
    #[must_use]
    pub fn with_partition_key(mut self) -> Self {
        self.shows_partition_key = true;
        self
    }

    /// Clients of a dialect without units interpret all numbers as requests.
    pub(super) fn counts_requests(&self) -> bool {
        !self.has_custom_unit && *self.item.unit() == Unit::Requests
    }
}

impl From<draft11::PolicyItem> for PreparedPolicy {
    fn from(item: draft11::PolicyItem) -> Self {
        Self {
            item,
            has_custom_unit: false,
            shows_partition_key: false,
        }
    }
}
