//! Header fields, and responses to rejected requests.

pub(crate) mod fields;
pub(crate) mod rejection;
