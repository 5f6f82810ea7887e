//! Clocks of stores, limiters and other components, and timestamps.
//!
//! Except for Tokio timers, such as the [deadline](crate::LimiterBuilder::deadline) of a decision, the crate reads the
//! time only from its clocks. To test limits without waiting, advance a manual clock. If a test depends on timers,
//! pause Tokio's time and use [`Clock::tokio`].
//!
//! ```
//! use std::time::Duration;
//! use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
//! use tower_quota::clock::{Clock, Timestamp};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
//! let store = MemoryStore::builder().clock(clock.clone()).build()?;
//! let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 1)])?;
//! let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
//! let send = async || store.decide(Plan::new(policies.clone(), alice, 1)).await;
//!
//! assert_eq!(send().await?.outcome(), Outcome::Allowed);
//! clock.advance(Duration::from_secs(3_599));
//! assert_eq!(send().await?.outcome(), Outcome::Rejected);
//! clock.advance(Duration::from_secs(1));
//! assert_eq!(send().await?.outcome(), Outcome::Allowed);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// A timestamp in whole microseconds since the Unix epoch, up to the year 586,524.
///
/// Arithmetic saturates at both ends and never panics.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::clock::Timestamp;
///
/// let moment = Timestamp::from_micros(1_000_000);
/// assert_eq!(moment.saturating_add(Duration::from_nanos(2_999)).as_micros(), 1_000_002);
/// assert_eq!(moment.micros_since(Timestamp::from_micros(400_000)), 600_000);
///
/// // Arithmetic saturates.
/// assert_eq!(moment.micros_since(Timestamp::from_micros(2_000_000)), 0);
/// assert_eq!(moment.saturating_add(Duration::MAX), Timestamp::from_micros(u64::MAX));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates a timestamp from microseconds since the Unix epoch.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the Unix epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Adds `duration`, rounded down to microseconds. Saturates at the end of the range.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_micros(duration)))
    }

    /// Returns the microseconds since `earlier`, or 0 if `earlier` is later.
    #[inline]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The time source of a component. Clones share its time.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::clock::{Clock, Timestamp};
///
/// let clock = Clock::manual(Timestamp::from_micros(0));
/// let shared = clock.clone();
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(shared.now(), Timestamp::from_micros(60_000_000));
/// clock.set(Timestamp::from_micros(7));
/// assert_eq!(shared.now(), Timestamp::from_micros(7));
///
/// // The system clock cannot be set.
/// let clock = Clock::system();
/// clock.set(Timestamp::from_micros(7));
/// assert!(clock.now() > Timestamp::from_micros(1_700_000_000_000_000));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Tokio {
        wall: Timestamp,
        start: tokio::time::Instant,
    },
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Returns the system clock, the default. It starts at the system time of its first use in the process, and then
    /// follows the monotonic clock, so it never steps back.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// Creates a system clock that stops while a test pauses Tokio's timers (`tokio::time::pause`), and then advances
    /// only with them.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::clock::Clock;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
    /// let clock = Clock::tokio();
    /// let before = clock.now();
    /// tokio::time::advance(Duration::from_secs(3_600)).await;
    /// assert_eq!(clock.now().micros_since(before), 3_600_000_000);
    /// # });
    /// ```
    pub fn tokio() -> Self {
        Self(Source::Tokio {
            wall: system_now(),
            start: tokio::time::Instant::now(),
        })
    }

    /// Creates a clock that shows `start` until [`advance`](Self::advance) or [`set`](Self::set) is called.
    pub fn manual(start: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(start.0))))
    }

    /// Returns the current time of this clock.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => system_now(),
            Source::Tokio { wall, start } => wall.saturating_add(start.elapsed()),
            Source::Manual(now) => Timestamp(now.load(Ordering::SeqCst)),
        }
    }

    /// Advances a manual clock and its clones by `duration`, rounded down to microseconds. Saturates at the end of the
    /// range. No effect on other clocks.
    pub fn advance(&self, duration: Duration) {
        if let Source::Manual(now) = &self.0 {
            let later = |now: u64| Some(now.saturating_add(whole_micros(duration)));
            let _ = now.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        }
    }

    /// Sets a manual clock and its clones, even to an earlier time. No effect on other clocks.
    pub fn set(&self, moment: Timestamp) {
        if let Source::Manual(now) = &self.0 {
            now.store(moment.0, Ordering::SeqCst);
        }
    }
}

#[inline]
fn whole_micros(duration: Duration) -> u64 {
    // Avoids `Duration::as_micros`, which divides a `u128`.
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(duration.subsec_micros().into())
}

#[allow(clippy::disallowed_methods, reason = "the only place that reads the system time")]
fn system_now() -> Timestamp {
    static START: LazyLock<(Timestamp, Instant)> = LazyLock::new(|| {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, whole_micros);
        (Timestamp(wall), Instant::now())
    });

    let (wall, monotonic) = *START;
    wall.saturating_add(monotonic.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_shows_the_time_of_this_century_and_never_steps_back() {
        let clock = Clock::system();
        let first = clock.now();
        let second = clock.now();
        assert!(first.as_micros() > 1_700_000_000_000_000);
        assert!(second >= first);
    }

    #[test]
    fn a_manual_clock_goes_where_it_is_set_also_backwards() {
        let clock = Clock::manual(Timestamp::from_micros(10));
        clock.advance(Duration::from_nanos(1_999));
        assert_eq!(clock.now().as_micros(), 11);
        clock.set(Timestamp::from_micros(3));
        assert_eq!(clock.now().as_micros(), 3);
    }

    #[test]
    fn a_manual_clock_stops_at_the_last_moment() {
        let clock = Clock::manual(Timestamp::from_micros(10));
        for _ in 0..2 {
            clock.advance(Duration::MAX);
            assert_eq!(clock.now().as_micros(), u64::MAX);
        }
    }
}
