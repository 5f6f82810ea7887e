use sfv::ItemSerializer;

use super::{
    super::{FieldError, text::Text, wire::ListForm},
    policy::PreparedPolicy,
    report::KeyOf,
};

#[derive(Debug)]
pub(super) struct PreparedLimit {
    pub(super) policy: Box<str>,
    /// For example, `, "minute";r=`. `None` without lists, and if the dialect cannot represent the name.
    start: Option<Box<str>>,
    pub(super) limit: u64,
    pub(super) reset: u64,
    pub(super) has_custom_unit: bool,
    pub(super) counts_requests: bool,
    pub(super) shows_partition_key: bool,
}

impl PreparedLimit {
    /// Also returns the error if the dialect cannot represent the name.
    pub(super) fn new(list: Option<&ListForm>, policy: &PreparedPolicy) -> (Self, Result<(), FieldError>) {
        let name = policy.item.name();
        let start = list.map(|list| -> Result<Box<str>, FieldError> {
            let mut item = (list.item)(name)?;
            item.pop();
            Ok(format!("{SEPARATOR}{item}").into())
        });
        let (start, result) = match start.transpose() {
            Ok(start) => (start, Ok(())),
            Err(error) => (None, Err(error.of_policy(name))),
        };
        let limit = Self {
            policy: name.into(),
            start,
            limit: policy.limit,
            reset: policy.reset,
            has_custom_unit: policy.has_custom_unit,
            counts_requests: policy.counts_requests(),
            shows_partition_key: policy.shows_partition_key,
        };
        (limit, result)
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
        if let Some(key) = key(&self.policy).filter(|_| self.start.is_some()) {
            let mut text = String::new();
            let _ = ItemSerializer::with_buffer(&mut text).bare_item(&key[..]);
            list.push(";pk=");
            list.push(&text);
        }
    }
}

const SEPARATOR: &str = ", ";
