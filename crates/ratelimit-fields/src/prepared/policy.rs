use sfv::ItemSerializer;

use super::{
    super::{FieldError, Unit, draft11, seconds::whole_seconds, text::Text},
    report::KeyOf,
};

const SEPARATOR: &str = ", ";

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
    /// For example, `, "minute";r=`. `None` without lists, and if the dialect cannot represent the name.
    start: Option<Box<str>>,
}

impl PreparedPolicy {
    /// Marks the policy as one with a unit outside the draft's registry.
    ///
    /// `RateLimit-Policy` omits the policy, and `RateLimit` does not merge its limit with limits of inner services.
    /// Dialects that report a single limit omit both.
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

    pub(super) fn start_items(&mut self, item_of: fn(&str) -> Result<String, FieldError>) -> Result<(), FieldError> {
        let name = self.item.name();
        let mut item = item_of(name).map_err(|error| error.of_policy(name))?;
        item.pop();
        self.start = Some(format!("{SEPARATOR}{item}").into());
        Ok(())
    }

    #[inline]
    pub(super) fn push(&self, list: &mut Text, remaining: u64, reset: Option<u64>) {
        let Some(start) = &self.start else { return };
        let separator = if list.is_empty() { SEPARATOR.len() } else { 0 };
        list.push(&start[separator..]);
        list.push_integer(remaining);
        if let Some(reset) = reset {
            list.push(";t=");
            list.push_integer(reset);
        }
    }

    pub(super) fn push_key(&self, list: &mut Text, key: &KeyOf<'_>) {
        if let Some(key) = key(self.item.name()).filter(|_| self.start.is_some()) {
            let mut text = String::new();
            let _ = ItemSerializer::with_buffer(&mut text).bare_item(&key[..]);
            list.push(";pk=");
            list.push(&text);
        }
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
            start: None,
        }
    }
}
