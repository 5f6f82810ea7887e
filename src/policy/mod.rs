//! Policies: what a user writes, and what `build()` makes of it.

mod calendar;
mod check;
mod difference;
mod quota_policy;
mod set;
#[cfg(test)]
mod tests;
mod unit;

use std::fmt;

pub use self::{
    calendar::CalendarWindow,
    quota_policy::QuotaPolicy,
    set::{Policy, PolicySet},
    unit::UnitName,
};
pub(crate) use self::{
    set::{BatchTerms, MAX_POLICIES, MAX_UNITS},
    unit::UnitId,
};
pub use crate::algorithm::{CalendarPeriod, Weekday};

use crate::fields::Unit;

/// The maximum length of the name of a policy, and of a scope, in bytes. The name is in the fields of each response.
pub(crate) const MAX_NAME: usize = 128;

/// The largest quota and burst capacity: fifteen digits, the most that a structured field can carry.
pub(crate) const MAX_QUOTA: u64 = 999_999_999_999_999;

/// The longest window, in seconds: a bit over 31 years.
pub(crate) const MAX_WINDOW: u64 = 1_000_000_000;

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
    /// midnight UTC. For months, and days of a time zone, see [`QuotaPolicy::per_calendar`].
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
    /// A bucket of [`burst_capacity`](QuotaPolicy::burst_capacity) units that fills evenly, at *q* units per window.
    #[default]
    TokenBucket,
}

/// The unit of a quota.
///
/// | unit | a request uses | take it when |
/// |---|---|---|
/// | [`Requests`](Self::Requests) | its cost, by default 1 | requests cost about the same, or you know what they cost |
/// | [`ContentBytes`](Self::ContentBytes) | the bytes of its content | bandwidth or storage is what runs out |
/// | [`ConcurrentRequests`](Self::ConcurrentRequests) | a slot, until its response has ended | requests are slow, and few at a time can be served |
/// | [`Custom`](Self::Custom) | what the program says, before and after it was served | something of your own runs out: tokens, rows, money |
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::{Direction, QuotaUnit};
/// # let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
///
/// let policies = PolicySet::new([
///     QuotaPolicy::per_minute("requests", 60),
///     QuotaPolicy::per_minute("bandwidth", 1_000_000).with_content_bytes(Direction::Both),
///     QuotaPolicy::concurrent("slots", 8),
///     QuotaPolicy::per_minute("tokens", 100_000).with_unit("tokens"),
/// ])?;
/// // A request that costs 5, has 200 bytes of content, 300 in its response, and takes 700 tokens:
/// let plan = Plan::new(policies, alice, 5).with_content_bytes(200, 300).with_units("tokens", 700);
///
/// let costs: Vec<_> = plan.charges().map(|charge| (charge.policy().policy().unit(), charge.cost())).collect();
/// assert_eq!(costs[0], (QuotaUnit::Requests, 5));
/// assert_eq!(costs[1], (QuotaUnit::ContentBytes(Direction::Both), 500));
/// assert_eq!(costs[2], (QuotaUnit::ConcurrentRequests, 1));
/// assert_eq!((costs[3].0.to_string(), costs[3].1), ("tokens".to_owned(), 700));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuotaUnit {
    /// Requests in progress.
    ConcurrentRequests,
    /// Bytes of content, without fields.
    ContentBytes(Direction),
    /// Units of the program's own; see [`QuotaPolicy::with_unit`].
    Custom(UnitName),
    /// Requests, each with its cost.
    #[default]
    Requests,
}

impl QuotaUnit {
    /// The unit in the words of the draft's registry. Without one a policy is left out of `RateLimit-Policy`: readers would take
    /// it to count requests.
    pub(crate) fn registered(self) -> Option<Unit> {
        match self {
            Self::ConcurrentRequests => Some(Unit::ConcurrentRequests),
            Self::ContentBytes(_) => Some(Unit::ContentBytes),
            Self::Custom(_) => None,
            Self::Requests => Some(Unit::Requests),
        }
    }
}

/// The name as rules from a file have it.
impl fmt::Display for QuotaUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConcurrentRequests => "concurrent_requests",
            Self::ContentBytes(Direction::Both) => "content_bytes",
            Self::ContentBytes(Direction::Request) => "request_content_bytes",
            Self::ContentBytes(Direction::Response) => "response_content_bytes",
            Self::Custom(name) => name.as_str(),
            Self::Requests => "requests",
        })
    }
}

/// The content whose bytes are counted.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::Direction;
/// # let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
///
/// let of = |name, content| QuotaPolicy::per_day(name, 1_000_000).with_content_bytes(content);
/// let policies = PolicySet::new([
///     of("up", Direction::Request),
///     of("down", Direction::Response),
///     of("all", Direction::Both),
/// ])?;
/// let plan = Plan::new(policies, alice, 1).with_content_bytes(200, 300);
/// let bytes: Vec<u64> = plan.charges().map(|charge| charge.cost()).collect();
/// assert_eq!(bytes, [200, 300, 500]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Direction {
    /// The content of requests and of responses, together.
    Both,
    /// The content of requests.
    Request,
    /// The content of responses.
    Response,
}
