mod policies;
mod policy;
mod report;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;

pub(super) use self::policies::{Policies, named_policies};
pub use self::{
    policy::PreparedPolicy,
    report::{LimitNumbers, Report},
};
use super::{
    dialect::Dialect,
    error::FieldError,
    legacy::LegacyReset,
    wire::{self, ListForm},
};

/// A writer of the rate-limit fields of a server, which serializes the policies once.
///
/// Draft-06 and draft-07 report only the limit closest to exhaustion, whose reset equals `Retry-After` if the response
/// has one.
///
/// ```
/// use std::time::Duration;
/// use http::Response;
/// use ratelimit_fields::{Dialect, LimitNumbers, Prepared, Report, draft11::PolicyItem};
///
/// let policies = [
///     PolicyItem::new("minute", 60)?.with_window(Duration::from_secs(60))?,
///     PolicyItem::new("day", 5_000)?.with_window(Duration::from_secs(86_400))?,
/// ];
/// let limit = |policy, remaining, seconds| LimitNumbers { policy, remaining, reset: Some(seconds), is_violated: false };
/// let limits = [limit(0, 59, 1), limit(1, 12, 300)];
///
/// let mut response = Response::new(());
/// Prepared::new(Dialect::Draft11, policies.clone())?.write(&mut response, &Report::new(&limits));
/// assert_eq!(response.headers()["ratelimit"], r#""minute";r=59;t=1, "day";r=12;t=300"#);
/// assert_eq!(response.headers()["ratelimit-policy"], r#""minute";q=60;w=60, "day";q=5000;w=86400"#);
///
/// let mut response = Response::new(());
/// Prepared::new(Dialect::Draft07, policies)?.write(&mut response, &Report::new(&limits));
/// assert_eq!(response.headers()["ratelimit"], "limit=5000, remaining=12, reset=300");
/// assert_eq!(response.headers()["ratelimit-policy"], "60;w=60, 5000;w=86400");
/// # Ok::<_, ratelimit_fields::FieldError>(())
/// ```
#[derive(Debug)]
pub struct Prepared {
    form: Form,
    policies: Policies,
    hidden_policies: Option<HeaderValue>,
    limits: Arc<[PreparedPolicy]>,
    adds_draft06_limit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Dialect(Dialect),
    Legacy(LegacyReset),
}

impl Form {
    fn list(self) -> Option<&'static ListForm> {
        match self {
            Self::Dialect(dialect) => match &dialect.wire().form {
                wire::Form::List(list) => Some(list),
                wire::Form::Closest { .. } => None,
            },
            Self::Legacy(_) => None,
        }
    }
}

impl Prepared {
    /// Serializes the policies in a dialect.
    ///
    /// Draft-06 and draft-07 omit policies that have no window or do not count requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the field would be too long, or one that names the policy if the dialect cannot represent
    /// its name, window or extensions, or two policies of draft-06 or draft-07 have the same quota.
    pub fn new<P: Into<PreparedPolicy>>(
        dialect: Dialect,
        policies: impl IntoIterator<Item = P>,
    ) -> Result<Self, FieldError> {
        let (prepared, is_named) = Self::of(Form::Dialect(dialect), policies);
        is_named?;
        let policies = (dialect.wire().prepare)(&prepared.limits)?;
        Ok(Self { policies, ..prepared })
    }

    /// Creates a writer without `RateLimit-Policy`. Limits whose names the dialect cannot represent are omitted.
    ///
    /// ```
    /// use http::Response;
    /// use ratelimit_fields::{Dialect, LimitNumbers, Prepared, Report, draft11::PolicyItem};
    ///
    /// let policies = [PolicyItem::new("per minute", 60)?, PolicyItem::new("day", 5_000)?];
    /// let prepared = Prepared::limits_only(Dialect::EditorsCopy, policies);
    /// let mut response = Response::new(());
    /// let limits = [0, 1].map(|policy| LimitNumbers { policy, remaining: 7, ..LimitNumbers::default() });
    /// prepared.write(&mut response, &Report::new(&limits));
    /// assert_eq!(response.headers()["ratelimit"], "day;r=7");
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    #[must_use]
    pub fn limits_only<P: Into<PreparedPolicy>>(dialect: Dialect, policies: impl IntoIterator<Item = P>) -> Self {
        Self::of(Form::Dialect(dialect), policies).0
    }

