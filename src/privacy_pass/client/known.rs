//! Challenges of origins that want a token for each request, so that not every request is sent twice.

use std::{collections::BTreeMap, time::Duration};

use crate::{clock::Timestamp, mutex::Mutex, privacy_pass::Challenge};

/// The challenges of the last 401 of each origin, until they end.
pub(super) struct Known {
    origins: Mutex<BTreeMap<String, Kept>>,
    max_origins: usize,
}

#[derive(Clone)]
struct Kept {
    challenges: Vec<Challenge>,
    until: Timestamp,
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

    /// The challenges that an origin has sent and that hold at this moment, and until when.
    pub(super) fn get(&self, origin: &str, now: Timestamp) -> Option<(Vec<Challenge>, Timestamp)> {
        let origins = self.origins.lock();
        let kept = origins.get(origin).filter(|kept| now < kept.until)?;
        Some((kept.challenges.clone(), kept.until))
    }

    /// Keeps the challenges of an origin, if it says for how long they hold.
    pub(super) fn put(&self, origin: &str, challenges: &[Challenge], now: Timestamp) {
        let ages = challenges.iter().filter_map(Challenge::max_age);
        let Some(age) = ages.min().map(|age| age.min(Self::MAX_AGE)) else {
            return;
        };
        let mut origins = self.origins.lock();
        let is_full = origins.len() >= self.max_origins && !origins.contains_key(origin);
        if is_full {
            let first = origins
                .iter()
                .min_by_key(|(_, kept)| kept.until)
                .map(|(name, _)| name.clone());
            first.map(|first| origins.remove(&first));
        }
        let kept = Kept {
            challenges: challenges.to_vec(),
            until: now.saturating_add(age),
        };
        origins.insert(origin.to_owned(), kept);
    }

    /// The origin has passed a request without a token, or rejected one: what was known is not true any more.
    pub(super) fn forget(&self, origin: &str) {
        self.origins.lock().remove(origin);
    }
}
