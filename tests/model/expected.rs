//! The model: what documents promise of each request, each permit and each refund.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};

use proptest::{prelude::*, test_runner::TestCaseError};
use tower_quota::{
    Access, Algorithm, CallerQuotas, Decision, Outcome, QuotaPolicy, QuotaUnit, StoreErrorKind, clock::Timestamp,
};

use super::{
    accounts::{Kept, Partition, Progress, Receipt, Request, Told, Verdict},
    settings::{NAMES, RuleSet, Setting},
    steps::{Ask, Fault, Report},
};

/// The time in which a rejection is repeated without a call although the request might pass, in microseconds.
const HOLD: i128 = 20_000;
/// The circuit opens after this many consecutive failures.
const FAILURES: u32 = 5;
/// The circuit stays open for at least the first and at most the second duration after the last failure.
const PAUSE: (i128, i128) = (50_000, 500_000);

/// After an out-of-memory error, the store is expected to return another one for this long.
const EXPECTED: i128 = 60_000_000;

/// The store that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreId {
    Main,
    Fallback,
    /// The local store of a limiter, used while the main store is out of memory.
    Local(usize),
}

/// The owner of a quota, and its limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    User(usize, Option<u8>),
    Team(usize, u8),
}

/// Policies of one holder, with a number for each set of them.
pub type Part = (Holder, usize, Rc<[QuotaPolicy]>);

/// All policies that apply together, and the policies of each holder: a team or the caller.
struct Policies {
    all: Vec<QuotaPolicy>,
    parts: Vec<(bool, usize, Rc<[QuotaPolicy]>)>,
}

pub struct Model {
    setting: Setting,
    pub now: i128,
    pub fault: Option<Fault>,
    pub access: HashMap<u8, Access>,
    pub limiters: Vec<LimiterState>,
    sets: Vec<Rc<[QuotaPolicy]>>,
    /// By limiter, rules, tier and the units of a top-up.
    policies: HashMap<(usize, usize, usize, u64), Rc<Policies>>,
    partitions: HashMap<(StoreId, Holder), Partition>,
    /// Holders that were charged since the store has last rejected them, and since the last late charge, which ends
    /// cached rejections.
    changed: HashSet<Holder>,
    /// True once a settlement was lost, and slots perhaps with it.
    pub has_lost_slots: bool,
}

#[derive(Debug, Default)]
pub struct LimiterState {
    pub rules: usize,
    pub is_off: bool,
    /// The units and the end of the last top-up of each caller.
    top_ups: HashMap<u8, (u64, i128)>,
    /// Failures of the store in a row, and the moment of the last one.
    failures: u32,
    failed_at: i128,
    /// When a request was dropped that may have been the one that tries.
    tried_at: i128,
    /// When the store was out of memory.
    full_at: Option<i128>,
    /// Policies of other numbers may have been charged.
    pub has_several_rules: bool,
    /// Until when a holder's requests are rejected although they might pass.
    held: HashMap<Holder, i128>,
}

/// The decision as the test has seen it.
pub struct Observed<'a> {
    /// Whether the store was called.
    pub is_asked: bool,
    /// `None` for one that was made after its request was cancelled.
    pub decision: Option<&'a Decision>,
}

/// The end of a decision.
#[derive(Debug)]
pub struct Decided {
    pub outcome: Outcome,
    /// The policies of the decision, and the expected values for each.
    pub policies: Vec<QuotaPolicy>,
    pub told: Vec<Told>,
    pub charge: Option<Charge>,
}

/// Work that was admitted and counted.
#[derive(Debug)]
pub struct Charge {
    store: StoreId,
    parts: Vec<(Part, Receipt, Partition)>,
    asked: Request,
    /// The charge by now.
    request: Request,
    pub is_counted: bool,
    has_tokens: bool,
    /// Tokens that were reported, and whether that was all.
    said: Option<u64>,
    is_final: bool,
    /// The cost that was reported, until it is settled.
    cost: Option<u64>,
    is_settled: bool,
    pub has_ended: bool,
    pub is_unserved: bool,
}

impl Charge {
    fn tokens(&self, has_ended: bool) -> u64 {
        match self.said {
            None => self.request.tokens,
            Some(said) if has_ended || self.is_final => said,
            Some(said) => said.max(self.request.tokens),
        }
    }

    /// Returns `true` if more is charged than was requested.
    pub fn is_late(&self) -> bool {
        self.request.cost > self.asked.cost || self.request.tokens > self.asked.tokens
    }

