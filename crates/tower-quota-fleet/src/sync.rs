use std::{
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A panic under the lock leaves every value valid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Need not be secret. Each `RandomState` has different keys.
pub(super) fn random_number() -> u64 {
    RandomState::new().hash_one(0_u8)
}
