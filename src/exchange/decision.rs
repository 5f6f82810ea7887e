//! What was decided, and what is known about each policy.

use std::{fmt, slice, time::Duration};

use smallvec::SmallVec;

use super::{
    measurement::{MeasuredCharge, MeasuredCharges, Measurement},
    plan::{Charge, Charges, Costs, Plan},
};
use crate::{
    algorithm::{Counter, Denial},
    clock::Timestamp,
    partition::PartitionId,
    policy::QuotaPolicy,
};

/// What is known of a plan that was rejected without asking a store.
#[derive(Clone, Debug)]
pub(crate) struct Cached {
    pub(crate) plan: Plan,
    /// Of each charge, in the plan's order, for how long it is rejected; `None` where that is not known.
    pub(crate) denials: ChargeDenials,
    /// The store's time, as far as it is known.
    pub(crate) now: Timestamp,
}

/// Of each charge, in a plan's order.
pub(crate) type ChargeDenials = SmallVec<[Option<Denial>; 2]>;

/// Where a decision comes from.
enum Source {
    /// No store was asked, or none has answered.
    Elsewhere,
    Cached(Cached),
    Store(Measurement),
}

/// A clone has no receipt: what was charged is settled once.
impl Clone for Source {
    fn clone(&self) -> Self {
        match self {
            Self::Elsewhere => Self::Elsewhere,
            Self::Cached(cached) => Self::Cached(cached.clone()),
            Self::Store(measurement) => Self::Store(measurement.copy()),
        }
    }
}

/// What was decided about a request, with one [`Allowance`] per policy.
///
/// The layer puts it into the extensions of every response it has decided on, so that outer layers, logs and tests need
/// not parse header fields:
///
/// ```
/// use tower_quota::{Decision, Outcome};
/// # use http::{Request, Response};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
/// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
/// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
/// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
/// # }
///
/// fn log_line<B>(response: &http::Response<B>) -> Option<String> {
///     let decision = response.extensions().get::<Decision>()?;
///     let rejected = decision.outcome() == Outcome::Rejected;
///     rejected.then(|| format!("rejected by {}", decision.violated().next().map_or("", |by| by.policy().name())))
/// }
///
/// # tokio_test::block_on(async {
/// # let layer = RateLimitLayer::builder(MemoryStore::new())
/// #     .scope("api")
/// #     .key(key::header("x-user-id"))
/// #     .policy(QuotaPolicy::per_hour("hour", 1))
/// #     .build()?;
/// // One request an hour:
/// assert_eq!(log_line(&send(&layer, Request::get("/")).await), None);
/// assert_eq!(log_line(&send(&layer, Request::get("/")).await).as_deref(), Some("rejected by hour"));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Decision {
    outcome: Outcome,
    /// Whether the fallback decided.
    by_fallback: bool,
    /// Whether the quotas were lowered because the service has less capacity than usual.
    is_reduced: bool,
    /// How long to wait where no policy says so.
    wait: Option<Duration>,
    /// What is charged by now.
    charged: Costs,
    /// Units that are known to have been used since the store has answered.
    used_since: u64,
    source: Source,
}

/// What happens to a request.
///
/// ```
/// # use std::time::Duration;
/// use tower_quota::{AbnormalUsage, Access, AccessList, Capacity, Decision, Exemption, NoKey, Outcome};
/// # use tower_quota::PartitionKey;
/// # use http::{Request, Response};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
/// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
/// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
/// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
/// # }
/// # tokio_test::block_on(async {
///
/// let access = AccessList::new(key::client_ip());
/// access.update(|rules| rules.set_key(PartitionKey::new("x-user-id", "mallory"), Access::Block))?;
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .no_key(NoKey::Reject)
///     .policy(QuotaPolicy::per_hour("hour", 1))
///     .access_list(access)
///     .exempt(Exemption::path("/health"))
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
///     ("", "/", Outcome::Unattributed),
/// ] {
///     let response = send(&layer, Request::get(path).header("x-user-id", user)).await;
///     assert_eq!(response.extensions().get::<Decision>().map(Decision::outcome), Some(outcome));
///     assert_eq!(response.status().is_success(), outcome.is_pass());
/// }
/// // What is left is up to the failure mode.
/// assert!(Outcome::FailedOpen.is_pass() && !Outcome::FailedClosed.is_pass());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
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
    Unattributed,
    /// No limit applies to this request: its tier is unlimited, it is [exempt](crate::Exemption), an
    /// [access list](crate::AccessList) allows its client, it has no key and the layer
    /// [lets such requests pass](crate::NoKey::Allow), or the layer is [switched off](crate::RulesHandle::switch_off).
    Unlimited,
}

