//! One limit of a server.

use std::time::Duration;

use super::Caps;
use ratelimit_fields::Unit;

/// One limit of a server, as a response states it or as the client knows it: see [`Advice::limits`] and [`OriginStatus::limits`].
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, StatusCode};
/// use tower_ratelimit_client::{Advice, Caps, Exchange};
/// use ratelimit_fields::Unit;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", r#""daily";r=999999;t=50;pk=:YWxpY2U=:"#.parse()?);
/// headers.insert("ratelimit-policy", r#""daily";q=5000;qu="content-bytes";w=86400"#.parse()?);
///
/// let exchange = Exchange { received: SystemTime::now(), elapsed: Duration::ZERO };
/// let advice = Advice::read(StatusCode::OK, &headers, exchange, &Caps::default());
/// let daily = &advice.limits()[0];
/// assert_eq!(daily.name(), Some("daily"));
/// assert_eq!(daily.partition_key(), Some(b"alice".as_slice()));
/// assert_eq!(daily.unit(), &Unit::ContentBytes);
/// assert_eq!(daily.quota(), Some(5_000));
/// assert_eq!(daily.remaining(), Some(10_000), "more is not believed");
/// assert_eq!(daily.reset(), Some(Duration::from_secs(50)));
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
///
/// [`Advice::limits`]: super::Advice::limits
/// [`OriginStatus::limits`]: super::OriginStatus::limits
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    pub(super) name: Option<String>,
    pub(super) partition_key: Option<Vec<u8>>,
    /// Told by a policy of the same name.
    pub(super) unit: Option<Unit>,
    pub(super) quota: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
}

impl Limit {
    /// The name of the policy, or the one that a [`Profile`](super::Profile) gives; draft-06 and draft-07 have none.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The key of the partition that the limit is for, if the server sends it.
    pub fn partition_key(&self) -> Option<&[u8]> {
        self.partition_key.as_deref()
    }

    /// The unit of the limit: requests, unless a `RateLimit-Policy` of the same name names another, or a
    /// [`Profile`](super::Profile) says that it is `tokens`.
    pub fn unit(&self) -> &Unit {
        static REQUESTS: Unit = Unit::Requests;
        self.unit.as_ref().unwrap_or(&REQUESTS)
    }

    /// Units for each window, if the server says so, at most [`Caps::max_units`].
    pub fn quota(&self) -> Option<u64> {
        self.quota
    }

    /// Units left, if the server says so, at most [`Caps::max_units`].
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// The effective window, at most [`Caps::max_wait`]: no more than what remains should be used within it. The quota
    /// need not be back after it.
    pub fn reset(&self) -> Option<Duration> {
        self.reset
    }

    pub(super) fn capped(mut self, on_the_way: Duration, caps: &Caps) -> Self {
        let cap = |units: u64| units.min(caps.max_units());
        self.quota = self.quota.map(cap);
        self.remaining = self.remaining.map(cap);
        let left = |reset: Duration| reset.saturating_sub(on_the_way).min(caps.max_wait());
        self.reset = self.reset.map(left);
        self
    }
}
