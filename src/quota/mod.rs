//! Quota policies: what a user writes, and what `build()` makes of it.

mod bucket;

use std::{borrow::Cow, sync::Arc, time::Duration};

pub(crate) use self::bucket::{Bucket, EXACT};
use crate::error::{ConfigError, ConfigErrorKind};

/// The largest quota and burst capacity: fifteen digits, the most that a structured field can carry.
pub(crate) const MAX_QUOTA: u64 = 999_999_999_999_999;

/// The longest window, in seconds: a bit over 31 years.
pub(crate) const MAX_WINDOW: u64 = 1_000_000_000;

/// A named limit: so many units per time window, for each partition.
///
/// It is enforced as a *token bucket*: a bucket of [`burst_capacity`](Self::burst_capacity) units (by default the
/// quota) that fills evenly, at `quota` units per `window`. So `per_minute("minute", 60)` lets 60 requests pass at one
/// moment and then one each second; no more than the capacity and what the rate has added since pass in any time.
///
/// Counting is exact to the unit and the microsecond. Only where a full bucket times the window has more digits than
/// a double holds (5 003 in 31 days is such a quota, 5 000 is not) is the rate rounded down, by less than a millionth.
///
/// Nothing is checked here: [`build`](crate::RateLimitLayerBuilder::build) does that, and its error names the policy. A
/// policy has
/// - a **name** of printable ASCII, shown to clients in the `RateLimit` field;
/// - a **quota** from 1 to 999 999 999 999 999;
/// - a **window** of whole seconds, from 1 second to 1 000 000 000 seconds;
/// - a **burst capacity** in the same range as the quota.
///
/// Constructors are named after the window, and the number is how many units it has:
///
/// ```
/// use std::time::Duration;
/// use tower_quota::QuotaPolicy;
///
/// const DAILY: QuotaPolicy = QuotaPolicy::per_day("daily", 5_000);
/// assert_eq!(DAILY.window(), Duration::from_secs(86_400));
///
/// // 1 unit a second, 5 at once:
/// let bursty = QuotaPolicy::per_second("bursty", 1).with_burst_capacity(5);
/// assert_eq!((bursty.quota(), bursty.burst_capacity()), (1, 5));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaPolicy {
    name: Cow<'static, str>,
    quota: u64,
    window: Duration,
    burst_capacity: Option<u64>,
}

impl QuotaPolicy {
    /// `quota` units in each `window`.
    pub fn new(name: impl Into<Cow<'static, str>>, quota: u64, window: Duration) -> Self {
        Self {
            name: name.into(),
            quota,
            window,
            burst_capacity: None,
        }
    }

    /// `quota` units per second.
    pub const fn per_second(name: &'static str, quota: u64) -> Self {
        Self::per(name, quota, 1)
    }

    /// `quota` units per minute.
    pub const fn per_minute(name: &'static str, quota: u64) -> Self {
        Self::per(name, quota, 60)
    }

    /// `quota` units per hour.
    pub const fn per_hour(name: &'static str, quota: u64) -> Self {
        Self::per(name, quota, 3_600)
    }

    /// `quota` units per day of 24 hours. The window slides with each caller; it does not end at midnight.
    pub const fn per_day(name: &'static str, quota: u64) -> Self {
        Self::per(name, quota, 86_400)
    }

    const fn per(name: &'static str, quota: u64, seconds: u64) -> Self {
        Self {
            name: Cow::Borrowed(name),
            quota,
            window: Duration::from_secs(seconds),
            burst_capacity: None,
        }
    }

    /// Lets `capacity` units pass at one moment after a pause, more or fewer than the quota. The rate stays the same.
    #[must_use]
    pub const fn with_burst_capacity(mut self, capacity: u64) -> Self {
        self.burst_capacity = Some(capacity);
        self
    }

    /// The name, as clients see it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Units per window.
    pub const fn quota(&self) -> u64 {
        self.quota
    }

    /// The window.
    pub const fn window(&self) -> Duration {
        self.window
    }

    /// The most units that can be used at one moment: the quota unless it was set.
    pub const fn burst_capacity(&self) -> u64 {
        match self.burst_capacity {
            Some(capacity) => capacity,
            None => self.quota,
        }
    }
}

/// A policy that `build()` has found sound, with the numbers that stores compute with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPolicy {
    policy: QuotaPolicy,
    id: u32,
    bucket: Bucket,
}

