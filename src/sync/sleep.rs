use std::{pin::Pin, time::Duration};

use tokio::time::Sleep;

#[allow(clippy::disallowed_methods, reason = "queued requests must wait")]
pub(crate) fn sleep(delay: Duration) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(delay))
}
