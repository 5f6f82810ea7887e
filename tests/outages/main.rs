//! Faults on purpose: several instances under load, one fault, and what holds during it and afterwards.
//!
//! Every scenario has separate servers and makes the same assertions, see [`scenario`]: no request fails or hangs, none
//! waits while the circuit is open, limits apply again, the number of uncounted requests is bounded, and nothing is
//! left over. Real servers run in real time, beside other tests, so no assertion depends on how long something takes.
//! Bounds on time are for `make outages`, which runs the same scenarios one after the other (`tests/figures`).

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]
#![allow(
    clippy::disallowed_methods,
    reason = "servers fail in real time, not in that of a test"
)]
#![allow(dead_code, reason = "the soak and the figures use the rest")]
#![allow(unreachable_pub, reason = "nothing here is part of the crate's interface")]

mod callers;
mod cluster;
mod fault;
mod faults;
mod happening;
mod harness;
mod history;
mod history_rules;
mod load;
mod machine;
mod record;
mod resolver;
mod scenario;
mod sentinel;

mod data;
mod names;
mod network;
mod own;
mod quiet;
mod servers;
mod ways;
