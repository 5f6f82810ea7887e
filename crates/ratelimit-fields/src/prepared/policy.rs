//! The policies that a server prepares.

use super::super::{Unit, draft11};

/// A quota policy as a [`Prepared`](super::Prepared) shows it: its item of `RateLimit-Policy`, in the dialect of draft-11.
///
/// A partition key of the item is left out. Each response has its own: see [`with_partition_key`](Self::with_partition_key).
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
    /// Marks the quota as one in a unit that the registry of the draft does not have: it has no item in `RateLimit-Policy`, and
    /// its limit is reported under its name alone, beside a limit of the same name that an inner service has sent.
    #[must_use]
    pub fn with_custom_unit(mut self) -> Self {
        self.has_custom_unit = true;
        self
    }

    /// Reports the caller's partition key with the policy, in dialects that have a place for it. See
    /// [`LimitReport::partition_key`](super::LimitReport::partition_key).
    #[must_use]
    pub fn with_partition_key(mut self) -> Self {
        self.shows_partition_key = true;
        self
    }

    /// Readers of a dialect without units take all numbers for requests.
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