impl CheckedPolicy {
    pub(crate) fn new(policy: QuotaPolicy) -> Result<Self, ConfigError> {
        check_name(&policy)?;
        check_window(&policy)?;
        check_amount(&policy, "quota", policy.quota, ConfigErrorKind::Quota)?;
        check_amount(
            &policy,
            "burst capacity",
            policy.burst_capacity(),
            ConfigErrorKind::BurstCapacity,
        )?;
        let bucket = Bucket::new(policy.quota, policy.window.as_secs(), policy.burst_capacity())
            .map_err(|message| policy_error(&policy, ConfigErrorKind::BurstCapacity, &message))?;
        Ok(Self {
            id: policy_id(policy.name()),
            bucket,
            policy,
        })
    }

    /// The policy as it was written.
    pub fn policy(&self) -> &QuotaPolicy {
        &self.policy
    }

    /// What tells this policy's state from that of others under one partition: made from the algorithm and the name, so
    /// that a policy whose numbers change keeps the units that were used.
    #[inline]
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    #[inline]
    pub(crate) fn bucket(&self) -> &Bucket {
        &self.bucket
    }
}

/// The policies that one decision holds together, checked as a whole.
///
/// [`RateLimitLayerBuilder::build`](crate::RateLimitLayerBuilder::build) makes them for you; you want them yourself
/// to limit something that is not an HTTP request, with a store alone. Clones share the policies.
///
/// ```
/// use tower_quota::{CheckedPolicies, MemoryStore, Outcome, Scope, PartitionKey, Plan, QuotaPolicy, Store};
///
/// # tokio_test::block_on(async {
/// let store = MemoryStore::new();
/// let policies = CheckedPolicies::new([QuotaPolicy::per_hour("mails", 2)])?;
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
///
/// assert_eq!(store.acquire(Plan::new(policies.clone(), alice, 2)).await?.outcome(), Outcome::Allowed);
/// assert_eq!(store.acquire(Plan::new(policies.clone(), alice, 1)).await?.outcome(), Outcome::Refused);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedPolicies(Arc<[CheckedPolicy]>);

impl CheckedPolicies {
    /// Checks the policies one by one and together.
    ///
    /// # Errors
    ///
    /// If there are none or more than 16, if two have the same name, or if one of them is out of its range.
    pub fn new(policies: impl IntoIterator<Item = QuotaPolicy>) -> Result<Self, ConfigError> {
        let mut checked: Vec<CheckedPolicy> = Vec::new();
        for policy in policies {
            let policy = CheckedPolicy::new(policy)?;
            if let Some(other) = checked.iter().find(|other| other.id == policy.id) {
                return Err(indistinguishable(policy.policy.name(), other.policy.name()));
            }
            checked.push(policy);
        }
        match checked.len() {
            1..=MAX_POLICIES => Ok(Self(checked.into())),
            count => Err(ConfigError::new(
                ConfigErrorKind::Policies,
                format!("policies: their number {count} is outside 1..={MAX_POLICIES}"),
            )),
        }
    }

    /// Whether these are clones of each other.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The policies, in the order in which they were given.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, CheckedPolicy> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a CheckedPolicies {
    type Item = &'a CheckedPolicy;
    type IntoIter = std::slice::Iter<'a, CheckedPolicy>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

fn indistinguishable(name: &str, other: &str) -> ConfigError {
    let message = if name == other {
        format!("policy {name:?}: the name is used twice; names must be unique")
    } else {
        format!("policy {name:?}: stores cannot tell it from policy {other:?}; rename one of them")
    };
    ConfigError::new(ConfigErrorKind::DuplicatePolicy, message)
}

/// How many policies one decision can hold: enough for any sensible set, and a bound on the size of a value in Redis.
pub(crate) const MAX_POLICIES: usize = 16;

fn policy_id(name: &str) -> u32 {
    let hash = blake3::derive_key("tower-quota 2026-11-21 policy id of a token bucket", name.as_bytes());
    u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]])
}

fn policy_error(policy: &QuotaPolicy, kind: ConfigErrorKind, message: &str) -> ConfigError {
    ConfigError::new(kind, format!("policy {:?}: {message}", policy.name()))
}

fn check_name(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let error = |message: &str| Err(policy_error(policy, ConfigErrorKind::PolicyName, message));
    if policy.name().is_empty() {
        return error("the name is empty");
    }
    match policy.name().chars().find(|character| !(' '..='~').contains(character)) {
        Some(character) => error(&format!(
            "the name holds {character:?}; only printable ASCII can be sent"
        )),
        None => Ok(()),
    }
}

fn check_window(policy: &QuotaPolicy) -> Result<(), ConfigError> {
    let window = policy.window;
    if window.subsec_nanos() == 0 && (1..=MAX_WINDOW).contains(&window.as_secs()) {
        return Ok(());
    }
    let message = format!("window {window:?} is not a whole number of seconds in 1..={MAX_WINDOW}");
    Err(policy_error(policy, ConfigErrorKind::Window, &message))
}

