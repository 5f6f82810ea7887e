use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    clock::Timestamp,
    mistake::{KeyPart, PartName},
    sync::mutex::Mutex,
};

/// Only some requests are checked, because misconfigurations are permanent.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// 0 while requests are checked, or else the time from which they are checked again.
    resumes_at: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    requests: u32,
    parts: Vec<SeenPart>,
    second_proxy: u32,
}

#[derive(Debug, Default)]
pub(super) struct Shown {
    /// True if the request is marked for inner layers.
    pub(super) is_marked: bool,
    pub(super) missing: Vec<String>,
    /// A few requests may come from clients in a private network that have set the header field themselves.
    pub(super) has_second_proxy: bool,
}

#[derive(Debug)]
struct SeenPart {
    name: PartName,
    asked: u32,
    was_there: bool,
}

impl Watch {
    const REQUESTS: u32 = 1_000;

    /// Marks are the most expensive check, so the first requests have them, and then one of this number. Odd, because a
    /// layer that is there twice counts each request twice.
    const MARKED: u32 = 31;

    /// The first requests may not show the problem, for example if strangers connect directly instead of through a
    /// proxy.
    const PAUSE: Duration = Duration::from_secs(3_600);

    const PAUSED: u64 = 1;

    const ASKED: u32 = 100;

    pub(super) fn has_seen_one_at_most(&self) -> bool {
        self.is_on() && self.seen.lock().requests <= 1
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.resumes_at.load(Ordering::Relaxed) == 0
    }

    /// `now` is the time of a decision, which costs no look at a clock.
    #[inline]
    pub(super) fn resume_at(&self, now: Option<Timestamp>) {
        let resumes_at = self.resumes_at.load(Ordering::Relaxed);
        if let Some(now) = now
            && (1..=now.as_micros()).contains(&resumes_at)
        {
            self.resume(resumes_at, now);
        }
    }

    #[cold]
    fn resume(&self, resumes_at: u64, now: Timestamp) {
        let next = match resumes_at {
            Self::PAUSED => now.saturating_add(Self::PAUSE).as_micros(),
            _ => 0,
        };
        self.resumes_at.store(next, Ordering::Relaxed);
    }

    /// For the last request before a pause only.
    pub(super) fn next(&self) -> Shown {
        let mut seen = self.seen.lock();
        seen.requests = seen.requests.wrapping_add(1);
        let is_marked = seen.requests <= Self::MARKED || seen.requests.is_multiple_of(Self::MARKED);
        if !seen.requests.is_multiple_of(Self::REQUESTS) {
            return Shown {
                is_marked,
                ..Shown::default()
            };
        }
        self.resumes_at.store(Self::PAUSED, Ordering::Relaxed);
        let second_proxy = std::mem::take(&mut seen.second_proxy);
        let parts = std::mem::take(&mut seen.parts).into_iter();
        let is_missing = |part: &SeenPart| !part.was_there && part.asked >= Self::ASKED;
        Shown {
            is_marked,
            missing: parts.filter(is_missing).map(|part| part.name.to_string()).collect(),
            has_second_proxy: second_proxy > Self::REQUESTS / 2,
        }
    }

    pub(super) fn second_proxy(&self) {
        self.seen.lock().second_proxy += 1;
    }

    pub(super) fn parts(&self, parts: impl ExactSizeIterator<Item = KeyPart>) {
        if parts.len() == 0 {
            return;
        }
        let mut seen = self.seen.lock();
        // Later, parts may be missing for a good reason: for an hour in the night, all users may be anonymous.
        if seen.requests >= Self::REQUESTS {
            return;
        }
        let known = &mut seen.parts;
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
