//! The fields of a response and its problem, as the drafts and the documentation of `ResponseFields` have them.

use std::{cmp::Reverse, collections::BTreeMap};

use http::HeaderMap;
use proptest::{prelude::*, test_runner::TestCaseError};
use tower_quota::{Outcome, QuotaPolicy, QuotaUnit};

use super::{accounts::Told, settings::Dialect};

/// The numbers of one policy: units and seconds.
type Limit = (u64, Option<u64>);

/// The lists of draft-11, by the name of a policy.
#[derive(Debug, Default, PartialEq)]
pub struct Lists {
    /// Several of one name where their units cannot be compared.
    limits: BTreeMap<String, Vec<Limit>>,
    /// The quota, its unit in the words of the registry, and the window.
    policies: BTreeMap<String, String>,
}

/// The fields of one decision by a layer.
#[derive(Debug)]
pub struct Answer {
    pub dialect: Dialect,
    pub outcome: Outcome,
    pub policies: Vec<QuotaPolicy>,
    pub told: Vec<Told>,
}

struct Shown<'a> {
    policy: &'a QuotaPolicy,
    remaining: u64,
    reset: Option<u64>,
    is_violated: bool,
}

fn seconds(micros: i128) -> u64 {
    u64::try_from(micros).unwrap().div_ceil(1_000_000)
}

fn window(policy: &QuotaPolicy) -> Option<u64> {
    Some(policy.window()?.as_secs())
}

impl Answer {
    /// The policies that clients see, in their order.
    fn shown(&self) -> Vec<Shown<'_>> {
        let told = |policy: &QuotaPolicy| self.told.iter().find(|told| told.name == policy.name());
        let seen = self.policies.iter().filter(|policy| !policy.is_hidden());
        seen.filter_map(|policy| Some(shown(told(policy)?, policy))).collect()
    }

    /// The wait of a rejected client: at least as many seconds as reported for each violated policy.
    pub fn retry_after(&self) -> Option<u64> {
        let is_violated = |told: &&Told| {
            let policy = self.policies.iter().find(|policy| policy.name() == told.name).unwrap();
            told.is_violated && !policy.is_shadow()
        };
        match self.outcome {
            Outcome::FailedClosed => return Some(1),
            Outcome::Rejected => {}
            _ => return None,
        }
        let waits: Option<Vec<i128>> = self
            .told
            .iter()
            .filter(is_violated)
            .map(|told| told.retry_after)
            .collect();
        let longest = waits?.into_iter().max()?;
        Some(seconds(longest).max(1))
    }

    /// The names of the policies that a client learns to have violated.
    pub fn violated(&self) -> Vec<String> {
        let violated = self.shown().into_iter().filter(|shown| shown.is_violated);
        let mut names: Vec<String> = violated.map(|shown| shown.policy.name().to_owned()).collect();
        names.sort();
        names
    }

    pub fn lists(&self) -> Lists {
        let is_told = matches!(self.outcome, Outcome::Allowed | Outcome::Rejected);
        if self.dialect != Dialect::Draft11 || !is_told {
            return Lists::default();
        }
        let limits = self
            .shown()
            .into_iter()
            .map(|shown| (shown.policy.name().to_owned(), vec![(shown.remaining, shown.reset)]));
        let named = self.policies.iter().filter(|policy| !policy.is_hidden());
        let policies = named.filter_map(|policy| {
            let unit = match policy.unit() {
                QuotaUnit::Requests => "",
                QuotaUnit::ConcurrentRequests => ";qu=\"concurrent-requests\"",
                _ => return None,
            };
            let window = window(policy).map_or(String::new(), |window| format!(";w={window}"));
            Some((policy.name().to_owned(), format!(";q={}{unit}{window}", policy.quota())))
        });
        Lists {
            limits: limits.collect(),
            policies: policies.collect(),
        }
    }

    /// Limit, remaining and reset of the policy that is closest to being reached.
    fn closest(&self) -> Option<[u64; 3]> {
        if !matches!(self.outcome, Outcome::Allowed | Outcome::Rejected) {
            return None;
        }
        let shown = self.shown();
        let requests = shown.iter().filter(|shown| shown.policy.unit() == QuotaUnit::Requests);
        // Of two equally close policies, the one that resets later. A closed policy has no reset and reports its
        // window.
        let closest = requests.min_by_key(|shown| (shown.remaining, Reverse(shown.reset)))?;
        let reset = closest.reset.or(window(closest.policy))?;
        let (mut remaining, mut told) = (closest.remaining, reset);
        if let Some(wait) = self.retry_after() {
            remaining = if wait < reset { 0 } else { remaining };
            told = wait;
        }
        Some([closest.policy.quota(), remaining, told])
    }

    /// Checks the fields of a single layer in an older dialect.
    pub fn check_closest(&self, headers: &HeaderMap) -> Result<(), TestCaseError> {
        let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
        let told = match self.dialect {
            Dialect::Draft06 => names
                .map(|name| headers.get(name)?.to_str().ok()?.parse().ok())
                .into_iter()
                .collect(),
            Dialect::Draft07 => headers.get("ratelimit").map(|value| {
                let value = value.to_str().unwrap();
                let numbers = value
                    .split(", ")
                    .map(|pair| pair.split_once('=').unwrap().1.parse().unwrap());
                numbers.collect::<Vec<u64>>()
            }),
            _ => return Ok(()),
        };
        prop_assert_eq!(told, self.closest().map(Vec::from), "{:?}", self);
        Ok(())
    }
}

