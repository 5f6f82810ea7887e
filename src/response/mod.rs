//! The response fields, and the response to a rejected request.

pub(crate) mod fields;
pub(crate) mod rejection;
