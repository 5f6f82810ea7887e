use std::{fmt, iter, time::Duration};

use super::{
    allowance::{Allowance, Known},
    answer::ChargeRejections,
    availability::Availability,
    charged::{Charged, LazyMeasurement},
    costs::Costs,
    measurement::Measurement,
    plan::{Charge, Plan},
};
use crate::{
    algorithm::{ChargeRejection, Moment},
    clock::Timestamp,
    partition::PartitionId,
    policy::PolicySet,
};

pub(crate) struct Cached(Plan);

impl Cached {
    pub(crate) fn new(mut plan: Plan, rejections: ChargeRejections, now: Timestamp) -> Self {
        let answer = &mut plan.0.answer;
        answer.rejections = rejections;
        answer.moments.push(Moment {
            now,
            ..Moment::default()
        });
        Self(plan)
    }

    pub(crate) fn closed(plan: Plan, now: Timestamp) -> Self {
        let rejections = plan.charges();
        let nothing = ChargeRejection::Never {
            remaining: 0,
            reset: None,
        };
        let rejections = rejections.map(|charge| charge.checked().is_closed().then_some(nothing));
        let rejections = rejections.collect();
        Self::new(plan, rejections, now)
    }

    fn rejections(&self) -> &ChargeRejections {
        &self.0.0.answer.rejections
    }

    fn now(&self) -> Timestamp {
        self.0.0.answer.moments[0].now
    }
}

impl Clone for Cached {
    fn clone(&self) -> Self {
        Self::new(self.0.clone(), self.rejections().clone(), self.now())
    }
}

enum Source {
    NoStore(Option<Duration>),
    Cached(Cached),
    Store(Measurement),
    Charged(Box<LazyMeasurement>),
}

/// A charge can be settled only once.
impl Clone for Source {
    fn clone(&self) -> Self {
        match self {
            Self::NoStore(wait) => Self::NoStore(*wait),
            Self::Cached(cached) => Self::Cached(cached.clone()),
            Self::Store(measurement) => Self::Store(measurement.copy()),
            Self::Charged(lazy) => Self::Charged(Box::new(lazy.copy())),
        }
    }
}

/// The decision on a request, with one [`Allowance`] per policy.
///
/// Layers insert it into the extensions of [responses](crate::RateLimitLayerBuilder::decision_in_response) and, on
/// demand, of [requests](crate::RateLimitLayerBuilder::decision_in_request).
///
/// ```
/// use tower_quota::{Decision, Outcome};
///
/// /// Describes a rejection by a layer, for a log.
/// fn log_line<B>(response: &http::Response<B>) -> Option<String> {
///     let decision = response.extensions().get::<Decision>()?;
///     let policy = decision.violated().next()?.policy().name();
///     (decision.outcome() == Outcome::Rejected).then(|| format!("rejected by {policy}"))
/// }
/// #
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// #     let layer = tower_quota::RateLimitLayer::builder(tower_quota::MemoryStore::new())
/// #         .scope("api")
/// #         .key(tower_quota::key::header("x-user-id"))
/// #         .policy(tower_quota::QuotaPolicy::per_hour("hour", 1))
/// #         .build()?;
/// #     assert_eq!(log_line(&set_up::send(&layer, http::Request::get("/")).await), None);
/// #     let rejected = set_up::send(&layer, http::Request::get("/")).await;
/// #     assert_eq!(log_line(&rejected).as_deref(), Some("rejected by hour"));
/// #     Ok(())
/// # });
/// ```
#[derive(Clone)]
pub struct Decision {
    outcome: Outcome,
    by_fallback: bool,
    is_reduced: bool,
    source: Source,
}

