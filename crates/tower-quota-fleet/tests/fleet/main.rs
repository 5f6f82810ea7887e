//! Rules that a whole fleet follows.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod contracts;
mod controls;
mod document;
mod events;
mod following;
mod formats;
mod publish;
mod redis;
mod replies;
mod sentinel;
mod servers;
mod source;
mod terminal;
