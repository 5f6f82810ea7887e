use smallvec::SmallVec;

use super::{
    answer::Reads,
    measurement::Measurement,
    plan::{Part, PartPlan, Plan, Question},
    settlement::{PartSettlement, Settlement},
};
use crate::{lease::LeaseId, policy::PolicyTraits};

pub(crate) type PartNumbers = SmallVec<[usize; 2]>;

impl Plan {
    pub(crate) fn only(&self, parts: &[usize]) -> Self {
        let question = self.question();
        let parts: SmallVec<[Part; 1]> = parts.iter().map(|part| question.parts[*part].clone()).collect();
        let mut traits = PolicyTraits::default();
        parts.iter().for_each(|part| traits.add(part.policies.traits()));
        Self::of(Question {
            parts,
            traits,
            ..*question
        })
    }
}

impl Measurement {
    /// Omits parts that no call has decided.
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
    pub(crate) fn label(self) -> Option<&'a str> {
        self.part.label.as_deref()
    }
}

impl Settlement {
    pub(crate) fn released(&self) -> Option<LeaseId> {
        self.parts().find(PartSettlement::releases)?.lease
    }
}

impl PartSettlement<'_> {
    pub(crate) fn releases(&self) -> bool {
        self.adjustments().any(|change| change.is_slot() && change.delta < 0)
    }
}
