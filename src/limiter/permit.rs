//! A charge of a caller that is still open.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use http::Method;
use smallvec::SmallVec;

use super::{charge::OpenCharge, inner::Inner, usage::Report};
use crate::{
    clock::Clock,
    decision::{Costs, Decision},
    policy::UnitId,
    sync::sleep::sleep,
};

/// Admitted work: it holds its slots, and its cost may still change. [`Caller::hold`](crate::Caller::hold) returns it; a handler
/// gets that of its request from a [`WeakPermit`].
///
/// When the last one is dropped, its slots are released, and amounts in custom units that were reported are charged in place of
/// the estimate; the rest of the charge stands. That of a request is over when the response has ended, too. Nothing waits for
/// the store: [`Limiter::flush`](crate::Limiter::flush) does, before the process ends. It may be sent to another task, and kept
/// in a connection or a job.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// # run(async {
/// use tower_quota::Limiter;
///
/// let limiter = Limiter::builder(MemoryStore::new())
///     .scope("exports")
///     .policy(QuotaPolicy::concurrent("at once", 1))
///     .policy(QuotaPolicy::per_day("rows", 10_000).with_unit("rows"))
///     .build()?;
/// let acme = limiter.caller("acme").units("rows", 5_000);
///
/// let export = acme.hold().await.expect("no other export is in progress");
/// let second = acme.hold().await.unwrap_err();
/// assert_eq!(second.violated().next().map(|slots| slots.policy().name()), Some("at once"));
/// export.set("rows", 4_200);
/// drop(export);
///
/// let left = acme.peek().await?.expect("exports are limited");
/// assert!(left.allowances().map(|policy| policy.remaining()).eq([1, 5_800]));
/// # Ok(()) });
/// ```
#[must_use = "dropping it ends the work: its slots are released"]
pub struct Permit {
    /// None for work that is not counted; several for a request that has passed several layers.
    charges: SmallVec<[Arc<OpenCharge>; 1]>,
    decision: Decision,
    /// True if the work is over when this is dropped.
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

    /// The decision that admitted it; of a request that has passed several layers, that of the innermost one.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Reports that so many more of a [custom unit](crate::QuotaPolicy::with_unit) were used.
    ///
    /// More than the estimate is charged while it grows, each time that twice as much is used as is charged: a stream that never
    /// ends is charged all the same. The caller's later work waits until the debt is repaid.
    ///
    /// Returns `false` if it has no effect: no policy counts the unit for this caller, or the work is not counted, as with a
    /// cost of 0.
    pub fn add(&self, unit: &str, amount: u64) -> bool {
        self.report(unit, Report::More(amount))
    }

    /// Reports how many of a custom unit were used so far. A smaller amount than before changes nothing.
    ///
    /// Returns `false` if it has no effect, as [`add`](Self::add) does.
    pub fn set(&self, unit: &str, total: u64) -> bool {
        self.report(unit, Report::Total(total))
    }

