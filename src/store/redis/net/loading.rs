//! After a restart or a flush, all calls in flight fail with `NOSCRIPT`. The first of them sends the script in full;
//! the others wait, and then call it by its hash again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Mutex, MutexGuard};

#[derive(Default)]
pub(crate) struct Loading {
    count: AtomicU64,
    turn: Mutex<()>,
    /// True if the server will know the script before it reads further calls on this connection.
    is_known: AtomicBool,
}

impl Loading {
    pub(crate) fn known(&self) {
        if !self.is_known.load(Ordering::Relaxed) {
            self.is_known.store(true, Ordering::Relaxed);
        }
    }

    /// Ordered calls are sent in full at first: repeated after `NOSCRIPT`, they would lose their order.
    pub(crate) fn is_to_be_sent(&self) -> bool {
        !self.is_known.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub(crate) fn loaded(&self) {
        self.count.fetch_add(1, Ordering::Release);
    }

    /// `None` if another call has uploaded the script since the count was `seen`. `anyway` uploads it again, because a
    /// proxy may distribute the calls of one connection among several servers.
    pub(crate) async fn begin(&self, seen: u64, anyway: bool) -> Option<MutexGuard<'_, ()>> {
        let turn = self.turn.lock().await;
        (self.count() == seen || anyway).then(|| {
            self.known();
            turn
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_finds_a_script_missing_while_it_is_being_sent_waits_and_does_not_send_it() {
        let loading = Loading::default();
        let turn = loading.begin(0, false).await.unwrap();
        let mut other = Box::pin(loading.begin(0, false));
        assert!(futures_util::poll!(&mut other).is_pending());
        loading.loaded();
        drop(turn);
        assert!(other.await.is_none());
        assert!(loading.begin(0, false).await.is_none());
        assert!(loading.begin(loading.count(), false).await.is_some());
    }

    #[test]
    fn the_first_call_that_is_ordered_sends_a_script_that_has_not_run_on_this_connection() {
        let (new, used) = (Loading::default(), Loading::default());
        assert!(new.is_to_be_sent());
        assert!(!new.is_to_be_sent());
        used.known();
        assert!(!used.is_to_be_sent());
    }

    #[tokio::test]
    async fn a_script_that_was_not_sent_after_all_is_sent_by_another_call() {
        let loading = Loading::default();
        drop(loading.begin(0, false).await);
        assert!(loading.begin(0, false).await.is_some());
    }
}
