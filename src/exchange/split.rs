//! A plan that several servers decide, each a part of it.

use smallvec::SmallVec;

use super::{
    measurement::{Measurement, Reads},
    plan::Plan,
};
use crate::lease::LeaseId;

/// Which parts of a plan, in its order.
pub(crate) type PartNumbers = SmallVec<[usize; 2]>;

impl Plan {
    /// The same question about some of the partitions.
    pub(crate) fn only(&self, parts: &[usize]) -> Self {
        Self {
            parts: parts.iter().map(|part| self.parts[*part].clone()).collect(),
            ..*self
        }
    }
}

impl Measurement {
    /// What is known of a plan whose parts were asked one after the other, each answer with the numbers of its parts. Of
    /// parts that were not asked, nothing is said.
    pub(crate) fn joined(plan: &Plan, answers: &[(PartNumbers, Self)], lease: Option<LeaseId>) -> Self {
        let mut parts = Vec::with_capacity(plan.parts().len());
        for (numbers, answer) in answers {
            let mut read = &*answer.read;
            for ((number, part), moment) in numbers.iter().zip(answer.plan.parts()).zip(&answer.moments) {
                let (own, others) = read.split_at(part.charges().len());
                read = others;
                parts.push((*number, *moment, own));
            }
        }
        parts.sort_unstable_by_key(|(number, ..)| *number);
        let numbers: PartNumbers = parts.iter().map(|(number, ..)| *number).collect();
        let read: Reads = parts.iter().flat_map(|(.., read)| read.iter().copied()).collect();
        let moments = parts.iter().map(|(_, moment, _)| *moment).collect();
        let is_allowed = answers.iter().all(|(_, answer)| answer.is_allowed);
        Self::new(plan.only(&numbers), moments, read, lease, is_allowed)
    }
}
