//! Numbers that nobody needs to guess, only to differ: pauses of instances, waits of clients.

use std::hash::{BuildHasher, RandomState};

/// Any number. Each `RandomState` has other keys; that is randomness enough, and no dependency.
pub(crate) fn number() -> u32 {
    RandomState::new().hash_one(0_u8) as u32
}
