//! Numbers that nobody needs to guess, only to differ: pauses of instances, waits of clients.

use std::hash::{BuildHasher, RandomState};

/// Any number. Each `RandomState` has other keys; that is randomness enough, and no dependency.
pub(crate) fn number() -> u32 {
    long_number() as u32
}

/// The same, twice as long: two of them are equal by a chance of 2⁻⁶⁴.
pub(crate) fn long_number() -> u64 {
    RandomState::new().hash_one(0_u8)
}
