//! The decision about a request.

use std::{fmt, iter, time::Duration};

use super::{
    allowance::{Allowance, Known},
    answer::ChargeRejections,
    availability::Availability,
    costs::Costs,
    measurement::Measurement,
    plan::Plan,
};
use crate::{
    algorithm::{ChargeRejection, Moment},
    clock::Timestamp,
    partition::PartitionId,
};

/// A plan that is rejected, with what is known about it without a store.
pub(crate) struct Cached(Plan);

impl Cached {
    /// Time is the store's, as far as it is known.
    pub(crate) fn new(mut plan: Plan, rejections: ChargeRejections, now: Timestamp) -> Self {
        let answer = &mut plan.0.answer;
        answer.rejections = rejections;
        answer.moments.push(Moment {
            now,
            ..Moment::default()
        });
        Self(plan)
    }

    /// The rejection by policies without quota, which no store need be asked about.
    pub(crate) fn closed(plan: Plan, now: Timestamp) -> Self {
        let rejections = plan.charges();
        let nothing = ChargeRejection::Never {
            remaining: 0,
            reset: None,
        };
        let rejections = rejections.map(|charge| charge.policy().is_closed().then_some(nothing));
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

/// The origin of a decision.
enum Source {
    /// No store was asked, or none has answered. The application may have named a wait.
    NoStore(Option<Duration>),
    Cached(Cached),
    Store(Measurement),
}

/// A clone has no receipt: a charge is settled once. It copies the measurement: few are cloned.
impl Clone for Source {
    fn clone(&self) -> Self {
        match self {
            Self::NoStore(wait) => Self::NoStore(*wait),
            Self::Cached(cached) => Self::Cached(cached.clone()),
            Self::Store(measurement) => Self::Store(measurement.copy()),
        }
    }
}

/// The decision about a request, with one [`Allowance`] per policy.
///
/// The layer puts it into the extensions of each response that it rejects a request with, and of each to a request that
/// it has [passed on uncounted](Outcome::FailedOpen), so that outer layers, logs and tests need not parse header fields.
/// With [`decision_in_response`](crate::RateLimitLayerBuilder::decision_in_response) all responses have it.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::{Decision, Outcome};
///
/// fn log_line<B>(response: &http::Response<B>) -> Option<String> {
///     let decision = response.extensions().get::<Decision>()?;
///     let rejected = decision.outcome() == Outcome::Rejected;
///     rejected.then(|| format!("rejected by {}", decision.violated().next().map_or("", |by| by.policy().name())))
/// }
///
/// # run(async {
/// # let layer = RateLimitLayer::builder(MemoryStore::new())
/// #     .scope("api")
/// #     .key(key::header("x-user-id"))
/// #     .policy(QuotaPolicy::per_hour("hour", 1))
/// #     .build()?;
/// // One request an hour:
/// assert_eq!(log_line(&send(&layer, Request::get("/")).await), None);
/// assert_eq!(log_line(&send(&layer, Request::get("/")).await).as_deref(), Some("rejected by hour"));
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct Decision {
    outcome: Outcome,
    /// True if the fallback decided.
    by_fallback: bool,
    /// True if the quotas were lowered because the service has less capacity than usual.
    is_reduced: bool,
    source: Source,
}

/// The fate of a request.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::{AbnormalUsage, Access, AccessList, Capacity, Decision, Exemption, MissingKey, Outcome};
/// # run(async {
///
/// let access = AccessList::new(key::client_ip());
/// access.update(|rules| rules.set_key(PartitionKey::new("x-user-id", "mallory"), Access::Block))?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .on_missing_key(MissingKey::Reject)
///     .policy(QuotaPolicy::per_hour("hour", 1))
///     .access_list(access)
///     .exempt(Exemption::path("/health"))
///     .decision_in_response()
///     .abnormal_usage(|request| (request.uri.path() == "/.env").then(AbnormalUsage::new))
///     .capacity(|request| match request.uri.path() {
///         "/report" => Capacity::exhausted(Duration::from_secs(5)),
///         _ => Capacity::full(),
///     })
///     .build()?;
///
/// for (user, path, outcome) in [
///     ("alice", "/", Outcome::Allowed),
///     ("alice", "/", Outcome::Rejected),
///     ("alice", "/health", Outcome::Unlimited),
///     ("alice", "/.env", Outcome::Abnormal),
///     ("alice", "/report", Outcome::Overloaded),
///     ("mallory", "/", Outcome::Blocked),
///     ("", "/", Outcome::MissingKey),
/// ] {
///     let response = send(&layer, Request::get(path).header("x-user-id", user)).await;
///     assert_eq!(response.extensions().get::<Decision>().map(Decision::outcome), Some(outcome));
///     assert_eq!(response.status().is_success(), outcome.is_admitted());
/// }
/// // The rest is up to the failure mode.
/// assert!(Outcome::FailedOpen.is_admitted() && !Outcome::FailedClosed.is_admitted());
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The application has found the request to be a part of abnormal usage; it was rejected.
    Abnormal,
    /// All policies had quota left; the request was charged and passed on.
    Allowed,
    /// An [access list](crate::AccessList) blocks the client; the request was rejected.
    Blocked,
    /// The store gave no decision; the request was passed on without being counted.
    FailedOpen,
    /// The store gave no decision; the request was rejected with status 503.
    FailedClosed,
    /// The service has no capacity at the moment; the request was rejected.
    Overloaded,
    /// At least one policy had too little quota left; nothing was charged, and the request was rejected.
    Rejected,
    /// The request could not be attributed to a caller, and the layer rejects such requests.
    MissingKey,
    /// No limit applies to this request: its tier is unlimited, it is [exempt](crate::Exemption), an
    /// [access list](crate::AccessList) allows its client, it has no key and the layer
    /// [lets such requests pass](crate::MissingKey::Allow), or the layer is [switched off](crate::RulesHandle::disable).
    Unlimited,
}

impl Outcome {
    /// Returns `true` if the request is passed on to the inner service.
    #[inline]
    pub fn is_admitted(self) -> bool {
        matches!(self, Self::Allowed | Self::FailedOpen | Self::Unlimited)
    }
}

impl Measurement {
    /// Makes the decision that follows from the measurement.
    ///
    /// [`Store::decide`](crate::Store::decide) asks a store and does this at once.
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

impl Decision {
    /// A rejection without a store.
    pub(crate) fn of_cache(cached: Cached) -> Self {
        Self {
            source: Source::Cached(cached),
            ..Self::unmeasured(Outcome::Rejected)
        }
    }

