//! Keys, issuance and presentations, through the public items.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod credentials;
mod keys;
mod vectors;