    /// Reports how many of a custom unit were used in all, when no more is expected: the amount holds even if the body of the
    /// response is dropped before its end. An earlier, larger amount stays, and what is added later is counted, too.
    ///
    /// The difference to the estimate is settled at once. Before the response begins, it is what the fields of this response
    /// show. Returns `false` if it has no effect, as [`add`](Self::add) does.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::WeakPermit;
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("reports")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("rows", 600).with_unit("rows"))
    ///     .unit_cost("rows", |_| 100)
    ///     .build()?;
    /// let report = layer.layer(service_fn(async |request: Request<()>| {
    ///     let permit = request.extensions().get().and_then(WeakPermit::upgrade).expect("rows are limited");
    ///     assert!(permit.finish("rows", 540));
    ///     assert!(!permit.add("row", 9), "no policy counts it");
    ///     Ok::<_, Infallible>(Response::new("540 rows".to_owned()))
    /// }));
    ///
    /// let response = report.oneshot(Request::get("/").header("x-user-id", "alice").body(())?).await?;
    /// assert_eq!(response.headers()["ratelimit"], r#""rows";r=60;t=6"#);
    /// # Ok(()) });
    /// ```
    pub fn finish(&self, unit: &str, total: u64) -> bool {
        self.report(unit, Report::Final(total))
    }

    fn report(&self, unit: &str, report: Report) -> bool {
        let unit = UnitId::of(unit);
        // Each of the charges hears it.
        let charges = self.charges.iter();
        charges.fold(false, |is_heard, charge| charge.used(unit, report) | is_heard)
    }

    /// Corrects the charge to the actual cost, in the units of policies that count requests, and ends work that is not a
    /// request. A larger cost than before may overdraw a policy by as much again as it holds.
    ///
    /// The charge of a request is corrected once: when its response begins, by the [actual cost](crate::ActualCost) of the response
    /// or else by the last call before then; without both, by the last call before its end.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// # use tower_quota::Limiter;
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .scope("mails")
    ///     .policy(QuotaPolicy::per_day("day", 100))
    ///     .build()?;
    /// let acme = limiter.caller("acme").cost(50);
    /// let batch = acme.hold().await.expect("a new day");
    /// batch.settle(40); // ten addresses were wrong
    /// assert_eq!(acme.peek().await?.unwrap().allowances().next().unwrap().remaining(), 60);
    /// # Ok(()) });
    /// ```
    pub fn settle(self, cost: u64) {
        for charge in &self.charges {
            charge.cost(cost);
        }
    }

    /// Ends work that was not done: its charge is refunded, but for amounts in custom units that were reported.
    ///
    /// For a request it is [`settle(0)`](Self::settle), and estimates of custom units without a report are refunded; bytes that
    /// are transferred stay charged, and so does the place in a [leaky bucket](crate::Algorithm::LeakyBucketQueue).
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

/// The permit of a request, in its extensions: it keeps nothing open.
///
/// A layer puts it there where a policy limits [concurrent requests](crate::QuotaPolicy::concurrent) or counts a
/// [custom unit](crate::QuotaPolicy::with_unit) or bytes, and where the request asks for it by [`WithPermit`]. Behind several
/// layers it stands for the charges of all.
///
/// A handler [upgrades](Self::upgrade) it to report what its work has used, or to keep a slot beyond the response: the slot of a
/// request is released when its response has ended, and, where a [`RequestContentLayer`](crate::RequestContentLayer) counts it,
/// the request body too. After status 101 or `CONNECT` the response ends at once, while the connection goes on.
///
/// Amounts are reported until the response has ended: keep the permit in the stream that you return.
///
/// - **The response has ended**: reported amounts are charged, and the rest of the estimate is refunded. Where nothing was
///   reported about a unit, its estimate stays.
/// - **The body is dropped before its end**, because the client is gone, or the service fails: the estimate stays, or what was
///   reported if that is more. A handler that knows better calls [`finish`](Permit::finish), in the `drop` of its stream at the
///   latest.
/// - **An inner layer rejects the request**: the estimates of units without a report are refunded before the response begins.
/// - Other instances see a refund within a second; see [`rejection_cache`](crate::LimiterBuilder::rejection_cache).
///
/// With the feature `axum`, handlers take it as an argument. The default one belongs to no request: for those that are not
/// limited, or not counted because the store is unavailable.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use futures_util::stream::{self, StreamExt};
/// use http_body::Frame;
/// use http_body_util::StreamBody;
/// use tower_quota::WeakPermit;
///
/// # run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("models")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_day("tokens", 10_000).with_unit("tokens"))
///     .unit_cost("tokens", |_| 1_000)
///     .build()?;
/// let service = layer.layer(service_fn(async |request: Request<()>| {
///     let permit = request.extensions().get().and_then(WeakPermit::upgrade).expect("tokens are limited");
///     let words = stream::iter(["three ", "short ", "words"]).map(move |word| {
///         permit.add("tokens", 1);
///         Ok::<_, Infallible>(Frame::data(word.into()))
///     });
///     Ok::<_, Infallible>(Response::new(StreamBody::new(words)))
/// }));
/// let ask = || service.clone().oneshot(Request::post("/").header("x-user-id", "alice").body(()).unwrap());
/// let left = async || {
///     let decision = layer.limiter().caller(&PartitionKey::new("x-user-id", "alice")).peek().await?;
///     Ok::<_, Box<dyn Error>>(decision.map(|decision| decision.allowances().map(|tokens| tokens.remaining()).sum::<u64>()))
/// };
///
/// let response = ask().await?;
/// assert_eq!(left().await?, Some(9_000));
/// response.into_body().collect().await?;
/// assert_eq!(left().await?, Some(9_997));
/// // A client that goes away has used what was expected.
/// drop(ask().await?);
/// assert_eq!(left().await?, Some(8_997));
/// # Ok(()) });
/// ```
#[derive(Clone, Default)]
pub struct WeakPermit(SmallVec<[Weak<OpenCharge>; 1]>);