    pub fn cost(&mut self, cost: u64) {
        if !self.is_settled && self.is_counted {
            self.cost = Some(cost);
        }
    }

    /// Nothing was reported, so nothing was used.
    pub fn waive_estimates(&mut self) {
        if self.said.is_none() && self.is_counted {
            self.said = Some(0);
            self.is_final = true;
        }
    }
}

impl Policies {
    fn parts(&self, limiter: usize, ask: &Ask) -> Vec<Part> {
        let holder = |is_team: bool| match is_team {
            true => Holder::Team(limiter, ask.team),
            false => Holder::User(limiter, ask.caller),
        };
        let parts = self
            .parts
            .iter()
            .map(|(team, set, policies)| (holder(*team), *set, Rc::clone(policies)));
        parts.collect()
    }
}

impl Model {
    pub fn new(setting: &Setting, now: i128) -> Self {
        Self {
            now,
            fault: None,
            access: HashMap::new(),
            limiters: setting
                .limiters
                .iter()
                .map(|limiter| LimiterState {
                    has_several_rules: matches!(limiter.rules[0], RuleSet::Tiers(_)),
                    ..LimiterState::default()
                })
                .collect(),
            setting: setting.clone(),
            sets: vec![],
            policies: HashMap::new(),
            partitions: HashMap::new(),
            changed: HashSet::new(),
            has_lost_slots: false,
        }
    }

    /// The policies for a caller, with its top-up; `None` if it is not limited.
    fn policies(&mut self, limiter: usize, caller: Option<u8>, tier: Option<&str>) -> Option<Rc<Policies>> {
        let state = &self.limiters[limiter];
        let top_up = caller.and_then(|caller| state.top_ups.get(&caller));
        let topped_up = top_up
            .filter(|(_, until)| *until > self.now)
            .map_or(0, |(units, _)| *units);
        let tier = self.setting.limiters[limiter].rules[state.rules].position(tier)?;
        Some(self.policies_of(limiter, tier, topped_up))
    }

    fn policies_of(&mut self, limiter: usize, tier: usize, topped_up: u64) -> Rc<Policies> {
        let rules = self.limiters[limiter].rules;
        if let Some(known) = self.policies.get(&(limiter, rules, tier, topped_up)) {
            return Rc::clone(known);
        }
        let specs = &self.setting.limiters[limiter].rules[rules].tiers()[tier];
        let all: Vec<_> = specs.iter().map(|spec| spec.policy(topped_up)).collect();
        let is_team = |policy: &QuotaPolicy| policy.key_name().is_some();
        // Each holder in the place of its first policy.
        let holders = [is_team(&all[0]), !is_team(&all[0])];
        let parts = holders.map(|team| all.iter().filter(|policy| is_team(policy) == team).cloned().collect());
        let parts = holders
            .into_iter()
            .zip(parts)
            .filter(|(_, part): &(bool, Rc<[_]>)| !part.is_empty());
        let parts: Vec<_> = parts.map(|(team, part)| (team, self.set(&part), part)).collect();
        // Decisions and fields list the policies of each holder together.
        let all = parts.iter().flat_map(|(.., part)| part.iter().cloned()).collect();
        let policies = Rc::new(Policies { all, parts });
        self.policies
            .insert((limiter, rules, tier, topped_up), Rc::clone(&policies));
        policies
    }

    fn set(&mut self, policies: &Rc<[QuotaPolicy]>) -> usize {
        let known = self.sets.iter().position(|set| set == policies);
        known.unwrap_or_else(|| {
            self.sets.push(Rc::clone(policies));
            self.sets.len() - 1
        })
    }

    fn partition(&mut self, store: StoreId, holder: Holder) -> &mut Partition {
        let new = || Partition::new(Kept::Together);
        self.partitions.entry((store, holder)).or_insert_with(new)
    }

