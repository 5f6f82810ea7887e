//! Amounts in units of the program's own.

use crate::policy::{MAX_UNITS, UnitId};

/// Amounts in up to three units. A unit that has none counts as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitCosts {
    amounts: [u64; MAX_UNITS],
    units: [UnitId; MAX_UNITS],
}

impl UnitCosts {
    pub(super) const NONE: Self = Self {
        amounts: [0; MAX_UNITS],
        units: [UnitId::NONE; MAX_UNITS],
    };

    /// The place of a unit that has an amount.
    #[inline]
    pub(crate) fn place(&self, unit: UnitId) -> Option<usize> {
        self.units.iter().position(|other| *other == unit)
    }

    #[inline]
    pub(super) fn of(&self, unit: UnitId) -> u64 {
        self.place(unit).map_or(0, |place| self.amounts[place])
    }

    /// Sets the amount of a unit. One for which no place is left stays at 0.
    #[inline]
    pub(crate) fn set(&mut self, unit: UnitId, amount: u64) {
        if let Some(place) = self.place(unit).or_else(|| self.place(UnitId::NONE)) {
            (self.units[place], self.amounts[place]) = (unit, amount);
        }
    }

    /// The amount in each place.
    pub(crate) fn amounts(&self) -> &[u64; MAX_UNITS] {
        &self.amounts
    }

    /// The same units with other amounts.
    pub(crate) fn with_amounts(self, amounts: [u64; MAX_UNITS]) -> Self {
        Self { amounts, ..self }
    }
}