/// The outcome of a [`Decision`].
///
/// ```
/// use tower_quota::{Limiter, MemoryStore, Outcome, QuotaPolicy};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("mails")
///     .policy(QuotaPolicy::per_hour("hour", 1))
///     .build()?;
///
/// let alice = limiter.caller("alice");
/// assert_eq!(alice.check().await.outcome(), Outcome::Allowed);
/// assert_eq!(alice.check().await.outcome(), Outcome::Rejected);
/// // If the store fails, the outcome depends on the failure mode.
/// assert!(Outcome::FailedOpen.is_admitted());
/// assert!(!Outcome::FailedClosed.is_admitted());
/// # Ok::<_, tower_quota::ConfigError>(())
/// # }).unwrap();
/// #
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// #     use set_up::*;
/// #     let access = AccessList::new(key::client_ip());
/// #     access.update(|rules| rules.set_key(PartitionKey::new("x-user-id", "mallory"), Access::Block))?;
/// #     let layer = RateLimitLayer::builder(MemoryStore::new())
/// #         .scope("api")
/// #         .key(key::header("x-user-id"))
/// #         .on_missing_key(MissingKey::Reject)
/// #         .policy(QuotaPolicy::per_hour("hour", 1))
/// #         .access_list(access)
/// #         .exempt(Exemption::path("/health"))
/// #         .decision_in_response()
/// #         .abnormal_usage(|request| (request.uri.path() == "/.env").then(AbnormalUsage::new))
/// #         .capacity(|request| match request.uri.path() {
/// #             "/report" => Capacity::exhausted(Duration::from_secs(5)),
/// #             _ => Capacity::full(),
/// #         })
/// #         .build()?;
/// #     for (user, path, outcome) in [
/// #         ("alice", "/", Outcome::Allowed),
/// #         ("alice", "/", Outcome::Rejected),
/// #         ("alice", "/health", Outcome::Unlimited),
/// #         ("alice", "/.env", Outcome::Abnormal),
/// #         ("alice", "/report", Outcome::Overloaded),
/// #         ("mallory", "/", Outcome::Blocked),
/// #         ("", "/", Outcome::MissingKey),
/// #     ] {
/// #         let response = send(&layer, Request::get(path).header("x-user-id", user)).await;
/// #         assert_eq!(response.extensions().get::<Decision>().map(Decision::outcome), Some(outcome));
/// #         assert_eq!(response.status().is_success(), outcome.is_admitted());
/// #     }
/// #     Ok(())
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Rejected: the application classified the request as abnormal usage.
    Abnormal,
    /// Every enforced policy had enough quota; the request was charged and forwarded.
    Allowed,
    /// Rejected: an [access list](crate::AccessList) blocks the client.
    Blocked,
    /// No store returned a decision; the request was forwarded uncounted.
    FailedOpen,
    /// No store returned a decision; the request was rejected with status 503.
    FailedClosed,
    /// Rejected: the service has no capacity at the moment.
    Overloaded,
    /// Rejected: at least one policy had too few remaining units. Nothing was charged.
    Rejected,
    /// Rejected: the request has no key, and the layer [rejects such requests](crate::MissingKey::Reject).
    MissingKey,
    /// No limit applies: the tier is unlimited, the request is [exempt](crate::Exemption), an [access
    /// list](crate::AccessList) or [`MissingKey::Allow`](crate::MissingKey::Allow) admits it, or the limits are
    /// [disabled](crate::RulesHandle::disable).
    Unlimited,
}

impl Outcome {
    /// Returns whether the request is forwarded to the inner service.
    #[inline]
    pub fn is_admitted(self) -> bool {
        matches!(self, Self::Allowed | Self::FailedOpen | Self::Unlimited)
    }
}

impl Measurement {
    /// Converts the measurement to a decision. [`Store::decide`](crate::Store::decide) does both steps.
    #[inline]
    pub fn decide(self) -> Decision {
        let outcome = match self.is_allowed() {
            true => Outcome::Allowed,
            false => Outcome::Rejected,
        };
        Decision {
            source: Source::Store(self),
            ..Decision::unmeasured(outcome)
        }
    }
}

impl Charged {
    /// Makes the decision, with the receipt of the charge. `policies` are those of the plan.
    pub(crate) fn decide(self, policies: &PolicySet) -> Decision {
        let outcome = match self.fits {
            true => Outcome::Allowed,
            false => Outcome::Rejected,
        };
        Decision {
            source: Source::Charged(Box::new(LazyMeasurement::new(self, policies.clone()))),
            ..Decision::unmeasured(outcome)
        }
    }
}

impl Decision {
    pub(crate) fn of_cache(cached: Cached) -> Self {
        Self {
            source: Source::Cached(cached),
            ..Self::unmeasured(Outcome::Rejected)
        }
    }

