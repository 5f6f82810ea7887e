use std::{
    fmt,
    sync::{Arc, Weak},
};

use http::Method;
use smallvec::SmallVec;

use super::{charge::OpenCharge, inner::Inner, usage::Report};
use crate::{
    decision::{Costs, Decision},
    policy::UnitId,
    sync::sleep::sleep,
    telemetry,
};

/// Admitted work that holds its slots and whose cost can still be corrected.
///
/// Returned by [`Caller::hold`](crate::Caller::hold); handlers of limited requests get it from a [`WeakPermit`].
/// Permits can be kept in other tasks, connections and jobs.
///
/// When the last permit is dropped, and the response of a request has ended, the slots are released, and reported
/// amounts of custom units replace their estimates. The other charges remain. Settlements run in the background: call
/// [`Limiter::flush`](crate::Limiter::flush) before the process exits.
///
/// ```
/// use tower_quota::{Limiter, MemoryStore, QuotaPolicy};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("exports")
///     .policy(QuotaPolicy::concurrent("at once", 1))
///     .policy(QuotaPolicy::per_day("rows", 10_000).with_unit("rows"))
///     .build()?;
/// let acme = limiter.caller("acme").units("rows", 5_000); // the estimate
///
/// let export = acme.hold().await.expect("no other export is in progress");
/// assert!(acme.hold().await.is_err());
/// export.set("rows", 4_200);
/// drop(export);
///
/// let decision = acme.peek().await?.expect("exports are limited");
/// let remaining: Vec<_> = decision.allowances().map(|policy| (policy.policy().name(), policy.remaining())).collect();
/// assert_eq!(remaining, [("at once", 1), ("rows", 5_800)]);
/// # Ok(()) });
/// ```
#[must_use = "dropping the permit releases its slots"]
pub struct Permit {
    /// Several if a request has passed several layers.
    charges: SmallVec<[Arc<OpenCharge>; 1]>,
    decision: Decision,
    is_whole: bool,
}

impl Permit {
    pub(super) fn new(decision: Decision, charge: Option<Arc<OpenCharge>>) -> Self {
        Self {
            charges: charge.into_iter().collect(),
            decision,
            is_whole: true,
        }
    }

    /// Returns the decision that admitted the work, or that of the innermost of several layers.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Adds `amount` to the usage of a [custom unit](crate::QuotaPolicy::with_unit).
    ///
    /// Usage above the estimate is charged each time it exceeds twice the charged amount, so an endless stream is
    /// charged as well.
    ///
    /// Returns `false` if no policy counts the unit for this caller, or if the work is not counted, for example because
    /// its cost is 0.
    pub fn add(&self, unit: &str, amount: u64) -> bool {
        self.report(unit, Report::More(amount))
    }

    /// Sets the current total usage of a custom unit. Totals never decrease. Returns `false` like [`add`](Self::add).
    pub fn set(&self, unit: &str, total: u64) -> bool {
        self.report(unit, Report::Total(total))
    }

    /// Sets the final usage of a custom unit, even if the response body is dropped early.
    ///
    /// Settles the difference from the estimate at once; if the response has not begun, its fields show the result. A
    /// larger amount that was reported earlier applies instead. Later calls of `add` still add to the usage. Returns
    /// `false` like [`add`](Self::add).
    pub fn finish(&self, unit: &str, total: u64) -> bool {
        self.report(unit, Report::Final(total))
    }

    fn report(&self, unit: &str, report: Report) -> bool {
        let unit = UnitId::of(unit);
        let charges = self.charges.iter();
        charges.fold(false, |is_heard, charge| charge.used(unit, report) | is_heard)
    }

    /// Corrects the charge to the actual cost in requests. A higher cost is a [late
    /// charge](crate::Settlement#late-charges).
    ///
    /// For work other than a request, this ends the work. The charge of a request is corrected once: to its [actual
    /// cost](crate::ActualCost) or else the last `settle` when the response begins; if there is neither, to the last
    /// `settle` when it ends.
    pub fn settle(self, cost: u64) {
        for charge in &self.charges {
            charge.cost(cost);
        }
    }

