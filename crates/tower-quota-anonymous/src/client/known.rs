//! Challenges of origins that want tokens, so that not every request is sent twice.

use std::{collections::BTreeMap, time::Duration};

use crate::{Challenge, mutex::Mutex};
use tower_quota::clock::Timestamp;

/// The last answered challenges of each origin, until they end.
pub(super) struct Known {
    origins: Mutex<BTreeMap<String, Kept>>,
    max_origins: usize,
}

#[derive(Clone)]
pub(super) struct Kept {
    pub(super) challenges: Vec<Challenge>,
    pub(super) until: Timestamp,
    /// The origin wants a token for each request (401), not only for those above a limit (429).
    pub(super) is_required: bool,
}

impl Known {
    /// The longest time for which a challenge is believed to hold.
    const MAX_AGE: Duration = Duration::from_secs(86_400);

    pub(super) fn new(max_origins: usize) -> Self {
        Self {
            origins: Mutex::default(),
            max_origins,
        }
    }

    pub(super) fn get(&self, origin: &str, now: Timestamp) -> Option<Kept> {
        let origins = self.origins.lock();
        origins.get(origin).filter(|kept| now < kept.until).cloned()
    }

    /// Keeps the challenges of an origin, for at most a day.
    pub(super) fn put(&self, origin: &str, mut kept: Kept, now: Timestamp) {
        kept.until = kept.until.min(now.saturating_add(Self::MAX_AGE));
        let mut origins = self.origins.lock();
        let is_full = origins.len() >= self.max_origins && !origins.contains_key(origin);
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
