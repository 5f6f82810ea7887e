use std::{ops::RangeInclusive, time::Duration};

use super::FailureMode;
use crate::{
    decision::Plan,
    error::{ConfigError, ConfigErrorKind},
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardConfig {
    pub(crate) failure_mode: FailureMode,
    pub(crate) deadline: Duration,
    pub(crate) max_waiting: u32,
    /// The capacity in partitions. 0 turns the cache off.
    pub(crate) rejection_cache: usize,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self {
            failure_mode: FailureMode::default(),
            deadline: Duration::from_millis(50),
            max_waiting: 10_000,
            rejection_cache: 1 << 14,
        }
    }
}

impl GuardConfig {
    const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Plan::LONGEST_DEADLINE;
    const MAX_WAITING: RangeInclusive<u32> = 1..=1 << 16;
    const REJECTION_CACHE: RangeInclusive<usize> = 0..=1 << 20;

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        use ConfigErrorKind::{Deadline, MaxWaiting, RejectionCache};

        ConfigError::check_range(Deadline, "deadline", self.deadline, Self::DEADLINES)?;
        ConfigError::check_range(MaxWaiting, "max waiting", self.max_waiting, Self::MAX_WAITING)?;
        ConfigError::check_range(
            RejectionCache,
            "rejection cache",
            self.rejection_cache,
            Self::REJECTION_CACHE,
        )
    }
}
