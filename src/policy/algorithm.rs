use super::MAX_QUOTA;
use crate::{
    algorithm::{Bucket, Counter, FixedWindow, SlidingCounter, SlidingLog},
    error::{ConfigError, ConfigErrorKind},
};

/// The algorithm of a policy: which requests it admits, and which state the store keeps.
///
/// The default, [`TokenBucket`](Self::TokenBucket), allows bursts and limits the average rate. The example sends 20
/// requests one second before a fixed window ends, and 20 more two seconds later. The quota is 10 per 10 s:
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{
///     Algorithm, Limiter, MemoryStore, QuotaPolicy,
///     clock::{Clock, Timestamp},
/// };
///
/// let passed = async |algorithm| {
///     let clock = Clock::manual(Timestamp::from_micros(9_000_000));
///     let store = MemoryStore::builder().clock(clock.clone()).build()?;
///     let policy = QuotaPolicy::new("ten", 10, Duration::from_secs(10)).with_algorithm(algorithm);
///     let limiter = Limiter::builder(store).scope("api").policy(policy).clock(clock.clone()).build()?;
///     let alice = limiter.caller("alice");
///     let mut passed = [0, 0];
///     for count in &mut passed {
///         for _ in 0..20 {
///             *count += u32::from(alice.check().await.outcome().is_admitted());
///         }
///         clock.advance(Duration::from_secs(2));
///     }
///     Ok::<_, tower_quota::ConfigError>(passed)
/// };
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// assert_eq!(passed(Algorithm::TokenBucket).await?, [10, 2]);
/// assert_eq!(passed(Algorithm::StrictTokenBucket).await?, [5, 1]);
/// assert_eq!(passed(Algorithm::FixedWindow).await?, [10, 10]);
/// assert_eq!(passed(Algorithm::SlidingWindowCounter).await?, [10, 1]);
/// assert_eq!(passed(Algorithm::SlidingWindowLog).await?, [10, 0]);
/// assert_eq!(passed(Algorithm::LeakyBucketMeter).await?, [1, 1]);
/// // These are forwarded one per second.
/// assert_eq!(passed(Algorithm::LeakyBucketQueue { max_waiting: 3 }).await?, [4, 2]);
/// # Ok::<_, tower_quota::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// # Comparison
///
/// *q* is the quota and *w* the window. "Maximum" is the number of units admitted in any interval of one window, start
/// included and end excluded, without late charges and refunds. "Bytes" is the Redis memory of one caller under one
/// such policy, including the key. [Choosing](crate::docs::choosing#algorithms) lists requirements.
///
/// | algorithm | maximum in a window | bytes |
/// |---|---|---|
/// | [`TokenBucket`](Self::TokenBucket) | burst capacity + *q* − 1 | 104 to 120 |
/// | [`StrictTokenBucket`](Self::StrictTokenBucket) | *q* | 104 to 120 |
/// | [`FixedWindow`](Self::FixedWindow) | 2 *q* around a window boundary | 104 |
/// | [`SlidingWindowCounter`](Self::SlidingWindowCounter) | 2 *q* − 1, *q* for an even load | 104 |
/// | [`SlidingWindowLog`](Self::SlidingWindowLog) | *q* | 136, plus 32 to 120 per request |
/// | [`LeakyBucketMeter`](Self::LeakyBucketMeter) | *q* | 104 to 120 |
/// | [`LeakyBucketQueue`](Self::LeakyBucketQueue) | *q* forwarded; with costs above 1, *q* + largest cost − 1 | 104 to 120 |
///
/// # Changed policies
///
/// Used units still count after a change of the quota, the burst capacity, the queue, or the window of a bucket. For
/// other changes, see [which counts continue](crate::updates::RulesDiff#which-counts-continue).
///
/// A bucket refills at the new rate from the first decision under the changed policy. If the rate was lowered and the
/// used units exceed the new burst capacity at this decision, the bucket keeps the old rate until a request is
/// admitted. A [peek](crate::Store::peek) is not a decision, and computes its times as if an identical request were the
/// next decision.
///
/// # Chart
///
/// The same requests with a quota of 10 per 10 s, drawn by `cargo run --example algorithms`:
#[doc = include_str!("../../docs/algorithms.svg")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts units in windows aligned to the Unix epoch.
    ///
    /// Minutes begin at the full minute, and days at midnight UTC. Up to twice the quota can pass around a window
    /// boundary. For months and for days of a time zone, see
    /// [`QuotaPolicy::per_calendar`](crate::QuotaPolicy::per_calendar).
    FixedWindow,
    /// Admits one request every *w* ÷ *q* and rejects earlier ones. A cost above 1 is never admitted.
    LeakyBucketMeter,
    /// Queues requests and forwards one every *w* ÷ *q*.
    ///
    /// The store schedules the requests of all instances. A request is rejected if `max_waiting` units are queued; the
    /// longest delay is `max_waiting` × *w* ÷ *q*. If the inner service fails while a request is queued, its position
    /// is released only if it was the last one; if the request is cancelled, [never](crate::ResponseFuture).
    LeakyBucketQueue {
        /// The maximum number of queued units, from 1 to 999,999,999,999,999.
        max_waiting: u64,
    },
    /// Estimates a sliding window from the counts of the current and the previous fixed window.
    ///
    /// The previous count is weighted by the fraction of the previous window that the sliding window still covers, as
    /// if its requests had arrived evenly. Windows are aligned as for [`FixedWindow`](Self::FixedWindow).
    SlidingWindowCounter,
    /// Logs the time of each request: exact, but the most expensive algorithm. The quota is at most 10,000. Unused
    /// units of a request are refunded unless 1,000 or more requests have been logged after it.
    SlidingWindowLog,
    /// A token bucket that admits at most the quota in any interval of one window.
    ///
    /// The burst capacity counts toward the quota, so the bucket refills more slowly: with a burst capacity of *c*, at
    /// *q* − *c* + 1 units per window. The burst capacity is at most the quota.
    StrictTokenBucket,
    /// A bucket of [`burst_capacity`](crate::QuotaPolicy::burst_capacity) units that refills continuously, at *q*
    /// units per window.
    #[default]
    TokenBucket,
}

