//! Detects the mistakes `two-quotas` and `layer-twice`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use super::attribution::Extractors;
use crate::{limiter::Keys, partition::PartitionId, policy::Policy, rules::Policies, sync::mutex::Mutex};

/// The store, and a partition that is unique to the scope.
pub(super) type Place = (u64, PartitionId);

#[derive(Debug)]
pub(super) struct RegisteredLayer {
    place: Option<Place>,
    /// The address of the limiter. Layers of the same limiter have the same rules.
    limiter: usize,
    keys: Vec<&'static str>,
    /// Sorted, so that equal policies compare as equal.
    policies: Vec<Numbers>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Numbers {
    key: &'static str,
    key_name: Option<String>,
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
            key_name: policy.key_name().map(str::to_owned),
            id,
            quota: policy.quota(),
            window: policy.window(),
            capacity: policy.burst_capacity(),
            name: policy.name().to_owned(),
        }
    }

    fn shares_units_with(&self, other: &Self) -> bool {
        (self.key, &self.key_name, self.id) == (other.key, &other.key_name, other.id)
    }
}

static NEIGHBOURS: Mutex<LayerRegistry> = Mutex::new(LayerRegistry {
    by_place: BTreeMap::new(),
    swept_at: 64,
});

struct LayerRegistry {
    by_place: BTreeMap<Place, Vec<Weak<RegisteredLayer>>>,
    /// Dropped layers are removed when the map has this number of places.
    swept_at: usize,
}

impl LayerRegistry {
    /// Returns a policy that has different numbers in another layer at this place.
    fn add(&mut self, place: Place, layer: &Arc<RegisteredLayer>) -> Option<String> {
        let is_alive = |layer: &Weak<RegisteredLayer>| layer.strong_count() > 0;
        if self.by_place.len() >= self.swept_at {
            self.by_place.retain(|_, layers| layers.iter().any(is_alive));
            self.swept_at = 64.max(2 * self.by_place.len());
        }
        let here = self.by_place.entry(place).or_default();
        here.retain(is_alive);
        let others: Vec<_> = here.iter().filter_map(Weak::upgrade).collect();
        here.push(Arc::downgrade(layer));
        others.iter().find_map(|other| layer.differs_from(other))
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

    pub(super) fn register(self: &Arc<Self>) -> Option<String> {
        NEIGHBOURS.lock().add(self.place?, self)
    }

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

    fn charges_again(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        let has_same_keys = || self.limiter == other.limiter && self.keys == other.keys;
        let is_here = self.place.is_some() && self.place == other.place;
        Arc::ptr_eq(self, other) || (is_here && (has_same_keys() || self.policies == other.policies))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct PassedLayers(Vec<Arc<RegisteredLayer>>);

impl PassedLayers {
    /// Returns `true` if the request has passed through a layer that charges the same policies.
    pub(super) fn note(&mut self, layer: &Arc<RegisteredLayer>) -> bool {
        let was_here = self.0.iter().any(|passed| layer.charges_again(passed));
        self.0.push(Arc::clone(layer));
        was_here
    }
}
