use std::{future::pending, panic::resume_unwind};

use tokio::task::spawn_blocking;

use super::telemetry::with_subscriber;

/// A document of 1 MiB takes tens of milliseconds.
pub(super) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(with_subscriber(work)).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is shutting down, and drops this task.
            Err(_) => pending().await,
        },
    }
}
