use std::{future::Future, time::Duration};

use tokio::time::timeout;

use crate::error::FleetError;

/// For versions and reports.
pub(super) const SHORT: Duration = Duration::from_secs(1);

/// For documents.
pub(super) const LONG: Duration = Duration::from_secs(5);

pub(super) async fn within<T>(
    time: Duration,
    answer: impl Future<Output = Result<T, FleetError>>,
) -> Result<T, FleetError> {
    match timeout(time, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(FleetError::unavailable(format!("no response within {time:?}"))),
    }
}
