use super::{
    excess::Excess,
    plan::Plan,
    refund::ChargeTime,
    settlement::{Delta, PartSettlement, Settlement},
};
use crate::{algorithm::Reading, policy::QuotaUnit};

impl Settlement {
    pub(crate) fn late_charge(plan: Plan) -> (Self, Excess) {
        let deltas = plan.charges().map(|charge| {
            let policy = charge.checked();
            let is_charged = matches!(policy.policy().unit(), QuotaUnit::Requests | QuotaUnit::Custom(_))
                && !policy.policy().is_closed();
            Delta {
                // Weights are at most 2⁵³.
                weight: if is_charged { charge.weight() as i64 } else { 0 },
                mark: policy.counter().any_mark(),
            }
        });
        let deltas = deltas.collect();
        let excess = Excess::of_parts(plan.parts().len());
        let settlement = Self::undecided(plan, ChargeTime::Now, deltas, Some(excess.clone()));
        (settlement, excess)
    }
}

impl PartSettlement<'_> {
    pub(crate) fn needs_readings(&self) -> bool {
        self.excess.is_some()
    }

    pub(crate) fn note_readings(&self, now: u64, readings: impl IntoIterator<Item = Reading>) {
        let Some((excess, number)) = self.excess else { return };
        let changes = self.part.charges().zip(self.adjustments()).zip(readings);
        let units = changes.filter_map(|((charge, change), reading)| {
            if change.delta <= 0 || charge.is_shadow() {
                return None;
            }
            let counter = charge.checked().counter();
            let applied = counter.late_part(&reading, change.delta.unsigned_abs(), now);
            Some(charge.cost() - (applied / counter.weigh(1).max(1)).min(charge.cost()))
        });
        excess.set(number, units.max().unwrap_or(0));
    }
}
