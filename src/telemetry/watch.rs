//! Checks the first requests of a layer for misconfigurations.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::EVENTS;
use crate::{mistake::KeyPart, sync::mutex::Mutex};

/// Only the first requests are checked, because misconfigurations are permanent. Later requests only load a flag.
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
    /// A flag for each request that carried the name of a tier through a layer without tiers. The flag is true once
    /// another layer has read the name.
    tiers: Vec<Arc<AtomicBool>>,
}

/// Misconfigurations that can only be detected from several requests.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) missing: Vec<String>,
    /// True if most requests came through a second, untrusted proxy. A few such requests may come from clients in a
    /// private network that have set the header field themselves.
    pub(super) has_second_proxy: bool,
    /// True if many requests carried the name of a tier, and no layer read any of them. If any layer has read a tier,
    /// nothing is reported, because the layer with tiers may only wrap a rarely used route.
    pub(super) has_unread_tiers: bool,
}

#[derive(Debug)]
struct SeenPart {
    name: String,
    asked: u32,
    was_there: bool,
}

impl Watch {
    const REQUESTS: u32 = 1_000;

    /// A missing part of a key, or unread tiers, are reported if at least this number of requests show the problem.
    const ASKED: u32 = 100;

    pub(super) fn has_seen_one_at_most(&self) -> bool {
        self.is_on() && self.seen.lock().requests <= 1
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        EVENTS && !self.is_over.load(Ordering::Relaxed)
    }

    /// Counts a request. Returns findings for the last watched request only.
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

    /// Records a request that carries the name of a tier, which inner layers may read later.
    pub(super) fn tier(&self, is_read: &Arc<AtomicBool>) {
        let mut seen = self.seen.lock();
        // Requests may still be in progress after the last watched request.
        if seen.requests < Self::REQUESTS {
            seen.tiers.push(Arc::clone(is_read));
        }
    }

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
