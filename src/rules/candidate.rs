//! The rules of a rollout.

use std::sync::Arc;

use super::sets::Sets;
use crate::partition::PartitionId;

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) percent: u8,
    /// Sorted.
    pub(super) partitions: Arc<[PartitionId]>,
    pub(super) sets: Arc<Sets>,
}

impl Candidate {
    pub(super) fn new(percent: u8, partitions: &[PartitionId], sets: Arc<Sets>) -> Self {
        let mut partitions = Arc::<[PartitionId]>::from(partitions);
        Arc::make_mut(&mut partitions).sort_unstable();
        Self {
            percent,
            partitions,
            sets,
        }
    }

    /// Depends only on the digest, so every instance selects the same callers.
    pub(super) fn takes(&self, partition: Option<PartitionId>) -> bool {
        let Some(partition) = partition else {
            return false;
        };
        let number = u128::from_be_bytes(partition.to_bytes());
        number % 100 < u128::from(self.percent) || self.partitions.binary_search(&partition).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::config::RulesConfig, *};
    use crate::{
        QuotaPolicy, Rules,
        partition::{PartitionKey, Scope},
        sync::random::for_many,
    };

    fn candidate(percent: u8) -> Candidate {
        let rules = Rules::new().policy(QuotaPolicy::per_minute("minute", 1));
        let sets = Sets::new(rules, &RulesConfig::default());
        Candidate {
            percent,
            partitions: Arc::default(),
            sets: Arc::new(sets.unwrap()),
        }
    }

    /// L30: 100,000 keys of any kind, within one percentage point.
    #[test]
    fn a_share_is_as_large_as_it_says_for_any_scope_and_any_kind_of_keys() {
        for_many(2, |random| {
            let mut text =
                |length| String::from_iter(random.list(length, |random| random.any_of(&['a', ':', 'ß', '\0'])));
            let (scope, kind) = (Scope::new(&text(1..20)), text(0..20));
            let (first, percent) = (random.within(0..1 << 32), random.any_of(&[0, 1, 10, 10, 50, 99, 100]));
            let candidate = candidate(percent);
            let members = (0..100_000_u64).filter(|number| {
                let key = PartitionKey::new(&kind, (first + number).to_be_bytes());
                candidate.takes(Some(scope.partition(&key)))
            });
            let share = members.count() as f64 / 1_000.0;
            assert!((share - f64::from(percent)).abs() <= 1.0, "{share} of {percent}");
            assert!(percent > 0 || share == 0.0);
            assert!(percent < 100 || share == 100.0);
            assert!(!candidate.takes(None), "nobody knows who it is");
        });
    }
}
