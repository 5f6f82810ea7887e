//! The slots that requests of this process hold.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::keyspace::{Key, Keys};
use crate::lease::LeaseId;

/// Who holds slots, and under which keys.
#[derive(Default)]
pub(super) struct Leases(Mutex<HashMap<LeaseId, Keys>>);

impl Leases {
    /// These, too, if the lease holds others already.
    pub(super) fn hold(&self, lease: LeaseId, keys: Keys) {
        self.lock().entry(lease).or_default().extend(keys);
    }

    pub(super) fn release(&self, lease: LeaseId) {
        self.lock().remove(&lease);
    }

    /// All that are held, by key.
    pub(super) fn by_key(&self) -> HashMap<Key, Vec<LeaseId>> {
        let mut by_key: HashMap<Key, Vec<LeaseId>> = HashMap::new();
        for (lease, keys) in self.lock().iter() {
            for key in keys {
                by_key.entry(key.clone()).or_default().push(*lease);
            }
        }
        by_key
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LeaseId, Keys>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
