//! A lock and random numbers.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Goes on after a panic under the lock, which leaves each value valid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each `RandomState` has other keys. The number need not be secret.
pub(super) fn random_number() -> u64 {
    RandomState::new().hash_one(0_u8)
}
