use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use foldhash::fast::RandomState;

use crate::mutex::Mutex;
use tower_quota::{PartitionId, clock::Timestamp};

/// Tags that are also in a shared store are evicted for new ones; others are not while their challenge may be accepted.
#[derive(Clone)]
pub(super) struct Tags(Arc<Mutex<State>>);

struct State {
    known: HashMap<PartitionId, (), RandomState>,
    /// Only here. Both queues are sorted by expiry.
    own: VecDeque<(Timestamp, PartitionId)>,
    shared: VecDeque<(Timestamp, PartitionId)>,
    capacity: usize,
    lifetime: Duration,
}

pub(super) enum Entry {
    New(Reservation),
    Spent,
    Full,
}

/// A tag that is being spent in a store, which is assumed to have it even if the request is cancelled, unless `keep` or
/// `release` is called.
pub(super) struct Reservation {
    tags: Tags,
    tag: PartitionId,
    now: Timestamp,
    keeper: Keeper,
}

#[derive(Clone, Copy)]
enum Keeper {
    None,
    Shared,
    ThisProcess,
}

impl Tags {
    pub(super) fn new(capacity: usize, lifetime: Duration) -> Self {
        Self(Arc::new(Mutex::new(State {
            known: HashMap::default(),
            own: VecDeque::new(),
            shared: VecDeque::new(),
            capacity,
            lifetime,
        })))
    }

    pub(super) fn knows(&self, tag: PartitionId, now: Timestamp) -> bool {
        let mut state = self.0.lock();
        state.forget_expired(now);
        state.known.contains_key(&tag)
    }

    /// Of concurrent calls for the same tag, only the first succeeds.
    pub(super) fn enter(&self, tag: PartitionId, now: Timestamp) -> Entry {
        let mut state = self.0.lock();
        state.forget_expired(now);
        if state.known.contains_key(&tag) {
            return Entry::Spent;
        }
        if state.known.len() >= state.capacity && !state.forget_shared() {
            return Entry::Full;
        }
        state.known.insert(tag, ());
        Entry::New(Reservation {
            tags: self.clone(),
            tag,
            now,
            keeper: Keeper::Shared,
        })
    }
}

impl State {
    fn forget_expired(&mut self, now: Timestamp) {
        for queue in [&mut self.own, &mut self.shared] {
            while let Some((until, tag)) = queue.front()
                && *until <= now
            {
                self.known.remove(tag);
                queue.pop_front();
            }
        }
    }

    fn forget_shared(&mut self) -> bool {
        let oldest = self.shared.pop_front();
        oldest.is_some_and(|(_, tag)| self.known.remove(&tag).is_some())
    }
}

impl Reservation {
    pub(super) fn keep(mut self) {
        self.keeper = Keeper::ThisProcess;
    }

    pub(super) fn release(mut self) {
        self.keeper = Keeper::None;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.tags.0.lock();
        let entry = (self.now.saturating_add(state.lifetime), self.tag);
        match mem::replace(&mut self.keeper, Keeper::None) {
            Keeper::None => drop(state.known.remove(&self.tag)),
            Keeper::Shared => state.shared.push_back(entry),
            Keeper::ThisProcess => state.own.push_back(entry),
        }
    }
}
