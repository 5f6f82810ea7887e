use std::{
    fmt, iter,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    answer::{Answer, ChargeRejections, Read, Reads},
    costs::Costs,
    plan::{Charge, Exchange, Mode, PartPlan, Plan},
};
use crate::{
    algorithm::{BucketReading, Form, Moment, Moments, PolicyReading, Reading},
    lease::LeaseId,
};

/// The result of [`Store::acquire`](crate::Store::acquire): the readings for a [`Plan`] and its charges.
///
/// The store decides whether the plan fits, and charges it in the same step. A measurement holds the only receipt of
/// the charge: if it is dropped, the charge is final.
///
/// ```
/// use tower_quota::{MemoryStore, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, Scope, Store};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = MemoryStore::new();
/// let alice = Scope::new("mails").partition(&PartitionKey::new("user", "alice"));
/// let policies = PolicySet::new([QuotaPolicy::per_hour("mails", 5), QuotaPolicy::per_hour("trial", 1).shadow()])?;
///
/// let measurement = store.acquire(Plan::new(policies, alice, 2)).await?;
/// assert!(measurement.is_allowed());
/// // The shadow policy rejects nothing, and is not charged beyond its quota.
/// let charged: Vec<_> = measurement.charges().map(|charge| charge.policy().name()).collect();
/// assert_eq!(charged, ["mails"]);
/// assert_eq!(measurement.decide().outcome(), Outcome::Allowed);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[must_use = "without a settlement, the charge is final"]
pub struct Measurement(Plan);

impl Measurement {
    pub(crate) fn new(mut plan: Plan, moments: Moments, read: Reads, lease: Option<LeaseId>, is_allowed: bool) -> Self {
        let answer = &mut plan.0.answer;
        (answer.moments, answer.read) = (moments, read);
        Self::answered(plan, lease, is_allowed).with_rates()
    }

    /// `acquire` writes the readings in place, and returns their time and whether the plan is allowed. The error is a
    /// plan of several partitions.
    #[inline]
    pub(crate) fn of_only_part(
        mut plan: Plan,
        lease: Option<LeaseId>,
        acquire: impl FnOnce(PartPlan<'_>, &mut Reads) -> (Moment, bool),
    ) -> Result<Self, Plan> {
        let Exchange { question, answer } = &mut *plan.0;
        let Some(part) = question.only_part() else {
            return Err(plan);
        };
        let (moment, is_allowed) = acquire(part, &mut answer.read);
        answer.moments.push(moment);
        Ok(Self::answered(plan, lease, is_allowed))
    }

    pub(crate) fn of_readings(
        mut plan: Plan,
        moments: Moments,
        readings: impl IntoIterator<Item = PolicyReading>,
        lease: Option<LeaseId>,
    ) -> Self {
        let Exchange { question, answer } = &mut *plan.0;
        let (mut charges, mut is_allowed) = (question.charges(), true);
        for reading in readings {
            let Some(charge) = charges.next() else { break };
            let moment: Moment = moments.get(charges.part_number()).copied().unwrap_or_default();
            let fits = charge.is_admitted(reading, moment);
            is_allowed &= fits || charge.is_shadow();
            answer.read.push(Read { reading, fits });
        }
        answer.moments = moments;
        Self::answered(plan, lease, is_allowed).with_rates()
    }

    fn with_rates(mut self) -> Self {
        let (is_written, is_allowed) = (self.plan().is_charged(), self.is_allowed());
        for Read { reading, fits } in &mut self.0.0.answer.read {
            reading.counted.decided(is_written, is_allowed && *fits);
        }
        self
    }

    #[inline]
    fn answered(mut plan: Plan, lease: Option<LeaseId>, is_allowed: bool) -> Self {
        let Exchange { question, answer } = &mut *plan.0;
        (answer.lease, answer.is_allowed) = (lease, is_allowed);
        answer.receipt = AtomicBool::new(is_allowed && question.mode != Mode::Question);
        if is_allowed {
            answer.charged = question.costs;
        }
        Self(plan)
    }

    pub(super) fn copy(&self) -> Self {
        let (mut plan, answer) = (self.plan().clone(), self.answer());
        plan.0.answer = Answer {
            read: answer.read.clone(),
            moments: answer.moments.clone(),
            receipt: AtomicBool::new(false),
            rejections: ChargeRejections::new(),
            ..*answer
        };
        Self(plan)
    }

    /// As if `units_before` units had been charged first. Since then, other requests have used `used_since` units, at
    /// an unknown time.
    pub(super) fn of_another(&self, plan: Plan, units_before: u64, used_since: u64) -> Self {
        let readings = self.measured_charges().map(|measured| {
            let limit = measured.charge.checked().limit();
            let (now, weight) = (measured.moment.now.as_micros(), limit.counter.weigh(units_before));
            limit.charged(*measured.reading, now, weight)
        });
        let mut another = Self::of_readings(plan, self.moments().clone(), readings, self.lease());
        another.0.0.answer.used_since = used_since;
        another
    }

    #[inline]
    pub(super) fn answer(&self) -> &Answer {
        &self.0.0.answer
    }

    /// Returns whether the plan fits.
    ///
    /// If so, the store has made all charges, except those of [shadow](crate::QuotaPolicy::shadow) policies that do not
    /// fit. Otherwise, and in a [peek](crate::Store::peek), nothing is charged.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.answer().is_allowed
    }

