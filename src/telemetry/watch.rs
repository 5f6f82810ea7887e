//! Looks at the first requests of a layer for mistakes in how it is set up.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::EVENTS;
use crate::{mistake::KeyPart, sync::mutex::Mutex};

/// Later requests cost no more than the load of a flag. What is looked for does not come and go: it shows in the first
/// requests, or it is no mistake.
#[derive(Debug, Default)]
pub(super) struct Watch {
    is_over: AtomicBool,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    requests: u32,
    parts: Vec<SeenPart>,
    second_proxy: u32,
    /// For the name of a tier with each request that has passed a layer without tiers: whether it was read.
    tiers: Vec<Arc<AtomicBool>>,
}

/// The mistakes that only many requests show together.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The parts of keys that no request had.
    pub(super) missing: Vec<String>,
    /// True if most requests came through a second proxy that is not trusted. A few may be clients of a private network that
    /// sent a field of their own.
    pub(super) has_second_proxy: bool,
    /// True if many requests carried the name of a tier, and none of the names was read, by this layer, those around it or
    /// those inside of it. One that was read is enough: the layer with tiers may be around a route that few requests take.
    pub(super) has_unread_tiers: bool,
}

/// A part of a key, in the requests that were asked for it.
#[derive(Debug)]
struct SeenPart {
    name: String,
    asked: u32,
    was_there: bool,
}

impl Watch {
    /// The number of requests that are looked at.
    const REQUESTS: u32 = 1_000;

    /// The number of requests that have to lack a part of a key before it is taken for missing, or to carry a tier for nothing.
    const ASKED: u32 = 100;

    pub(super) fn has_seen_one_at_most(&self) -> bool {
        self.is_on() && self.seen.lock().requests <= 1
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        EVENTS && !self.is_over.load(Ordering::Relaxed)
    }

    /// One more request. The last one shows what all of them have shown together.
    pub(super) fn next(&self) -> Shown {
        let mut seen = self.seen.lock();
        seen.requests += 1;
        if seen.requests != Self::REQUESTS {
            return Shown::default();
        }
        self.is_over.store(true, Ordering::Relaxed);
        let tiers = std::mem::take(&mut seen.tiers);
        let parts = std::mem::take(&mut seen.parts).into_iter();
        let is_missing = |part: &SeenPart| !part.was_there && part.asked >= Self::ASKED;
        Shown {
            missing: parts.filter(is_missing).map(|part| part.name).collect(),
            has_second_proxy: seen.second_proxy > Self::REQUESTS / 2,
            has_unread_tiers: tiers.len() >= Self::ASKED as usize
                && !tiers.iter().any(|tier| tier.load(Ordering::Relaxed)),
        }
    }

    pub(super) fn second_proxy(&self) {
        self.seen.lock().second_proxy += 1;
    }

    /// A request goes on with the name of a tier. The layers inside of this one may read it later.
    pub(super) fn tier(&self, is_read: &Arc<AtomicBool>) {
        let mut seen = self.seen.lock();
        // Requests that were under way when the last one came find no one who looks.
        if seen.requests < Self::REQUESTS {
            seen.tiers.push(Arc::clone(is_read));
        }
    }

    /// Notes which parts of its key a request had.
    pub(super) fn parts(&self, parts: Vec<KeyPart>) {
        if parts.is_empty() {
            return;
        }
        let known = &mut self.seen.lock().parts;
        for KeyPart { name, is_there } in parts {
            match known.iter_mut().find(|part| part.name == name) {
                Some(part) => {
                    part.asked += 1;
                    part.was_there |= is_there;
                }
                None => known.push(SeenPart {
                    name,
                    asked: 1,
                    was_there: is_there,
                }),
            }
        }
    }
}
