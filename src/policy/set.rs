//! A policy that was checked, and policies that hold together.

use std::{fmt, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{Algorithm, CalendarPeriod, Direction, QuotaPolicy, QuotaUnit, UnitName, check};
use crate::{
    algorithm::{Counter, Form, Limit, Lockout},
    error::{ConfigError, ConfigErrorKind},
    sync::per_thread::CachePadded,
};

/// A policy that `build()` has found valid, with the numbers that stores compute with.
///
/// ```
/// use tower_quota::{PolicySet, QuotaPolicy};
///
/// let checked = PolicySet::new([QuotaPolicy::per_hour("hour", 100), QuotaPolicy::per_day("day", 500)])?;
/// let names: Vec<_> = checked.iter().map(|policy| policy.policy().name()).collect();
/// assert_eq!(names, ["hour", "day"]);
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    policy: QuotaPolicy,
    id: u32,
    /// That of its lockout, whether it has one or not.
    lockout_id: u32,
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
            policy,
        })
    }

    /// The policy as it was written.
    pub fn policy(&self) -> &QuotaPolicy {
        &self.policy
    }

    /// Identifies the state of this policy among those of one partition. It is made from the name, the unit and the
    /// algorithm, so that a policy whose numbers change keeps the units that were used.
    #[inline]
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Identifies the log of this policy, also while quota 0 closes it and it keeps none.
    pub(crate) fn log_id(&self) -> Option<u32> {
        let is_log = self.policy.algorithm() == Algorithm::SlidingWindowLog;
        is_log.then(|| open_id(&self.policy))
    }

    /// Identifies the lockout of this policy in the same way. It outlives changes of the algorithm and of the window, too.
    #[inline]
    pub(crate) fn lockout_id(&self) -> u32 {
        self.lockout_id
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

    /// Returns `true` if a store may take a part of one for a part of the other, or a client one for the other.
    fn is_confused_with(&self, other: &Self) -> bool {
        let ids = [other.id, other.lockout_id];
        ids.contains(&self.id) || ids.contains(&self.lockout_id) || self.policy.name == other.policy.name
    }

    /// Returns `true` if it lets nothing pass.
    pub(crate) fn is_closed(&self) -> bool {
        self.policy.is_closed() && !self.policy.is_shadow
    }
}

/// The policies that one decision holds together, checked as a whole.
///
/// [`RateLimitLayerBuilder::build`](crate::RateLimitLayerBuilder::build) makes them for you; you want them yourself
/// to limit something that is not an HTTP request, with a store alone. Clones share the policies.
///
/// ```
/// use tower_quota::{PolicySet, MemoryStore, Outcome, Scope, PartitionKey, Plan, QuotaPolicy, Store};
///
/// # tokio_test::block_on(async {
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

/// The policies, and what follows from them. Clones of a set are counted where this is, apart from those of other lanes.
#[derive(Clone, PartialEq, Eq)]
struct Listed {
    policies: Arc<[Policy]>,
    traits: Traits,
}

/// Answers about all policies of a set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traits {
    /// True if any of them limits concurrent requests.
    pub(crate) has_slots: bool,
    /// True if any of them lets nothing pass, whatever a store says.
    pub(crate) is_closed: bool,
    /// True if any of them takes something of each request that costs something.
    pub(crate) counts_requests: bool,
    /// True if any of them keeps a log.
    pub(crate) has_logs: bool,
    /// True if any of them has a lockout.
    pub(crate) has_lockouts: bool,
    /// True if units of all of them may be prefetched.
    has_prefetch: bool,
}

/// On which terms an instance may take units in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchTerms {
    /// The most units that are held at a time.
    pub(crate) units: u64,
    /// The maximum time in which they may be spent.
    pub(crate) lifetime: Duration,
}

impl BatchTerms {
    /// However far the store is.
    const LONGEST: Duration = Duration::from_secs(5);

    /// Those of one policy. A shadow is charged or not by what each request costs, so that with one of those nothing is
    /// known about many units.
    fn of(policy: &QuotaPolicy) -> Option<Self> {
        Some(Self {
            units: policy.prefetch.filter(|_| !policy.is_shadow)?,
            lifetime: (policy.window? / 10).min(Self::LONGEST),
        })
    }

    /// Those with a store that is so far away.
    pub(crate) fn with_lifetime(self, lifetime: Duration) -> Self {
        Self {
            lifetime: self.lifetime.min(lifetime),
            ..self
        }
    }

    /// The lifetime in microseconds.
    pub(crate) fn micros(self) -> u64 {
        u64::try_from(self.lifetime.as_micros()).unwrap_or(u64::MAX)
    }

    /// Those that suit two policies.
    fn and(self, other: Self) -> Self {
        Self {
            units: self.units.min(other.units),
            lifetime: self.lifetime.min(other.lifetime),
        }
    }
}

