use std::{cell::Cell, sync::Arc};

use super::{NoTier, Policies, Rules, RulesHandle};
use crate::{
    clock::Timestamp,
    partition::{PartitionKey, Scope},
    policy::{CallerQuotas, QuotaPolicy},
    sync::random::{Sequence, for_many},
};

const NAMES: [&str; 3] = ["free", "gold", "gone"];

/// The quotas of a tier: of a policy that allows individual quotas, and of one that does not. `None`: unlimited. Rules
/// without tiers have one tier without a name.
type Tiers = Vec<(&'static str, Option<[u64; 2]>)>;

fn tiers(random: &mut Sequence) -> Tiers {
    let quotas = |random: &mut Sequence| [random.within(1..1_000), random.within(1..1_000)];
    if random.below(3) == 0 {
        return vec![("", Some(quotas(random)))];
    }
    let names = random.any_of(&[&NAMES[..2], &NAMES[1..], &NAMES[..1], &NAMES[..]]);
    let tiers = names
        .iter()
        .map(|name| (*name, (random.below(4) > 0).then(|| quotas(random))));
    tiers.collect()
}

fn rules(tiers: &Tiers) -> Rules {
    tiers.iter().fold(Rules::new(), |rules, (name, quotas)| {
        let policies = quotas.map(|[own, fixed]| {
            let own = QuotaPolicy::per_minute("own", own).with_caller_quotas(10..=500);
            [own, QuotaPolicy::per_hour("fixed", fixed)]
        });
        match policies {
            Some(policies) if name.is_empty() => policies.into_iter().fold(rules, Rules::policy),
            Some(policies) => rules.tier(*name, policies),
            None => rules.unlimited(*name),
        }
    })
}

/// The order of decisions: rollout, tier, individual quotas, capacity.
#[test]
fn the_rollout_then_the_tier_then_individual_quotas_and_then_the_capacity_select_the_policies() {
    for_many(300, |random| {
        let (current, new) = (tiers(random), tiers(random));
        let policies = Arc::new(Policies::new("api", Vec::new(), rules(&current), None, true).unwrap());
        let share = random.any_of(&[None, Some(0), Some(100)]);
        if let Some(percent) = share {
            let handle = RulesHandle(Arc::clone(&policies));
            handle.roll_out(percent, rules(&new)).unwrap();
        }
        for _ in 0..20 {
            let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
            let partition = random.any_of(&[None, Some(alice)]);
            let asked =
                random.any_of(&[NAMES.map(Ok).as_slice(), &[Err(NoTier::First), Err(NoTier::Uncounted)]].concat());
            let (quota, reduced) = (random.within(1..1_000), random.within(1..100) as u8);
            let (individual, percent) = (random.any_of(&[None, Some(quota)]), random.any_of(&[100, reduced]));

            let is_trial = share == Some(100) && partition.is_some();
            let tiers = if is_trial { &new } else { &current };
            let has_tiers = !tiers[0].0.is_empty();
            let named = tiers.iter().find(|(name, _)| has_tiers && asked == Ok(*name));
            let (tier, quotas) = named.unwrap_or(&tiers[0]);
            let expected = quotas.map(|[own, fixed]| {
                let own = individual.map_or(own, |quota| quota.clamp(10, 500));
                [own, fixed].map(|quota| (quota * u64::from(percent) / 100).max(1))
            });
            let is_uncounted = has_tiers && asked == Err(NoTier::Uncounted);

            let contract = individual.map(|quota| CallerQuotas::new().quota("own", quota));
            let [share_calls, tier_calls, quota_calls] = [const { Cell::new(0) }; 3];
            let count = |calls: &Cell<i32>| calls.set(calls.get() + 1);
            let active = policies.active();
            let set = active.select(
                percent,
                || {
                    count(&share_calls);
                    partition
                },
                || {
                    count(&tier_calls);
                    asked
                },
                || {
                    count(&quota_calls);
                    contract.as_ref()
                },
                || -> Timestamp { unreachable!("these quotas have no end") },
            );
            assert_eq!(set.is_none(), is_uncounted);
            let is_asked = [share.is_some(), has_tiers, !is_uncounted && quotas.is_some()];
            let calls = [share_calls, tier_calls, quota_calls].map(Cell::into_inner);
            assert_eq!(calls, is_asked.map(i32::from), "called only if needed");
            let Some(set) = set else { continue };
            let numbers: Vec<u64> = set.policies().map(QuotaPolicy::quota).collect();
            assert_eq!(numbers, expected.map_or(Vec::new(), Vec::from));
            assert_eq!(set.tier(), *tier);
            assert_eq!(set.is_reduced, percent < 100 && quotas.is_some());
            assert_eq!(set.replaces(asked.ok()), has_tiers && named.is_none() && asked.is_ok());
            assert_eq!(active.is_trial(partition), is_trial);
        }
    });
}