impl WeakPermit {
    /// The permit of one more layer. A request that goes round in circles does not collect those of rounds that are over.
    pub(crate) fn new(charge: &Arc<OpenCharge>, outer: Option<Self>) -> Self {
        let outer = outer.into_iter().flat_map(|outer| outer.0);
        let open = outer.filter(|outer| outer.strong_count() > 0);
        Self(open.chain([Arc::downgrade(charge)]).collect())
    }

    /// The permit, for as long as it is kept; `None` if the request is over, or is not counted.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use std::sync::Mutex;
    /// use tower_quota::{Permit, WeakPermit};
    ///
    /// /// A job that goes on after the response that says so.
    /// struct Job(#[allow(dead_code)] Option<Permit>);
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("jobs")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::concurrent("jobs", 1))
    ///     .build()?;
    /// static JOBS: Mutex<Vec<Job>> = Mutex::new(Vec::new());
    /// let service = layer.layer(service_fn(async |request: Request<()>| {
    ///     JOBS.lock().unwrap().push(Job(request.extensions().get().and_then(WeakPermit::upgrade)));
    ///     Ok::<_, std::convert::Infallible>(Response::builder().status(202).body(String::new()).unwrap())
    /// }));
    /// let begin = || service.clone().oneshot(Request::post("/").header("x-user-id", "alice").body(()).unwrap());
    ///
    /// assert_eq!(begin().await?.status(), 202);
    /// assert_eq!(begin().await?.status(), 429);
    /// JOBS.lock().unwrap().clear();
    /// assert_eq!(begin().await?.status(), 202);
    /// # Ok(()) });
    /// ```
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

/// Requests a [`WeakPermit`]: layers give one to each request that has this in its extensions, whatever their policies are.
///
/// Use this where a handler may find that there was nothing to do, and refunds the charge, or where it reads the
/// [decision](Permit::decision). The outer layer or service that inserts it must run before the rate limit layer. A request that is
/// not counted gets no permit.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::{WeakPermit, WithPermit};
///
/// # run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("reports")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .build()?;
/// let service = layer.layer(service_fn(async |request: Request<()>| {
///     if let Some(permit) = request.extensions().get().and_then(WeakPermit::upgrade) {
///         permit.refund(); // The report was in the cache.
///     }
///     Ok::<_, Infallible>(Response::new(String::new()))
/// }));
///
/// let request = || Request::get("/").header("x-user-id", "alice");
/// let response = service.clone().oneshot(request().body(())?).await?;
/// assert_eq!(response.headers()["ratelimit"], r#""hour";r=99;t=3564"#);
/// let response = service.oneshot(request().extension(WithPermit).body(())?).await?;
/// assert_eq!(response.headers()["ratelimit"], r#""hour";r=99;t=3564"#);
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
    /// The permit of admitted work, when its turn has come.
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
            self.log.queued(Clock::system().now(), self.scope(), delay);
            sleep(delay).await;
        }
        charge.passed_on();
        Ok(Permit::new(clone, Some(charge)))
    }
}
