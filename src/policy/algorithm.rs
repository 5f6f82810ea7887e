//! The algorithms by the names that users give, and the counters behind them.

use super::MAX_QUOTA;
use crate::{
    algorithm::{Bucket, Counter, FixedWindow, SlidingCounter, SlidingLog},
    error::{ConfigError, ConfigErrorKind},
};

/// The algorithm of a policy: which requests pass when, and what the store keeps for that.
///
/// *q* is the quota and *w* the window. "Most" is the most units that pass in any stretch of time as long as the window,
/// from its first microsecond up to the one before that at which the next stretch begins; costs that become known late,
/// and what is given back, come on top. Bytes are those of Redis for one caller with one such policy, its key included.
///
/// | algorithm | most in a window | bytes | take it when |
/// |---|---|---|---|
/// | [`TokenBucket`](Self::TokenBucket) | burst capacity + *q* − 1 | 104 to 120 | in doubt: bursts pass, and the rate holds over time |
/// | [`StrictTokenBucket`](Self::StrictTokenBucket) | *q* | 104 to 120 | *q* per window is a promise, and memory matters |
/// | [`FixedWindow`](Self::FixedWindow) | 2 *q* around a border | 104 | quotas reset at the full minute or at midnight (UTC) |
/// | [`SlidingWindowCounter`](Self::SlidingWindowCounter) | 2 *q* − 1, *q* for an even load | 104 | windows without the jump at the border |
/// | [`SlidingWindowLog`](Self::SlidingWindowLog) | *q* | 136, and 32 to 120 a request | *q* is small and has to be exact |
/// | [`LeakyBucketMeter`](Self::LeakyBucketMeter) | *q* | 104 to 120 | requests must come evenly, and clients can pace themselves |
/// | [`LeakyBucketQueue`](Self::LeakyBucketQueue) | *q* leave; where requests cost more than 1, one less than the dearest more | 104 to 120 | requests must leave evenly, and may wait |
///
/// A policy keeps its used units when its quota, burst capacity or queue is changed, and a token or leaky bucket also when
/// its window is. It starts with a full quota when its name, its unit or its algorithm is changed, or the length of a
/// fixed or sliding window; the two token buckets count as one algorithm, and so do the two leaky buckets.
///
/// A bucket refills at the new rate from the first decision under the changed policy, also if that is a rejection. There is
/// one exception: if more units are used than the new burst capacity, and the rate was lowered, the bucket keeps the old
/// rate until a request is admitted. A caller who has used 420 of 420 a day and is moved to 14 a day waits for less than a
/// day, not for a month. `Retry-After` is the time until the request is admitted.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::Algorithm;
/// # let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
///
/// # run(async {
/// // 20 requests come a second before a fixed window ends, and 20 more two seconds later. How many pass?
/// let passed = async |algorithm| {
///     let clock = Clock::manual(Timestamp::from_micros(9_000_000));
///     let store = MemoryStore::builder().clock(clock.clone()).build()?;
///     let policy = QuotaPolicy::new("ten", 10, Duration::from_secs(10)).with_algorithm(algorithm);
///     let plan = Plan::new(PolicySet::new([policy])?, alice, 1);
///     let mut passed = [0, 0];
///     for count in &mut passed {
///         for _ in 0..20 {
///             *count += u32::from(store.decide(plan.clone()).await?.outcome() == Outcome::Allowed);
///         }
///         clock.advance(Duration::from_secs(2));
///     }
///     Ok::<_, Box<dyn Error>>(passed)
/// };
///
/// assert_eq!(passed(Algorithm::TokenBucket).await?, [10, 2]);
/// assert_eq!(passed(Algorithm::StrictTokenBucket).await?, [5, 1]);
/// assert_eq!(passed(Algorithm::FixedWindow).await?, [10, 10]);
/// assert_eq!(passed(Algorithm::SlidingWindowCounter).await?, [10, 1]);
/// assert_eq!(passed(Algorithm::SlidingWindowLog).await?, [10, 0]);
/// assert_eq!(passed(Algorithm::LeakyBucketMeter).await?, [1, 1]);
/// // These leave one second after the other.
/// assert_eq!(passed(Algorithm::LeakyBucketQueue { max_waiting: 3 }).await?, [4, 2]);
/// # Ok(()) });
/// ```
///
/// The same requests with a quota of 10 per 10 s, as `cargo run --example algorithms` draws them:
///
#[doc = include_str!("../../docs/algorithms.svg")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts in windows that begin at whole multiples of their length since 1970: minutes at the full minute, days at
    /// midnight UTC. For months, and days of a time zone, see [`QuotaPolicy::per_calendar`](crate::QuotaPolicy::per_calendar).
    ///
    /// Twice the quota can pass around a border: a full quota at the end of one window, another at the beginning of the
    /// next.
    FixedWindow,
    /// Requests pass one at a time, *w* ÷ *q* apart; one that comes too early is rejected.
    ///
    /// There are no bursts, and a cost above 1 never passes.
    LeakyBucketMeter,
    /// Requests leave one at a time, *w* ÷ *q* apart, and wait for their turn.
    ///
    /// The store decides when a request leaves, so the order holds across instances. A request that finds
    /// `max_waiting` units waiting is rejected; the longest wait is `max_waiting` × *w* ÷ *q*. The place of a request that is
    /// [cancelled](crate::ResponseFuture) while it waits stays taken. If the inner service fails meanwhile, the place is
    /// given back if it was the last one.
    LeakyBucketQueue {
        /// The number of units that may wait, from 1 to 999 999 999 999 999.
        max_waiting: u64,
    },
    /// The count of this window and that of the last one, weighed by how much of it a sliding window still covers.
    ///
    /// An estimate: it takes the last window's requests to have come evenly. Windows begin as those of
    /// [`FixedWindow`](Self::FixedWindow).
    SlidingWindowCounter,
    /// The moment of each request. Exact, and the dearest: for quotas up to 10 000.
    ///
    /// Unused units of a request are refunded unless 1 000 or more requests have come after it.
    SlidingWindowLog,
    /// A token bucket of which no stretch of time as long as the window sees more than the quota.
    ///
    /// The content of the bucket is a part of the quota, so that it fills more slowly: with a burst capacity of *c*, by
    /// *q* − *c* + 1 units per window. The burst capacity is half the quota, rounded up, unless it is set, and at most
    /// the quota.
    StrictTokenBucket,
    /// A bucket of [`burst_capacity`](crate::QuotaPolicy::burst_capacity) units that fills evenly, at *q* units per window.
    #[default]
    TokenBucket,
}

impl Algorithm {
    /// The name in rules from a file.
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

    /// Policies whose algorithms have one identity can share used units.
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

    /// The units that can be used at one moment unless the policy sets its burst capacity.
    pub(super) const fn default_capacity(self, quota: u64) -> u64 {
        match self {
            Self::StrictTokenBucket => quota.div_ceil(2),
            Self::LeakyBucketMeter => 1,
            Self::LeakyBucketQueue { max_waiting } => max_waiting.saturating_add(1),
            Self::FixedWindow | Self::SlidingWindowCounter | Self::SlidingWindowLog | Self::TokenBucket => quota,
        }
    }

    /// The counter of a policy that is not closed, with a valid quota, window and capacity.
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
