//! Tests of the texts beside the code: documents, the ladder of modules, the seeds for fuzzing.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod alerts;
mod compiler_messages;
mod conformance;
mod documents;
mod english;
mod fuzz_seeds;
mod mistakes;
mod release;
mod results;
mod rooms;
mod scale;

// The rooms above the core, compiled against its public items: see `rooms`.
#[path = "../../src/fleet/mod.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "only that it compiles is of interest here"
)]
mod fleet;
#[allow(unused_imports, reason = "`crate::` of a room")]
use tower_quota::*;
