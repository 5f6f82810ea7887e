//! The programs in the documentation, each in a module that is named by its file and line.

#![cfg(feature = "all")]

include!(concat!(env!("OUT_DIR"), "/blocks.rs"));