    /// The decision at the same moment about another plan with the same policies, after a charge of so many units; `None` if
    /// no store has made this one. The units that were used since are only shown: their moment is not known.
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

    /// Decided by the application, which may say how long to wait.
    pub(crate) fn without_policies(outcome: Outcome, wait: Option<Duration>) -> Self {
        Self {
            source: Source::NoStore(wait),
            ..Self::unmeasured(outcome)
        }
    }

    /// It was made by policies that were lowered. What is not lowered rejects at any capacity.
    pub(crate) fn set_reduced_capacity(&mut self) {
        let is_lowered = self.violated().all(|allowance| allowance.policy().is_reducible());
        self.is_reduced = is_lowered;
    }

    /// Returns `true` if the policies were lowered because the service has [less capacity](crate::Capacity) than usual.
    pub fn is_capacity_reduced(&self) -> bool {
        self.is_reduced
    }

    /// Returns `true` if the [rejection cache](crate::LimiterBuilder::rejection_cache) of the layer rejected the request,
    /// or a policy with quota 0 did, and the store was not asked.
    ///
    /// [`allowances`](Self::allowances) then has only the policies that are known to reject it.
    pub fn is_cached(&self) -> bool {
        self.cached().is_some()
    }

    /// The store's time.
    pub(crate) fn now(&self) -> Option<Timestamp> {
        match &self.source {
            Source::NoStore(_) => None,
            Source::Cached(cached) => Some(cached.now()),
            Source::Store(measurement) => Some(measurement.moment(0).server_time()),
        }
    }

    /// The measurement of a store, if one has decided.
    #[inline]
    pub(crate) fn measurement(&self) -> Option<&Measurement> {
        match &self.source {
            Source::Store(measurement) => Some(measurement),
            Source::NoStore(_) | Source::Cached(_) => None,
        }
    }

    /// The knowledge of the cache, if it made the decision.
    fn cached(&self) -> Option<&Cached> {
        match &self.source {
            Source::Cached(cached) => Some(cached),
            Source::NoStore(_) | Source::Store(_) => None,
        }
    }

