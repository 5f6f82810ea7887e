use std::sync::atomic::{AtomicU64, Ordering};

use ::redis::RedisError;
use tokio::sync::Notify;

use super::connection::connection_error;
use crate::{
    error::{StoreError, StoreErrorKind},
    sync::mutex::Mutex,
    telemetry,
};

/// bb8 does not report failed attempts to waiting requests.
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

    pub(super) fn last(&self) -> StoreError {
        let last = self.last.lock().clone();
        let none = || StoreError::new(StoreErrorKind::Unreachable, "connection attempt timed out");
        last.map_or_else(none, connection_error)
    }
}