impl Algorithm {
    /// For the test suite for stores and the check of servers at startup.
    #[cfg_attr(
        not(any(feature = "redis", feature = "test-util")),
        allow(dead_code, reason = "not in use")
    )]
    pub(crate) const EACH: [Self; 7] = [
        Self::TokenBucket,
        Self::StrictTokenBucket,
        Self::FixedWindow,
        Self::SlidingWindowCounter,
        Self::SlidingWindowLog,
        Self::LeakyBucketMeter,
        Self::LeakyBucketQueue { max_waiting: 4 },
    ];

    pub(super) fn text(self) -> String {
        let name = match self {
            Self::FixedWindow => "fixed_window",
            Self::LeakyBucketMeter => "leaky_bucket_meter",
            Self::LeakyBucketQueue { max_waiting } => return format!("leaky_bucket_queue of {max_waiting}"),
            Self::SlidingWindowCounter => "sliding_window_counter",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::StrictTokenBucket => "strict_token_bucket",
            Self::TokenBucket => "token_bucket",
        };
        name.to_owned()
    }

    pub(super) fn identity(self, window_micros: u64) -> String {
        match self {
            Self::TokenBucket | Self::StrictTokenBucket => "token bucket".to_owned(),
            Self::LeakyBucketMeter | Self::LeakyBucketQueue { .. } => "leaky bucket".to_owned(),
            Self::FixedWindow => format!("fixed window {window_micros}"),
            Self::SlidingWindowCounter => format!("sliding window counter {window_micros}"),
            Self::SlidingWindowLog => format!("sliding window log {window_micros}"),
        }
    }

    pub(super) const fn has_burst_capacity(self) -> bool {
        matches!(self, Self::TokenBucket | Self::StrictTokenBucket)
    }

    pub(super) const fn default_capacity(self, quota: u64) -> u64 {
        match self {
            Self::StrictTokenBucket => quota.div_ceil(2),
            Self::LeakyBucketMeter => 1,
            Self::LeakyBucketQueue { max_waiting } => max_waiting.saturating_add(1),
            Self::FixedWindow | Self::SlidingWindowCounter | Self::SlidingWindowLog | Self::TokenBucket => quota,
        }
    }

    /// Expects an open policy with a valid quota, window and capacity.
    pub(super) fn counter(self, quota: u64, window_secs: u64, capacity: u64) -> Result<Counter, ConfigError> {
        use ConfigErrorKind as Kind;

        let (kind, counter) = match self {
            Self::TokenBucket => (
                Kind::BurstCapacity,
                Bucket::token(quota, window_secs, capacity).map(Counter::Bucket),
            ),
            Self::StrictTokenBucket => (
                Kind::BurstCapacity,
                Bucket::strict(quota, window_secs, capacity).map(Counter::Bucket),
            ),
            Self::LeakyBucketMeter => (
                Kind::Algorithm,
                Bucket::leaky(quota, window_secs, 0).map(Counter::Bucket),
            ),
            Self::LeakyBucketQueue { max_waiting } => {
                ConfigError::check_range(Kind::Algorithm, "max_waiting", max_waiting, 1..=MAX_QUOTA)?;
                let bucket = Bucket::leaky(quota, window_secs, max_waiting);
                (Kind::Algorithm, bucket.map(Counter::Bucket))
            }
            Self::FixedWindow => return Ok(Counter::FixedWindow(FixedWindow::new(quota, window_secs))),
            Self::SlidingWindowCounter => {
                return Ok(Counter::SlidingCounter(SlidingCounter::new(quota, window_secs)));
            }
            Self::SlidingWindowLog => (
                Kind::Quota,
                SlidingLog::new(quota, window_secs).map(Counter::SlidingLog),
            ),
        };
        counter.map_err(|message| ConfigError::new(kind, message))
    }
}
