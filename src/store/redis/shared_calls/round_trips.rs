//! The distance of the server, as the calls of the last seconds show it.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest round trips of the last seconds.
#[derive(Default)]
pub(super) struct RoundTrips {
    shortest: Option<Duration>,
    /// The shortest one of the window before.
    shortest_before: Option<Duration>,
    window_ends: Option<Instant>,
}

impl RoundTrips {
    const WINDOW: Duration = Duration::from_secs(10);

    /// A shorter wait is not because of the queue.
    const USUAL_WAIT: Duration = Duration::from_millis(5);

    /// The time of an answer while the server is busy; of short deadlines a quarter.
    const BUSY: Duration = Duration::from_millis(10);

    /// A round trip that took longer is none: the server was stopped.
    const LONGEST: Duration = Duration::from_millis(100);

    pub(super) fn record(&mut self, round_trip: Duration, now: Instant) {
        if self.window_ends.is_none_or(|end| now >= end) {
            self.shortest_before = self.shortest.take();
            self.window_ends = Some(now + Self::WINDOW);
        }
        self.shortest = Some(self.shortest.map_or(round_trip, |shortest| shortest.min(round_trip)));
    }

    pub(super) fn shortest(&self) -> Option<Duration> {
        self.shortest.into_iter().chain(self.shortest_before).min()
    }

    /// Returns `true` if a decision has waited so long that no answer can be there before its deadline.
    pub(super) fn are_too_long_for(&self, deadline: Option<Duration>, waited: Duration) -> bool {
        if waited <= Self::USUAL_WAIT {
            return false;
        }
        deadline.is_some_and(|deadline| {
            let round_trip = self.shortest().unwrap_or_default().min(Self::LONGEST);
            let needed = round_trip.max(Self::BUSY.min(deadline / 4));
            waited + needed >= deadline
        })
    }
}
