use std::{fmt, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{Algorithm, CalendarPeriod, Direction, QuotaPolicy, QuotaUnit, UnitName, check};
use crate::{
    algorithm::{Counter, Form, Limit, Lockout, Newcomer, PlainCounter},
    error::{ConfigError, ConfigErrorKind},
    sync::per_thread::CachePadded,
};

/// A validated [`QuotaPolicy`], with the numbers that stores compute with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    policy: QuotaPolicy,
    id: u32,
    lockout_id: u32,
    newcomer_id: u32,
    limit: Limit,
}

impl Policy {
    pub(crate) fn new(policy: QuotaPolicy) -> Result<Self, ConfigError> {
        let limit = check::check(&policy)
            .map_err(|error| error.within(format_args!("policy {:?}", check::shown_name(policy.name()))))?;
        Ok(Self {
            limit,
            id: policy_id(&policy),
            lockout_id: lockout_id(&policy),
            newcomer_id: id_of("newcomer", &policy),
            policy,
        })
    }

    /// As configured.
    pub(crate) fn policy(&self) -> &QuotaPolicy {
        &self.policy
    }

    /// Identifies the state of this policy within a partition. Independent of the policy's numbers, so that used units
    /// still count when they change.
    #[inline]
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn log_id(&self) -> Option<u32> {
        let is_log = self.policy.algorithm() == Algorithm::SlidingWindowLog;
        is_log.then(|| open_id(&self.policy))
    }

    #[inline]
    pub(crate) fn lockout_id(&self) -> u32 {
        self.lockout_id
    }

    #[inline]
    pub(crate) fn newcomer_id(&self) -> u32 {
        self.newcomer_id
    }

    #[inline]
    pub(crate) fn limit(&self) -> &Limit {
        &self.limit
    }

    #[inline]
    pub(crate) fn counter(&self) -> &Counter {
        &self.limit.counter
    }

    #[inline]
    pub(crate) fn lockout(&self) -> Option<&Lockout> {
        self.limit.lockout.as_ref()
    }

    #[inline]
    pub(crate) fn newcomer(&self) -> Option<&Newcomer> {
        self.limit.newcomer.as_ref()
    }

    fn longest_wait(&self) -> u64 {
        let counted = match self.counter() {
            Counter::Bucket(bucket) => bucket.micros_to_drain(bucket.bound),
            Counter::Closed(_) => 0,
            _ => self
                .policy
                .usual_window()
                .map_or(0, |window| 2 * window.as_micros() as u64),
        };
        counted.max(self.lockout().map_or(0, |lockout| lockout.micros))
    }

    /// Only if requests are charged and reported by its numbers alone.
    fn plain(&self) -> Option<PlainCounter> {
        let (policy, limit) = (&self.policy, &self.limit);
        let is_unusual = policy.is_shadow
            || policy.is_hidden
            || policy.shows_partition_key
            || limit.quota.is_some()
            || limit.lockout.is_some()
            || limit.newcomer.is_some();
        let is_queue = matches!(policy.algorithm, Algorithm::LeakyBucketQueue { .. });
        let is_plain = policy.unit == QuotaUnit::Requests && !is_queue && !is_unusual;
        limit.counter.plain().filter(|_| is_plain)
    }

    fn is_confused_with(&self, other: &Self) -> bool {
        let ids = |policy: &Self| [policy.id, policy.lockout_id, policy.newcomer_id];
        ids(self).iter().any(|id| ids(other).contains(id)) || self.policy.name == other.policy.name
    }

    /// A closed shadow rejects nothing.
    pub(crate) fn is_closed(&self) -> bool {
        self.policy.is_closed() && !self.policy.is_shadow
    }
}

/// The policies that are enforced by one decision, validated as a whole.
///
/// A layer creates its set itself. Create one directly to use a store without a limiter. Clones share the policies.
///
/// ```
/// use tower_quota::{PolicySet, MemoryStore, Outcome, Scope, PartitionKey, Plan, QuotaPolicy, Store};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = MemoryStore::new();
/// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 2)])?;
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
///
/// assert_eq!(store.decide(Plan::new(policies.clone(), alice, 2)).await?.outcome(), Outcome::Allowed);
/// assert_eq!(store.decide(Plan::new(policies.clone(), alice, 1)).await?.outcome(), Outcome::Rejected);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct PolicySet(Arc<CachePadded<Listed>>);

/// Padded, so that reference counts of different threads never share a cache line.
#[derive(Clone, PartialEq, Eq)]
struct Listed {
    policies: Arc<[Policy]>,
    traits: PolicyTraits,
    plain: SmallVec<[PlainCounter; MAX_PLAIN]>,
}

/// In a plan, a flag is set if it is set for one of its sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyTraits {
    pub(crate) has_slots: bool,
    pub(crate) is_closed: bool,
    pub(crate) counts_requests: bool,
    pub(crate) has_logs: bool,
    pub(crate) has_lockouts: bool,
    pub(crate) has_newcomers: bool,
    pub(crate) has_prefetch: bool,
}

