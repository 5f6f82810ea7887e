use std::{
    sync::{Weak, atomic::Ordering},
    time::Duration,
};

use tokio::{runtime::Handle, time::timeout};

use super::pool::{FIRST_PAUSE, PoolState};
use crate::breaker::jittered;

pub(super) struct Refill {
    state: Weak<PoolState>,
    /// `false` if the task was dropped because its runtime has ended.
    is_over: bool,
}

impl Refill {
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);

    pub(super) fn new(state: Weak<PoolState>) -> Self {
        Self { state, is_over: false }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "pauses between connection attempts to an unreachable server"
    )]
    pub(super) async fn run(mut self, after: Duration) {
        let mut pause = FIRST_PAUSE;
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        let mut known = None;
        while let Some(state) = self.state.upgrade() {
            let generations = state.manager.generations.clone();
            let switched = generations.switched();
            let failures = state.manager.failures.count();
            // The server may close new connections immediately, so they are checked after a pause.
            if known.is_some() && state.is_full() {
                self.is_over = true;
                drop(self);
                // A connection that ended since the check did not start another task, because the current task was
                // running.
                if !state.is_full() {
                    state.refill(FIRST_PAUSE);
                }
                return;
            }
            // Skipped if requests have attempted to connect since the last pause.
            if known.is_none_or(|known| known == failures) {
                // `get` also removes connections that have ended.
                for _ in 0..state.count {
                    if state.get().await.is_err() {
                        if state.manager.failures.count() == failures {
                            // No attempt has failed, so the pool is waiting for attempts of a runtime that has ended.
                            state.forget_attempts();
                        }
                        break;
                    }
                }
            }
            known = Some(state.manager.failures.count());
            drop(state);
            match timeout(jittered(pause), switched).await {
                Err(_) => pause = (pause * 2).min(Self::LONGEST_PAUSE),
                // A sentinel has named another primary.
                Ok(()) => (known, pause) = (None, FIRST_PAUSE),
            }
        }
    }
}

impl Drop for Refill {
    fn drop(&mut self) {
        if let Some(state) = self.state.upgrade() {
            state.is_refilling.store(false, Ordering::Release);
            if !self.is_over {
                state.forget_attempts();
            }
        }
    }
}

impl PoolState {
    pub(super) fn refill(&self, after: Duration) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !self.is_refilling.swap(true, Ordering::AcqRel) {
            let refill = Refill::new(self.manager.state.clone());
            let task = runtime.spawn(async move { refill.run(after).await });
            *self.refill.lock() = Some(task.abort_handle());
        }
    }
}
