use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::sync::random_number;

const POLL: Duration = Duration::from_secs(1);

/// Bounds the polls of a source that always reports a change.
const SHORTEST: Duration = Duration::from_millis(50);

pub(super) async fn after_poll(change: impl Future<Output = ()>) {
    let earliest = Instant::now() + SHORTEST;
    change.await;
    sleep_until(earliest).await;
}

/// 0.75 s to 1.25 s.
#[allow(clippy::disallowed_methods, reason = "pauses between polls delay no request")]
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
