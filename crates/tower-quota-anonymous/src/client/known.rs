//! Cached challenges, which avoid sending every request twice.

use std::{collections::BTreeMap, time::Duration};

use crate::{Challenge, mutex::Mutex};
use tower_quota::clock::Timestamp;

#[derive(Default)]
pub(super) struct Known {
    origins: Mutex<BTreeMap<String, Kept>>,
}

#[derive(Clone)]
pub(super) struct Kept {
    pub(super) challenges: Vec<Challenge>,
    pub(super) until: Timestamp,
    /// True after a 401 (every request needs a token), false after a 429.
    pub(super) is_required: bool,
}

impl Known {
    const MAX_ORIGINS: usize = 1_024;

    /// Caps the `max-age` of challenges.
    const MAX_AGE: Duration = Duration::from_secs(86_400);

    pub(super) fn get(&self, origin: &str, now: Timestamp) -> Option<Kept> {
        let origins = self.origins.lock();
        origins.get(origin).filter(|kept| now < kept.until).cloned()
    }

    pub(super) fn put(&self, origin: &str, mut kept: Kept, now: Timestamp) {
        kept.until = kept.until.min(now.saturating_add(Self::MAX_AGE));
        let mut origins = self.origins.lock();
        let is_full = origins.len() >= Self::MAX_ORIGINS && !origins.contains_key(origin);
        if is_full {
            let first = origins
                .iter()
                .min_by_key(|(_, kept)| kept.until)
                .map(|(name, _)| name.clone());
            first.map(|first| origins.remove(&first));
        }
        origins.insert(origin.to_owned(), kept);
    }

    pub(super) fn forget(&self, origin: &str) {
        self.origins.lock().remove(origin);
    }
}
