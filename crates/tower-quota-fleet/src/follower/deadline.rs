//! The time that a source has for an answer.

use std::{future::Future, time::Duration};

use tokio::time::timeout;

use crate::error::FleetError;

/// The time within which a version has to be there, and a report has to be written.
pub(super) const SHORT: Duration = Duration::from_secs(1);

/// The time within which a document has to be there.
pub(super) const LONG: Duration = Duration::from_secs(5);

/// The answer of a source that is there in time.
pub(super) async fn within<T>(
    time: Duration,
    answer: impl Future<Output = Result<T, FleetError>>,
) -> Result<T, FleetError> {
    match timeout(time, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(FleetError::unavailable(format!("no answer within {time:?}"))),
    }
}
