//! The explanation of a request: the decision about it, and the reasons.

use std::fmt;

use http::request::Parts;

use super::admission::{Limits, own_quotas};
use crate::{
    access::{KeyedRequest, Screened},
    decision::{Decision, Outcome, Plan},
    limiter::{Limiter, LimiterError},
    mistake::Diagnostics,
    partition::PartitionId,
    rules::{Active, Selection},
};

/// The decision of a layer about a request, and the reasons. See [`RateLimitLayer::explain`](crate::RateLimitLayer::explain).
///
/// Its text has a line for each step. It is for people: its words may change.
#[derive(Clone)]
#[must_use = "it says something only when it is shown"]
pub struct Explanation {
    limiter: Limiter,
    lines: Vec<String>,
    /// The plan for the store, or the outcome without it.
    question: Result<Plan, Outcome>,
    decision: Option<Decision>,
}

impl Explanation {
    /// The outcome if the store is not asked: the request is blocked, exempt or has no key, say. `None` if its policies
    /// decide, or those of the [decision](Self::decision) have.
    pub fn outcome(&self) -> Option<Outcome> {
        self.question.as_ref().err().copied()
    }

    /// The decision that was read, without a charge; `None` before [`with_remaining`](Self::with_remaining), or if no
    /// policy limits the request.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Reads what remains of each policy from the store, without a charge.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    pub async fn with_remaining(mut self) -> Result<Self, LimiterError> {
        if let Ok(plan) = &self.question {
            let store = self.limiter.0.guard.store();
            self.decision = Some(store.peek(plan.clone()).await?);
        }
        Ok(self)
    }
}

impl Limits {
    pub(super) fn explain(&self, request: &Parts) -> Explanation {
        let limiter = &*self.limiter.0;
        let active = limiter.policies.active();
        let caller = self.keys.caller(request);
        let attribute = |named| self.keys.attribute_quietly(&self.limiter, &caller, named);
        let mut lines = self.addresses(request);
        lines.extend(self.key_lines(&caller));
        let access_list = limiter.access_list.as_ref();
        let (screened, reason) = self.screening.explain(&caller, access_list, active.is_on());
        lines.push(format!("access: {reason}"));
        let percent = match screened {
            None => Err(Outcome::Unlimited),
            Some(Screened::Counted(percent)) => Ok(percent),
            Some(Screened::Decided(outcome, _)) => Err(outcome),
            Some(Screened::Abnormal(_)) => Err(Outcome::Abnormal),
        };
        let main = attribute(None).ok().flatten().map(|main| main.partition);
        let (mut selection, tier) = self.select_quietly(&active, request, main);
        lines.extend(tier);
        if active.is_trial(main) {
            lines.push("rules: those that are being tried on a share of the callers".to_owned());
        }
        if own_quotas(request).is_some() {
            lines.push("quotas: the caller has its own, for policies that allow them".to_owned());
        }
        let question = percent.and_then(|percent| {
            let plan =
                |set: &_| Ok(self.with_units(limiter.plan(set, self.cost.of(request), attribute)?, set, request));
            let question = limiter.question(&active, &mut selection, percent, main, plan);
            question.map_err(|decision| decision.outcome())
        });
        Explanation {
            limiter: self.limiter.clone(),
            lines,
            question,
            decision: None,
        }
    }

    /// The policies, and a line about the tier if the rules have any.
    fn select_quietly(
        &self,
        active: &Active,
        request: &Parts,
        main: Option<PartitionId>,
    ) -> (Selection, Option<String>) {
        let has_tiers = active.has_tiers(main);
        let name = has_tiers.then(|| self.tiers.tier_of(request)).flatten();
        if has_tiers && name.is_none() && self.tiers.is_uncounted(request) {
            let line = "tier: not known yet, and not counted until it is";
            return (Selection::default(), Some(line.to_owned()));
        }
        let mut selection = active.select_tier(name, main);
        selection.set = selection.set.map(|set| active.for_caller(set, || own_quotas(request)));
        let line = match (name, selection.tier()) {
            (Some(name), tier) if selection.is_unknown => format!("tier {tier:?}, the first one: there is no {name:?}"),
            (None, tier) => format!("tier {tier:?}, the first one: the request has none"),
            (Some(_), tier) => format!("tier {tier:?}"),
        };
        (selection, has_tiers.then_some(line))
    }

    /// The main key and the named ones.
    fn key_lines(&self, caller: &KeyedRequest<'_>) -> Vec<String> {
        let named = self.limiter.0.policies.keys().iter().enumerate();
        let named = named.map(|(index, name)| (Some(index), format!("key {name:?}")));
        let lines = std::iter::once((None, "key".to_owned()))
            .chain(named)
            .map(|(named, name)| {
                let attributed = self.keys.attribute_quietly(&self.limiter, caller, named);
                let attribution = match (attributed, self.keys.kinds(caller, named)) {
                    (Ok(Some(holder)), Some(kinds)) => format!("{kinds}, partition {}", holder.partition),
                    (Ok(Some(holder)), None) => {
                        format!("missing; such requests share the partition {}", holder.partition)
                    }
                    (Ok(None), _) => "missing; policies that count by it do not apply".to_owned(),
                    (Err(_), _) => "missing; the request is rejected".to_owned(),
                };
                format!("{name}: {attribution}")
            });
        lines.collect()
    }

    /// The way to the client's address, by each setting that needs one.
    fn addresses(&self, request: &Parts) -> Vec<String> {
        let mut findings = Diagnostics {
            walks: Some(Vec::new()),
            ..Diagnostics::default()
        };
        self.keys.diagnose(request, &mut findings);
        self.screening.diagnose(request, &mut findings);
        if let Some(list) = &self.limiter.0.access_list {
            list.diagnose(request, &mut findings);
        }
        let mut addresses = findings.walks.unwrap_or_default();
        addresses.dedup();
        addresses
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scope {:?}: ", self.limiter.scope())?;
        match (&self.question, &self.decision) {
            (Err(Outcome::Unlimited), _) => f.write_str("passes uncounted")?,
            (Err(_), _) => f.write_str("rejected without its policies")?,
            (Ok(_), Some(decision)) if decision.violated().next().is_some() => {
                f.write_str("rejected by its policies")?
            }
            (Ok(_), Some(_)) => f.write_str("allowed by its policies")?,
            (Ok(_), None) => f.write_str("its policies decide")?,
        }
        self.lines.iter().try_for_each(|line| write!(f, "\n{line}"))?;
        match (&self.question, &self.decision) {
            (Ok(_), Some(decision)) => decision.allowances().try_for_each(|allowance| {
                let (policy, left) = (allowance.policy(), allowance.remaining());
                write!(
                    f,
                    "\npolicy {:?}: {left} of {} left",
                    policy.name(),
                    policy.burst_capacity()
                )
            }),
            (Ok(plan), None) => plan.policies().try_for_each(|policy| {
                let policy = policy.policy();
                write!(f, "\npolicy {:?}: quota {}", policy.name(), policy.quota())
            }),
            (Err(_), _) => Ok(()),
        }
    }
}

impl fmt::Debug for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explanation").field("text", &self.to_string()).finish()
    }
}
