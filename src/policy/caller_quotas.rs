use std::{borrow::Cow, sync::Arc};

use super::{Algorithm, CalendarPeriod, CalendarWindow, QuotaPolicy, set::PolicySet};
use crate::clock::Timestamp;

/// Individual quotas of a caller, for example by contract, which replace the quotas of its tier.
///
/// Authentication inserts them into the request's extensions, or the tier source returns them in a
/// [`ResolvedTier`](crate::ResolvedTier). Outside HTTP, pass them to [`Caller::quotas`](crate::Caller::quotas). Each
/// quota applies only if its policy [allows it](crate::QuotaPolicy::with_caller_quotas). Unknown names have no effect.
///
/// Used units still count when the quotas change. Fields, problem details and [decisions](crate::Decision) show the
/// caller's quotas; metrics do not.
///
/// ```
/// use tower_quota::{CallerQuotas, Limiter, MemoryStore, QuotaPolicy};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("api")
///     .policy(QuotaPolicy::per_minute("minute", 100).with_caller_quotas(10..=10_000))
///     .build()?;
///
/// // Authentication knows the customer's contract. In a request, insert it into the extensions.
/// let contract = CallerQuotas::new().quota("minute", 5_000);
/// let decision = limiter.caller("acme").quotas(contract).check().await;
/// let minute = decision.allowances().next().expect("there is one of each policy");
/// assert_eq!((minute.policy().quota(), minute.remaining()), (5_000, 4_999));
///
/// // A typo admits no more than the upper bound.
/// let typo = CallerQuotas::new().quota("minute", 50_000_000);
/// let decision = limiter.caller("globex").quotas(typo).check().await;
/// assert_eq!(decision.allowances().map(|minute| minute.policy().quota()).next(), Some(10_000));
/// # // Slots have individual quotas, too.
/// # let exports = QuotaPolicy::concurrent("exports", 2).with_caller_quotas(1..=20);
/// # let limiter = Limiter::builder(MemoryStore::new()).scope("exports").policy(exports).build()?;
/// # let acme = limiter.caller("acme").quotas(CallerQuotas::new().quota("exports", 3));
/// # let running = [acme.hold().await, acme.hold().await, acme.hold().await];
/// # assert!(running.iter().all(Result::is_ok));
/// # assert!(acme.hold().await.is_err());
/// # Ok::<_, tower_quota::ConfigError>(())
/// # }).unwrap();
/// ```
///
/// # In files
///
/// With the feature `serde`, the quotas can be stored as JSON. End times are in seconds since 1970, and all fields are
/// optional:
///
/// ```json
/// {
///     "policies": {"minute": {"quota": 5000, "burst_capacity": 100}},
///     "month_begins": 15,
///     "until": 1798761600,
///     "top_ups": [{"policy": "minute", "units": 500, "until": 1796083200}]
/// }
/// ```
///
/// # Cost
///
/// Callers with equal quotas share one prepared set of policies. Each tier and thread caches up to 4,096 sets, and
/// evicts a random one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerQuotas(Arc<IndividualQuotas>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndividualQuotas {
    pub(crate) numbers: Vec<(Cow<'static, str>, Numbers)>,
    pub(crate) month_begins: Option<u8>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) top_ups: Vec<TopUp>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Numbers {
    pub(crate) quota: Option<u64>,
    pub(crate) burst_capacity: Option<u64>,
    month_begins: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopUp {
    pub(crate) policy: Cow<'static, str>,
    pub(crate) units: u64,
    pub(crate) until: Timestamp,
}

impl CallerQuotas {
    /// Creates an empty set: each policy has the quota of the tier.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the quota of a policy, in its unit and window.
    ///
    /// 0 closes the policy if its lower bound is 0. A quota below the burst capacity of a
    /// [strict token bucket](crate::Algorithm::StrictTokenBucket) also lowers the capacity.
    #[must_use]
    pub fn quota(self, policy: impl Into<Cow<'static, str>>, quota: u64) -> Self {
        self.with_numbers(policy.into(), |numbers| numbers.quota = Some(quota))
    }

    /// Sets the burst capacity of a [token bucket](crate::QuotaPolicy::with_burst_capacity).
    ///
    /// The capacity is capped at the upper bound of the policy's quotas, and at the caller's quota for a [strict token
    /// bucket](crate::Algorithm::StrictTokenBucket). Other policies ignore it.
    #[must_use]
    pub fn burst_capacity(self, policy: impl Into<Cow<'static, str>>, capacity: u64) -> Self {
        self.with_numbers(policy.into(), |numbers| numbers.burst_capacity = Some(capacity))
    }

    /// Sets the day on which the caller's months begin, from 1 to 31, such as its billing day.
    ///
    /// Applies to policies with [calendar months](crate::QuotaPolicy::per_calendar_month) and [caller
    /// quotas](crate::QuotaPolicy::with_caller_quotas). A shorter month begins on its last day. A day outside the range
    /// is replaced by the nearest one.
    ///
    /// When the day changes, used units count until the month in which the first of them was used ends, by the old or
    /// by the new day, whichever is earlier. Alternating days open at most one quota per date. A caller that can choose
    /// its day freely could open one on every date, so limit how often the day can change.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{
    ///     CallerQuotas, Limiter, MemoryStore, QuotaPolicy,
    ///     clock::{Clock, Timestamp},
    /// };
    ///
    /// # #[cfg(feature = "calendar")] tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let clock = Clock::manual(Timestamp::from_micros(1_774_000_000_000_000)); // 20 March 2026, 09:46:40 UTC
    /// let limiter = Limiter::builder(MemoryStore::builder().clock(clock).build()?)
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_calendar_month("month", 10_000, "UTC").with_caller_quotas(1..=1_000_000))
    ///     .build()?;
    /// let acme = limiter.caller("acme").quotas(CallerQuotas::new().month_begins(25));
    /// assert!(acme.clone().cost(10_000).check().await.outcome().is_admitted());
    /// // Until 25 March, 00:00 UTC.
    /// assert_eq!(acme.check().await.retry_after(), Some(Duration::from_secs(396_800)));
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn month_begins(mut self, day: u8) -> Self {
        self.own().month_begins = Some(day.clamp(1, 31));
        self
    }

    /// Sets the time, by the limiter's [clock](crate::LimiterBuilder::clock), until which all settings except
    /// [top-ups](Self::top_up) apply. Afterwards, the quotas of the tier apply. Default: no end.
    #[must_use]
    pub fn until(mut self, end: Timestamp) -> Self {
        self.own().until = Some(end);
        self
    }

    /// Adds `units` to each window of a policy until `until`, and to its burst capacity if one is set.
    ///
    /// `until` is a time of the limiter's [clock](crate::LimiterBuilder::clock). Top-ups of the same policy are added
    /// together, up to the upper bound of the policy's quotas.
    ///
    /// For units that can be used only once, choose the end of the current window: see
    /// [`CalendarWindow::around`](crate::calendar::CalendarWindow::around).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{
    ///     CallerQuotas, Limiter, MemoryStore, QuotaPolicy,
    ///     clock::{Clock, Timestamp},
    /// };
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let limiter = Limiter::builder(MemoryStore::builder().clock(clock.clone()).build()?)
    ///     .scope("api")
    ///     .policy(QuotaPolicy::per_hour("hour", 100).with_caller_quotas(1..=10_000))
    ///     .clock(clock.clone())
    ///     .build()?;
    /// let in_a_day = clock.now().saturating_add(Duration::from_secs(86_400));
    /// let acme = limiter.caller("acme").quotas(CallerQuotas::new().top_up("hour", 500, in_a_day));
    /// let quota = async || acme.check().await.allowances().next().map(|hour| hour.policy().quota());
    /// assert_eq!(quota().await, Some(600));
    /// clock.advance(Duration::from_secs(86_400));
    /// assert_eq!(quota().await, Some(100));
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn top_up(mut self, policy: impl Into<Cow<'static, str>>, units: u64, until: Timestamp) -> Self {
        let policy = policy.into();
        self.own().top_ups.push(TopUp { policy, units, until });
        self
    }

    fn own(&mut self) -> &mut IndividualQuotas {
        Arc::make_mut(&mut self.0)
    }

    #[cfg_attr(not(feature = "serde"), allow(dead_code, reason = "used for serialization"))]
    pub(crate) fn all(&self) -> &IndividualQuotas {
        &self.0
    }

    fn with_numbers(mut self, policy: Cow<'static, str>, set: impl FnOnce(&mut Numbers)) -> Self {
        let all = &mut self.own().numbers;
        let position = position(all, &policy).unwrap_or_else(|position| {
            all.insert(position, (policy, Numbers::default()));
            position
        });
        set(&mut all[position].1);
        self
    }

    pub(crate) fn has_end(&self) -> bool {
        self.0.until.is_some() || !self.0.top_ups.is_empty()
    }

    /// `None` if they equal the policy's own numbers.
    pub(crate) fn of(&self, policy: &QuotaPolicy, now: Timestamp) -> Option<Numbers> {
        let (own, bounds) = (&*self.0, policy.caller_quotas?);
        let is_over = own.until.is_some_and(|end| end <= now);
        let given = position(&own.numbers, policy.name()).ok().filter(|_| !is_over);
        let given = given.map_or_else(Numbers::default, |position| own.numbers[position].1);

        let top_ups = own.top_ups.iter();
        let top_ups = top_ups.filter(|top_up| top_up.until > now && top_up.policy == policy.name());
        let more = top_ups.fold(0_u64, |sum, top_up| sum.saturating_add(top_up.units));
        let base = given
            .quota
            .map_or(policy.quota, |quota| quota.max(bounds.least).min(bounds.most));
        let more = if base == 0 { 0 } else { more };
        let topped_up = |number: u64| number.saturating_add(more).min(bounds.most.max(number));
        let burst_capacity = given
            .burst_capacity
            .map(|capacity| capacity.clamp(1, bounds.most.max(1)));
        let burst_capacity = burst_capacity.or(policy.burst_capacity).map(topped_up);
        let month = policy.calendar.as_ref().map(CalendarWindow::period);
        let within = Numbers {
            quota: Some(topped_up(base)).filter(|quota| *quota != policy.quota),
            burst_capacity: burst_capacity.filter(|capacity| Some(*capacity) != policy.burst_capacity),
            month_begins: own.month_begins.filter(|day| {
                let differs = |period| matches!(period, CalendarPeriod::Month { begins } if begins != *day);
                !is_over && month.is_some_and(differs)
            }),
        };
        (within != Numbers::default()).then_some(within)
    }
}