    /// Returns the plan that was decided: the policies, partitions and costs. `None` if the request had none, because it was
    /// rejected or admitted without a look at policies, or if the store gave no decision.
    ///
    /// Unlike [`allowances`](Self::allowances), it is complete in a [cached](Self::is_cached) rejection, too. Use it to find all
    /// partitions of a request.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # use tower_quota::Limiter;
    /// # run(async {
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
    /// # Ok(()) });
    /// ```
    pub fn plan(&self) -> Option<&Plan> {
        match &self.source {
            Source::NoStore(_) => None,
            Source::Cached(cached) => Some(&cached.0),
            Source::Store(measurement) => Some(measurement.plan()),
        }
    }

    /// The partition that a policy of this name counts, also where it is not known what is left of it.
    pub(crate) fn partition_of(&self, policy: &str) -> Option<PartitionId> {
        let mut charges = self.plan()?.charges();
        let charge = charges.find(|charge| charge.policy().policy().name() == policy)?;
        Some(charge.partition())
    }

    /// The same decision, made by the fallback, which settles its charges, too.
    pub(crate) fn made_by_fallback(mut self) -> Self {
        self.by_fallback = true;
        self
    }

    /// Returns `true` if the [fallback](crate::LimiterBuilder::fallback) decided, because the store did not.
    ///
    /// This includes the store in the process that decides while the store is
    /// [out of memory](crate::StoreErrorKind::OutOfMemory). Other instances do not see its charges.
    pub fn is_by_fallback(&self) -> bool {
        self.by_fallback
    }

    /// The measurement of a store that has let the request pass.
    #[inline]
    pub(crate) fn admitted(&self) -> Option<&Measurement> {
        self.measurement().filter(|measurement| measurement.is_allowed())
    }

    /// The same for a change of the charge, unless it was settled before.
    pub(crate) fn receipt(&self) -> Option<&Measurement> {
        self.admitted().filter(|measurement| measurement.has_receipt())
    }

    /// The same; afterwards the charge cannot be settled or changed any more.
    pub(crate) fn take_receipt(&self) -> Option<&Measurement> {
        self.admitted().filter(|measurement| measurement.take_receipt())
    }

    /// Returns `true` if the request was allowed and holds slots of limits of concurrent requests.
    pub(crate) fn holds_slots(&self) -> bool {
        self.admitted().is_some_and(|measurement| measurement.lease().is_some())
    }

    /// The costs that are charged by now.
    #[inline]
    pub(crate) fn charged(&self) -> Costs {
        self.measurement().map_or(Costs::NOTHING, Measurement::charged)
    }

    /// The charge was changed.
    pub(crate) fn set_charged(&mut self, charged: Costs) {
        if let Source::Store(measurement) = &mut self.source {
            measurement.set_charged(charged);
        }
    }

    /// The time that the request waits for its turn in a [leaky bucket](crate::Algorithm::LeakyBucketQueue) before it is
    /// passed on: zero for all other algorithms, and when it is not passed on at all.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// # let store = MemoryStore::new();
    /// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
    /// // One a minute leaves, and ten may wait.
    /// let queue = Algorithm::LeakyBucketQueue { max_waiting: 10 };
    /// let policies = PolicySet::new([QuotaPolicy::per_minute("even", 1).with_algorithm(queue)])?;
    /// let plan = Plan::new(policies, alice, 1);
    ///
    /// assert_eq!(store.decide(plan.clone()).await?.delay(), Duration::ZERO);
    /// let second = store.decide(plan).await?;
    /// assert!((59..=60).contains(&second.delay().as_secs()));
    /// # Ok(()) });
    /// ```
    pub fn delay(&self) -> Duration {
        let charges = self.admitted().into_iter().flat_map(Measurement::charges);
        let enforced = charges.filter(|measured| !measured.charge().is_shadow());
        let delays = enforced.map(|measured| {
            let charge = measured.charge();
            charge
                .policy()
                .counter()
                .delay(measured.reading.counted, charge.weight())
        });
        Duration::from_micros(delays.max().unwrap_or(0))
    }

    /// The fate of the request.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns when the same request would be admitted if no other request came first.
    ///
    /// Times count from this decision. Shadow policies admit everything. A
    /// [leaky-bucket queue](crate::Algorithm::LeakyBucketQueue) admits a request when it has a place for it, where the
    /// request then waits. Without a store, an admitted request has `Now`, and a rejected one its
    /// [`retry_after`](Self::retry_after), or `Never` without one.
    pub fn availability(&self) -> Availability {
        let waits = self.violated().map(|allowance| allowance.availability());
        match (waits.reduce(Availability::later), self.retry_after()) {
            (Some(availability), _) => availability,
            (None, _) if self.outcome.is_admitted() => Availability::Now,
            (None, Some(wait)) => Availability::After(wait),
            (None, None) => Availability::Never,
        }
    }