    /// Creates a writer of the three [`X-RateLimit-*`](super::legacy) fields.
    ///
    /// If an inner service has sent one of them with an unknown meaning, none is changed.
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use http::Response;
    /// use ratelimit_fields::{LegacyReset, LimitNumbers, Prepared, Report, draft11::PolicyItem};
    ///
    /// let prepared = Prepared::legacy(LegacyReset::UnixTime, [PolicyItem::new("minute", 60)?]);
    /// let mut response = Response::new(());
    /// let limits = [LimitNumbers { remaining: 59, reset: Some(20), ..LimitNumbers::default() }];
    /// let now = Some(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    /// prepared.write(&mut response, &Report { now, ..Report::new(&limits) });
    /// assert_eq!(response.headers()["x-ratelimit-limit"], "60");
    /// assert_eq!(response.headers()["x-ratelimit-remaining"], "59");
    /// assert_eq!(response.headers()["x-ratelimit-reset"], "1000000020");
    /// # Ok::<_, ratelimit_fields::FieldError>(())
    /// ```
    #[must_use]
    pub fn legacy<P: Into<PreparedPolicy>>(reset: LegacyReset, policies: impl IntoIterator<Item = P>) -> Self {
        Self::of(Form::Legacy(reset), policies).0
    }

    /// Also returns the error of the first invalid name.
    fn of<P: Into<PreparedPolicy>>(
        form: Form,
        policies: impl IntoIterator<Item = P>,
    ) -> (Self, Result<(), FieldError>) {
        let mut is_named = Ok(());
        let limits = policies.into_iter().map(|policy| {
            let mut policy = policy.into();
            if let Some(list) = form.list() {
                is_named = is_named.clone().and(policy.start_items(list.item));
            }
            policy
        });
        let prepared = Self {
            form,
            policies: Policies::None,
            hidden_policies: None,
            limits: limits.collect(),
            adds_draft06_limit: false,
        };
        (prepared, is_named)
    }

    /// Adds the three numeric fields of draft-06 to the fields of draft-11. Has no effect in other dialects.
    #[must_use]
    pub fn with_draft06_limit(mut self) -> Self {
        self.adds_draft06_limit = self.form == Form::Dialect(Dialect::Draft11);
        self
    }

    /// Omits `RateLimit-Policy`.
    #[must_use]
    pub fn without_policies(mut self) -> Self {
        self.hidden_policies = self.policies.value(&|_| None).or(self.hidden_policies);
        self.policies = Policies::None;
        self
    }

    /// Reports the policies of `other` instead, such as the usual quotas while quotas are reduced.
    #[must_use]
    pub fn with_policies_of(self, other: &Self) -> Self {
        Self {
            policies: other.policies.clone(),
            hidden_policies: other.hidden_policies.clone(),
            ..self
        }
    }

    /// Returns the position of a policy for [`LimitNumbers::policy`].
    pub fn position(&self, policy: &str) -> Option<usize> {
        self.limits.iter().position(|limit| limit.item.name() == policy)
    }

    /// Returns a copy with separate reference counts. One copy per thread avoids contention.
    #[must_use]
    pub fn with_own_count(&self) -> Self {
        Self {
            form: self.form,
            policies: match &self.policies {
                Policies::Same(value) => Policies::Same(with_own_count(value)),
                policies => policies.clone(),
            },
            hidden_policies: self.hidden_policies.as_ref().map(with_own_count),
            limits: Arc::clone(&self.limits),
            adds_draft06_limit: self.adds_draft06_limit,
        }
    }
}

/// Prevents false sharing between the counters.
#[repr(align(128))]
struct CachePadded(Vec<u8>);

impl AsRef<[u8]> for CachePadded {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn with_own_count(value: &HeaderValue) -> HeaderValue {
    let bytes = Bytes::from_owner(CachePadded(value.as_bytes().to_vec()));
    HeaderValue::from_maybe_shared(bytes).expect("it was parsed from a valid header value")
}
