//! How a dialect is recognized, parsed, prepared and written.

use http::{HeaderMap, HeaderValue, header::GetAll};

use super::{
    closest::ClosestLimit,
    error::FieldError,
    hint_items::{LimitHint, PolicyHint},
    list::{List, Member},
    prepared::{Policies, PreparedPolicy},
};

pub(super) type Parse<T> = fn(GetAll<'_, HeaderValue>) -> Result<Vec<T>, FieldError>;

pub(super) struct Wire {
    /// Detects the dialect from the first bytes of `RateLimit` or `RateLimit-Policy`. They are not empty.
    pub(super) begins: fn(&[u8]) -> bool,
    pub(super) limits: Option<Parse<LimitHint>>,
    pub(super) policies: Option<Parse<PolicyHint>>,
    /// Parses a limit in further fields. Adds the errors of malformed ones.
    pub(super) numbers: Option<fn(&HeaderMap, &mut Vec<FieldError>) -> LimitHint>,
    pub(super) prepare: fn(&[PreparedPolicy]) -> Result<Policies, FieldError>,
    pub(super) form: Form,
}

pub(super) enum Form {
    /// All limits in a list.
    List(ListForm),
    /// The limit closest to exhaustion.
    Closest {
        merge_limit: fn(&mut HeaderMap, ClosestLimit),
        merge_policies: fn(&mut HeaderMap, HeaderValue),
    },
}

pub(super) struct ListForm {
    /// Serializes the limit with this name, with 0 remaining units at the end of the text.
    pub(super) item: fn(&str) -> Result<String, FieldError>,
    pub(super) merge: fn(&mut HeaderMap, OwnLists<'_>),
    /// In a response with `Retry-After`, the resets of violated limits equal its value.
    pub(super) resets_with_retry_after: bool,
}

pub(super) struct OwnLists<'a> {
    pub(super) rate_limit: Option<HeaderValue>,
    pub(super) rate_limit_policy: Option<HeaderValue>,
    pub(super) hidden_policy: Option<&'a HeaderValue>,
    /// Identifies limits in a custom unit, which no reported policy shows.
    pub(super) is_custom: &'a dyn Fn(&str) -> bool,
}

pub(super) fn hints<T: Member + Into<H>, H>(lines: GetAll<'_, HeaderValue>) -> Result<Vec<H>, FieldError> {
    let items = List::<T>::parse(lines)?.into_items();
    Ok(items.into_iter().map(Into::into).collect())
}
