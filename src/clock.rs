//! The clocks of stores, layers and clients, and the moments that they show.
//!
//! You want it to test limits without waiting: give a store a clock that stands still until the test moves it. Nothing
//! else in the crate reads the time, so what a test does with its clock is all that happens. Only timers, such as the
//! [deadline](crate::LimiterBuilder::deadline) of a decision, are tokio's: where they matter, pause tokio's time
//! and take [`Clock::tokio`].
//!
//! ```
//! use std::time::Duration;
//! use tower_quota::{PolicySet, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, Scope, Store};
//! use tower_quota::clock::{Clock, Timestamp};
//!
//! # tokio_test::block_on(async {
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

/// A moment in whole microseconds since the Unix epoch.
///
/// The range is 1970 to the year 586 524; arithmetic saturates at both ends, so no input can make it panic
/// or wrap.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::clock::Timestamp;
///
/// let moment = Timestamp::from_micros(1_000_000);
/// assert_eq!(moment.saturating_add(Duration::from_nanos(2_999)).as_micros(), 1_000_002);
/// assert_eq!(moment.micros_since(Timestamp::from_micros(400_000)), 600_000);
///
/// // Nothing is before the epoch, and nothing after the last moment.
/// assert_eq!(moment.micros_since(Timestamp::from_micros(2_000_000)), 0);
/// assert_eq!(moment.saturating_add(Duration::MAX), Timestamp::from_micros(u64::MAX));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment that many microseconds after the Unix epoch.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Whole microseconds since the Unix epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The moment `duration` later, at most the last one of the range; parts of a microsecond are dropped.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_micros(duration)))
    }

    /// Microseconds from `earlier` to this moment, zero when `earlier` lies in the future.
    #[inline]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The source of time for a store or a guard.
///
/// [`Clock::system`] is what you want in production. [`Clock::manual`] stands still until it is told to move: use it to
/// test limits without waiting. Clones of a clock share its time.
///
/// The system clock starts at the computer's time and then follows its monotonic clock: it never steps back, whatever
/// happens to the computer's time afterwards. [`Clock::tokio`] is the same for what waits with timers of tokio; where a
/// test has paused those, it stands still with them.
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
/// // The clock of production cannot be moved.
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
    /// The computer's time when it was first read, and from then on the monotonic clock: the default.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// The computer's time, monotonic, as the timers of tokio see it.
    ///
    /// In a test that has paused them (`tokio::time::pause`), it stands still until they move, and then moves as far.
    /// Elsewhere it shows what [`system`](Self::system) shows.
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

    /// A clock that shows `start` until it is moved with [`advance`](Self::advance) or [`set`](Self::set).
    pub fn manual(start: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(AtomicU64::new(start.0))))
    }

    /// The moment that this clock shows.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => system_now(),
            Source::Tokio { wall, start } => wall.saturating_add(start.elapsed()),
            Source::Manual(now) => Timestamp(now.load(Ordering::SeqCst)),
        }
    }

    /// Moves a manual clock, and all its clones, forward, to the last moment at most; parts of a microsecond are dropped.
    /// Other clocks are not changed.
    pub fn advance(&self, duration: Duration) {
        if let Source::Manual(now) = &self.0 {
            let later = |now: u64| Some(now.saturating_add(whole_micros(duration)));
            let _ = now.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        }
    }

    /// Sets a manual clock and all its clones, backwards too. Other clocks are not changed.
    pub fn set(&self, moment: Timestamp) {
        if let Source::Manual(now) = &self.0 {
            now.store(moment.0, Ordering::SeqCst);
        }
    }
}

#[inline]
fn whole_micros(duration: Duration) -> u64 {
    // Not `as_micros`, which divides 128 bits.
    duration
        .as_secs()
        .saturating_mul(1_000_000)
        .saturating_add(duration.subsec_micros().into())
}

#[allow(clippy::disallowed_methods, reason = "this is the door through which time enters")]
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
