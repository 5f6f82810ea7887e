use std::collections::HashMap;

use super::keyspace::{Key, Keys};
use crate::{lease::LeaseId, sync::mutex::Mutex};

#[derive(Default)]
pub(super) struct Leases(Mutex<HashMap<LeaseId, Keys>>);

impl Leases {
    /// `keys` is empty if shadow policies alone had a concurrency limit and granted no slot.
    pub(super) fn hold(&self, lease: LeaseId, keys: Keys) {
        if !keys.is_empty() {
            self.0.lock().entry(lease).or_default().extend(keys);
        }
    }

    pub(super) fn release(&self, lease: LeaseId) {
        self.0.lock().remove(&lease);
    }

    pub(super) fn by_key(&self) -> HashMap<Key, Vec<LeaseId>> {
        let mut by_key: HashMap<Key, Vec<LeaseId>> = HashMap::new();
        for (lease, keys) in self.0.lock().iter() {
            for key in keys {
                by_key.entry(key.clone()).or_default().push(*lease);
            }
        }
        by_key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_lease_is_what_is_released() {
        let (leases, holder) = (Leases::default(), LeaseId::unique());
        leases.hold(holder, Keys::from_iter([Key::from(b"slots".to_vec())]));
        assert_eq!(leases.by_key().len(), 1);
        leases.release(holder);
        assert!(leases.0.lock().is_empty());
    }

    #[test]
    fn nothing_is_kept_of_a_request_that_holds_no_slot() {
        let leases = Leases::default();
        for _ in 0..10 {
            leases.hold(LeaseId::unique(), Keys::new());
        }
        assert!(leases.0.lock().is_empty());
    }
}
