//! Individual quotas of callers.

use std::{borrow::Cow, sync::Arc};

use super::{QuotaPolicy, set::PolicySet};

/// Individual quotas for a caller, such as those of its contract, instead of those of its tier.
///
/// Authentication inserts them into the request's extensions, or the source of tiers returns them in a
/// [`ResolvedTier`](crate::ResolvedTier); outside HTTP, pass them to [`Caller::quotas`](crate::Caller::quotas). Each number
/// is for a policy of the rules, by name, and applies only if the policy
/// [allows it](crate::QuotaPolicy::with_caller_quotas). A number outside the policy's bounds is replaced by the nearest
/// bound. Unknown names have no effect.
///
/// Units are used by a caller and a policy's name, so they stay used when the numbers change. Fields, problem details and
/// [decisions](crate::Decision) show the caller's numbers. Metrics carry the policy's name and the tier.
///
/// Callers with equal numbers share one prepared set of policies. For each tier, up to 4,096 such sets are kept, and a new
/// one then evicts any other. Preparing a set takes a few microseconds.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::CallerQuotas;
///
/// # run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_minute("minute", 100).with_caller_quotas(10..=10_000))
///     .build()?;
///
/// // Authentication knows the customer's contract.
/// let contract = CallerQuotas::new().quota("minute", 5_000);
/// let request = Request::get("/").header("x-user-id", "4711").extension(contract);
/// let response = send(&layer, request).await;
/// assert_eq!(response.headers()["ratelimit-policy"], r#""minute";q=5000;w=60"#);
/// assert_eq!(response.headers()["ratelimit"], r#""minute";r=4999;t=60"#);
/// // A typo admits no more than the upper bound.
/// let request = Request::get("/").header("x-user-id", "4712").extension(CallerQuotas::new().quota("minute", 50_000_000));
/// assert_eq!(send(&layer, request).await.headers()["ratelimit-policy"], r#""minute";q=10000;w=60"#);
/// # Ok(()) });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerQuotas(Arc<Vec<(Cow<'static, str>, Numbers)>>);

/// The numbers for one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Numbers {
    quota: Option<u64>,
    burst_capacity: Option<u64>,
}

impl CallerQuotas {
    /// Creates an empty set: each policy has the numbers of the tier.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the quota of a policy, in its unit and window. 0 closes the policy if its bounds begin with 0.
    #[must_use]
    pub fn quota(self, policy: impl Into<Cow<'static, str>>, quota: u64) -> Self {
        self.with(policy.into(), |numbers| numbers.quota = Some(quota))
    }

    /// Sets the burst capacity of a policy with one of the [bucket algorithms](crate::QuotaPolicy::with_burst_capacity),
    /// at most the upper bound of the policy's quotas. It has no effect on other policies.
    #[must_use]
    pub fn burst_capacity(self, policy: impl Into<Cow<'static, str>>, capacity: u64) -> Self {
        self.with(policy.into(), |numbers| numbers.burst_capacity = Some(capacity))
    }

    fn with(mut self, policy: Cow<'static, str>, set: impl FnOnce(&mut Numbers)) -> Self {
        let all = Arc::make_mut(&mut self.0);
        let position = all.iter().position(|(name, _)| *name == policy).unwrap_or_else(|| {
            all.push((policy, Numbers::default()));
            all.len() - 1
        });
        set(&mut all[position].1);
        self
    }

    /// The numbers for a policy, within its bounds; `None` if they equal those of the policy.
    pub(crate) fn of(&self, policy: &QuotaPolicy) -> Option<Numbers> {
        let bounds = policy.caller_quotas?;
        let (_, numbers) = self.0.iter().find(|(name, _)| name == policy.name())?;
        let quota = numbers.quota.map(|quota| quota.max(bounds.least).min(bounds.most));
        let burst_capacity = numbers
            .burst_capacity
            .map(|capacity| capacity.clamp(1, bounds.most.max(1)));
        let within = Numbers {
            quota: quota.filter(|quota| *quota != policy.quota),
            burst_capacity: burst_capacity.filter(|capacity| Some(*capacity) != policy.burst_capacity),
        };
        (within != Numbers::default()).then_some(within)
    }
}

impl QuotaPolicy {
    /// The policy with a caller's numbers. An invalid burst capacity is ignored, and so are numbers that cannot be counted.
    pub(crate) fn with_numbers(&self, numbers: Numbers) -> Self {
        let quota = Self {
            quota: numbers.quota.unwrap_or(self.quota),
            ..self.clone()
        };
        let both = Self {
            burst_capacity: numbers.burst_capacity.or(self.burst_capacity),
            ..quota.clone()
        };
        let fitting = [both, quota].map(Self::with_fitting_prefetch);
        let mut sound = fitting
            .into_iter()
            .filter(|policy| PolicySet::new([policy.clone()]).is_ok());
        sound.next().unwrap_or_else(|| self.clone())
    }

    /// A batch is at most the burst capacity.
    fn with_fitting_prefetch(mut self) -> Self {
        if !self.is_closed() {
            self.prefetch = self.prefetch.map(|units| units.min(self.burst_capacity()));
        }
        self
    }
}