    /// As if `units_before` units had been charged first; `used_since` only lowers the remaining units. `None` if no
    /// store made this decision.
    pub(crate) fn of_another(&self, plan: Plan, units_before: u64, used_since: u64) -> Option<Self> {
        let another = self.measurement()?.of_another(plan, units_before, used_since);
        Some(another.decide())
    }

    pub(crate) const fn unmeasured(outcome: Outcome) -> Self {
        Self {
            outcome,
            by_fallback: false,
            is_reduced: false,
            source: Source::NoStore(None),
        }
    }

    pub(crate) fn without_policies(outcome: Outcome, wait: Option<Duration>) -> Self {
        Self {
            source: Source::NoStore(wait.map(|wait| wait.max(Duration::from_secs(1)))),
            ..Self::unmeasured(outcome)
        }
    }

    /// A rejection by a policy that is not reducible has another cause.
    pub(crate) fn set_reduced_capacity(&mut self) {
        let is_lowered = self.violated().all(|allowance| allowance.policy().is_reducible());
        self.is_reduced = is_lowered;
    }

    /// Returns whether a [reduced capacity](crate::Capacity) of the service reduced the policies.
    pub fn is_capacity_reduced(&self) -> bool {
        self.is_reduced
    }

    /// Returns whether the request was rejected without calling the store: by the [rejection
    /// cache](crate::LimiterBuilder::rejection_cache) or by a policy with quota 0. [`allowances`](Self::allowances)
    /// then contains only the policies that are known to reject the request.
    pub fn is_cached(&self) -> bool {
        self.cached().is_some()
    }

    #[inline]
    pub(crate) fn now(&self) -> Option<Timestamp> {
        match &self.source {
            Source::NoStore(_) => None,
            Source::Cached(cached) => Some(cached.now()),
            Source::Store(measurement) => Some(measurement.moment(0).server_time()),
            Source::Charged(lazy) => Some(lazy.charged.now),
        }
    }

    #[inline]
    pub(crate) fn measurement(&self) -> Option<&Measurement> {
        match &self.source {
            Source::Store(measurement) => Some(measurement),
            Source::Charged(lazy) => Some(lazy.get()),
            Source::NoStore(_) | Source::Cached(_) => None,
        }
    }

    fn cached(&self) -> Option<&Cached> {
        match &self.source {
            Source::Cached(cached) => Some(cached),
            Source::NoStore(_) | Source::Store(_) | Source::Charged(_) => None,
        }
    }

    /// Returns the plan, with its policies, partitions and costs; `None` if no policies were evaluated, or if no store
    /// returned a decision.
    ///
    /// ```
    /// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("jobs")
    ///     .named_key("team")
    ///     .policy(QuotaPolicy::per_hour("user", 5))
    ///     .policy(QuotaPolicy::per_hour("team", 0).keyed_by("team"))
    ///     .build()?;
    ///
    /// let rejected = limiter.caller("alice").keyed_by("team", "red").check().await;
    /// assert!(rejected.is_cached());
    /// assert_eq!(rejected.allowances().count(), 1);
    /// assert_eq!(rejected.plan().map(|plan| plan.partitions().count()), Some(2));
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn plan(&self) -> Option<&Plan> {
        match self.cached() {
            Some(cached) => Some(&cached.0),
            None => self.measurement().map(Measurement::plan),
        }
    }

    pub(crate) fn partition_of(&self, policy: &str) -> Option<PartitionId> {
        let mut charges = self.plan()?.charges();
        let charge = charges.find(|charge| charge.policy().name() == policy)?;
        Some(charge.partition())
    }

    pub(crate) fn made_by_fallback(mut self) -> Self {
        self.by_fallback = true;
        self
    }

    /// Returns whether the [fallback](crate::LimiterBuilder::fallback) decided instead of the store, or an in-process
    /// store while the store is [out of memory](crate::StoreErrorKind::OutOfMemory). Charges to an in-process store are
    /// not visible to other instances.
    pub fn is_by_fallback(&self) -> bool {
        self.by_fallback
    }

    #[inline]
    pub(crate) fn admitted(&self) -> Option<&Measurement> {
        match self.outcome {
            Outcome::Allowed => self.measurement(),
            _ => None,
        }
    }

    pub(crate) fn receipt(&self) -> Option<&Measurement> {
        self.admitted().filter(|measurement| measurement.has_receipt())
    }