    /// The decision of a limiter, compared with what was seen of it.
    pub fn decide(
        &mut self,
        limiter: usize,
        (ask, slots): (&Ask, bool),
        is_exempt: bool,
        seen: &Observed<'_>,
    ) -> Result<Decided, TestCaseError> {
        let access = ask
            .caller
            .and_then(|caller| self.access.get(&caller))
            .copied()
            .unwrap_or_default();
        let policies = match access {
            Access::Block => return at_once(Outcome::Blocked, seen),
            Access::Allow => None,
            _ if self.limiters[limiter].is_off || is_exempt => None,
            _ => self.policies(limiter, ask.caller, ask.tier),
        };
        let Some(policies) = policies else {
            return at_once(Outcome::Unlimited, seen);
        };
        let parts = policies.parts(limiter, ask);
        let policies = policies.all.clone();
        let is_closed = |policy: &QuotaPolicy| policy.quota() == 0 && !policy.is_shadow();
        // A request that costs nothing is not counted in any unit, unless its response names a cost.
        let request = match ask.cost {
            0 => Request::NOTHING,
            cost => Request {
                cost,
                tokens: ask.tokens,
                slots,
                ..Request::NOTHING
            },
        };
        if policies.iter().any(is_closed) {
            let decided = at_once(Outcome::Rejected, seen)?;
            let told = seen
                .decision
                .map(|decision| Verdict::of(decision).policies)
                .unwrap_or_default();
            let closed = policies
                .iter()
                .filter(|policy| is_closed(policy))
                .map(QuotaPolicy::name);
            prop_assert!(seen.decision.is_none() || same_names(told.iter().map(|told| &*told.name), closed));
            prop_assert!(
                told.iter()
                    .all(|told| told.is_violated && told.remaining == 0 && told.reset.is_none())
            );
            return Ok(Decided {
                policies,
                told,
                ..decided
            });
        }
        let is_cached = seen.decision.is_some_and(Decision::is_cached);
        if is_cached {
            let told = self.check_cached(limiter, &parts, request, seen)?;
            return Ok(Decided {
                outcome: Outcome::Rejected,
                policies,
                told,
                charge: None,
            });
        }
        let store = self.deciding(limiter, seen)?;
        if seen.is_asked && store != Some(StoreId::Main) {
            self.hold(limiter, &parts);
        }
        let Some(store) = store else {
            let outcome = match self.setting.limiters[limiter].fails_closed {
                true => Outcome::FailedClosed,
                false => Outcome::FailedOpen,
            };
            if let Some(decision) = seen.decision {
                prop_assert_eq!(decision.outcome(), outcome);
                prop_assert_eq!(decision.allowances().count(), 0);
            }
            return Ok(Decided {
                outcome,
                policies,
                told: vec![],
                charge: None,
            });
        };
        self.decide_by(store, limiter, parts, request, policies, seen)
    }

    /// A question without an answer counts as charged for a moment, where rejections are remembered.
    fn hold(&mut self, limiter: usize, parts: &[Part]) {
        for (holder, ..) in parts {
            let until = self.limiters[limiter].held.entry(*holder).or_default();
            *until = (*until).max(self.now + HOLD);
        }
    }

    /// A request was dropped before it was polled. It may have been the one that tries whether the store answers.
    pub fn abandoned(&mut self, limiter: usize, ask: &Ask) {
        self.limiters[limiter].tried_at = self.now;
        if let Some(policies) = self.policies(limiter, ask.caller, ask.tier) {
            self.hold(limiter, &policies.parts(limiter, ask));
        }
    }

    /// The store that decides, if any does.
    fn deciding(&mut self, limiter: usize, seen: &Observed<'_>) -> Result<Option<StoreId>, TestCaseError> {
        let (now, fault) = (self.now, self.fault);
        let state = &mut self.limiters[limiter];
        let (since, may_be_open) = (now - state.failed_at, state.failures >= FAILURES);
        if seen.is_asked {
            prop_assert!(!may_be_open || since >= PAUSE.0, "the circuit is open");
        } else {
            let since_trial = now - state.failed_at.max(state.tried_at);
            prop_assert!(may_be_open && since_trial <= PAUSE.1, "the store was not called");
        }
        let is_full = fault == Some(Fault::Fails(StoreErrorKind::OutOfMemory));
        match fault {
            None if seen.is_asked => {
                state.failures = 0;
                return Ok(Some(StoreId::Main));
            }
            // The store responded, and still rejects exhausted callers.
            Some(_) if seen.is_asked && is_full => state.failures = 0,
            Some(_) if seen.is_asked => {
                state.failures += 1;
                state.failed_at = now;
            }
            _ => {}
        }
        if self.setting.has_fallback {
            return Ok(Some(StoreId::Fallback));
        }
        let is_local = seen.is_asked && is_full && !self.setting.limiters[limiter].fails_closed;
        let is_expected = state.full_at.is_some_and(|at| now - at < EXPECTED);
        if is_local {
            state.full_at = Some(now);
        }
        // The request that finds it out is not counted.
        Ok((is_local && is_expected).then_some(StoreId::Local(limiter)))
    }

