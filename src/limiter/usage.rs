use crate::{decision::UnitCosts, policy::MAX_UNITS};

#[derive(Default)]
pub(super) struct Usage([ReportedUsage; MAX_UNITS]);

#[derive(Clone, Copy, Default)]
struct ReportedUsage {
    units: Option<u64>,
    is_final: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Report {
    More(u64),
    Total(u64),
    Final(u64),
}

impl Usage {
    /// Reported usage never decreases.
    pub(super) fn take(&mut self, place: usize, report: Report) {
        let said = &mut self.0[place];
        let before = said.units.unwrap_or(0);
        said.units = Some(match report {
            Report::More(amount) => before.saturating_add(amount),
            Report::Total(amount) | Report::Final(amount) => before.max(amount),
        });
        said.is_final |= matches!(report, Report::Final(_));
    }

    /// Their work will not be done.
    pub(super) fn waive_estimates(&mut self) {
        for said in self.0.iter_mut().filter(|said| said.units.is_none()) {
            *said = ReportedUsage {
                units: Some(0),
                is_final: true,
            };
        }
    }

    pub(super) fn reported(&self, charged: UnitCosts) -> UnitCosts {
        charged.with_amounts(self.0.map(|said| said.units.unwrap_or(0)))
    }

    /// Until the response has ended, an amount that is not final is at least the charged one: more may have been used
    /// than was reported.
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
