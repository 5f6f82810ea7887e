//! Calls contain the boundaries of calendar windows around the estimated time of the server.

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

const SIZE: usize = 8 * Borders::AROUND;

#[derive(Default)]
pub(super) struct Calendars(SmallVec<[&'static Borders; 1]>);

impl Calendars {
    /// One-based, in bytes.
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

#[derive(Clone)]
pub(in super::super) struct ServerTime {
    clock: Clock,
    /// In microseconds. Stays 0 until a call lacks the boundaries for the server's time.
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

pub(super) fn unsteady_clock(time: Timestamp) -> RedisError {
    let message = format!(
        "the server's clock jumps across calendar windows between calls; Unix time is now {} s",
        time.as_micros() / 1_000_000
    );
    make_extension_error("CLOCK".to_owned(), Some(message))
}
