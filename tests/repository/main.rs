//! Tests of the texts beside the code: documents, the ladder of modules, the seeds for fuzzing.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod alerts;
mod circles;
mod compiler_messages;
mod conformance;
mod documents;
mod examples;
mod fuzz_seeds;
mod mistakes;
mod results;
mod scale;
