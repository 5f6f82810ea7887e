use std::{
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Ignores poisoning: a panic under the lock leaves every value valid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each `RandomState` has different keys. The number need not be secret.
pub(super) fn random_number() -> u64 {
    RandomState::new().hash_one(0_u8)
}