    /// Refunds the charge of work that was not done, and ends the work.
    ///
    /// Reported custom units and transferred bytes remain charged; estimates of other custom units are refunded. A
    /// position in a [leaky bucket](crate::Algorithm::LeakyBucketQueue) is not released.
    pub fn refund(self) {
        for charge in &self.charges {
            match self.is_whole {
                true => charge.unserved(),
                false => charge.waived(),
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for charge in self.charges.iter().filter(|_| self.is_whole) {
            charge.ended();
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

/// A handle to the permit of a request, stored in its extensions without keeping the request open.
///
/// Handlers [upgrade](Self::upgrade) it to report the usage of custom units, or to keep a slot beyond the response.
/// Layers insert it if a policy limits [concurrent requests](crate::QuotaPolicy::concurrent) or counts a [custom
/// unit](crate::QuotaPolicy::with_unit) or bytes, or if the request contains [`WithPermit`]. It covers the charges of
/// all layers that the request has passed.
///
/// With the feature `axum`, `WeakPermit` is also an extractor.
///
/// ```
/// use std::convert::Infallible;
/// use bytes::Bytes;
/// use futures_util::stream::{self, StreamExt};
/// use http::{Request, Response};
/// use http_body::Frame;
/// use http_body_util::StreamBody;
/// use tower::{Layer, service_fn};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, WeakPermit, key};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("models")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_day("tokens", 10_000).with_unit("tokens"))
///     .unit_cost("tokens", |_| 1_000) // the estimate
///     .build()?;
/// let service = layer.layer(service_fn(async |request: Request<String>| {
///     let permit = request.extensions().get().and_then(WeakPermit::upgrade);
///     let words = stream::iter(["three ", "short ", "words"]).map(move |word| {
///         if let Some(permit) = &permit {
///             permit.add("tokens", 1);
///         }
///         Ok::<_, Infallible>(Frame::data(Bytes::from(word)))
///     });
///     Ok::<_, Infallible>(Response::new(StreamBody::new(words)))
/// }));
/// # use tower::ServiceExt;
/// # let ask = || service.clone().oneshot(Request::post("/").header("x-user-id", "alice").body(String::new()).unwrap());
/// # let alice = layer.limiter().caller(&tower_quota::PartitionKey::new("x-user-id", "alice"));
/// # let remaining = async || {
/// #     let decision = alice.peek().await.unwrap().unwrap();
/// #     decision.allowances().map(|tokens| tokens.remaining()).sum::<u64>()
/// # };
/// # let response = ask().await?;
/// # assert_eq!(remaining().await, 9_000);
/// # http_body_util::BodyExt::collect(response.into_body()).await?;
/// # assert_eq!(remaining().await, 9_997);
/// # drop(ask().await?);
/// # assert_eq!(remaining().await, 8_997, "the body was dropped early");
/// # Ok(()) });
/// ```
///
/// # When usage is charged
///
/// Usage can be reported until the response has ended, so keep the permit in the stream that you return, as above:
///
/// - **The response has ended**: reported amounts replace their estimates. Units without a report keep them.
/// - **The body is dropped early**, because the client disconnects or the service fails: the larger of the estimate and
///   the reported amount is charged, unless the stream calls [`finish`](Permit::finish), at the latest when it is
///   dropped.
/// - **An inner layer rejects the request**: estimates of units without a report are refunded before the response
///   begins.
///
/// # When slots are released
///
/// When the response has ended, and the request body if a [`RequestContentLayer`](crate::content::RequestContentLayer)
/// counts it. After status 101 or `CONNECT`, the response ends at once, while the connection continues: keep the permit
/// in the task that serves the connection.
#[derive(Clone, Default)]
pub struct WeakPermit(SmallVec<[Weak<OpenCharge>; 1]>);

impl WeakPermit {
    /// Without finished permits, which would accumulate in a request that loops through the same layers.
    pub(crate) fn new(charge: &Arc<OpenCharge>, outer: Option<Self>) -> Self {
        let outer = outer.into_iter().flat_map(|outer| outer.0);
        let open = outer.filter(|outer| outer.strong_count() > 0);
        Self(open.chain([Arc::downgrade(charge)]).collect())
    }

    /// Returns the permit, or `None` if the request has ended or is not counted. Call this in the handler.
    #[must_use = "the slot is released when the permit is dropped"]
    pub fn upgrade(&self) -> Option<Permit> {
        let charges: SmallVec<[_; 1]> = self.0.iter().filter_map(Weak::upgrade).collect();
        Some(Permit {
            decision: charges.last()?.decision(),
            charges,
            is_whole: false,
        })
    }
}

/// Requests a [`WeakPermit`]: layers insert one into each counted request with this extension.
///
/// Use this for handlers that refund the charge when there was nothing to do, or read the [decision](Permit::decision).
/// Insert it outside the rate limit layer.
///
/// ```
/// use std::convert::Infallible;
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, WeakPermit, WithPermit, key};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("reports")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .build()?;
/// let service = layer.layer(service_fn(async |request: Request<String>| {
///     if let Some(permit) = request.extensions().get().and_then(WeakPermit::upgrade) {
///         permit.refund(); // The report was in the cache.
///     }
///     Ok::<_, Infallible>(Response::new(String::new()))
/// }));
///
/// # let without = service.clone().oneshot(Request::get("/").header("x-user-id", "bob").body(String::new())?).await?;
/// # assert_eq!(without.headers()["ratelimit"], r#""hour";r=99;t=3564"#);
/// let request = Request::get("/").header("x-user-id", "alice").extension(WithPermit).body(String::new())?;
/// let response = service.oneshot(request).await?;
/// assert_eq!(response.headers()["ratelimit"], r#""hour";r=100;t=3600"#);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct WithPermit;

impl fmt::Debug for WeakPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakPermit").field(&self.0.len()).finish()
    }
}

impl Inner {
    pub(super) async fn permit(&self, decision: Decision) -> Result<Permit, Decision> {
        if !decision.outcome().is_admitted() {
            return Err(decision);
        }
        if decision.charged() == Costs::NOTHING {
            return Ok(Permit::new(decision, None));
        }
        // A clone cannot be settled.
        let clone = decision.clone();
        let charge = OpenCharge::new(Arc::clone(&self.guard), decision, &Method::POST);
        let delay = clone.delay();
        if !delay.is_zero() {
            self.log.queued(telemetry::now(), delay);
            sleep(delay).await;
        }
        charge.passed_on();
        Ok(Permit::new(clone, Some(charge)))
    }
}