    pub(crate) fn take_receipt(&self) -> Option<&Measurement> {
        self.admitted().filter(|measurement| measurement.take_receipt())
    }

    pub(crate) fn holds_slots(&self) -> bool {
        self.admitted().is_some_and(|measurement| measurement.lease().is_some())
    }

    #[inline]
    pub(crate) fn charged(&self) -> Costs {
        self.measurement()
            .map_or(Costs::NOTHING, |measurement| *measurement.charged())
    }

    pub(crate) fn set_charged(&mut self, charged: Costs) {
        let measurement = match &mut self.source {
            Source::Store(measurement) => Some(measurement),
            Source::Charged(lazy) => lazy.get_mut(),
            Source::NoStore(_) | Source::Cached(_) => None,
        };
        if let Some(measurement) = measurement {
            measurement.set_charged(charged);
        }
    }

    /// Returns the time that the request waits in a [leaky bucket](crate::Algorithm::LeakyBucketQueue) before it is
    /// forwarded. Zero for all other algorithms and for rejected requests.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{Algorithm, MemoryStore, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// // One mail leaves per minute, and up to ten wait.
    /// let queue = Algorithm::LeakyBucketQueue { max_waiting: 10 };
    /// let policies = PolicySet::new([QuotaPolicy::per_minute("even", 1).with_algorithm(queue)])?;
    /// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// let plan = Plan::new(policies, alice, 1);
    ///
    /// let store = MemoryStore::new();
    /// assert_eq!(store.decide(plan.clone()).await?.delay(), Duration::ZERO);
    /// let second = store.decide(plan).await?;
    /// assert!((59..=60).contains(&second.delay().as_secs()));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn delay(&self) -> Duration {
        let charges = self.admitted().into_iter().flat_map(Measurement::measured_charges);
        let enforced = charges.filter(|measured| !measured.charge().is_shadow());
        let delays = enforced.map(|measured| {
            let charge = measured.charge();
            let counter = charge.checked().counter();
            counter.delay(measured.reading.counted, charge.weight())
        });
        Duration::from_micros(delays.max().unwrap_or(0))
    }

    /// Returns the outcome.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns when an identical request would be admitted, measured from this decision.
    ///
    /// A [leaky-bucket queue](crate::Algorithm::LeakyBucketQueue) admits a request once the queue has room. If no store
    /// made the decision: `Now` for an admitted request; otherwise `After` with [`retry_after`](Self::retry_after), or
    /// `Never` without a wait.
    pub fn availability(&self) -> Availability {
        let waits = self.violated().map(|allowance| allowance.availability());
        match (waits.reduce(Availability::later), self.retry_after()) {
            (Some(availability), _) => availability,
            (None, _) if self.outcome.is_admitted() => Availability::Now,
            (None, Some(wait)) => Availability::After(wait),
            (None, None) => Availability::Never,
        }
    }

    /// Returns the granted units: the cost of the plan, less for a [partial plan](crate::Plan::allow_partial), or 0 if
    /// nothing was granted.
    pub fn granted(&self) -> u64 {
        let charged = self.admitted().filter(|measurement| measurement.is_charged());
        charged.map_or(0, |measurement| measurement.plan().costs().requests)
    }

    /// Returns the store's time of the decision, for a later [refund](crate::Refund): the latest if several servers
    /// decided, `None` if no store did.
    pub fn decided_at(&self) -> Option<Timestamp> {
        let moments = self.measurement()?.moments().iter();
        moments.map(|moment| moment.now).max()
    }

    /// Returns one allowance per policy, grouped by key, in the order of configuration; none if no store made the
    /// decision.
    pub fn allowances(&self) -> impl Iterator<Item = Allowance<'_>> {
        let (mut charges, mut number) = (self.plan().map(|plan| plan.question().charges()), 0);
        // A small iterator: larger ones are slow to move, and each response with fields uses this.
        iter::from_fn(move || {
            loop {
                let charges = charges.as_mut()?;
                let charge = charges.next()?;
                let known = self.known(charge, number, charges.part_number());
                number += 1;
                if let Some(known) = known {
                    return Some(Allowance { charge, known });
                }
            }
        })
    }

    #[inline]
    fn known<'a>(&'a self, charge: Charge<'a>, number: usize, part: usize) -> Option<Known<'a>> {
        let measurement = match &self.source {
            Source::NoStore(_) => return None,
            Source::Cached(cached) => return Some(Known::Rejection((*cached.rejections().get(number)?)?)),
            Source::Store(measurement) => measurement,
            Source::Charged(lazy) => lazy.get(),
        };
        let measured = measurement.measured(charge, number, part)?;
        let counter = charge.checked().counter();
        let part = &measurement.plan().question().parts[part];
        let mut cost = part.cost(charge.checked(), measurement.charged());
        if cost < charge.cost() && !counter.is_refundable(false) {
            cost = charge.cost();
        }
        // Weighing costs a dispatch for each limit of each response, and usually nothing was used since.
        let charged = match (measured.is_charged(), measurement.used_since()) {
            (false, _) => 0,
            (true, 0) => counter.weigh(cost),
            (true, since) => counter.weigh(cost) + counter.weigh(since),
        };
        Some(Known::Measured { measured, charged })
    }

    /// Returns the allowances of the policies that reject the request.
    pub fn violated(&self) -> impl Iterator<Item = Allowance<'_>> {
        let violated = self.allowances().filter(Allowance::is_violated);
        violated.filter(|allowance| !allowance.policy().is_shadow())
    }

    /// Returns the allowances of [shadow](crate::QuotaPolicy::shadow) policies that would have rejected the request.
    pub fn shadow_violated(&self) -> impl Iterator<Item = Allowance<'_>> {
        let violated = self.allowances().filter(Allowance::is_violated);
        violated.filter(|allowance| allowance.policy().is_shadow())
    }

    /// Returns the allowances of policies above their quota, within the [overage](crate::QuotaPolicy::with_overage).
    pub fn over_quota(&self) -> impl Iterator<Item = Allowance<'_>> {
        self.allowances().filter(|allowance| allowance.over_quota() > 0)
    }

    /// Returns the time until an identical request passes, if no other request comes first.
    ///
    /// This is the longest wait of all violated policies, or the wait that the application set when it rejected the
    /// request. `None` if the request was not rejected, was rejected without a wait (for example, by an access list),
    /// or can never pass. An estimate of 1 s for concurrency limits, and for a layer that fails closed.
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.outcome.is_admitted() {
            true => None,
            false => self.wait(),
        }
    }

    /// Returns [`retry_after`](Self::retry_after) in whole seconds, rounded up, and at least 1: the value of
    /// `Retry-After`, unless [`ResponseFields`](crate::ResponseFields) lengthens it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_quota::{
    ///     Limiter, MemoryStore, QuotaPolicy,
    ///     clock::{Clock, Timestamp},
    /// };
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let limiter = Limiter::builder(MemoryStore::builder().clock(clock.clone()).build()?)
    ///     .scope("mails")
    ///     .policy(QuotaPolicy::per_minute("minute", 30).with_burst_capacity(1))
    ///     .build()?;
    /// limiter.check("alice").await;
    /// clock.advance(Duration::from_millis(200));
    /// let rejected = limiter.check("alice").await;
    /// assert_eq!(rejected.retry_after(), Some(Duration::from_millis(1_800)));
    /// assert_eq!(rejected.retry_after_secs(), Some(2));
    /// # Ok::<_, tower_quota::ConfigError>(())
    /// # }).unwrap();
    /// ```
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after().map(retry_seconds)
    }

    fn wait(&self) -> Option<Duration> {
        match (self.outcome, &self.source) {
            (Outcome::FailedClosed, _) => return Some(Duration::from_secs(1)),
            (Outcome::Abnormal | Outcome::Overloaded, Source::NoStore(wait)) => return *wait,
            _ => {}
        }
        self.violated()
            .map(|allowance| allowance.retry_after())
            .reduce(|a, b| Some(a?.max(b?)))?
    }
}

pub(crate) fn retry_seconds(wait: Duration) -> u64 {
    whole_seconds(wait).max(1)
}

pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome)
            .field("allowances", &self.allowances().collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Read, plan::Exchange};

    #[test]
    fn a_reading_and_a_decision_are_small() {
        let sizes = [size_of::<Read>(), size_of::<Exchange>(), size_of::<Decision>()];
        assert!(
            sizes.iter().zip([64, 552, 24]).all(|(size, most)| *size <= most),
            "{sizes:?}"
        );
    }
}
