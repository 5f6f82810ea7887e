//! The policies of a limiter, which its handles share and replace.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use arc_swap::ArcSwap;

use super::{active::Active, set::QuotaSet};
use crate::{partition::PartitionId, policy::Policy, sync::mutex::Mutex, telemetry::SwitchMeter};

/// The rules of a limiter, which may be replaced while requests are under way.
pub(crate) struct Policies {
    pub(super) scope: Box<str>,
    /// The names of all keys but the main one.
    pub(super) keys: Vec<String>,
    /// True if rules came as data, which need not use every key and unit of the program.
    pub(super) has_data: AtomicBool,
    pub(super) active: ArcSwap<Active>,
    /// Rules are checked and put in force in one step: a layer may be added meanwhile, whose view they need.
    pub(super) changing: Mutex<()>,
    pub(super) switch_meter: SwitchMeter,
}

impl Policies {
    /// Two changes at once both happen: `change` runs again if another one came between.
    pub(super) fn change(&self, mut change: impl FnMut(&mut Active)) {
        self.active.rcu(|active| {
            let mut changed = Active::clone(active);
            change(&mut changed);
            changed
        });
        self.switch_meter.turned(|| !self.active.load().is_on());
    }

    /// The rules in force. A request keeps the ones that it began with.
    pub(crate) fn active(&self) -> arc_swap::Guard<Arc<Active>> {
        self.active.load()
    }

    /// The names of all keys but the main one.
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The policies of a tier, or of the first one without a name; `None` if it is not limited. A name that rules with tiers
    /// do not have is an error, with the names that they have.
    pub(crate) fn of_tier(
        active: &Active,
        name: Option<&str>,
        partition: Option<PartitionId>,
    ) -> Result<Option<Arc<QuotaSet>>, Vec<String>> {
        if let Some(name) = name {
            let tiers = active.rules.all().flat_map(|sets| sets.tiers.first());
            let known: Vec<String> = tiers
                .filter_map(|(tier, _)| Some(tier.as_deref()?.to_owned()))
                .collect();
            // Rules without tiers are the same for every tier.
            if !known.is_empty() && !known.iter().any(|tier| tier == name) {
                return Err(known);
            }
        }
        let tiers = active.rules.sets(partition).tiers();
        let named = tiers.iter().find(|(tier, _)| tier.as_deref() == name);
        Ok(named.unwrap_or(&tiers[0]).1.clone())
    }

    /// The policies of all tiers, and those that are tried.
    pub(crate) fn all_sets(&self) -> Vec<Arc<QuotaSet>> {
        let active = self.active.load();
        let sets = active.rules.all().flat_map(|sets| sets.all().cloned());
        sets.collect()
    }

    /// The shortest window of a set that has none shorter than an hour.
    pub(crate) fn lone_large_window(&self) -> Option<Duration> {
        self.all_sets().iter().find_map(|set| set.lone_large_window())
    }

    /// The name of a policy whose partition key clients see, made from the main key or from a named one of which this holds.
    pub(crate) fn showing_key(&self, of_interest: impl Fn(Option<usize>) -> bool) -> Option<String> {
        let sets = self.all_sets();
        let parts = sets.iter().flat_map(|set| &set.parts);
        let policies = parts
            .filter(|part| of_interest(part.key))
            .flat_map(|part| &part.policies);
        let mut policies = policies.map(Policy::policy);
        let shown = policies.find(|policy| policy.shows_partition_key && !policy.is_hidden())?;
        Some(shown.name().to_owned())
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.active.load().rules.current.rules.fmt(f)
    }
}