/// More than twice the rate is never invited (D6): a violated policy shows fewer units, any other one a longer time.
fn shown<'a>(told: &Told, policy: &'a QuotaPolicy) -> Shown<'a> {
    let is_violated = told.is_violated && !policy.is_shadow();
    let mut remaining = u64::try_from(told.remaining).unwrap();
    let mut reset = told.reset.map(seconds);
    if let (true, Some(reset), Some(window)) = (told.is_violated, &mut reset, window(policy)) {
        match told.retry_after {
            Some(_) if is_violated => remaining = remaining.min(2 * policy.quota() * *reset / window),
            _ if policy.quota() > 0 => *reset = (*reset).max((remaining * window).div_ceil(2 * policy.quota())),
            _ => {}
        }
    }
    Shown {
        policy,
        remaining,
        reset,
        is_violated,
    }
}

impl Lists {
    /// Merges the fields of an inner and an outer layer: for equal names, the lower number and the later time apply
    /// (G4). Whether two custom units are the same is unknown.
    pub fn within(mut self, outer: &Answer) -> Self {
        let Self { limits, policies } = outer.lists();
        for (name, new) in limits {
            let is_custom =
                |policy: &&QuotaPolicy| matches!(policy.unit(), QuotaUnit::Custom(_)) && policy.name() == name;
            let is_custom = outer.policies.iter().find(is_custom).is_some();
            let known = self.limits.entry(name).or_default();
            match known.first_mut() {
                Some(own) if !is_custom => *own = (own.0.min(new[0].0), own.1.max(new[0].1)),
                _ => known.extend(new),
            }
        }
        self.policies.extend(policies);
        self
    }

    /// The values of headers.
    pub fn read(headers: &HeaderMap) -> Self {
        let members = |name: &str| {
            let text = headers.get(name).map_or("", |value| value.to_str().unwrap());
            let members = text.split(", ").filter(|member| !member.is_empty());
            let named = members.map(|member| member[1..].split_once('"').unwrap());
            named
                .map(|(name, rest)| (name.to_owned(), rest.to_owned()))
                .collect::<Vec<_>>()
        };
        let number = |rest: &str, key: &str| {
            let mut parameters = rest.split(';').filter_map(|parameter| parameter.split_once('='));
            parameters
                .find(|(name, _)| *name == key)
                .map(|(_, value)| value.parse().unwrap())
        };
        let mut limits = BTreeMap::<String, Vec<Limit>>::new();
        for (name, rest) in members("ratelimit") {
            limits
                .entry(name)
                .or_default()
                .push((number(&rest, "r").unwrap(), number(&rest, "t")));
        }
        Self {
            limits,
            policies: members("ratelimit-policy").into_iter().collect(),
        }
    }
}
