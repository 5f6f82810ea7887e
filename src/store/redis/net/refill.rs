use std::{
    sync::{Weak, atomic::Ordering},
    time::Duration,
};

use tokio::{runtime::Handle, time::timeout};

use super::pool::{FIRST_PAUSE, PoolState};
use crate::breaker::jittered;

/// Resets the flag even if its runtime has ended.
struct Refill(Weak<PoolState>);

impl Refill {
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);

    #[allow(
        clippy::disallowed_methods,
        reason = "pauses between connection attempts to an unreachable server"
    )]
    async fn run(self, after: Duration) {
        let (mut pause, mut has_begun) = (FIRST_PAUSE, false);
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        while let Some(state) = self.0.upgrade() {
            let generations = state.connector.generations.clone();
            let switched = generations.switched();
            // The server may close new connections immediately, so they are checked after a pause.
            if has_begun && state.is_full() {
                drop(self);
                // A connection that ended since the check did not start another task, because the current task was
                // running.
                if !state.is_full() {
                    state.refill(FIRST_PAUSE);
                }
                return;
            }
            state.open_missing();
            has_begun = true;
            drop(state);
            match timeout(jittered(pause), switched).await {
                Err(_) => pause = (pause * 2).min(Self::LONGEST_PAUSE),
                // A sentinel has named another primary.
                Ok(()) => (has_begun, pause) = (false, FIRST_PAUSE),
            }
        }
    }
}

impl Drop for Refill {
    fn drop(&mut self) {
        if let Some(state) = self.0.upgrade() {
            state.is_refilling.store(false, Ordering::Release);
        }
    }
}

impl PoolState {
    pub(super) fn refill(&self, after: Duration) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !self.is_refilling.swap(true, Ordering::AcqRel) {
            let task = runtime.spawn(Refill(self.this.clone()).run(after));
            *self.refill.lock() = Some(task.abort_handle());
        }
    }
}
