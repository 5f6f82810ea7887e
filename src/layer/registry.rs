//! Layers of this process that share a scope on one store: their policies must have the same numbers, and a request must
//! not pass them twice.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use super::attribution::Extractors;
use crate::{limiter::Keys, partition::PartitionId, policy::Policy, rules::Policies, sync::mutex::Mutex};

/// Whose used units a layer shares: the store, and a partition that only layers of the same scope have.
pub(super) type Place = (u64, PartitionId);

/// The part of a layer that its neighbours look at. It lives as long as the layer.
#[derive(Debug)]
pub(super) struct RegisteredLayer {
    place: Option<Place>,
    /// The address of its limiter, whose rules several layers share, also when they change.
    limiter: usize,
    /// The types of its keys.
    keys: Vec<&'static str>,
    /// Sorted, so that equal policies are equal here.
    policies: Vec<Numbers>,
}

/// The numbers of a policy, behind the type of its key and the id by which a store knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Numbers {
    key: &'static str,
    id: u32,
    quota: u64,
    window: Option<Duration>,
    capacity: u64,
    name: String,
}

impl Numbers {
    fn new(key: &'static str, policy: &Policy) -> Self {
        let (id, policy) = (policy.id(), policy.policy());
        Self {
            key,
            id,
            quota: policy.quota(),
            window: policy.window(),
            capacity: policy.burst_capacity(),
            name: policy.name().to_owned(),
        }
    }

    fn shares_units_with(&self, other: &Self) -> bool {
        (self.key, self.id) == (other.key, other.id)
    }
}

/// The layers of this process.
static NEIGHBOURS: Mutex<LayerRegistry> = Mutex::new(LayerRegistry {
    by_place: BTreeMap::new(),
    swept_at: 64,
});

struct LayerRegistry {
    by_place: BTreeMap<Place, Vec<Weak<RegisteredLayer>>>,
    /// With so many places, those whose layers are gone are removed.
    swept_at: usize,
}

impl LayerRegistry {
    /// The layers at a place before this one.
    fn add(&mut self, place: Place, layer: &Arc<RegisteredLayer>) -> Vec<Arc<RegisteredLayer>> {
        let is_alive = |layer: &Weak<RegisteredLayer>| layer.strong_count() > 0;
        if self.by_place.len() >= self.swept_at {
            self.by_place.retain(|_, layers| layers.iter().any(is_alive));
            self.swept_at = 64.max(2 * self.by_place.len());
        }
        let here = self.by_place.entry(place).or_default();
        here.retain(is_alive);
        let others = here.iter().filter_map(Weak::upgrade).collect();
        here.push(Arc::downgrade(layer));
        others
    }
}

impl RegisteredLayer {
    pub(super) fn new(store: Option<u64>, keys: &Keys, extractors: &Extractors, policies: &Arc<Policies>) -> Arc<Self> {
        let limiter = Arc::as_ptr(policies).addr();
        let sets = policies.all_sets();
        let parts = sets.iter().flat_map(|set| &set.parts);
        let numbers = parts.flat_map(|part| {
            let key = extractors.type_of(part.key);
            part.policies.iter().map(move |policy| Numbers::new(key, policy))
        });
        let mut policies: Vec<Numbers> = numbers.collect();
        policies.sort_unstable();
        policies.dedup();
        Arc::new(Self {
            place: store.map(|store| (store, keys.own_partition())),
            limiter,
            keys: extractors.types().collect(),
            policies,
        })
    }

    /// Puts the layer beside the others. Returns the name of a policy that one of them has with other numbers.
    pub(super) fn register(self: &Arc<Self>) -> Option<String> {
        let others = NEIGHBOURS.lock().add(self.place?, self);
        others.iter().find_map(|other| self.differs_from(other))
    }

    /// The name of a policy that both have, with other numbers.
    fn differs_from(&self, other: &Self) -> Option<String> {
        if self.limiter == other.limiter {
            return None;
        }
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
        let has_same_keys = || self.limiter == other.limiter && self.keys == other.keys;
        let is_here = self.place.is_some() && self.place == other.place;
        Arc::ptr_eq(self, other) || (is_here && (has_same_keys() || self.policies == other.policies))
    }
}

/// The layers that a request has passed, in its extensions.
#[derive(Clone, Debug, Default)]
pub(super) struct PassedLayers(Vec<Arc<RegisteredLayer>>);

impl PassedLayers {
    /// Notes one more. Returns `true` if it charges the request again.
    pub(super) fn note(&mut self, layer: &Arc<RegisteredLayer>) -> bool {
        let was_here = self.0.iter().any(|passed| layer.charges_again(passed));
        self.0.push(Arc::clone(layer));
        was_here
    }
}
