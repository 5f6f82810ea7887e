//! Settings by chance: limiters, their rules, and the layers around a handler.

use std::time::Duration;

use proptest::{
    collection::vec,
    prelude::*,
    sample::{select, subsequence},
};
use tower_quota::{Algorithm, PolicySet, QuotaPolicy, ResponseFields, Rules};

/// The names of the policies of each limiter.
pub const NAMES: [[&str; 3]; 2] = [["a", "b", "c"], ["x", "y", "z"]];

#[derive(Clone, Debug)]
pub struct Setting {
    pub limiters: Vec<LimiterSetting>,
    /// The outermost first.
    pub layers: Vec<LayerSetting>,
    /// True if the store completes asynchronously, like a remote store.
    pub is_remote: bool,
    pub has_fallback: bool,
}

#[derive(Clone, Debug)]
pub struct LimiterSetting {
    /// The rules that it has at first, and those that may replace them.
    pub rules: Vec<RuleSet>,
    pub fails_closed: bool,
    pub has_cache: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct LayerSetting {
    pub limiter: usize,
    pub dialect: Dialect,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dialect {
    Draft11,
    Draft06,
    Draft07,
    None,
}

impl Dialect {
    pub fn fields(self) -> ResponseFields {
        match self {
            Self::Draft11 => ResponseFields::draft11(),
            Self::Draft06 => ResponseFields::draft06(),
            Self::Draft07 => ResponseFields::draft07(),
            Self::None => ResponseFields::none(),
        }
    }
}

/// The same policies for all callers, or separate ones for the tiers `free` and `premium` beside an unlimited `admin`.
#[derive(Clone, Debug)]
pub enum RuleSet {
    All(Vec<PolicySpec>),
    Tiers([Vec<PolicySpec>; 2]),
}

impl RuleSet {
    pub fn rules(&self) -> Rules {
        let policies = |specs: &[PolicySpec]| specs.iter().map(|spec| spec.policy(0)).collect::<Vec<_>>();
        match self {
            Self::All(specs) => policies(specs).into_iter().fold(Rules::new(), Rules::policy),
            Self::Tiers([free, premium]) => Rules::new()
                .tier("free", policies(free))
                .tier("premium", policies(premium))
                .unlimited("admin"),
        }
    }

    /// The position of a tier; `None` if it is unlimited. An unknown tier is the first one.
    pub fn position(&self, tier: Option<&str>) -> Option<usize> {
        match (self, tier) {
            (Self::Tiers(_), Some("admin")) => None,
            (Self::Tiers(_), Some("premium")) => Some(1),
            _ => Some(0),
        }
    }

    /// The policies of each tier that is limited.
    pub fn tiers(&self) -> &[Vec<PolicySpec>] {
        match self {
            Self::All(specs) => std::slice::from_ref(specs),
            Self::Tiers(tiers) => tiers,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    Requests,
    Slots,
    Tokens,
}

#[derive(Clone, Debug)]
pub struct PolicySpec {
    pub name: &'static str,
    pub quota: u64,
    window: u64,
    algorithm: Algorithm,
    capacity: Option<u64>,
    lockout: Option<u64>,
    initial: Option<u64>,
    pub unit: Unit,
    is_shadow: bool,
    /// The opposite of what it is by default.
    is_flipped: bool,
    /// True if it counts by team.
    pub is_team: bool,
}

impl PolicySpec {
    /// Returns the policy with `topped_up` additional units.
    pub fn policy(&self, topped_up: u64) -> QuotaPolicy {
        let may_be_topped_up = self.unit == Unit::Requests && !self.is_team;
        let more = |number: u64| match may_be_topped_up && self.quota > 0 {
            true => number + topped_up,
            false => number,
        };
        let plain = match self.unit {
            Unit::Slots => QuotaPolicy::concurrent(self.name, self.quota),
            _ => QuotaPolicy::new(self.name, more(self.quota), Duration::from_secs(self.window)),
        };
        let plain = match self.unit {
            Unit::Tokens => plain.with_unit("tokens"),
            _ => plain,
        };
        let plain = if self.is_team { plain.keyed_by("team") } else { plain };
        let plain = match may_be_topped_up {
            true => plain.with_caller_quotas(0..=1_000_000),
            false => plain,
        };
        let algorithm = self.algorithm;
        let is_leaky = matches!(
            algorithm,
            Algorithm::LeakyBucketMeter | Algorithm::LeakyBucketQueue { .. }
        );
        // Not every algorithm has every setting: one that does not apply is left out.
        let settings: [&dyn Fn(QuotaPolicy) -> QuotaPolicy; 5] = [
            // Leaky buckets count requests here: what reports to them change is not documented.
            &|policy| {
                if self.unit == Unit::Requests || !is_leaky {
                    policy.with_algorithm(algorithm)
                } else {
                    policy
                }
            },
            &|policy| {
                self.capacity
                    .map_or(policy.clone(), |capacity| policy.with_burst_capacity(more(capacity)))
            },
            &|policy| if self.is_shadow { policy.shadow() } else { policy },
            &|policy| {
                self.lockout.map_or(policy.clone(), |seconds| {
                    policy.with_lockout(Duration::from_secs(seconds))
                })
            },
            &|policy| {
                // A topped-up policy has them only if it has them without.
                let most = self.capacity.unwrap_or(self.quota.div_ceil(2));
                let initial = self.initial.filter(|units| *units <= most);
                initial.map_or(policy.clone(), |units| policy.with_initial_units(units))
            },
        ];
        let policy = settings.into_iter().fold(plain, |policy, set| {
            let with = set(policy.clone());
            if PolicySet::new([with.clone()]).is_ok() {
                with
            } else {
                policy
            }
        });
        match (self.is_flipped, policy.is_hidden()) {
            (false, _) => policy,
            (true, true) => policy.visible(),
            (true, false) => policy.hidden(),
        }
    }
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        3 => Just(Algorithm::TokenBucket),
        1 => Just(Algorithm::StrictTokenBucket),
        1 => Just(Algorithm::FixedWindow),
        1 => Just(Algorithm::SlidingWindowCounter),
        1 => Just(Algorithm::SlidingWindowLog),
        1 => Just(Algorithm::LeakyBucketMeter),
        1 => (1..=4_u64).prop_map(|max_waiting| Algorithm::LeakyBucketQueue { max_waiting }),
    ]
}

fn quotas() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0_u64), 12 => 1..=8_u64]
}