impl Outcome {
    /// Whether the request is passed on to the inner service.
    #[inline]
    pub fn is_pass(self) -> bool {
        match self {
            Self::Allowed | Self::FailedOpen | Self::Unlimited => true,
            Self::Abnormal
            | Self::Blocked
            | Self::FailedClosed
            | Self::Overloaded
            | Self::Rejected
            | Self::Unattributed => false,
        }
    }
}

impl Measurement {
    /// What was decided: all that is told about it follows from what was measured.
    ///
    /// [`Store::decide`](crate::Store::decide) asks a store and does this at once.
    #[inline]
    pub fn decide(self) -> Decision {
        let outcome = match self.is_allowed() {
            true => Outcome::Allowed,
            false => Outcome::Rejected,
        };
        Decision {
            charged: if self.is_allowed() {
                self.plan().costs()
            } else {
                Costs::NOTHING
            },
            source: Source::Store(self),
            ..Decision::unmeasured(outcome)
        }
    }
}

impl Decision {
    /// Rejected because the same was rejected a moment ago.
    pub(crate) fn cached(cached: Cached) -> Self {
        Self {
            source: Source::Cached(cached),
            ..Self::unmeasured(Outcome::Rejected)
        }
    }

    /// What would have been decided at the same moment about another plan with the same policies, after a charge of so many
    /// units; nothing if no store has decided this one. What was used since is only shown: it is not known when.
    pub(crate) fn of_another(&self, plan: Plan, units_before: u64, used_since: u64) -> Option<Self> {
        let another = self.measurement()?.of_another(plan, units_before);
        Some(Self {
            used_since,
            ..another.decide()
        })
    }

    pub(crate) const fn unmeasured(outcome: Outcome) -> Self {
        Self {
            outcome,
            by_fallback: false,
            is_reduced: false,
            wait: None,
            charged: Costs::NOTHING,
            used_since: 0,
            source: Source::Elsewhere,
        }
    }

    /// Decided by the application, which may say how long to wait.
    pub(crate) fn without_policies(outcome: Outcome, wait: Option<Duration>) -> Self {
        Self {
            wait,
            ..Self::unmeasured(outcome)
        }
    }

    /// The same decision, made by policies that were lowered.
    pub(crate) fn made_with_reduced_capacity(mut self) -> Self {
        self.is_reduced = true;
        self
    }

    /// Whether the policies were lowered because the service has [less capacity](crate::Capacity) than usual.
    pub fn is_capacity_reduced(&self) -> bool {
        self.is_reduced
    }

    /// Whether the request was rejected by what the layer [remembers](crate::RateLimitLayerBuilder::denial_cache) of
    /// earlier rejections, without asking the store.
    ///
    /// [`allowances`](Self::allowances) then has only the policies that are known to reject it.
    pub fn is_cached(&self) -> bool {
        matches!(self.source, Source::Cached(_))
    }

    /// The store's time.
    pub(crate) fn now(&self) -> Option<Timestamp> {
        match &self.source {
            Source::Elsewhere => None,
            Source::Cached(cached) => Some(cached.now),
            Source::Store(measurement) => Some(measurement.moment(0).server_time()),
        }
    }