impl QuotaPolicy {
    /// Ignores an invalid burst capacity. Rounds numbers that cannot be counted exactly down to 6 or 3 significant
    /// digits.
    pub(crate) fn with_numbers(&self, numbers: Numbers) -> Self {
        let with = |digits: u32, burst_capacity: Option<u64>| {
            let rounded = |number| rounded_down(number, digits);
            let mut policy = Self {
                quota: numbers.quota.map_or(self.quota, rounded),
                burst_capacity: burst_capacity.map(rounded).or(self.burst_capacity),
                // The bounds apply to the numbers of the rules only.
                caller_quotas: None,
                ..self.clone()
            };
            if let (Some(window), Some(begins)) = (&mut policy.calendar, numbers.month_begins) {
                window.period = CalendarPeriod::Month { begins };
            }
            if policy.algorithm == Algorithm::StrictTokenBucket && policy.quota > 0 {
                policy.burst_capacity = policy.burst_capacity.map(|capacity| capacity.min(policy.quota));
            }
            policy.with_fitting_units()
        };
        let is_sound = |policy: &Self| PolicySet::new([policy.clone()]).is_ok();
        let tries = [20, 6, 3].into_iter();
        let mut tries = tries.flat_map(|digits| [(digits, numbers.burst_capacity), (digits, None)]);
        let sound = tries.find_map(|(digits, burst_capacity)| Some(with(digits, burst_capacity)).filter(is_sound));
        sound.unwrap_or_else(|| self.clone())
    }

    fn with_fitting_units(mut self) -> Self {
        if !self.is_closed() {
            let capacity = self.burst_capacity();
            for units in [&mut self.prefetch, &mut self.initial_units].into_iter().flatten() {
                *units = capacity.min(*units);
            }
        }
        self
    }
}

fn position(numbers: &[(Cow<'static, str>, Numbers)], policy: &str) -> Result<usize, usize> {
    numbers.binary_search_by(|(name, _)| (**name).cmp(policy))
}

fn rounded_down(number: u64, digits: u32) -> u64 {
    let surplus = (number.checked_ilog10().unwrap_or_default() + 1).saturating_sub(digits);
    let unit = 10_u64.pow(surplus);
    number / unit * unit
}
