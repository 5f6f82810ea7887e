use std::{cell::RefCell, sync::Arc};

use super::{NoTier, Policies, Rules, RulesHandle};
use crate::{
    clock::Timestamp,
    partition::{PartitionId, PartitionKey, Scope},
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
/// What a caller and the service tell.
struct Asked<'a> {
    partition: Option<PartitionId>,
    tier: Result<&'a str, NoTier>,
    quota: Option<u64>,
    percent: u8,
}

impl Asked<'_> {
    fn any(random: &mut Sequence) -> Self {
        let alice = Scope::new("api").partition(&PartitionKey::new("user", "alice"));
        let (quota, reduced) = (random.within(1..1_000), random.within(1..100) as u8);
        let tiers = [&NAMES.map(Ok)[..], &[Err(NoTier::First), Err(NoTier::Uncounted)]].concat();
        Self {
            partition: random.any_of(&[None, Some(alice)]),
            tier: random.any_of(&tiers),
            quota: random.any_of(&[None, Some(quota)]),
            percent: random.any_of(&[100, reduced]),
        }
    }

    fn quotas(&self, of_tier: Option<[u64; 2]>) -> Vec<u64> {
        let Some([own, fixed]) = of_tier else { return Vec::new() };
        let own = self.quota.map_or(own, |quota| quota.clamp(10, 500));
        let reduced = |quota: u64| (quota * u64::from(self.percent) / 100).max(1);
        [own, fixed].map(reduced).into()
    }

    /// `rollout` is `None` without a rollout, and otherwise whether it takes all callers.
    fn check(&self, policies: &Policies, [current, new]: [&Tiers; 2], rollout: Option<bool>) {
        let is_trial = rollout == Some(true) && self.partition.is_some();
        let tiers = if is_trial { new } else { current };
        let has_tiers = !tiers[0].0.is_empty();
        let named = tiers.iter().find(|(name, _)| has_tiers && self.tier == Ok(*name));
        let (tier, quotas) = *named.unwrap_or(&tiers[0]);
        let is_uncounted = has_tiers && self.tier == Err(NoTier::Uncounted);

        let contract = self.quota.map(|quota| CallerQuotas::new().quota("own", quota));
        let calls = RefCell::new(Vec::new());
        let call = |name| calls.borrow_mut().push(name);
        let active = policies.active();
        let set = active.select(
            self.percent,
            || {
                call("partition");
                self.partition
            },
            || {
                call("tier");
                self.tier
            },
            || {
                call("quotas");
                contract.as_ref()
            },
            || -> Timestamp { unreachable!("these quotas have no end") },
        );
        let needed = [
            rollout.map(|_| "partition"),
            has_tiers.then_some("tier"),
            quotas.filter(|_| !is_uncounted).map(|_| "quotas"),
        ];
        assert_eq!(calls.into_inner(), needed.into_iter().flatten().collect::<Vec<_>>());
        assert_eq!(active.is_trial(self.partition), is_trial);
        assert_eq!(set.is_none(), is_uncounted);
        let Some(set) = set else { return };
        let selected: Vec<u64> = set.policies().map(QuotaPolicy::quota).collect();
        assert_eq!((set.tier(), selected), (tier, self.quotas(quotas)));
        assert_eq!(set.is_reduced, self.percent < 100 && quotas.is_some());
        assert_eq!(
            set.replaces(self.tier.ok()),
            has_tiers && named.is_none() && self.tier.is_ok()
        );
    }
}

#[test]
fn the_rollout_then_the_tier_then_individual_quotas_and_then_the_capacity_select_the_policies() {
    for_many(300, |random| {
        let (current, new) = (tiers(random), tiers(random));
        let policies = Arc::new(Policies::new("api", Vec::new(), rules(&current), None, true).unwrap());
        let rollout = random.any_of(&[None, Some(false), Some(true)]);
        if let Some(takes_all) = rollout {
            let handle = RulesHandle(Arc::clone(&policies));
            handle.roll_out(100 * u8::from(takes_all), rules(&new)).unwrap();
        }
        for _ in 0..20 {
            Asked::any(random).check(&policies, [&current, &new], rollout);
        }
    });
}