    /// What a store has measured.
    #[inline]
    pub(crate) fn measurement(&self) -> Option<&Measurement> {
        match &self.source {
            Source::Store(measurement) => Some(measurement),
            Source::Elsewhere | Source::Cached(_) => None,
        }
    }

    /// Whose quota a policy of this name counts, whether or not it is known what is left of it.
    pub(crate) fn partition_of(&self, policy: &str) -> Option<PartitionId> {
        let plan = match &self.source {
            Source::Elsewhere => return None,
            Source::Cached(cached) => &cached.plan,
            Source::Store(measurement) => measurement.plan(),
        };
        let mut charges = plan.charges();
        let charge = charges.find(|charge| charge.policy().policy().name() == policy)?;
        Some(charge.partition())
    }

    /// The same decision, made by the fallback: what becomes of its charges is the fallback's business, too.
    pub(crate) fn made_by_fallback(mut self) -> Self {
        self.by_fallback = true;
        self
    }

    pub(crate) fn is_by_fallback(&self) -> bool {
        self.by_fallback
    }

    /// What a store has measured when it let the request pass, if it did.
    #[inline]
    pub(crate) fn admitted(&self) -> Option<&Measurement> {
        self.measurement().filter(|measurement| measurement.is_allowed())
    }

    /// The same for a change of the charge, unless it was settled before.
    pub(crate) fn receipt(&self) -> Option<&Measurement> {
        self.admitted().filter(|measurement| measurement.has_receipt())
    }

    /// The same, and nobody can settle or change the charge afterwards.
    pub(crate) fn take_receipt(&self) -> Option<&Measurement> {
        self.admitted().filter(|measurement| measurement.take_receipt())
    }

    /// Whether the request was allowed and holds slots of limits of concurrent requests.
    pub(crate) fn holds_slots(&self) -> bool {
        self.admitted().is_some_and(|measurement| measurement.lease().is_some())
    }

    /// What is charged by now.
    #[inline]
    pub(crate) fn charged(&self) -> Costs {
        self.charged
    }

    /// The charge was changed.
    pub(crate) fn set_charged(&mut self, charged: Costs) {
        self.charged = charged;
    }

    /// How long the request waits for its turn in a [leaky bucket](crate::Algorithm::LeakyBucketQueue) before it is
    /// passed on: zero for all other algorithms, and when it is not passed on at all.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_quota::{Algorithm, PolicySet, MemoryStore, Outcome, PartitionKey};
    /// # use tower_quota::{Plan, QuotaPolicy, Scope, Store};
    /// # tokio_test::block_on(async {
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
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn delay(&self) -> Duration {
        let charges = self.admitted().into_iter().flat_map(Measurement::measured_charges);
        let enforced = charges.filter(|measured| !measured.charge().is_shadow());
        let delays = enforced.map(|measured| {
            let charge = measured.charge();
            charge.policy().counter().delay(measured.reading, charge.weight())
        });
        Duration::from_micros(delays.max().unwrap_or(0))
    }

    /// What happens to the request.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// One allowance per policy, in the order in which the policies were configured; none if no store gave a decision,
    /// and only those that reject the request if it is a [remembered](Self::is_cached) one.
    pub fn allowances(&self) -> impl Iterator<Item = Allowance<'_>> {
        match &self.source {
            Source::Elsewhere => Allowances::Nothing,
            Source::Cached(cached) => Allowances::Cached {
                charges: cached.plan.charges_for(cached.plan.costs()),
                denials: cached.denials.iter(),
            },
            Source::Store(measurement) => Allowances::Measured {
                charges: measurement.measured_charges(),
                charged: measurement.plan().charges_for(self.charged),
                used_since: self.used_since,
            },
        }
    }

    /// The allowances of the policies that reject the request.
    pub fn violated(&self) -> impl Iterator<Item = Allowance<'_>> {
        let violated = self.allowances().filter(Allowance::is_violated);
        violated.filter(|allowance| !allowance.policy().is_shadow())
    }

    /// The allowances of policies that would have rejected the request if they were not a
    /// [shadow](QuotaPolicy::shadow).
    pub fn shadow_violated(&self) -> impl Iterator<Item = Allowance<'_>> {
        let violated = self.allowances().filter(Allowance::is_violated);
        violated.filter(|allowance| allowance.policy().is_shadow())
    }

    /// How long until the same request passes if nobody else asks: the longest wait of all violated policies, or what
    /// the application has said when it rejected the request.
    ///
    /// `None` if the request was not rejected, or if it never passes because it costs more than a policy ever lets pass.
    /// Nobody knows when a slot of a limit of concurrent requests becomes free: its wait is one second. For a layer that
    /// fails closed it is a second, too: by then the circuit breaker has tried the store again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::FailedClosed => return Some(Duration::from_secs(1)),
            Outcome::Abnormal | Outcome::Overloaded => return self.wait,
            outcome if outcome.is_pass() => return None,
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

