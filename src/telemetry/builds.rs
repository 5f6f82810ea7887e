//! Detects the mistake `layer-for-each-request`, by layers that are dropped after at most one request.

use std::time::Duration;

use crate::{clock::Timestamp, sync::mutex::Mutex};

/// Per scope and period. Programs drop fewer layers for other reasons.
const MOST: u32 = 100;

const PERIOD: Duration = Duration::from_secs(10);

/// Watched concurrently.
const SCOPES: usize = 16;

struct Ended {
    scope: String,
    since: Timestamp,
    layers: u32,
}

static ENDED: Mutex<Vec<Ended>> = Mutex::new(Vec::new());

/// Returns `true` once per scope, when the dropped layers exceed `MOST`.
pub(super) fn are_too_many(scope: &str) -> bool {
    if cfg!(test) {
        return false;
    }
    let (now, mut ended) = (super::now(), ENDED.lock());
    // Reported scopes are kept, so that they are reported only once.
    ended.retain(|other| now.micros_since(other.since) < PERIOD.as_micros() as u64 || other.layers > MOST);
    if let Some(known) = ended.iter_mut().find(|other| other.scope == scope) {
        known.layers = known.layers.saturating_add(1);
        return known.layers == MOST + 1;
    }
    if ended.len() < SCOPES {
        ended.push(Ended {
            scope: scope.to_owned(),
            since: now,
            layers: 1,
        });
    }
    false
}