fn check_amount(policy: &QuotaPolicy, field: &str, value: u64, kind: ConfigErrorKind) -> Result<(), ConfigError> {
    if (1..=MAX_QUOTA).contains(&value) {
        return Ok(());
    }
    Err(policy_error(
        policy,
        kind,
        &format!("{field} {value} is outside 1..={MAX_QUOTA}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_error(policy: QuotaPolicy) -> (ConfigErrorKind, String) {
        let error = CheckedPolicies::new([policy]).unwrap_err();
        (error.kind(), error.to_string())
    }

    #[test]
    fn mistakes_in_a_policy_are_named_with_value_and_bound() {
        use ConfigErrorKind::{BurstCapacity, PolicyName, Quota, Window};

        let named = |name: &'static str| QuotaPolicy::per_second(name, 1);
        let quota = |quota| QuotaPolicy::per_second("p", quota);
        let window = |window| QuotaPolicy::new("p", 1, window);
        let seconds = Duration::from_secs;
        let only_ascii = "only printable ASCII can be sent";
        let cases = [
            (named(""), PolicyName, r#""": the name is empty"#.to_owned()),
            (
                named("käse"),
                PolicyName,
                format!(r#""käse": the name holds 'ä'; {only_ascii}"#),
            ),
            (
                named("a\r\nb"),
                PolicyName,
                format!(r#""a\r\nb": the name holds '\r'; {only_ascii}"#),
            ),
            (quota(0), Quota, format!(r#""p": quota 0 is outside 1..={MAX_QUOTA}"#)),
            (
                quota(MAX_QUOTA + 1),
                Quota,
                format!(r#""p": quota {} is outside 1..={MAX_QUOTA}"#, MAX_QUOTA + 1),
            ),
            (
                quota(1).with_burst_capacity(0),
                BurstCapacity,
                format!(r#""p": burst capacity 0 is outside 1..={MAX_QUOTA}"#),
            ),
        ];
        for (policy, kind, message) in cases {
            assert_eq!(build_error(policy), (kind, format!("policy {message}")));
        }
        for (duration, shown) in [
            (seconds(0), "0ns"),
            (Duration::from_millis(1_500), "1.5s"),
            (seconds(MAX_WINDOW + 1), "1000000001s"),
        ] {
            let message = format!(r#"policy "p": window {shown} is not a whole number of seconds in 1..={MAX_WINDOW}"#);
            assert_eq!(build_error(window(duration)), (Window, message));
        }
    }

    #[test]
    fn a_capacity_far_beyond_its_rate_is_refused_rather_than_counted_wrongly() {
        let (kind, message) = build_error(QuotaPolicy::per_day("p", 1).with_burst_capacity(MAX_QUOTA));
        assert_eq!(kind, ConfigErrorKind::BurstCapacity);
        assert!(
            message.starts_with(r#"policy "p": burst capacity 999999999999999 with 1 per 86400 s"#),
            "{message}"
        );
    }

    #[test]
    fn names_are_used_once_and_policies_are_between_1_and_16() {
        let policy = |index: usize| QuotaPolicy::new(format!("policy {index}"), 1, Duration::from_secs(1));
        let kind = |policies: Vec<QuotaPolicy>| CheckedPolicies::new(policies).map_err(|error| error.kind()).err();
        assert_eq!(kind(vec![policy(1), policy(1)]), Some(ConfigErrorKind::DuplicatePolicy));
        assert_eq!(kind(vec![]), Some(ConfigErrorKind::Policies));
        assert_eq!(kind((0..16).map(policy).collect()), None);
        assert_eq!(kind((0..17).map(policy).collect()), Some(ConfigErrorKind::Policies));
    }

    /// The 32 bits of an id are not enough for all names; the search for a pair is the birthday one.
    #[test]
    fn names_that_a_store_cannot_tell_apart_are_refused() {
        let mut seen = std::collections::HashMap::new();
        let (first, second) = (0..)
            .find_map(|number: u32| {
                let name = format!("p{number}");
                seen.insert(policy_id(&name), name.clone()).map(|other| (other, name))
            })
            .unwrap();
        let policies = [&first, &second].map(|name| QuotaPolicy::new(name.clone(), 1, Duration::from_secs(1)));
        let error = CheckedPolicies::new(policies).unwrap_err();
        assert_eq!(error.kind(), ConfigErrorKind::DuplicatePolicy);
        let expected = format!("policy {second:?}: stores cannot tell it from policy {first:?}; rename one of them");
        assert_eq!(error.to_string(), expected);
    }
}