/// What one policy leaves to a caller after a [`Decision`].
///
/// ```
/// use std::time::Duration;
/// # use tower_quota::{Algorithm, PolicySet, MemoryStore, Outcome, PartitionKey};
/// # use tower_quota::{Plan, QuotaPolicy, Scope, Store};
/// # tokio_test::block_on(async {
/// # let store = MemoryStore::new();
/// # let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// let policies = PolicySet::new([QuotaPolicy::per_hour("hour", 10), QuotaPolicy::per_day("day", 200)])?;
/// let mails = |count| Plan::new(policies.clone(), alice, count);
///
/// let allowed = store.decide(mails(8)).await?;
/// let hour = allowed.allowances().next().expect("there is one of each policy");
/// assert_eq!((hour.policy().name(), hour.partition(), hour.cost()), ("hour", alice, 8));
/// // 2 are left, and that many come back in 12 minutes.
/// assert_eq!((hour.remaining(), hour.effective_window()), (2, Some(Duration::from_secs(12 * 60))));
/// assert_eq!((hour.is_violated(), hour.retry_after()), (false, None));
///
/// let rejected = store.decide(mails(5)).await?;
/// let violated: Vec<_> = rejected.violated().map(|allowance| allowance.policy().name()).collect();
/// assert_eq!(violated, ["hour"]);
/// let hour = rejected.violated().next().expect("it has rejected the request");
/// assert!(hour.retry_after() <= Some(Duration::from_secs(18 * 60)));
/// assert_eq!(hour.remaining(), 2);
/// // A bucket of 10 never lets 11 pass.
/// assert_eq!(store.decide(mails(11)).await?.retry_after(), None);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy)]
pub struct Allowance<'a> {
    charge: Charge<'a>,
    known: Known<'a>,
}

/// The allowances of a decision.
enum Allowances<'a> {
    Nothing,
    Measured {
        charges: MeasuredCharges<'a>,
        /// What is charged by now.
        charged: Charges<'a>,
        used_since: u64,
    },
    Cached {
        charges: Charges<'a>,
        denials: slice::Iter<'a, Option<Denial>>,
    },
}

impl<'a> Iterator for Allowances<'a> {
    type Item = Allowance<'a>;

    #[inline]
    fn next(&mut self) -> Option<Allowance<'a>> {
        match self {
            Self::Nothing => None,
            Self::Measured {
                charges,
                charged,
                used_since,
            } => {
                let (measured, charged) = (charges.next()?, charged.next()?);
                let charged = if measured.is_charged() {
                    charged.weight() + charged.policy().counter().weigh(*used_since)
                } else {
                    0
                };
                Some(Allowance {
                    charge: measured.charge(),
                    known: Known::Measured { measured, charged },
                })
            }
            Self::Cached { charges, denials } => loop {
                let (charge, denial) = (charges.next()?, denials.next()?);
                if let Some(denial) = *denial {
                    let known = Known::Denial(denial);
                    return Some(Allowance { charge, known });
                }
            },
        }
    }
}