    fn decide_by(
        &mut self,
        store: StoreId,
        limiter: usize,
        parts: Vec<Part>,
        request: Request,
        policies: Vec<QuotaPolicy>,
        seen: &Observed<'_>,
    ) -> Result<Decided, TestCaseError> {
        let (verdict, receipts) = self.acquire(store, &parts, request);
        if let Some(decision) = seen.decision {
            prop_assert_eq!(sorted(Verdict::of(decision)), verdict.clone(), "{:?}", policies);
            prop_assert_eq!(decision.is_by_fallback(), store != StoreId::Main);
            prop_assert_eq!(decision.is_cached(), false);
        }
        for (holder, ..) in parts.iter().filter(|_| store == StoreId::Main) {
            if verdict.is_allowed {
                self.changed.insert(*holder);
            } else {
                self.changed.remove(holder);
                self.limiters[limiter].held.insert(*holder, self.now + HOLD);
            }
        }
        let has_tokens = policies
            .iter()
            .any(|policy| matches!(policy.unit(), QuotaUnit::Custom(_)));
        let is_counted = request.cost > 0;
        let charge = verdict.is_allowed.then(|| Charge {
            store,
            parts: parts
                .into_iter()
                .zip(receipts)
                .map(|(part, (receipt, after))| (part, receipt, after))
                .collect(),
            asked: request,
            request,
            is_counted,
            has_tokens,
            said: None,
            is_final: false,
            cost: None,
            is_settled: false,
            has_ended: false,
            is_unserved: false,
        });
        Ok(Decided {
            outcome: if verdict.is_allowed {
                Outcome::Allowed
            } else {
                Outcome::Rejected
            },
            policies,
            told: verdict.policies,
            charge,
        })
    }

    /// All holders are charged, or none.
    fn acquire(&mut self, store: StoreId, parts: &[Part], request: Request) -> (Verdict, Vec<(Receipt, Partition)>) {
        let now = self.now;
        let mut fits = vec![];
        for (holder, set, policies) in parts {
            let mut tried = self.partition(store, *holder).clone();
            fits.push(tried.acquire(now, (*set, policies), request).0.is_allowed);
        }
        let is_charged = parts.iter().any(|(.., policies)| request.is_charged_to(policies));
        let (mut verdicts, mut receipts) = (vec![], vec![]);
        for (number, (holder, set, policies)) in parts.iter().enumerate() {
            let others_fit = fits.iter().enumerate().all(|(other, fits)| other == number || *fits);
            let partition = self.partition(store, *holder);
            let (verdict, receipt) = partition.acquire_if((others_fit, is_charged), now, (*set, policies), request);
            let after = partition.clone();
            receipts.extend(receipt.map(|receipt| (receipt, after)));
            verdicts.push(verdict);
        }
        (merged(verdicts), receipts)
    }

    /// A remembered rejection is one that the store would give, or a moment old.
    fn check_cached(
        &mut self,
        limiter: usize,
        parts: &[Part],
        request: Request,
        seen: &Observed<'_>,
    ) -> Result<Vec<Told>, TestCaseError> {
        let decision = seen.decision.expect("it was seen");
        let told = Verdict::of(decision).policies;
        prop_assert!(self.setting.is_remote && self.setting.limiters[limiter].has_cache && request.cost > 0);
        prop_assert!(!told.is_empty() && !seen.is_asked);
        let (now, mut is_fresh) = (self.now, true);
        for part in parts {
            let (holder, set, policies) = part;
            let known = self
                .partition(StoreId::Main, *holder)
                .forecast(now, (*set, policies), request);
            let is_held = self.limiters[limiter]
                .held
                .get(holder)
                .is_some_and(|until| now <= *until);
            for (policy, known) in policies.iter().zip(known.policies) {
                let Some(told) = told.iter().find(|told| told.name == known.name) else {
                    continue;
                };
                let is_queue = matches!(policy.algorithm(), Algorithm::LeakyBucketQueue { .. });
                prop_assert!(told.is_violated && policy.window().is_some() && !policy.is_shadow() && !is_queue);
                prop_assert!(known.is_violated || is_held, "{:?} would pass {:?}", request, policy);
                // A log does not report which of its requests delays a larger cost, and other charges lengthen every
                // wait.
                let is_log = policy.algorithm() == Algorithm::SlidingWindowLog;
                let is_same = !is_held && !is_log && !self.changed.contains(holder);
                if is_same {
                    prop_assert_eq!(told.retry_after, known.retry_after, "{:?}", policy);
                } else if !is_held && !is_log {
                    prop_assert!(told.retry_after <= known.retry_after, "{:?} {:?}", told, known);
                } else if !is_held && !self.changed.contains(holder) {
                    prop_assert!(told.retry_after >= known.retry_after, "{:?} {:?}", told, known);
                }
                is_fresh &= told.retry_after.is_none() || told.remaining == 0;
            }
        }
        prop_assert!(is_fresh, "{:?}", told);
        Ok(told)
    }