/// A policy without a name.
fn policy() -> impl Strategy<Value = PolicySpec> {
    let units = prop_oneof![6 => Just(Unit::Requests), 2 => Just(Unit::Slots), 2 => Just(Unit::Tokens)];
    let rare = || prop_oneof![5 => Just(false), 1 => Just(true)];
    let capacity = proptest::option::weighted(0.3, 1..=10_u64);
    let lockout = proptest::option::weighted(0.2, select(vec![1, 5, 90_u64]));
    let windows = select(vec![1, 2, 10, 60_u64]);
    let initial = proptest::option::weighted(0.2, 0..=4_u64);
    let numbers = (quotas(), windows, capacity, lockout, initial);
    (numbers, algorithms(), units, rare(), rare(), rare()).prop_map(
        |((quota, window, capacity, lockout, initial), algorithm, unit, is_shadow, is_flipped, is_team)| PolicySpec {
            name: "",
            quota,
            window,
            algorithm,
            capacity,
            lockout,
            initial,
            unit,
            is_shadow,
            is_flipped,
            is_team,
        },
    )
}

fn policies(limiter: usize) -> impl Strategy<Value = Vec<PolicySpec>> {
    let names = subsequence(NAMES[limiter].to_vec(), 1..=3).prop_shuffle();
    (names, vec(policy(), 3)).prop_map(|(names, specs)| {
        let named = names.into_iter().zip(specs);
        named.map(|(name, spec)| PolicySpec { name, ..spec }).collect()
    })
}

/// Rules, the same with other quotas, and other rules.
fn rules(limiter: usize) -> impl Strategy<Value = Vec<RuleSet>> {
    let all =
        (policies(limiter), policies(limiter)).prop_map(|(some, other)| [RuleSet::All(some), RuleSet::All(other)]);
    let tiers = [0; 4]
        .map(|_| policies(limiter))
        .prop_map(|[free, premium, other, more]| [RuleSet::Tiers([free, premium]), RuleSet::Tiers([other, more])]);
    (prop_oneof![3 => all.boxed(), 1 => tiers.boxed()], vec(quotas(), 6)).prop_map(|([first, other], quotas)| {
        let mut changed = first.clone();
        let mut quotas = quotas.into_iter();
        let tiers: &mut [Vec<PolicySpec>] = match &mut changed {
            RuleSet::All(specs) => std::slice::from_mut(specs),
            RuleSet::Tiers(tiers) => tiers,
        };
        for (spec, quota) in tiers.iter_mut().flatten().zip(&mut quotas) {
            spec.quota = quota;
        }
        vec![first, changed, other]
    })
}

fn limiter(number: usize) -> impl Strategy<Value = LimiterSetting> {
    (rules(number), any::<bool>(), any::<bool>()).prop_map(|(rules, fails_closed, has_cache)| LimiterSetting {
        rules,
        fails_closed,
        has_cache,
    })
}

/// One layer, two layers of one limiter, or a layer of another limiter inside of one.
pub fn settings() -> impl Strategy<Value = Setting> {
    let dialects = prop_oneof![
        3 => Just(Dialect::Draft11),
        1 => Just(Dialect::Draft06),
        1 => Just(Dialect::Draft07),
        1 => Just(Dialect::None),
    ];
    let limiters = (limiter(0), limiter(1));
    (limiters, 0..4_u8, dialects, any::<bool>(), any::<bool>()).prop_map(
        |((first, second), form, dialect, is_remote, has_fallback)| {
            let layer = |limiter, dialect| LayerSetting { limiter, dialect };
            let (limiters, layers) = match form {
                0 | 1 => (vec![first], vec![layer(0, dialect)]),
                2 => (vec![first], vec![layer(0, Dialect::Draft11); 2]),
                _ => (
                    vec![first, second],
                    vec![layer(0, Dialect::Draft11), layer(1, Dialect::Draft11)],
                ),
            };
            Setting {
                limiters,
                layers,
                is_remote,
                has_fallback,
            }
        },
    )
}
