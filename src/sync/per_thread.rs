//! Copies of a shared value per group of threads (*lane*): a contended reference count costs about 50 ns per update, as
//! much as an in-memory decision.

use std::{
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Short-lived threads also consume numbers.
const LANES: usize = 32;

fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);

    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));

    // Other destructors of an exiting thread may still drop requests.
    NUMBER.try_with(|number| *number).unwrap_or_default()
}

#[derive(Debug)]
pub(crate) struct PerThread<T> {
    first: T,
    copies: Box<[OnceLock<T>; LANES]>,
}

impl<T> PerThread<T> {
    pub(crate) fn new(first: T) -> Self {
        Self {
            first,
            copies: Box::new([const { OnceLock::new() }; LANES]),
        }
    }

    #[inline]
    pub(crate) fn first(&self) -> &T {
        &self.first
    }

    #[inline]
    pub(crate) fn local(&self, copy: impl FnOnce(&T) -> T) -> &T {
        self.copies[number() % LANES].get_or_init(|| copy(&self.first))
    }
}

/// Aligned to 128 bytes, because processors fetch 64-byte lines in pairs.
#[derive(Debug, Default, PartialEq, Eq)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for CachePadded<T> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

pub(crate) type PerThreadRef<T> = Arc<CachePadded<Arc<T>>>;

#[derive(Debug)]
pub(crate) struct Shared<T>(Arc<PerThread<PerThreadRef<T>>>);

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new(PerThread::new(Arc::new(CachePadded(Arc::new(value))))))
    }

    #[inline]
    pub(crate) fn local(&self) -> PerThreadRef<T> {
        let reference = self.0.local(|first| Arc::new(CachePadded(Arc::clone(first))));
        Arc::clone(reference)
    }

    /// For references that outlive a request.
    pub(crate) fn whole(&self) -> &Arc<T> {
        self.0.first()
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.whole()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn each_lane_has_a_copy_of_its_own_which_its_threads_keep() {
        let per_thread = PerThread::new(Arc::new(7));
        let here = || Arc::as_ptr(per_thread.local(|first| Arc::new(**first))).addr();
        // Threads of other tests also consume numbers.
        let copies: Vec<(usize, [usize; 2])> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (number() % LANES, [here(), here()])))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (index, (lane, [copy, again])) in copies.iter().enumerate() {
            assert_eq!(copy, again);
            assert_ne!(*copy, Arc::as_ptr(per_thread.first()).addr());
            let mut others = copies[..index].iter();
            assert!(
                others.all(|(other, [copied, _])| (other == lane) == (copied == copy)),
                "{copies:?}"
            );
        }
    }

    #[test]
    fn a_reference_of_a_lane_leaves_the_count_of_the_value_alone() {
        let shared = Shared::new("limits");
        let first = shared.local();
        let before = Arc::strong_count(shared.whole());
        let second = shared.local();
        assert_eq!((***first, ***second), ("limits", "limits"));
        assert_eq!(Arc::strong_count(shared.whole()), before);
        assert_eq!(align_of_val(&*first), 128);
    }
}
