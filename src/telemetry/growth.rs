//! Counts the partitions that layers create in a remote store, to report the scope that fills it.

use std::sync::{Arc, Weak};

use super::throttle::EventThrottle;
use crate::{clock::Timestamp, error::StoreError, sync::mutex::Mutex};

/// Of the process, because layers with the same store share its memory.
static ALL: Mutex<Vec<Weak<Growth>>> = Mutex::new(Vec::new());

static OUT_OF_MEMORY: EventThrottle = EventThrottle::new();

#[derive(Debug)]
pub(super) struct Growth {
    scope: Box<str>,
    store: Option<u64>,
    recent: Mutex<Recent>,
}

/// In this minute and in the previous one.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    minute: u64,
    created: u64,
    before: u64,
}

impl Recent {
    fn at(self, now: Timestamp) -> Self {
        let minute = now.as_micros() / 60_000_000;
        let before = match minute.wrapping_sub(self.minute) {
            0 => return self,
            1 => self.created,
            _ => 0,
        };
        Self {
            minute,
            created: 0,
            before,
        }
    }
}

impl Growth {
    pub(super) fn new(scope: &str, store: Option<u64>) -> Arc<Self> {
        let growth = Arc::new(Self {
            scope: scope.into(),
            store,
            recent: Mutex::default(),
        });
        let mut all = ALL.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&growth));
        growth
    }

    pub(super) fn created(&self) {
        let mut recent = self.recent.lock();
        *recent = recent.at(super::now());
        recent.created += 1;
    }

    fn recently_created(&self, now: Timestamp) -> u64 {
        let recent = self.recent.lock().at(now);
        recent.created + recent.before
    }

    fn largest(&self, now: Timestamp) -> Option<(Arc<Self>, u64)> {
        let all = ALL.lock();
        let others = all
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|other| other.store == self.store);
        others
            .map(|other| {
                let created = other.recently_created(now);
                (other, created)
            })
            .max_by_key(|(_, created)| *created)
    }

    pub(super) fn out_of_memory(&self, error: &StoreError) {
        let now = super::now();
        OUT_OF_MEMORY.record(now, |suppressed| {
            let Some((largest, created)) = self.largest(now) else {
                return;
            };
            event!(
                ERROR,
                scope = %largest.scope,
                new_partitions = %created,
                error = %error,
                suppressed = %suppressed,
                "quota store out of memory; this scope created the most partitions in the last minute"
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_that_has_created_the_most_partitions_in_a_store_is_found() {
        let layers = [("few", Some(1)), ("many", Some(1)), ("elsewhere", Some(2))];
        let layers = layers.map(|(scope, store)| Growth::new(scope, store));
        for (layer, partitions) in layers.iter().zip([1, 2, 3]) {
            (0..partitions).for_each(|_| layer.created());
        }
        let now = super::super::now();
        let (largest, created) = layers[0].largest(now).unwrap();
        assert_eq!((&*largest.scope, created), ("many", 2));
        let later = now.saturating_add(std::time::Duration::from_secs(120));
        assert_eq!(layers[1].recently_created(later), 0);
    }
}
