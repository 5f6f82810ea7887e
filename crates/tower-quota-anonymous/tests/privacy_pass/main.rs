//! Anonymous callers: keys, credentials and tokens, and what an issuer and an origin do with them.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod client;
mod example;
mod floods;
mod holder;
mod instances;
mod issuer;
mod issuer_repeats;
mod messages;
mod origin;
mod rotation;
mod servers;
mod spent;
