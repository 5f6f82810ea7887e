pub(crate) mod fields;
pub(crate) mod rejection;
