//! Without poisoning: the code under it keeps its value valid at each step.

use std::sync::{MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
