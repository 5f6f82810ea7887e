use crate::policy::{Direction, MAX_UNITS, QuotaUnit, UnitId};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) requests: u64,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    /// 1, or 0 for a request that is not counted.
    pub(crate) counted: u32,
    pub(crate) slots: u32,
    pub(crate) units: UnitCosts,
}

impl Costs {
    pub(crate) const NOTHING: Self = Self {
        requests: 0,
        request_bytes: 0,
        response_bytes: 0,
        counted: 0,
        slots: 0,
        units: UnitCosts::NONE,
    };

    pub(super) fn joined_to(&self, main: &Self) -> Self {
        match main.counted {
            0 => Self::NOTHING,
            _ => Self {
                slots: self.slots.min(main.slots),
                ..*self
            },
        }
    }

    #[inline]
    pub(super) fn of(&self, unit: QuotaUnit) -> u64 {
        let content = match unit {
            QuotaUnit::Requests => return self.requests,
            QuotaUnit::ConcurrentRequests => return self.slots.into(),
            QuotaUnit::Custom(unit) => return self.units.of(unit.id()),
            QuotaUnit::ContentBytes(content) => content,
        };
        let bytes = match content {
            Direction::Request => self.request_bytes,
            Direction::Response => self.response_bytes,
            Direction::Both => self.request_bytes.saturating_add(self.response_bytes),
        };
        bytes.max(self.counted.into())
    }
}

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

    #[inline]
    pub(crate) fn place(&self, unit: UnitId) -> Option<usize> {
        self.units.iter().position(|other| *other == unit)
    }

    #[inline]
    pub(super) fn of(&self, unit: UnitId) -> u64 {
        self.place(unit).map_or(0, |place| self.amounts[place])
    }

    #[inline]
    pub(crate) fn set(&mut self, unit: UnitId, amount: u64) {
        if let Some(place) = self.place(unit).or_else(|| self.place(UnitId::NONE)) {
            (self.units[place], self.amounts[place]) = (unit, amount);
        }
    }

    pub(crate) fn amounts(&self) -> &[u64; MAX_UNITS] {
        &self.amounts
    }

    pub(crate) fn with_amounts(self, amounts: [u64; MAX_UNITS]) -> Self {
        Self { amounts, ..self }
    }
}
