//! A charge of a caller that is still open.

use std::{fmt, sync::Arc};

use super::{charge::OpenCharge, usage::Report};
use crate::{decision::Decision, policy::UnitId};

/// Admitted work: it holds its slots, and its cost may still change. [`Caller::hold`](crate::Caller::hold) returns it.
///
/// When it is dropped, its slots are released, and amounts in custom units that were reported are charged in place of the
/// estimate; the rest of the charge stands. Nothing waits for the store: [`Limiter::flush`](crate::Limiter::flush) does, before
/// the process ends. It may be sent to another task, and kept in a connection or a job.
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
    decision: Decision,
    /// `None` for work that is not counted.
    charge: Option<Arc<OpenCharge>>,
}

impl Permit {
    pub(super) fn new(decision: Decision, charge: Option<Arc<OpenCharge>>) -> Self {
        Self { decision, charge }
    }

    /// The decision that admitted it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Reports that so many more of a custom unit were used. More than the estimate is charged while it grows, each time that
    /// twice as much is used as is charged.
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

    fn report(&self, unit: &str, report: Report) -> bool {
        let charge = self.charge.as_ref();
        charge.is_some_and(|charge| charge.used(UnitId::of(unit), report))
    }

    /// Ends the work and corrects its charge to the actual cost, in the units of policies that count requests. A larger cost
    /// than before may overdraw a policy by as much again as it holds.
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
        if let Some(charge) = &self.charge {
            let mut costs = self.decision.charged();
            costs.requests = cost;
            charge.announce(&mut costs, None);
        }
    }

    /// Ends work that was not done: its charge is refunded, but for amounts in custom units that were reported.
    pub fn refund(self) {
        if let Some(charge) = &self.charge {
            charge.unserved();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(charge) = &self.charge {
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
