//! The needs of a store on servers: parts of a plan for each of them, names of keys, slots that it need not renew any more.

use smallvec::SmallVec;

use super::{
    answer::Reads,
    measurement::Measurement,
    plan::{PartPlan, Plan, Question},
    settlement::{PartSettlement, Settlement},
};
use crate::lease::LeaseId;

/// The chosen parts of a plan, in its order.
pub(crate) type PartNumbers = SmallVec<[usize; 2]>;

impl Plan {
    /// The same question about some of the partitions.
    pub(crate) fn only(&self, parts: &[usize]) -> Self {
        let question = self.question();
        Self::of(Question {
            parts: parts.iter().map(|part| question.parts[*part].clone()).collect(),
            ..*question
        })
    }
}

impl Measurement {
    /// The measurement of a plan whose parts were asked one after the other, each answer with the numbers of its parts. It
    /// says nothing about parts that were not asked.
    pub(crate) fn joined(plan: &Plan, answers: &[(PartNumbers, Self)], lease: Option<LeaseId>) -> Self {
        let mut parts = Vec::with_capacity(plan.parts().len());
        for (numbers, answer) in answers {
            let mut read = &*answer.answer().read;
            for ((number, part), moment) in numbers.iter().zip(answer.plan().parts()).zip(answer.moments()) {
                let (own, others) = read.split_at(part.charges().len());
                read = others;
                parts.push((*number, *moment, own));
            }
        }
        parts.sort_unstable_by_key(|(number, ..)| *number);
        let numbers: PartNumbers = parts.iter().map(|(number, ..)| *number).collect();
        let read: Reads = parts.iter().flat_map(|(.., read)| read.iter().copied()).collect();
        let moments = parts.iter().map(|(_, moment, _)| *moment).collect();
        let is_allowed = answers.iter().all(|(_, answer)| answer.is_allowed());
        Self::new(plan.only(&numbers), moments, read, lease, is_allowed)
    }
}

impl<'a> PartPlan<'a> {
    /// The name that operators see in place of the digest, if they want one.
    pub(crate) fn label(self) -> Option<&'a str> {
        self.part.label.as_deref()
    }
}

impl Settlement {
    /// The lease whose slots become free.
    pub(crate) fn released(&self) -> Option<LeaseId> {
        self.parts().find(PartSettlement::releases)?.lease
    }
}

impl PartSettlement<'_> {
    /// Returns `true` if slots become free.
    pub(crate) fn releases(&self) -> bool {
        self.adjustments().any(|change| change.is_slot() && change.delta < 0)
    }
}
