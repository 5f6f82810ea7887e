use std::{
    cell::RefCell,
    hash::{BuildHasher, Hasher},
    mem,
    sync::atomic::{AtomicU64, Ordering},
};

use foldhash::fast::FixedState;

use crate::partition::{PartitionId, PartitionKey, Scope};

/// Each thread keeps digests of recent callers, because one takes a seventh of a request in memory.
pub(super) struct RecentScope {
    pub(super) scope: Scope,
    /// Unique in the process.
    number: u64,
}

impl RecentScope {
    pub(super) fn new(scope: Scope) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);

        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { scope, number }
    }

    #[inline]
    pub(super) fn partition(&self, key: &PartitionKey) -> PartitionId {
        let recent = RECENT.try_with(|recent| recent.borrow_mut().partition(self, key));
        // Other destructors of an exiting thread may still need a digest.
        recent.unwrap_or_else(|_| self.scope.partition(key))
    }
}

thread_local!(static RECENT: RefCell<Recent> = const { RefCell::new(Recent::NEW) });

struct Recent {
    /// Apart, because unknown callers read nothing else.
    hashes: [[u32; 2]; Self::SETS],
    callers: Vec<[Caller; 2]>,
    turn: u32,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Caller {
    partition: PartitionId,
    scope: u64,
    length: u8,
    key: [u8; Self::MAX_KEY],
}

impl Caller {
    const MAX_KEY: usize = 103;
    /// Scope 0 is unused.
    const NONE: Self = Self {
        partition: PartitionId::from_bytes([0; 16]),
        scope: 0,
        length: 0,
        key: [0; Self::MAX_KEY],
    };

    #[inline]
    fn is(&self, scope: u64, key: &[u8]) -> bool {
        self.scope == scope && self.key.get(..self.length.into()) == Some(key)
    }
}

impl Recent {
    const SETS: usize = 128;
    const NEW: Self = Self {
        hashes: [[0; 2]; Self::SETS],
        callers: Vec::new(),
        turn: 0,
    };

    #[inline]
    fn place(scope: u64, key: &[u8]) -> (usize, u32) {
        // Strangers who choose keys that collide only cause digests.
        let mut hasher = FixedState::with_seed(0).build_hasher();
        hasher.write(key);
        let hash = hasher.finish().wrapping_add(scope);
        (hash as usize % Self::SETS, (hash >> 32) as u32)
    }

    #[inline]
    fn partition(&mut self, RecentScope { scope, number }: &RecentScope, key: &PartitionKey) -> PartitionId {
        let bytes = key.as_bytes();
        let (set, hash) = Self::place(*number, bytes);
        for (way, known) in self.hashes[set].iter().enumerate() {
            if *known == hash
                && let Some(callers) = self.callers.get(set)
                && callers[way].is(*number, bytes)
            {
                return callers[way].partition;
            }
        }
        let partition = scope.partition(key);
        // Not a counter, which callers who take turns would meet at the same number.
        self.turn = self.turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // One of eight, because keeping all of a flood would take time and displace others.
        if self.turn >> 29 == 0 {
            self.keep((set, hash), *number, bytes, partition);
        }
        partition
    }

    #[cold]
    fn keep(&mut self, (set, hash): (usize, u32), scope: u64, key: &[u8], partition: PartitionId) {
        let mut caller = Caller {
            partition,
            scope,
            length: key.len() as u8,
            ..Caller::NONE
        };
        let Some(place) = caller.key.get_mut(..key.len()) else {
            return;
        };
        place.copy_from_slice(key);
        if self.callers.is_empty() {
            self.callers = vec![[Caller::NONE; 2]; Self::SETS];
        }
        let [newer, older] = &mut self.callers[set];
        *older = mem::replace(newer, caller);
        self.hashes[set] = [hash, self.hashes[set][0]];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::random::Sequence;

    fn scope(name: &str) -> RecentScope {
        RecentScope::new(Scope::new(name))
    }

    fn user(name: &str) -> PartitionKey {
        PartitionKey::new("user", name)
    }

    #[test]
    fn the_digest_of_a_caller_is_that_of_its_scope() {
        let (mut recent, scopes) = (Recent::NEW, [scope("api"), scope("mails")]);
        let mut random = Sequence::new();
        for _ in 0..20_000 {
            let (scope, length) = (&scopes[random.below(2)], random.below(200));
            let key = user(&"x".repeat(length));
            assert_eq!(recent.partition(scope, &key), scope.scope.partition(&key));
        }
    }

    #[test]
    fn a_caller_who_returns_becomes_known() {
        let (mut recent, api) = (Recent::NEW, scope("api"));
        let digest = api.scope.partition(&user("alice"));
        for _ in 0..100 {
            recent.partition(&api, &user("alice"));
        }
        // A digest that was computed now would be another one.
        let other = RecentScope {
            scope: Scope::new("other"),
            number: api.number,
        };
        assert_eq!(recent.partition(&other, &user("alice")), digest);
        assert_ne!(
            recent.partition(&other, &user("bob")),
            api.scope.partition(&user("bob"))
        );
    }

    #[test]
    fn callers_and_scopes_with_the_same_hash_are_different() {
        let [api, mails] = ["api", "mails"].map(scope);
        let [alice, bob] = ["alice", "bob"].map(user);
        for (scope, key) in [(&api, &bob), (&mails, &alice)] {
            let (mut recent, place) = (Recent::NEW, Recent::place(scope.number, key.as_bytes()));
            recent.keep(place, api.number, alice.as_bytes(), api.scope.partition(&alice));
            assert_eq!(recent.partition(scope, key), scope.scope.partition(key));
        }
    }

    #[test]
    fn a_caller_takes_two_cache_lines() {
        assert_eq!(size_of::<Caller>(), 128);
    }
}
