use std::time::Duration;

use tokio::time::Instant;

/// The minimum round-trip time over the current and the previous window.
pub(crate) struct RoundTrips {
    window: Duration,
    shortest: Option<Duration>,
    shortest_before: Option<Duration>,
    window_ends: Option<Instant>,
}

impl RoundTrips {
    pub(crate) const fn new(window: Duration) -> Self {
        Self {
            window,
            shortest: None,
            shortest_before: None,
            window_ends: None,
        }
    }

    pub(crate) fn record(&mut self, round_trip: Duration, now: Instant) {
        if self.window_ends.is_none_or(|end| now >= end) {
            self.shortest_before = self.shortest.take();
            self.window_ends = Some(now + self.window);
        }
        self.shortest = Some(self.shortest.map_or(round_trip, |shortest| shortest.min(round_trip)));
    }

    pub(crate) fn shortest(&self) -> Option<Duration> {
        self.shortest.into_iter().chain(self.shortest_before).min()
    }
}
