use std::time::Duration;

use super::{
    named::{self, Named},
    unit::Unit,
};

/// A limit of a response: see [`Hints::limits`](super::Hints::limits).
///
/// ```
/// use http::HeaderMap;
/// use ratelimit_fields::Hints;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit", "default;r=999;pk=trial-121323".parse()?);
/// let hints = Hints::read(&headers);
/// assert_eq!(hints.limits()[0].name(), Some("default"));
/// assert_eq!(hints.limits()[0].remaining(), Some(999));
/// assert_eq!(hints.limits()[0].partition_key(), Some(b"trial-121323".as_slice()));
/// assert_eq!(hints.limits()[0].reset(), None);
///
/// // The fields of draft-06 and draft-07 contain a single limit, with a quota but without a name.
/// headers.remove("ratelimit");
/// headers.insert("ratelimit-limit", "100".parse()?);
/// let hints = Hints::read(&headers);
/// assert_eq!(hints.limits()[0].quota(), Some(100));
/// assert_eq!(hints.limits()[0].name(), None);
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitHint {
    pub(super) name: Option<String>,
    pub(super) quota: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
    pub(super) partition_key: Option<Vec<u8>>,
}

/// A policy of a response: see [`Hints::policies`](super::Hints::policies).
///
/// ```
/// use std::time::Duration;
/// use http::HeaderMap;
/// use ratelimit_fields::{Hints, Unit};
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit-policy", "100;w=60".parse()?);
/// let hints = Hints::read(&headers);
/// assert_eq!(hints.policies()[0].quota(), 100);
/// assert_eq!(hints.policies()[0].unit(), &Unit::Requests);
/// assert_eq!(hints.policies()[0].window(), Some(Duration::from_secs(60)));
/// assert_eq!(hints.policies()[0].name(), None);
///
/// headers.insert("ratelimit-policy", r#""bytes";q=5000;qu="content-bytes";pk=:YWxpY2U=:"#.parse()?);
/// let hints = Hints::read(&headers);
/// assert_eq!(hints.policies()[0].name(), Some("bytes"));
/// assert_eq!(hints.policies()[0].unit(), &Unit::ContentBytes);
/// assert_eq!(hints.policies()[0].partition_key(), Some(b"alice".as_slice()));
/// # Ok::<_, http::header::InvalidHeaderValue>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyHint {
    pub(super) name: Option<String>,
    pub(super) quota: u64,
    pub(super) unit: Unit,
    pub(super) window: Option<Duration>,
    pub(super) partition_key: Option<Vec<u8>>,
}

impl LimitHint {
    /// Returns the name of the policy, or `None` in draft-06 and draft-07.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the quota, which only draft-06 and draft-07 have here.
    pub fn quota(&self) -> Option<u64> {
        self.quota
    }

    /// Returns the remaining units, which may exceed the quota.
    pub fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns the effective window, in whole seconds from the creation of the response.
    ///
    /// The quota is not necessarily restored afterwards.
    pub fn reset(&self) -> Option<Duration> {
        self.reset
    }

    /// Returns the partition key.
    pub fn partition_key(&self) -> Option<&[u8]> {
        self.partition_key.as_deref()
    }
}

impl PolicyHint {
    /// Returns the name of the policy, or `None` in draft-06 and draft-07.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the quota per window.
    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Returns the quota unit.
    pub fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Returns the window in whole seconds.
    pub fn window(&self) -> Option<Duration> {
        self.window
    }

    /// Returns the partition key.
    pub fn partition_key(&self) -> Option<&[u8]> {
        self.partition_key.as_deref()
    }
}

impl<D: Named> From<named::LimitItem<D>> for LimitHint {
    fn from(item: named::LimitItem<D>) -> Self {
        Self {
            name: Some(item.name().to_owned()),
            quota: None,
            remaining: item.remaining().into(),
            reset: item.reset(),
            partition_key: item.partition_key,
        }
    }
}

impl<D: Named> From<named::PolicyItem<D>> for PolicyHint {
    fn from(item: named::PolicyItem<D>) -> Self {
        Self {
            name: Some(item.name().to_owned()),
            quota: item.quota(),
            window: item.window(),
            unit: item.unit,
            partition_key: item.partition_key,
        }
    }
}
