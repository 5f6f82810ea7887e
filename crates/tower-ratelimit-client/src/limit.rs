use std::time::Duration;

use super::Caps;
use ratelimit_fields::Unit;

/// A limit of a server, from a response ([`Advice::limits`]) or as known to the client ([`OriginStatus::limits`]).
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
/// assert_eq!(daily.remaining(), Some(10_000), "capped");
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
    pub(super) unit: Option<Unit>,
    pub(super) quota: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
}

impl Limit {
    /// Returns the name of the policy or from the [`Profile`](super::Profile). Limits of draft-06 and draft-07 have
    /// none.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the partition key.
    pub fn partition_key(&self) -> Option<&[u8]> {
        self.partition_key.as_deref()
    }

    /// Returns the quota unit. Default: requests.
    pub fn unit(&self) -> &Unit {
        static REQUESTS: Unit = Unit::Requests;
        self.unit.as_ref().unwrap_or(&REQUESTS)
    }

    /// Returns the quota per window, at most [`Caps::max_units`].
    pub fn quota(&self) -> Option<u64> {
        self.quota
    }

    /// Returns the remaining units, at most [`Caps::max_units`]; 0 if a rejection has only the reset.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns the effective window, at most [`Caps::max_wait`].
    pub fn reset(&self) -> Option<Duration> {
        self.reset
    }

    pub(super) fn capped(mut self, caps: &Caps) -> Self {
        let cap = |units: u64| units.min(caps.max_units());
        self.quota = self.quota.map(cap);
        self.remaining = self.remaining.map(cap);
        self.reset = self.reset.map(|reset| reset.min(caps.max_wait()));
        self
    }
}