impl PolicyTraits {
    pub(crate) fn add(&mut self, other: &Self) {
        self.has_slots |= other.has_slots;
        self.is_closed |= other.is_closed;
        self.counts_requests |= other.counts_requests;
        self.has_logs |= other.has_logs;
        self.has_lockouts |= other.has_lockouts;
        self.has_newcomers |= other.has_newcomers;
        self.has_prefetch |= other.has_prefetch;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchTerms {
    pub(crate) units: u64,
    pub(crate) lifetime: Duration,
}

impl BatchTerms {
    const LONGEST: Duration = Duration::from_secs(5);

    /// A shadow decides by the cost of each request.
    fn of(policy: &QuotaPolicy) -> Option<Self> {
        Some(Self {
            units: policy.prefetch.filter(|_| !policy.is_shadow)?,
            lifetime: (policy.window? / 10).min(Self::LONGEST),
        })
    }

    pub(crate) fn with_lifetime(self, lifetime: Duration) -> Self {
        Self {
            lifetime: self.lifetime.min(lifetime),
            ..self
        }
    }

    pub(crate) fn micros(self) -> u64 {
        u64::try_from(self.lifetime.as_micros()).unwrap_or(u64::MAX)
    }

    fn and(self, other: Self) -> Self {
        Self {
            units: self.units.min(other.units),
            lifetime: self.lifetime.min(other.lifetime),
        }
    }
}

impl PolicySet {
    /// Validates policies individually and as a set.
    ///
    /// ```
    /// use tower_quota::{PolicySet, QuotaPolicy};
    ///
    /// let (hour, day) = (QuotaPolicy::per_hour("mails", 2), QuotaPolicy::per_day("mails", 9));
    /// let error = PolicySet::new([hour, day]).unwrap_err();
    /// assert_eq!(error.to_string(), r#"policy "mails": duplicate name; names must be unique"#);
    /// let error = PolicySet::new([]).unwrap_err();
    /// assert_eq!(error.to_string(), "number of policies 0 is outside 1..=16");
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if there are no policies or more than 16, if the policies count more than three [custom
    /// units](QuotaPolicy::with_unit), if two policies have the same name (or names that stores cannot distinguish, one
    /// pair in four billion), or if a policy is invalid.
    pub fn new(policies: impl IntoIterator<Item = QuotaPolicy>) -> Result<Self, ConfigError> {
        let (mut policies, mut checked) = (policies.into_iter(), Vec::<Policy>::new());
        // The others are only counted, because the names of policies are compared pairwise.
        for policy in policies.by_ref().take(MAX_POLICIES) {
            let policy = Policy::new(policy)?;
            if let Some(other) = checked.iter().find(|other| policy.is_confused_with(other)) {
                return Err(indistinguishable(policy.policy.name(), other.policy.name()));
            }
            checked.push(policy);
        }
        let (kind, count) = (ConfigErrorKind::Policies, checked.len() + policies.count());
        ConfigError::check_range(kind, "number of policies", count, 1..=MAX_POLICIES)?;
        let set = Self::of(checked);
        set.check_units()?;
        Ok(set)
    }

    pub(crate) fn unlimited() -> Self {
        Self::of(Vec::new())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.policies.is_empty()
    }

    fn of(mut checked: Vec<Policy>) -> Self {
        let longest = checked.iter().map(Policy::longest_wait).max().unwrap_or(0);
        for newcomer in checked.iter_mut().filter_map(|policy| policy.limit.newcomer.as_mut()) {
            *newcomer = Newcomer::known_for(newcomer.level, longest);
        }
        let takes_a_request =
            |policy: &Policy| policy.policy.unit == QuotaUnit::Requests && policy.counter().weigh(1) > 0;
        let has_form = |form| checked.iter().any(|policy| policy.counter().form() == form);
        let traits = PolicyTraits {
            has_slots: has_form(Form::Slots),
            is_closed: checked.iter().any(Policy::is_closed),
            counts_requests: checked.iter().any(takes_a_request),
            has_logs: has_form(Form::Log),
            has_lockouts: checked.iter().any(|policy| policy.lockout().is_some()),
            has_newcomers: checked.iter().any(|policy| policy.newcomer().is_some()),
            has_prefetch: checked.iter().all(|policy| BatchTerms::of(&policy.policy).is_some()),
        };
        let plain: Option<SmallVec<_>> = match checked.len() <= MAX_PLAIN && !traits.has_prefetch {
            true => checked.iter().map(Policy::plain).collect(),
            false => None,
        };
        let (policies, plain) = (checked.into(), plain.unwrap_or_default());
        let listed = Listed {
            policies,
            traits,
            plain,
        };
        Self(Arc::new(CachePadded(listed)))
    }

    #[inline]
    pub(crate) fn traits(&self) -> &PolicyTraits {
        &self.0.traits
    }

    pub(crate) fn units(&self) -> SmallVec<[UnitName; MAX_UNITS]> {
        let mut units = SmallVec::new();
        for policy in self.iter() {
            if let QuotaUnit::Custom(unit) = policy.policy.unit
                && !units.contains(&unit)
            {
                units.push(unit);
            }
        }
        units
    }

    fn check_units(&self) -> Result<(), ConfigError> {
        let units = self.units();
        if units.len() > MAX_UNITS {
            let message = format!("policies: more than {MAX_UNITS} custom units: {units:?}");
            return Err(ConfigError::new(ConfigErrorKind::Unit, message));
        }
        for (index, unit) in units.iter().enumerate() {
            if let Some(other) = units[..index].iter().find(|other| other.id() == unit.id()) {
                let message = format!("unit {unit:?}: ID collides with unit {other:?}; rename one of them");
                return Err(ConfigError::new(ConfigErrorKind::Unit, message));
            }
        }
        Ok(())
    }

    /// `None` if no policy remains.
    pub(crate) fn without(self, ids: &[u32]) -> Option<Self> {
        let is_other = |policy: &&Policy| !ids.contains(&policy.id);
        if self.iter().all(|policy| is_other(&policy)) {
            return Some(self);
        }
        let others: Vec<Policy> = self.iter().filter(is_other).cloned().collect();
        (!others.is_empty()).then(|| Self::of(others))
    }

    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.list(), other.list())
    }

    /// Empty unless there are up to three policies, all of which are plain: buckets without a queue and fixed windows
    /// of requests, without further settings.
    #[inline]
    pub(crate) fn plain(&self) -> &[PlainCounter] {
        &self.0.plain
    }

    #[inline]
    pub(crate) fn list(&self) -> &Arc<[Policy]> {
        &self.0.policies
    }

    pub(crate) fn with_own_count(&self) -> Self {
        Self(Arc::new(CachePadded(Listed::clone(&self.0))))
    }

    /// Returns the policies in the order of insertion.
    pub fn policies(&self) -> impl Iterator<Item = &QuotaPolicy> {
        self.iter().map(Policy::policy)
    }

    #[inline]
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Policy> {
        self.0.policies.iter()
    }

    #[inline]
    pub(crate) fn batch_terms(&self) -> Option<BatchTerms> {
        if !self.traits().has_prefetch {
            return None;
        }
        let terms = self.iter().filter_map(|policy| BatchTerms::of(&policy.policy));
        terms.reduce(BatchTerms::and)
    }
}

impl fmt::Debug for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

fn indistinguishable(name: &str, other: &str) -> ConfigError {
    let message = if name == other {
        format!("policy {name:?}: duplicate name; names must be unique")
    } else {
        format!("policy {name:?}: ID collides with policy {other:?}; rename one of them")
    };
    ConfigError::new(ConfigErrorKind::DuplicatePolicy, message)
}

/// Bounds the size of a value in Redis.
pub(crate) const MAX_POLICIES: usize = 16;

pub(crate) const MAX_PLAIN: usize = 3;

pub(crate) const MAX_UNITS: usize = 3;

/// Months with different first days share used units: otherwise a caller could get a second quota by changing its
/// billing day.
fn calendar(policy: &QuotaPolicy) -> String {
    let window = policy.calendar.as_ref();
    window.map_or_else(String::new, |window| {
        let time_zone = window.time_zone().replace('/', " ");
        match window.period() {
            CalendarPeriod::Month { .. } => format!("calendar Month {time_zone}"),
            period => format!("calendar {period:?} {time_zone}"),
        }
    })
}

/// The window is part of the ID if the algorithm counts in windows.
pub(super) fn policy_id(policy: &QuotaPolicy) -> u32 {
    match policy.is_closed() {
        // A closed policy has no state. The units used before it was closed keep their own ID.
        true => id_of("closed", policy),
        false => open_id(policy),
    }
}

pub(super) fn open_id(policy: &QuotaPolicy) -> u32 {
    let window = policy.window_micros();
    let algorithm = match (policy.window, policy.algorithm) {
        (None, _) if policy.is_timed() => calendar(policy),
        (None, _) => "concurrency".to_owned(),
        (_, algorithm) => algorithm.identity(window),
    };
    id_of(&algorithm, policy)
}

fn lockout_id(policy: &QuotaPolicy) -> u32 {
    id_of("block", policy)
}

fn id_of(algorithm: &str, policy: &QuotaPolicy) -> u32 {
    let own;
    let unit = match policy.unit {
        QuotaUnit::ConcurrentRequests => "concurrent requests",
        QuotaUnit::ContentBytes(Direction::Both) => "bytes",
        QuotaUnit::ContentBytes(Direction::Request) => "request bytes",
        QuotaUnit::ContentBytes(Direction::Response) => "response bytes",
        QuotaUnit::Custom(name) => {
            own = format!("unit of {} characters {name}", name.as_str().len());
            &own
        }
        QuotaUnit::Requests => "requests",
    };
    // The name comes last, and a custom unit is preceded by its length: no other part can contain the separator.
    let material = format!("{algorithm}/{unit}/{}", policy.name);
    let hash = blake3::derive_key("tower-quota 2026-11-21 policy id", material.as_bytes());
    u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]])
}