impl PolicySet {
    /// Checks the policies one by one and together.
    ///
    /// ```
    /// use tower_quota::{PolicySet, QuotaPolicy};
    ///
    /// let (hour, day) = (QuotaPolicy::per_hour("mails", 2), QuotaPolicy::per_day("mails", 9));
    /// let error = PolicySet::new([hour, day]).unwrap_err();
    /// assert_eq!(error.to_string(), r#"policy "mails": the name is used twice; names must be unique"#);
    /// let error = PolicySet::new([]).unwrap_err();
    /// assert_eq!(error.to_string(), "policies: their number 0 is outside 1..=16");
    /// ```
    ///
    /// # Errors
    ///
    /// If there are none or more than 16, if they count more than three units of [your own](QuotaPolicy::with_unit), if two have
    /// the same name (or, once in four thousand million pairs, names that stores cannot tell apart), or if one of them is out
    /// of its range.
    pub fn new(policies: impl IntoIterator<Item = QuotaPolicy>) -> Result<Self, ConfigError> {
        let mut checked: Vec<Policy> = Vec::new();
        for policy in policies {
            let policy = Policy::new(policy)?;
            if let Some(other) = checked.iter().find(|other| policy.is_confused_with(other)) {
                return Err(indistinguishable(policy.policy.name(), other.policy.name()));
            }
            checked.push(policy);
        }
        let (kind, name) = (ConfigErrorKind::Policies, "policies: their number");
        ConfigError::check_range(kind, name, checked.len(), 1..=MAX_POLICIES)?;
        let set = Self::of(checked);
        set.check_units()?;
        Ok(set)
    }

    fn of(checked: Vec<Policy>) -> Self {
        let takes_a_request =
            |policy: &Policy| policy.policy.unit == QuotaUnit::Requests && policy.counter().weigh(1) > 0;
        let has_form = |form| checked.iter().any(|policy| policy.counter().form() == form);
        let traits = Traits {
            has_slots: has_form(Form::Slots),
            is_closed: checked.iter().any(Policy::is_closed),
            counts_requests: checked.iter().any(takes_a_request),
            has_logs: has_form(Form::Log),
            has_lockouts: checked.iter().any(|policy| policy.lockout().is_some()),
            has_prefetch: checked.iter().all(|policy| BatchTerms::of(&policy.policy).is_some()),
        };
        let policies = checked.into();
        Self(Arc::new(CachePadded(Listed { policies, traits })))
    }

    #[inline]
    pub(crate) fn traits(&self) -> &Traits {
        &self.0.traits
    }

    /// The units of the program's own, each of them once, in the order of the policies.
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
            let message = format!("policies: they count more than {MAX_UNITS} units of your own, {units:?}");
            return Err(ConfigError::new(ConfigErrorKind::Unit, message));
        }
        for (index, unit) in units.iter().enumerate() {
            if let Some(other) = units[..index].iter().find(|other| other.id() == unit.id()) {
                let message = format!("unit {unit:?}: it cannot be told from unit {other:?}; rename one of them");
                return Err(ConfigError::new(ConfigErrorKind::Unit, message));
            }
        }
        Ok(())
    }

    /// Those that are not among the policies with these ids, if there are any.
    pub(crate) fn without(self, ids: &[u32]) -> Option<Self> {
        let is_other = |policy: &&Policy| !ids.contains(&policy.id);
        if self.iter().all(|policy| is_other(&policy)) {
            return Some(self);
        }
        let others: Vec<Policy> = self.iter().filter(is_other).cloned().collect();
        (!others.is_empty()).then(|| Self::of(others))
    }

    /// Returns `true` if these are clones of each other.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.list(), other.list())
    }

    /// The policies alone, for what is kept many times.
    #[inline]
    pub(crate) fn list(&self) -> &Arc<[Policy]> {
        &self.0.policies
    }

    /// The same policies, of which clones are counted apart, for another lane.
    pub(crate) fn with_own_count(&self) -> Self {
        Self(Arc::new(CachePadded(Listed::clone(&self.0))))
    }

    /// The policies, in the order in which they were given.
    #[inline]
    pub fn iter(&self) -> std::slice::Iter<'_, Policy> {
        self.0.policies.iter()
    }

    /// On which terms units of all of them may be taken in advance.
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

impl<'a> IntoIterator for &'a PolicySet {
    type Item = &'a Policy;
    type IntoIter = std::slice::Iter<'a, Policy>;

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

/// The maximum number of policies in one decision: enough for any sensible set, and a bound on the size of a value in Redis.
pub(crate) const MAX_POLICIES: usize = 16;

/// The maximum number of units of the program's own in one decision. A plan has room for so many without an allocation.
pub(crate) const MAX_UNITS: usize = 3;

/// The name of a time zone has the separator, and no space. Months share used units whatever the day on which they begin, so
/// that a caller whose billing day changes has no second count.
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

/// Policies share used units if all of this is equal. The window is a part where the state is counted in windows.
pub(super) fn policy_id(policy: &QuotaPolicy) -> u32 {
    match policy.is_closed() {
        // It keeps nothing, and leaves alone what its name has used before it was closed.
        true => id_of("closed", policy),
        false => open_id(policy),
    }
}

/// The id of a policy that has a quota.
fn open_id(policy: &QuotaPolicy) -> u32 {
    let window = policy.window_micros();
    let algorithm = match (policy.window, policy.algorithm) {
        (None, _) if policy.is_timed() => calendar(policy),
        (None, _) => "concurrency".to_owned(),
        (_, algorithm) => algorithm.identity(window),
    };
    id_of(&algorithm, policy)
}

/// Policies share a lockout if all of this is equal.
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
    // The name comes last, and a unit of the program's own says how long it is: no other part can hold the separator.
    let material = format!("{algorithm}/{unit}/{}", policy.name);
    let hash = blake3::derive_key("tower-quota 2026-11-21 policy id", material.as_bytes());
    u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]])
}
