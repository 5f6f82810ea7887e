//! Tags that this process has seen. None of them is forgotten while its challenge may be accepted.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use foldhash::fast::RandomState;

use crate::mutex::Mutex;
use tower_quota::{PartitionId, clock::Timestamp};

/// The tags of the tokens that came to this process, at most so many.
///
/// Those that a shared store knows, too, make room for others; those that only this process knows never do.
#[derive(Clone)]
pub(super) struct Tags(Arc<Mutex<State>>);

struct State {
    known: HashMap<PartitionId, (), RandomState>,
    /// Only this process knows that they are spent. In both queues, those that are forgotten first stand in front.
    own: VecDeque<(Timestamp, PartitionId)>,
    /// A shared store knows it, too.
    shared: VecDeque<(Timestamp, PartitionId)>,
    capacity: usize,
    lifetime: Duration,
}

/// The result of noting a tag.
pub(super) enum Entry {
    /// It was not known, and is now.
    New(Reservation),
    /// It was known.
    Spent,
    /// There is no room for it.
    Full,
}

/// A tag that this process has noted, and about which it asks a store. Unless its answer differs, the store knows
/// that it is spent; also if the request was cancelled, since the store may have noted the tag.
pub(super) struct Reservation {
    tags: Tags,
    tag: PartitionId,
    now: Timestamp,
    keeper: Keeper,
}

/// The places that know of a spent tag.
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

    /// Returns `true` if the tag is spent, as far as this process knows.
    pub(super) fn knows(&self, tag: PartitionId, now: Timestamp) -> bool {
        let mut state = self.0.lock();
        state.forget_expired(now);
        state.known.contains_key(&tag)
    }

    /// Notes a tag, of equal ones that come at the same time only the first.
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

    /// Makes room by the oldest tag that a shared store knows, if there is one.
    fn forget_shared(&mut self) -> bool {
        let oldest = self.shared.pop_front();
        oldest.is_some_and(|(_, tag)| self.known.remove(&tag).is_some())
    }
}

impl Reservation {
    /// Only this process knows that the tag is spent.
    pub(super) fn keep(mut self) {
        self.keeper = Keeper::ThisProcess;
    }

    /// The tag was not spent.
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
