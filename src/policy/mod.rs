//! Policies: what a user writes, and what `build()` makes of it.

mod algorithm;
mod calendar;
mod caller_quotas;
mod check;
mod dated;
mod difference;
mod quota_policy;
mod set;
#[cfg(test)]
mod tests;
mod unit;

use std::fmt;

pub use self::{
    algorithm::Algorithm,
    calendar::CalendarWindow,
    caller_quotas::CallerQuotas,
    quota_policy::QuotaPolicy,
    set::{Policy, PolicySet},
    unit::UnitName,
};
pub(crate) use self::{
    caller_quotas::Numbers,
    quota_policy::CallerQuotaBounds,
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
