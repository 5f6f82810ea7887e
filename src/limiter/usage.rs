//! The amounts that work has used in custom units, as the program reports them.

use crate::{decision::UnitCosts, policy::MAX_UNITS};

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
