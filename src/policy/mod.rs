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
    algorithm::Algorithm, calendar::CalendarWindow, caller_quotas::CallerQuotas, quota_policy::QuotaPolicy,
    set::PolicySet, unit::UnitName,
};
pub(crate) use self::{
    caller_quotas::Numbers,
    quota_policy::CallerQuotaBounds,
    set::{BatchTerms, MAX_PLAIN, MAX_UNITS, Policy, PolicyTraits},
    unit::UnitId,
};
pub use crate::algorithm::{CalendarPeriod, Weekday};

use crate::fields::Unit;

pub(crate) const MAX_NAME: usize = 128;

/// Integers in structured fields have at most 15 digits.
pub(crate) const MAX_QUOTA: u64 = 999_999_999_999_999;

/// Seconds.
pub(crate) const MAX_WINDOW: u64 = 1_000_000_000;

/// The unit of a quota.
///
/// ```
/// use tower_quota::{Direction, PartitionKey, Plan, PolicySet, QuotaPolicy, QuotaUnit, Scope};
///
/// let policies = PolicySet::new([
///     QuotaPolicy::per_minute("requests", 60),
///     QuotaPolicy::per_minute("bandwidth", 1_000_000).with_content_bytes(Direction::Both),
///     QuotaPolicy::concurrent("slots", 8),
///     QuotaPolicy::per_minute("tokens", 100_000).with_unit("tokens"),
/// ])?;
/// let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
/// // A request of cost 5, with 200 bytes of content, a response of 300 bytes, and 700 tokens:
/// let plan = Plan::new(policies, alice, 5).with_content_bytes(200, 300).with_units("tokens", 700);
///
/// let costs: Vec<_> = plan.charges().map(|charge| (charge.policy().unit(), charge.cost())).collect();
/// assert_eq!(costs[0], (QuotaUnit::Requests, 5));
/// assert_eq!(costs[1], (QuotaUnit::ContentBytes(Direction::Both), 500));
/// assert_eq!(costs[2], (QuotaUnit::ConcurrentRequests, 1));
/// assert_eq!((costs[3].0.to_string(), costs[3].1), ("tokens".to_owned(), 700));
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuotaUnit {
    /// Requests in progress: each uses a slot until its response has ended.
    ConcurrentRequests,
    /// Bytes of content, without header fields.
    ContentBytes(Direction),
    /// Units that the program reports, such as tokens, rows or money; see [`QuotaPolicy::with_unit`].
    Custom(UnitName),
    /// Requests, each with its cost, by default 1.
    #[default]
    Requests,
}

impl QuotaUnit {
    /// `RateLimit-Policy` omits unregistered units, which clients would interpret as requests.
    pub(crate) fn registered(self) -> Option<Unit> {
        match self {
            Self::ConcurrentRequests => Some(Unit::ConcurrentRequests),
            Self::ContentBytes(_) => Some(Unit::ContentBytes),
            Self::Custom(_) => None,
            Self::Requests => Some(Unit::Requests),
        }
    }
}

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

/// The direction of the [content](crate::QuotaPolicy::with_content_bytes) whose bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Direction {
    /// The content of requests and responses together.
    Both,
    /// The content of requests.
    Request,
    /// The content of responses.
    Response,
}