    /// The units that a store has granted: the cost of a plan that was allowed, which is less than what was asked for if it
    /// was granted [in part](crate::Plan::allow_partial). 0 for any other decision.
    pub fn granted(&self) -> u64 {
        let charged = self.admitted().filter(|measurement| measurement.is_charged());
        charged.map_or(0, |measurement| measurement.plan().costs().requests)
    }

    /// The time of the store at which it has decided, of the last one where several servers have; `None` if no store has.
    ///
    /// You want it to say later [when a charge was made](crate::Refund).
    pub fn decided_at(&self) -> Option<Timestamp> {
        let moments = self.measurement()?.moments().iter();
        moments.map(|moment| moment.now).max()
    }

    /// One allowance per policy, in the order in which the policies were configured, those of one key together; none if no
    /// store gave a decision, and only those that reject the request if it is a [cached](Self::is_cached) one.
    pub fn allowances(&self) -> impl Iterator<Item = Allowance<'_>> {
        let mut measured = self.measurement().map(|measurement| {
            let (charged, used_since) = (measurement.charged(), measurement.used_since());
            measurement.charges().map(move |measured| {
                let policy = measured.charge().policy();
                let (counter, charge) = (policy.counter(), measured.charge());
                let mut cost = charged.of(policy.policy().unit());
                if cost < charge.cost() && !counter.is_refundable(false) {
                    cost = charge.cost();
                }
                let charged = match measured.is_charged() {
                    true => counter.weigh(cost) + counter.weigh(used_since),
                    false => 0,
                };
                Allowance {
                    charge: measured.charge(),
                    known: Known::Measured { measured, charged },
                }
            })
        });
        let mut cached = self.cached().map(|cached| {
            let known = cached.0.charges().zip(cached.rejections());
            known.filter_map(|(charge, rejection)| {
                let known = Known::Rejection((*rejection)?);
                Some(Allowance { charge, known })
            })
        });
        // Not a chain of flattened iterators: the fields of each response go through it.
        iter::from_fn(move || match &mut measured {
            Some(measured) => measured.next(),
            None => cached.as_mut()?.next(),
        })
    }

    /// The allowances of the policies that reject the request.
    pub fn violated(&self) -> impl Iterator<Item = Allowance<'_>> {
        let violated = self.allowances().filter(Allowance::is_violated);
        violated.filter(|allowance| !allowance.policy().is_shadow())
    }

    /// The allowances of policies that would have rejected the request if they were not a
    /// [shadow](crate::QuotaPolicy::shadow).
    pub fn shadow_violated(&self) -> impl Iterator<Item = Allowance<'_>> {
        let violated = self.allowances().filter(Allowance::is_violated);
        violated.filter(|allowance| allowance.policy().is_shadow())
    }

    /// Returns the allowances of policies whose quota is exceeded within the
    /// [overage](crate::QuotaPolicy::with_overage).
    pub fn over_quota(&self) -> impl Iterator<Item = Allowance<'_>> {
        self.allowances().filter(|allowance| allowance.over_quota() > 0)
    }

    /// The time until the same request passes if no other request comes: the longest wait of all violated policies, or the
    /// one that the application has named when it rejected the request.
    ///
    /// `None` if the request was not rejected, or if it never passes because it costs more than a policy ever lets pass, or
    /// because a quota is 0.
    /// It is not known when a slot of a limit of concurrent requests becomes free: its wait is one second. For a layer that
    /// fails closed it is a second, too: by then the circuit breaker has tried the store again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::FailedClosed => return Some(Duration::from_secs(1)),
            Outcome::Abnormal | Outcome::Overloaded => match self.source {
                Source::NoStore(wait) => return wait,
                Source::Cached(_) | Source::Store(_) => {}
            },
            outcome if outcome.is_admitted() => return None,
            _ => {}
        }
        self.violated()
            .map(|allowance| allowance.retry_after())
            .reduce(|a, b| Some(a?.max(b?)))?
    }
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

    /// Each request moves a decision some times, and stores keep a reading for each policy of each call.
    #[test]
    fn a_reading_and_a_decision_are_small() {
        let sizes = [size_of::<Read>(), size_of::<Exchange>(), size_of::<Decision>()];
        assert!(
            sizes.iter().zip([64, 544, 24]).all(|(size, most)| *size <= most),
            "{sizes:?}"
        );
    }
}