/// What is known of a charge.
#[derive(Clone, Copy)]
enum Known<'a> {
    /// It is still rejected.
    Denial(Denial),
    /// What the store has measured, and the charge by now: that which was made, and what is known to have been used since.
    Measured { measured: MeasuredCharge<'a>, charged: u64 },
}

impl<'a> Allowance<'a> {
    /// The policy that it is about.
    pub fn policy(&self) -> &'a QuotaPolicy {
        self.charge.policy().policy()
    }

    /// Whose quota it is about.
    pub fn partition(&self) -> PartitionId {
        self.charge.partition()
    }

    /// What the request was to cost, in the policy's unit.
    pub fn cost(&self) -> u64 {
        self.charge.cost()
    }

    /// Whole units left, this request's charge taken off if it passed.
    ///
    /// 0 in a [remembered](Decision::is_cached) rejection: fewer than the request costs are left, and others may have
    /// used those since.
    pub fn remaining(&self) -> u64 {
        match self.known {
            Known::Denial(_) => 0,
            Known::Measured { measured, charged } => {
                let reading = self.counter().charged(measured.reading, charged);
                self.counter().remaining(reading, measured.moment.now.as_micros())
            }
        }
    }

    /// The effective window: a time in which the caller may spread the remaining units. A limit of concurrent requests
    /// has none.
    ///
    /// For a violated policy it is the wait until this request passes; with nothing left, the wait for the next unit.
    /// Otherwise, for a bucket, the time in which it gives as many units as are left, so that a client that spends
    /// `remaining` units in this time never asks for more than the rate; and for a window, the time until it ends or its
    /// oldest unit leaves it, but never so short that such a client would ask for more than twice the rate.
    pub fn effective_window(&self) -> Option<Duration> {
        let micros = match (self.wait(), self.known) {
            (Some(wait), _) if self.policy().window().is_some() => Some(wait),
            (_, Known::Measured { measured, charged }) => {
                let reading = self.counter().charged(measured.reading, charged);
                let reset = self.counter().reset(reading, measured.moment.now.as_micros());
                reset.map(|micros| measured.moment.until(micros))
            }
            // The request never passes, and in a second at most the store is asked again what is left.
            (_, Known::Denial(_)) => Some(1_000_000),
        };
        micros.map(Duration::from_micros)
    }

    /// Whether this policy rejects the request, or would if it were not a [shadow](QuotaPolicy::shadow).
    pub fn is_violated(&self) -> bool {
        match self.known {
            Known::Denial(_) => true,
            Known::Measured { measured, .. } => !measured.fits(),
        }
    }

    /// How long until this policy lets the same request pass if nobody else asks, exact to the microsecond; one second,
    /// a guess, for a limit of concurrent requests.
    ///
    /// `None` if it does not reject the request, or never lets it pass because it costs more than the policy ever lets
    /// pass. Where a rejection is [remembered](Decision::is_cached), a request that costs more than the one that the
    /// store has rejected may be told up to a whole window by a [log](crate::Algorithm::SlidingWindowLog).
    pub fn retry_after(&self) -> Option<Duration> {
        self.wait().map(Duration::from_micros)
    }

    fn wait(&self) -> Option<u64> {
        match self.known {
            Known::Denial(Denial::For(micros)) => Some(micros),
            Known::Denial(Denial::Never) => None,
            Known::Measured { measured, .. } if !measured.fits() => {
                let moment = measured.moment;
                let wait = self
                    .counter()
                    .wait(measured.reading, moment.now.as_micros(), self.charge.weight());
                // A slot becomes free at any time.
                let is_timed = self.policy().window().is_some();
                wait.map(|micros| if is_timed { moment.until(micros) } else { micros })
            }
            Known::Measured { .. } => None,
        }
    }

    fn counter(&self) -> &'a Counter {
        self.charge.policy().counter()
    }
}

impl fmt::Debug for Allowance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allowance")
            .field("policy", &self.policy().name())
            .field("remaining", &self.remaining())
            .field("effective_window", &self.effective_window())
            .field("retry_after", &self.retry_after())
            .finish()
    }
}
