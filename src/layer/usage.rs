//! The real amounts of a request in units of the program's own, as its handler says them.

use std::sync::Arc;

use super::charge::{OpenCharge, OpenCharges};
use crate::{
    decision::UnitCosts,
    policy::{MAX_UNITS, UnitId},
};

/// The amounts that a handler has said, in the places of [`UnitCosts`].
#[derive(Default)]
pub(super) struct Usage([ReportedUsage; MAX_UNITS]);

#[derive(Clone, Copy, Default)]
struct ReportedUsage {
    units: Option<u64>,
    /// True if no more is expected.
    is_final: bool,
}

/// One statement of a handler about a unit.
#[derive(Clone, Copy)]
pub(super) enum Report {
    /// So many more.
    More(u64),
    /// So many until now.
    Total(u64),
    /// So many, all in all.
    Final(u64),
}

impl Usage {
    /// Units that were reported as used never become unused.
    pub(super) fn take(&mut self, place: usize, report: Report) {
        let said = &mut self.0[place];
        let before = said.units.unwrap_or(0);
        said.units = Some(match report {
            Report::More(amount) => before.saturating_add(amount),
            Report::Total(amount) | Report::Final(amount) => before.max(amount),
        });
        said.is_final |= matches!(report, Report::Final(_));
    }

    /// The amount of each unit without a report is 0: the work that it was estimated for is not done.
    pub(super) fn waive_estimates(&mut self) {
        for said in self.0.iter_mut().filter(|said| said.units.is_none()) {
            *said = ReportedUsage {
                units: Some(0),
                is_final: true,
            };
        }
    }

    /// The amounts that were reported. A unit without a report has none.
    pub(super) fn reported(&self, charged: UnitCosts) -> UnitCosts {
        charged.with_amounts(self.0.map(|said| said.units.unwrap_or(0)))
    }

    /// The amounts to charge. Until the response has ended, an amount that is not final is at least the one that is charged:
    /// more may have been used than was said.
    pub(super) fn amounts(&self, charged: UnitCosts, has_ended: bool) -> UnitCosts {
        let mut amounts = *charged.amounts();
        for (amount, said) in amounts.iter_mut().zip(self.0) {
            *amount = match said.units {
                None => *amount,
                Some(units) if has_ended || said.is_final => units,
                Some(units) => units.max(*amount),
            };
        }
        charged.with_amounts(amounts)
    }
}

/// Says what a request has really used of a unit of [your own](crate::QuotaPolicy::with_unit), in place of the
/// [estimate](crate::RateLimitLayerBuilder::unit_cost) that was charged for it.
///
/// The layer puts it into the extensions of the request where a policy counts such a unit; of several layers around each
/// other, it tells all. A handler says amounts with it at any time until its response has ended, or a stream that it returns
/// does: keep a clone there. It costs no call of the store for each statement:
///
/// - **The response has ended**, with the end of its body: what was said is charged, and the rest of the estimate is given
///   back. Where nothing was said about a unit, its estimate stays.
/// - **The body is dropped before its end**, because the client has gone: the estimate stays, or what was said if that is more.
///   A handler that knows what was used all the same says it with [`finish`](Self::finish), in the `drop` of its stream
///   at the latest. The same holds when the service fails with an error.
/// - **An inner layer rejects the request**: the estimates of units without a report are refunded, before the response
///   begins.
/// - **More than the estimate** is charged while it grows: each time that twice as much is used as is charged. A stream that
///   never ends is charged all the same. Later requests wait until it is paid off.
/// - **A refund is seen at once** by the next request on this instance, and by others within a second; see
///   [`rejection_cache`](crate::RateLimitLayerBuilder::rejection_cache).
///
/// Amounts never become less than what was said before. The default one belongs to no request and says nothing: it is for
/// requests that are not limited, or not counted because the store is unavailable. Handlers of axum can take it as an
/// argument with the feature `axum`, and get the default one there.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use futures_util::stream::{self, StreamExt};
/// use http_body::Frame;
/// use http_body_util::StreamBody;
/// use tower_quota::UsageHandle;
///
/// # run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("models")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_day("tokens", 10_000).with_unit("tokens"))
///     .unit_cost("tokens", |_| 1_000)
///     .build()?;
/// let service = layer.layer(service_fn(async |request: Request<()>| {
///     let usage = request.extensions().get::<UsageHandle>().cloned().unwrap_or_default();
///     let words = stream::iter(["three ", "short ", "words"]).map(move |word| {
///         usage.add("tokens", 1);
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
#[derive(Clone, Debug, Default)]
pub struct UsageHandle(OpenCharges);

impl UsageHandle {
    /// `outer` is what the layers around this one have left in the request.
    pub(super) fn new(charge: &Arc<OpenCharge>, outer: Option<Self>) -> Self {
        Self(OpenCharges::new(charge, outer.map(|outer| outer.0)))
    }

    /// So many units more were used.
    ///
    /// Returns `false` if it has no effect: no policy counts the unit for this request, or the request is over.
    pub fn add(&self, unit: &str, amount: u64) -> bool {
        self.report(unit, Report::More(amount))
    }

    /// So many units were used until now, all in all. A smaller amount than before changes nothing.
    ///
    /// Returns `false` if it has no effect, as [`add`](Self::add) does.
    pub fn set(&self, unit: &str, total: u64) -> bool {
        self.report(unit, Report::Total(total))
    }

    /// So many units were used, all in all, and no more is expected: the amount holds also if the body is dropped before its
    /// end. A smaller amount than before is the one from before, and what is added later counts, too: of a request that an
    /// inner layer sends twice, say.
    ///
    /// The difference is settled at once. Said before the response begins, it is what the fields of this response show.
    /// Returns `false` if it has no effect, as [`add`](Self::add) does.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::UsageHandle;
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("reports")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_minute("rows", 600).with_unit("rows"))
    ///     .unit_cost("rows", |_| 100)
    ///     .build()?;
    /// let report = layer.layer(service_fn(async |request: Request<()>| {
    ///     let usage = request.extensions().get::<UsageHandle>().cloned().unwrap_or_default();
    ///     assert!(usage.finish("rows", 540));
    ///     assert!(!usage.add("row", 9), "no policy counts it");
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
        self.0
            .iter()
            .fold(false, |is_heard, charge| charge.used(unit, report) | is_heard)
    }
}
