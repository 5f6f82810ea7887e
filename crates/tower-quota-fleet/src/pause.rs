//! The pauses of those who follow rules.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::sync::random_number;

/// The mean time between two polls.
const POLL: Duration = Duration::from_secs(1);

/// The shortest time between two polls, whatever a source says.
const SHORTEST: Duration = Duration::from_millis(50);

/// Waits until the source may have changed. One that always says so is not asked without end.
pub(super) async fn after_poll(change: impl Future<Output = ()>) {
    let earliest = Instant::now() + SHORTEST;
    change.await;
    sleep_until(earliest).await;
}

/// Waits for a second, a quarter more or less.
#[allow(
    clippy::disallowed_methods,
    reason = "a poll is a pause, and no request waits for it"
)]
pub(super) async fn between_polls() {
    sleep(jittered(random_number() as u32)).await;
}

fn jittered(number: u32) -> Duration {
    let share = f64::from(number) / f64::from(u32::MAX);
    POLL.mul_f64(0.75 + share / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_a_second_a_quarter_more_or_less() {
        let millis = [0, 1 << 31, u32::MAX].map(|number| jittered(number).as_millis());
        assert_eq!(millis, [750, 1_000, 1_250]);
    }
}
