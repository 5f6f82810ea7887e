//! Layers of this process that share a scope on one store: their policies must have the same numbers, and a request must
//! not pass them twice.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{mutex::Mutex, partition::PartitionId, policy::Policy, rules::QuotaSet};

/// Whose used units a layer shares: the store, and a partition that only layers of the same scope have.
pub(super) type Place = (u64, PartitionId);

/// The part of a layer that its neighbours look at. It lives as long as the layer.
#[derive(Debug)]
pub(super) struct Neighbour {
    place: Option<Place>,
    /// Sorted, so that equal policies are equal here.
    policies: Vec<Numbers>,
}

/// What a policy decides by, behind the key and the number by which a store knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Numbers {
    key: Option<String>,
    id: u32,
    quota: u64,
    window: Option<Duration>,
    capacity: u64,
    name: String,
}

impl Numbers {
    fn new(policy: &Policy) -> Self {
        let (id, policy) = (policy.id(), policy.policy());
        Self {
            key: policy.key().map(str::to_owned),
            id,
            quota: policy.quota(),
            window: policy.window(),
            capacity: policy.burst_capacity(),
            name: policy.name().to_owned(),
        }
    }

    fn shares_units_with(&self, other: &Self) -> bool {
        (&self.key, self.id) == (&other.key, other.id)
    }
}

/// The layers of this process by the place where they count.
static NEIGHBOURS: Mutex<BTreeMap<Place, Vec<Weak<Neighbour>>>> = Mutex::new(BTreeMap::new());

impl Neighbour {
    /// Puts a layer beside the others. With it goes the name of a policy that one of them has with other numbers.
    pub(super) fn move_in(place: Option<Place>, sets: &[Arc<QuotaSet>]) -> (Arc<Self>, Option<String>) {
        let parts = sets.iter().flat_map(|set| &set.parts);
        let mut policies: Vec<Numbers> = parts.flat_map(|part| &part.policies).map(Numbers::new).collect();
        policies.sort_unstable();
        policies.dedup();
        let layer = Arc::new(Self { place, policies });
        let differing = place.and_then(|place| {
            let mut all = NEIGHBOURS.lock();
            all.retain(|_, neighbours| {
                neighbours.retain(|neighbour| neighbour.strong_count() > 0);
                !neighbours.is_empty()
            });
            let here = all.entry(place).or_default();
            let others: Vec<Arc<Self>> = here.iter().filter_map(Weak::upgrade).collect();
            here.push(Arc::downgrade(&layer));
            others.iter().find_map(|other| layer.differs_from(other))
        });
        (layer, differing)
    }

    /// The name of a policy that both have, with other numbers.
    fn differs_from(&self, other: &Self) -> Option<String> {
        let of = |layer: &Self, policy: &Numbers| -> Vec<Numbers> {
            let shared = layer.policies.iter().filter(|own| own.shares_units_with(policy));
            shared.cloned().collect()
        };
        let differing = self.policies.iter().find(|policy| {
            let others = of(other, policy);
            !others.is_empty() && others != of(self, policy)
        });
        differing.map(|policy| policy.name.clone())
    }

    /// Returns `true` if a request that has passed `other` is charged for the same again.
    fn charges_again(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other)
            || (self.place.is_some() && self.place == other.place && self.policies == other.policies)
    }
}

/// The layers that a request has passed, in its extensions.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed(Vec<Arc<Neighbour>>);

impl Passed {
    /// Notes one more. Returns `true` if it charges the request again.
    pub(super) fn note(&mut self, layer: &Arc<Neighbour>) -> bool {
        let was_here = self.0.iter().any(|passed| layer.charges_again(passed));
        self.0.push(Arc::clone(layer));
        was_here
    }
}