    #[inline]
    pub(super) fn is_charged(&self) -> bool {
        self.is_allowed() && self.plan().mode() != Mode::Question
    }

    /// Returns the plan.
    #[inline]
    pub fn plan(&self) -> &Plan {
        &self.0
    }

    /// Returns the charges that the store has made, in plan order.
    pub fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        let made = self.measured_charges().filter(MeasuredCharge::is_charged);
        made.map(|measured| measured.charge())
    }

    #[inline]
    pub(crate) fn measured_charges(&self) -> impl Iterator<Item = MeasuredCharge<'_>> {
        let (mut charges, mut number) = (self.plan().question().charges(), 0);
        iter::from_fn(move || {
            let charge = charges.next()?;
            let measured = self.measured(charge, number, charges.part_number());
            number += 1;
            measured
        })
    }

    #[inline]
    pub(super) fn measured<'a>(&'a self, charge: Charge<'a>, number: usize, part: usize) -> Option<MeasuredCharge<'a>> {
        let read = self.answer().read.get(number)?;
        Some(MeasuredCharge {
            charge,
            reading: &read.reading,
            moment: self.moment(part),
            fits: read.fits,
            is_made: self.is_charged(),
        })
    }

    pub(crate) fn new_partitions(&self) -> usize {
        if !self.is_allowed() || !self.plan().is_charged() {
            return 0;
        }
        let mut charges = self.measured_charges();
        let parts = self.plan().parts().filter(|part| {
            let own = charges.by_ref().take(part.charges().len());
            let used = own
                .filter(|measured| !measured.is_slot())
                .map(|measured| measured.is_used());
            used.reduce(|one, other| one || other) == Some(false)
        });
        parts.count()
    }

    #[inline]
    pub(crate) fn moment(&self, part: usize) -> Moment {
        self.moments().get(part).copied().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn moments(&self) -> &Moments {
        &self.answer().moments
    }

    #[inline]
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        self.answer().lease
    }

    #[inline]
    pub(super) fn charged(&self) -> &Costs {
        &self.answer().charged
    }

    #[inline]
    pub(super) fn used_since(&self) -> u64 {
        self.answer().used_since
    }

    pub(super) fn set_charged(&mut self, charged: Costs) {
        self.0.0.answer.charged = charged;
    }

    pub(super) fn has_receipt(&self) -> bool {
        self.answer().receipt.load(Ordering::Relaxed)
    }

    pub(super) fn take_receipt(&self) -> bool {
        self.answer().receipt.swap(false, Ordering::Relaxed)
    }
}

impl fmt::Debug for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measurement")
            .field("plan", self.plan())
            .field("answer", self.answer())
            .finish()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredCharge<'a> {
    charge: Charge<'a>,
    pub(crate) reading: &'a PolicyReading,
    pub(crate) moment: Moment,
    fits: bool,
    is_made: bool,
}

impl<'a> MeasuredCharge<'a> {
    #[inline]
    pub(crate) fn charge(&self) -> Charge<'a> {
        self.charge
    }

    #[inline]
    pub(crate) fn is_within_limit(&self) -> bool {
        self.fits
    }

    #[inline]
    pub(crate) fn is_charged(&self) -> bool {
        self.fits && self.is_made
    }

    fn is_used(&self) -> bool {
        let (limit, now) = (self.charge.checked().limit(), self.moment.now.as_micros());
        let first = limit
            .newcomer
            .map(|newcomer| Reading::Bucket(BucketReading::from(newcomer.level)));
        first != Some(self.reading.counted) && limit.full_after(*self.reading, now).is_some()
    }

    pub(crate) fn is_slot(&self) -> bool {
        self.charge.checked().counter().form() == Form::Slots
    }
}
