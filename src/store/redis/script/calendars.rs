//! The borders of calendar windows that a call brings, around the time of the server.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use ::redis::{RedisError, make_extension_error};
use smallvec::SmallVec;

use crate::{
    algorithm::{Borders, Counter},
    clock::{Clock, Timestamp},
    policy::Policy,
};

/// The bytes of the borders of one calendar.
const SIZE: usize = 8 * Borders::AROUND;

/// The calendars of a call, each of them once.
#[derive(Default)]
pub(super) struct Calendars(SmallVec<[&'static Borders; 1]>);

impl Calendars {
    /// Returns the place, counted from 1, of the borders of a policy among those of the call; `None` if it has no calendar.
    pub(super) fn place(&mut self, policy: &Policy) -> Option<usize> {
        let Counter::Calendar(calendar) = policy.counter() else {
            return None;
        };
        let borders = calendar.borders()?;
        let known = self.0.iter().position(|known| *known == borders);
        let number = known.unwrap_or_else(|| {
            self.0.push(borders);
            self.0.len() - 1
        });
        Some(number * SIZE + 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn around(&self, moment: Timestamp) -> Vec<u8> {
        let borders = self.0.iter().flat_map(|calendar| calendar.around(moment.as_micros()));
        borders.flat_map(|border| (border as f64).to_le_bytes()).collect()
    }
}

/// The time of the servers as this process takes it to be. Clones learn it together.
#[derive(Clone)]
pub(in super::super) struct ServerTime {
    clock: Clock,
    /// The microseconds by which the servers are ahead of the clock. It is 0 until a server's time was in none of the windows
    /// that a call had brought.
    ahead: Arc<AtomicI64>,
}

impl ServerTime {
    pub(in super::super) fn new(clock: Option<Clock>) -> Self {
        Self {
            clock: clock.unwrap_or_else(Clock::system),
            ahead: Arc::default(),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        let ahead = self.ahead.load(Ordering::Relaxed);
        Timestamp::from_micros(self.clock.now().as_micros().saturating_add_signed(ahead))
    }

    pub(super) fn learn(&self, time: Timestamp) {
        let ahead = time.as_micros() as i64 - self.clock.now().as_micros() as i64;
        self.ahead.store(ahead, Ordering::Relaxed);
    }
}

/// The error of a server whose time is never in the windows that it has asked for.
pub(super) fn unsteady_clock(time: Timestamp) -> RedisError {
    let message = format!(
        "the clock of the server jumps over calendar windows between calls, now to {} s since 1970",
        time.as_micros() / 1_000_000
    );
    make_extension_error("CLOCK".to_owned(), Some(message))
}
