use std::{fmt, sync::Arc};

use http::request::Parts;

use super::admission::{Limits, caller_quotas};
use crate::{
    access::KeyedRequest,
    decision::{Decision, Outcome, Plan},
    limiter::{Attributed, Limiter, LimiterError, Question},
    mistake::Diagnostics,
    rules::{Active, NoTier, QuotaSet},
};

/// An explanation of a layer's decision on a request. See [`RateLimitLayer::explain`](crate::RateLimitLayer::explain).
///
/// The text has one line per step. Its wording may change, so do not parse it.
#[derive(Clone)]
#[must_use = "an explanation has no effect"]
pub struct Explanation {
    limiter: Limiter,
    lines: Vec<String>,
    question: Result<Option<Plan>, Outcome>,
    decision: Option<Decision>,
}

impl Explanation {
    /// Returns the outcome if it does not depend on the policies, for example if the request is blocked, is exempt, or
    /// has no key.
    pub fn outcome(&self) -> Option<Outcome> {
        self.question.as_ref().err().copied()
    }

    /// Returns the decision that [`with_remaining`](Self::with_remaining) has read.
    pub fn decision(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Reads the remaining units of each policy from the store, without charging. Fails if the store fails.
    pub async fn with_remaining(mut self) -> Result<Self, LimiterError> {
        if let Ok(Some(plan)) = &self.question {
            let store = self.limiter.0.guard.store();
            self.decision = Some(store.peek(plan.clone()).await?);
        }
        Ok(self)
    }
}

impl Limits {
    pub(super) fn explain(&self, request: &Parts) -> Explanation {
        let mut lines = self.addresses(request);
        let question = match self.question(request, Some(&mut lines)) {
            Question::Plan(plan, _) => Ok(Some(plan)),
            Question::Decided(decision, _) => Err(decision.outcome()),
            // Never, because nothing is charged for an explanation.
            Question::Charged(_) => Ok(None),
        };
        Explanation {
            limiter: self.limiter.clone(),
            lines,
            question,
            decision: None,
        }
    }

    #[cold]
    pub(super) fn explain_key(
        &self,
        caller: &KeyedRequest<'_>,
        named: Option<usize>,
        lines: &mut Vec<String>,
    ) -> Attributed {
        let limiter = &self.limiter.0;
        let holder = self.keys.holder(&limiter.keys, caller, named);
        let name = named.map_or("key".to_owned(), |index| {
            format!("key {:?}", limiter.policies.keys()[index])
        });
        let found = match (self.keys.extract(caller, named), &holder) {
            (Some(key), Ok(Some(own))) => format!("{}, partition {}", key.kinds(), own.partition),
            (_, Ok(Some(shared))) => format!("missing; such requests share partition {}", shared.partition),
            (_, Ok(None)) => "missing; its policies do not apply".to_owned(),
            (_, Err(_)) => "missing; the request is rejected".to_owned(),
        };
        lines.push(format!("{name}: {found}"));
        holder
    }

    /// `asked` is the tier, if the rules have tiers.
    #[cold]
    pub(super) fn explain_selection(
        &self,
        active: &Active,
        caller: &KeyedRequest<'_>,
        asked: Option<Result<&str, NoTier>>,
        set: Option<&Arc<QuotaSet>>,
        lines: &mut Vec<String>,
    ) {
        lines.extend(asked.map(|asked| tier_line(set, asked)));
        if active.is_trial(self.partition(caller)) {
            lines.push("rules: the new rules of a rollout".to_owned());
        }
        if caller_quotas(caller.request).is_some() {
            lines.push("quotas: individual ones, for policies that allow them".to_owned());
        }
    }

    /// A list, because each setting that needs the client's address determines it separately.
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

/// `set` is `None` if the request passes uncounted because of its tier.
fn tier_line(set: Option<&Arc<QuotaSet>>, asked: Result<&str, NoTier>) -> String {
    let Some(set) = set else {
        return "tier: the lookup is in progress; until then the request passes uncounted".to_owned();
    };
    let tier = set.tier();
    match asked {
        Err(_) => format!("tier {tier:?}: the first one, because the request has none"),
        Ok(name) if set.replaces(Some(name)) => {
            format!("tier {tier:?}: the first one, because {name:?} is unknown")
        }
        Ok(_) => format!("tier {tier:?}"),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scope {:?}: ", self.limiter.scope())?;
        match (&self.question, &self.decision) {
            (Err(Outcome::Unlimited), _) => f.write_str("passes uncounted")?,
            (Err(_), _) => f.write_str("rejected before its policies")?,
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
            (Ok(Some(plan)), None) => plan.policies().try_for_each(|policy| {
                let policy = policy.policy();
                write!(f, "\npolicy {:?}: quota {}", policy.name(), policy.quota())
            }),
            (Ok(None) | Err(_), _) => Ok(()),
        }
    }
}

impl fmt::Debug for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explanation").field("text", &self.to_string()).finish()
    }
}
