//! Configuration of a layer, checked as a whole.

use std::{fmt, ops::RangeInclusive, sync::Arc, time::Duration};

use super::{
    Resolving, TierLayer,
    cache::{Settings, TierCache},
    shard::Times,
    source::Source,
};
use crate::{
    clock::Clock,
    error::{ConfigError, ConfigErrorKind},
};

/// Settings of a [`TierLayer`]. All have a default.
#[must_use = "a builder does nothing until `build` is called"]
pub struct TierLayerBuilder {
    source: Box<dyn Source>,
    settings: Settings,
    clock: Clock,
}

impl TierLayerBuilder {
    pub(super) fn new(source: impl Source + 'static) -> Self {
        Self {
            source: Box::new(source),
            settings: Settings {
                times: Times {
                    time_to_live: Duration::from_secs(60),
                    stale_for: Duration::from_secs(600),
                    failure_pause: Duration::from_secs(1),
                },
                deadline: Duration::from_millis(50),
                look_up_timeout: Duration::from_secs(10),
                max_look_ups: 256,
                max_users: 100_000,
            },
            clock: Clock::system(),
        }
    }

    /// How long an answer is used without asking again, from 1 ms to 7 days, counted from when the source was asked.
    /// Default: 60 s.
    ///
    /// It is how long a change of a plan may go unseen, unless the user is [forgotten](TierCache::forget). An answer
    /// that comes too late for it, from a source that is slower than this, is used as a [stale](Self::stale_for) one.
    pub fn time_to_live(mut self, time: Duration) -> Self {
        self.settings.times.time_to_live = time;
        self
    }

    /// How long after its time to live an answer is used where no newer one can be had in time, up to 7 days; zero means
    /// not at all. Default: 10 minutes.
    pub fn stale_for(mut self, time: Duration) -> Self {
        self.settings.times.stale_for = time;
        self
    }

    /// How long a request waits for a look-up, from 1 ms to 60 s. Default: 50 ms.
    ///
    /// After it the request goes on with what is known, and the look-up goes on by itself.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// How long a look-up may take before it is given up, from the [`deadline`](Self::deadline) to 5 minutes. Default:
    /// 10 s.
    ///
    /// No request waits that long. A resolver that never answers keeps its place for so long.
    pub fn look_up_timeout(mut self, timeout: Duration) -> Self {
        self.settings.look_up_timeout = timeout;
        self
    }

    /// How long a user is not looked up again after a look-up that has failed, from 1 ms to 1 hour. Default: 1 s.
    ///
    /// It doubles with each failure in a row, up to eight times as long. Other users are looked up all the same, within
    /// [`max_look_ups`](Self::max_look_ups).
    pub fn failure_pause(mut self, pause: Duration) -> Self {
        self.settings.times.failure_pause = pause;
        self
    }

    /// The most look-ups that run at the same time, of all users together, from 1 to 65 536. Default: 256.
    ///
    /// A request that would need one more does not wait for its turn: it goes on with what is known.
    pub fn max_look_ups(mut self, look_ups: usize) -> Self {
        self.settings.max_look_ups = look_ups;
        self
    }

    /// The most users that are remembered, at least 1. Default: 100 000.
    ///
    /// When there are more, a new one takes the place of the one, among eight, who has not called for the longest time.
    /// The cap is divided among shards, so users may begin to be thrown out a little before it is reached.
    pub fn max_users(mut self, users: usize) -> Self {
        self.settings.max_users = users;
        self
    }

    /// The clock by which answers age. Default: [`Clock::system`].
    ///
    /// The deadline and the timeout of look-ups are timers of Tokio, which this does not change.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The layer, if the settings are sound.
    ///
    /// # Errors
    ///
    /// The first setting found that is out of its range. The message names it, the value and the bound.
    pub fn build(self) -> Result<TierLayer, ConfigError> {
        const MILLISECOND: Duration = Duration::from_millis(1);
        const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);

        let Settings {
            times,
            deadline,
            look_up_timeout,
            max_look_ups,
            max_users,
        } = self.settings;
        check("time_to_live", times.time_to_live, MILLISECOND..=WEEK)?;
        check("stale_for", times.stale_for, Duration::ZERO..=WEEK)?;
        check("deadline", deadline, MILLISECOND..=Duration::from_secs(60))?;
        check("look_up_timeout", look_up_timeout, deadline..=Duration::from_secs(300))?;
        check(
            "failure_pause",
            times.failure_pause,
            MILLISECOND..=Duration::from_secs(3_600),
        )?;
        check("max_look_ups", max_look_ups, 1..=65_536)?;
        check("max_users", max_users, 1..=usize::MAX)?;
        Ok(TierLayer(Arc::new(Resolving {
            source: self.source,
            cache: TierCache::new(self.settings, self.clock),
        })))
    }
}

fn check<T: PartialOrd + fmt::Debug>(setting: &str, value: T, range: RangeInclusive<T>) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("tier layer: {setting} {value:?} is outside {range:?}");
    Err(ConfigError::new(ConfigErrorKind::Tier, message))
}

impl fmt::Debug for TierLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TierLayerBuilder")
            .field("settings", &self.settings)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
