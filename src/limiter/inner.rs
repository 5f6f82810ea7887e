use std::sync::Arc;

use super::{
    guard::Guard,
    keys::{Attributed, Keys},
};
use crate::{
    access::AccessList,
    decision::{Charged, Decision, Outcome, Plan, PlanRef},
    policy::PolicySet,
    rules::{Policies, QuotaSet, Selection},
    telemetry::{self, LayerTelemetry},
};

pub(crate) struct Inner {
    pub(crate) keys: Keys,
    pub(crate) policies: Arc<Policies>,
    pub(crate) guard: Arc<Guard>,
    pub(crate) access_list: Option<AccessList>,
    pub(super) log: LayerTelemetry,
}

pub(crate) enum Question {
    Charged(MemoryCharge),
    Plan(Plan, Selection),
    /// No store is called.
    Decided(Decision, Selection),
}

impl Question {
    pub(crate) fn planned(plan: Result<Plan, Outcome>, set: Arc<QuotaSet>) -> Self {
        match plan {
            Ok(plan) => Self::Plan(plan, Selection::of(set)),
            Err(outcome) => Self::Decided(Decision::without_policies(outcome, None), Selection::of(set)),
        }
    }
}

/// A charge that needed no plan, with the policies from which its decision is made.
pub(crate) struct MemoryCharge {
    pub(crate) charged: Charged,
    pub(crate) set: Arc<QuotaSet>,
}

impl MemoryCharge {
    #[inline]
    pub(crate) fn policies(&self) -> &PolicySet {
        &self.set.parts[0].policies
    }

    pub(crate) fn decide(self) -> (Decision, Arc<QuotaSet>) {
        let mut decision = self.charged.decide(self.policies());
        if self.set.is_reduced {
            decision.set_reduced_capacity();
        }
        (decision, self.set)
    }
}

impl Inner {
    #[inline]
    pub(crate) fn scope(&self) -> &str {
        &self.keys.scope_name
    }

    /// Contains no custom units.
    #[inline]
    pub(crate) fn plan(
        &self,
        set: &QuotaSet,
        cost: u64,
        holder: &mut dyn FnMut(Option<usize>) -> Attributed,
    ) -> Result<Plan, Outcome> {
        let mut plan = None;
        for part in &set.parts {
            if let Some(holder) = holder(part.key)? {
                plan = Some(holder.extend(plan, &part.policies, cost));
            }
        }
        plan.ok_or(Outcome::Unlimited)
    }

    /// Makes a plan unless the store is in memory and the policies are plain.
    #[inline]
    pub(crate) fn charge(
        &self,
        set: Arc<QuotaSet>,
        cost: u64,
        mut holder: impl FnMut(Option<usize>) -> Attributed,
    ) -> Question {
        let [part] = &*set.parts else {
            return Question::planned(self.plan(&set, cost, &mut holder), set);
        };
        let holder = match holder(part.key) {
            Ok(Some(holder)) => holder,
            Ok(None) => return Question::planned(Err(Outcome::Unlimited), set),
            Err(outcome) => return Question::planned(Err(outcome), set),
        };
        // A store in memory has no names of callers.
        let plan = PlanRef::new(&part.policies, holder.partition, cost).filter(|_| holder.label.is_none());
        match plan.and_then(|plan| self.guard.charge(&plan)) {
            Some(charged) => Question::Charged(MemoryCharge { charged, set }),
            None => Question::planned(Ok(holder.extend(None, &part.policies, cost)), set),
        }
    }

    #[inline]
    pub(crate) fn log_decision(&self, log: &LayerTelemetry, decision: &Decision, selection: &Selection) {
        log.decided(selection.tier(), decision);
        let tells_more = selection.set.as_ref().is_some_and(|set| set.has_shadows_or_overages);
        if tells_more && decision.outcome().is_admitted() {
            self.log_shadows_and_overages(log, decision, selection);
        }
    }

    fn log_shadows_and_overages(&self, log: &LayerTelemetry, decision: &Decision, selection: &Selection) {
        for over in decision.over_quota() {
            let (now, policy) = (telemetry::now(), over.policy().name());
            log.over_quota(now, selection.tier(), policy);
        }
        for would_reject in decision.shadow_violated() {
            let (now, policy) = (telemetry::now(), would_reject.policy().name());
            log.would_reject(now, selection.tier(), policy);
        }
    }
}
