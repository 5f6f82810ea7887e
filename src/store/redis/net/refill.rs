//! Replaces the connections of a pool that have ended.

use std::{
    sync::{
        Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ::redis::RedisError;
use tokio::sync::Notify;

use super::pool::{PoolState, connection_error};
use crate::{
    breaker::jittered,
    error::{StoreError, StoreErrorKind},
    sync::mutex::Mutex,
    telemetry,
};

/// Opens connections until there are as many as there should be.
pub(super) struct Refill {
    state: Weak<PoolState>,
    /// `false` if it is dropped because its runtime ends.
    is_over: bool,
}

impl Refill {
    pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);

    pub(super) fn new(state: Weak<PoolState>) -> Self {
        Self { state, is_over: false }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a server that cannot be reached is not asked again at once"
    )]
    pub(super) async fn run(mut self, after: Duration) {
        let mut pause = Self::FIRST_PAUSE;
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        let mut known = None;
        while let Some(state) = self.state.upgrade() {
            let failures = state.manager.failures.count();
            // A connection that has just been opened may be closed again, so it is looked at after a pause.
            if known.is_some() && state.is_full() {
                self.is_over = true;
                drop(self);
                // A connection that has ended since then has found this task under way.
                if !state.is_full() {
                    state.refill(Self::FIRST_PAUSE);
                }
                return;
            }
            // Where requests have tried meanwhile, this need not.
            if known.is_none_or(|known| known == failures) {
                // Those that have ended are found on the way.
                for _ in 0..state.count {
                    if state.get().await.is_err() {
                        if state.manager.failures.count() == failures {
                            // No attempt has failed, so those that the pool waits for have ended with another runtime.
                            state.forget_attempts();
                        }
                        break;
                    }
                }
            }
            known = Some(state.manager.failures.count());
            drop(state);
            tokio::time::sleep(jittered(pause)).await;
            pause = (pause * 2).min(Self::LONGEST_PAUSE);
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

/// Failed attempts to open a connection. bb8 does not tell them to the requests that wait for one.
#[derive(Default)]
pub(super) struct ConnectionFailures {
    pub(super) next: Notify,
    count: AtomicU64,
    last: Mutex<Option<RedisError>>,
}

impl ConnectionFailures {
    pub(super) fn record(&self, error: &RedisError) {
        telemetry::connection_failed(error);
        *self.last.lock() = Some(error.clone());
        self.count.fetch_add(1, Ordering::Relaxed);
        self.next.notify_waiters();
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The last of them, as the reason why there is no connection.
    pub(super) fn last(&self) -> StoreError {
        let last = self.last.lock().clone();
        let none = || StoreError::new(StoreErrorKind::Unreachable, "no connection could be opened in time");
        last.map_or_else(none, connection_error)
    }
}
