//! Shared by long-running programs: progress on stderr, machine-readable results (JSON), and charts (SVG).

#![allow(dead_code, reason = "every program that includes this module uses a part of it")]

pub(crate) mod chart;
pub(crate) mod outputs;
pub(crate) mod pictures;
pub(crate) mod progress;
pub(crate) mod svg;