    /// Applies the usage that a handler reports.
    pub fn report(&mut self, charge: &mut Charge, report: Report) {
        if !charge.has_tokens || !charge.is_counted {
            return;
        }
        let before = charge.said.unwrap_or(0);
        charge.said = Some(match report {
            Report::Add(more) => before + more,
            Report::Set(total) | Report::Finish(total) => before.max(total),
        });
        charge.is_final |= matches!(report, Report::Finish(_));
        let (charged, used) = (charge.request.tokens, charge.tokens(false));
        if matches!(report, Report::Finish(_)) || used > 2 * charged {
            let to = Request {
                tokens: used,
                ..charge.request
            };
            self.change(charge, to, Progress::Ongoing);
        }
    }

    /// The response begins: what is known by now is charged.
    pub fn begin_response(&mut self, charge: &mut Charge, actual: Option<u64>) {
        let cost = actual.or(charge.cost.take());
        charge.is_settled |= cost.is_some();
        let to = Request {
            cost: cost.unwrap_or(charge.request.cost),
            tokens: charge.tokens(charge.has_ended),
            ..charge.request
        };
        self.change(charge, to, Progress::Ongoing);
    }

    /// Settles the charge of a request that has ended in any way.
    pub fn end(&mut self, mut charge: Charge) {
        let (to, progress) = match charge.is_unserved {
            true => {
                let tokens = charge.said.unwrap_or(0);
                (
                    Request {
                        cost: 0,
                        tokens,
                        ..charge.request
                    },
                    Progress::Unserved,
                )
            }
            false => {
                let cost = charge.cost.unwrap_or(charge.request.cost);
                let tokens = charge.tokens(charge.has_ended);
                (
                    Request {
                        cost,
                        tokens,
                        ..charge.request
                    },
                    Progress::Over,
                )
            }
        };
        self.change(&mut charge, to, progress);
    }

    /// The request was cancelled before it was passed on: its slots are free, and the rest stays charged.
    pub fn cancel(&mut self, mut charge: Charge) {
        let to = charge.request;
        self.change(&mut charge, to, Progress::Over);
    }

    fn change(&mut self, charge: &mut Charge, to: Request, progress: Progress) {
        let is_lost = charge.store == StoreId::Main && self.fault.is_some();
        self.has_lost_slots |= is_lost && progress != Progress::Ongoing;
        let now = self.now;
        for ((holder, _, policies), receipt, after) in &mut charge.parts {
            // A response shows the state at its decision, and others come in the meantime.
            after.change(now, &mut receipt.clone(), to, progress);
            match is_lost {
                true => receipt.assume(to),
                false => {
                    let mut enforced = policies.iter().filter(|policy| !policy.is_shadow());
                    let is_late = enforced.any(|policy| to.charge_of(policy) > charge.request.charge_of(policy));
                    match is_late && charge.store == StoreId::Main {
                        true => self.changed.remove(holder),
                        false => self.changed.insert(*holder),
                    };
                    let known = self.partitions.get_mut(&(charge.store, *holder));
                    known.expect("it was charged").change(now, receipt, to, progress);
                }
            }
        }
        charge.request = to;
    }

    /// The policies as they are shown once charges have changed.
    pub fn told_after(&self, charge: &mut Charge, told: &[Told]) -> Vec<Told> {
        let mut changed = told.to_vec();
        for ((_, set, policies), receipt, after) in &mut charge.parts {
            let left = after.left(self.now, (*set, policies));
            for ((policy, left), is_taken) in policies.iter().zip(left).zip(receipt.is_taken()) {
                let told = changed.iter_mut().find(|told| told.name == policy.name());
                if let Some(told) = told.filter(|_| *is_taken) {
                    (told.remaining, told.reset) = left;
                }
            }
        }
        changed
    }

