use std::sync::atomic::{AtomicU64, Ordering};

use ::redis::{ErrorKind, RedisError};

use crate::{sync::mutex::Mutex, telemetry};

#[derive(Default)]
pub(super) struct ConnectionFailures {
    count: AtomicU64,
    last: Mutex<Option<RedisError>>,
}

impl ConnectionFailures {
    pub(super) fn record(&self, error: &RedisError) {
        telemetry::connection_failed(error);
        *self.last.lock() = Some(error.clone());
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn last(&self) -> RedisError {
        let none = || (ErrorKind::Io, "connection attempt timed out").into();
        self.last.lock().clone().unwrap_or_else(none)
    }
}
