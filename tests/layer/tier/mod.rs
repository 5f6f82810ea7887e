//! The tier of a user from a slow source.

#![allow(
    clippy::disallowed_methods,
    reason = "a slow source takes its time, which is virtual"
)]

mod cache;
mod contract;
mod failures;
mod on_unknown_tier;
mod properties;
mod settings;
mod support;
