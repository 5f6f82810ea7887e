//! Layers that end without having limited anything: a program that builds one for each request has many.

use std::time::Duration;

use tokio::time::Instant;

use super::EVENTS;
use crate::sync::mutex::Mutex;

/// More layers of one scope than a program replaces.
const MOST: u32 = 100;

const PERIOD: Duration = Duration::from_secs(10);

/// The number of scopes that are watched at a time.
const SCOPES: usize = 16;

struct Ended {
    scope: String,
    since: Instant,
    layers: u32,
}

static ENDED: Mutex<Vec<Ended>> = Mutex::new(Vec::new());

/// A layer of this scope has ended after one request at most. Returns `true` once if these are too many.
pub(super) fn are_too_many(scope: &str) -> bool {
    if !EVENTS || cfg!(test) {
        return false;
    }
    let (now, mut ended) = (Instant::now(), ENDED.lock());
    // A scope that was reported stays, so that it is reported once.
    ended.retain(|other| now.saturating_duration_since(other.since) < PERIOD || other.layers > MOST);
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
