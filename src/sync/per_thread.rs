//! Reference counts that threads do not share.
//!
//! A counter that two processors write in turn costs each of them some fifty nanoseconds, as long as a decision in memory. So
//! what each request holds for a while, its policies and the layer itself, is there once for each lane, and a thread clones
//! that of its lane.

use std::{
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Number of lanes. There are more of them than most processors have threads, because threads that come and go take numbers,
/// too, and two that are busy are not to meet in one.
const LANES: usize = 32;

/// The number of this thread: threads that are started together have lanes of their own.
fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);

    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));

    // A thread that ends has none any more, and may still drop requests.
    NUMBER.try_with(|number| *number).unwrap_or_default()
}

/// A value, and a copy of it for each lane that has asked for one.
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

    /// The value that the copies are made of.
    #[inline]
    pub(crate) fn first(&self) -> &T {
        &self.first
    }

    /// The copy of this thread's lane, which `copy` makes for its first request.
    #[inline]
    pub(crate) fn local(&self, copy: impl FnOnce(&T) -> T) -> &T {
        self.copies[number() % LANES].get_or_init(|| copy(&self.first))
    }
}

/// A value that shares no cache line with another one, in particular not the reference count before it. Processors fetch
/// lines of 64 bytes in pairs.
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

/// A reference to a value that all lanes share. Its clones are counted in the lane that it was taken for.
pub(crate) type PerThreadRef<T> = Arc<CachePadded<Arc<T>>>;

/// A shared value, with a reference to it for each lane.
#[derive(Debug)]
pub(crate) struct Shared<T>(Arc<PerThread<PerThreadRef<T>>>);

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new(PerThread::new(Arc::new(CachePadded(Arc::new(value))))))
    }

    /// A reference that is counted in this thread's lane.
    #[inline]
    pub(crate) fn local(&self) -> PerThreadRef<T> {
        let reference = self.0.local(|first| Arc::new(CachePadded(Arc::clone(first))));
        Arc::clone(reference)
    }

    /// A reference for what lives longer than a request.
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
        // Threads of other tests take numbers, too, so two of these may meet in a lane.
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