    /// The rest of the policies of a caller, by holder.
    pub fn left(&mut self, store: StoreId, limiter: usize, ask: &Ask) -> Vec<(Part, Verdict)> {
        let policies = self.policies(limiter, ask.caller, ask.tier);
        let (parts, now) = (
            policies.map_or(vec![], |policies| policies.parts(limiter, ask)),
            self.now,
        );
        let left = parts.into_iter().map(|part| {
            let (holder, set, policies) = &part;
            let verdict = self
                .partition(store, *holder)
                .acquire(now, (*set, policies), Request::NOTHING)
                .0;
            (part, verdict)
        });
        left.collect()
    }

    /// Refunds a caller's charge through the administration API. Returns `false` if no policy is refundable.
    pub fn refund(&mut self, limiter: usize, ask: &Ask, charged_at: Option<i128>) -> bool {
        let Some(policies) = self.policies(limiter, ask.caller, ask.tier) else {
            return false;
        };
        let (parts, now) = (policies.parts(limiter, ask), self.now);
        // A refund names its units, without a request.
        let request = Request {
            cost: ask.cost,
            tokens: ask.tokens,
            ..Request::NOTHING
        };
        let gets_any = policies.all.iter().any(|policy| request.returned_to(policy) > 0);
        if gets_any && self.fault.is_none() {
            for (holder, set, policies) in parts {
                let partition = self.partition(StoreId::Main, holder);
                partition.give_back(now, (set, &policies), request, charged_at);
            }
        }
        gets_any
    }

    /// Forgets all that a caller has used, in all tiers.
    pub fn reset(&mut self, limiter: usize, ask: &Ask) {
        let rules = self.limiters[limiter].rules;
        for tier in 0..self.setting.limiters[limiter].rules[rules].tiers().len() {
            for (holder, _, policies) in self.policies_of(limiter, tier, 0).parts(limiter, ask) {
                self.partition(StoreId::Main, holder).reset(&policies);
            }
        }
    }

    pub fn top_up(&mut self, limiter: usize, caller: u8, units: u64, until: i128) {
        self.limiters[limiter].top_ups.insert(caller, (units, until));
        self.limiters[limiter].has_several_rules = true;
    }

    /// The top-ups that the application has for a caller.
    pub fn quotas(&self, caller: u8) -> CallerQuotas {
        let limiters = self.limiters.iter().zip(NAMES);
        let all = limiters.filter_map(|(limiter, names)| Some((limiter.top_ups.get(&caller)?, names)));
        all.flat_map(|((units, until), names)| names.map(|name| (name, *units, *until)))
            .fold(CallerQuotas::new(), |quotas, (name, units, until)| {
                quotas.top_up(name, units, Timestamp::from_micros(until as u64))
            })
    }
}

/// A decision for which no policy is read.
fn at_once(outcome: Outcome, seen: &Observed<'_>) -> Result<Decided, TestCaseError> {
    prop_assert!(!seen.is_asked);
    if let Some(decision) = seen.decision {
        prop_assert_eq!(decision.outcome(), outcome);
    }
    Ok(Decided {
        outcome,
        policies: vec![],
        told: vec![],
        charge: None,
    })
}

fn same_names<'a>(some: impl Iterator<Item = &'a str>, others: impl Iterator<Item = &'a str>) -> bool {
    some.collect::<HashSet<_>>() == others.collect::<HashSet<_>>()
}

/// Sorts the policies by name: a decision groups them by holder.
pub fn sorted(mut verdict: Verdict) -> Verdict {
    verdict.policies.sort_by(|one, other| one.name.cmp(&other.name));
    verdict
}

pub fn merged(verdicts: Vec<Verdict>) -> Verdict {
    let is_allowed = verdicts.iter().all(|verdict| verdict.is_allowed);
    let mut rejecting = verdicts
        .iter()
        .filter(|verdict| !verdict.is_allowed)
        .map(|verdict| verdict.retry_after);
    let is_never = rejecting.clone().any(|wait| wait.is_none());
    let delays = verdicts.iter().map(|verdict| verdict.delay);
    sorted(Verdict {
        is_allowed,
        retry_after: if is_never {
            None
        } else {
            rejecting.by_ref().flatten().max()
        },
        delay: if is_allowed { delays.max().unwrap_or(0) } else { 0 },
        policies: verdicts.into_iter().flat_map(|verdict| verdict.policies).collect(),
    })
}
