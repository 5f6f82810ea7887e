use std::sync::Arc;

use super::{
    guard::Guard,
    keys::{Attributed, Keys},
};
use crate::{
    access::AccessList,
    decision::{Charged, Decision, Outcome, Plan, PlanRef},
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
    Charged(Charged),
    Plan(Plan),
}

impl Question {
    pub(crate) fn into_plan(self) -> Option<Plan> {
        match self {
            Self::Plan(plan) => Some(plan),
            Self::Charged(_) => None,
        }
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
        mut holder: impl FnMut(Option<usize>) -> Attributed,
    ) -> Result<Plan, Outcome> {
        let mut plan = None;
        for part in &set.parts {
            if let Some(holder) = holder(part.key)? {
                plan = Some(holder.extend(plan, &part.policies, cost));
            }
        }
        plan.ok_or(Outcome::Unlimited)
    }

    /// Returns a plan unless the store is in memory and the policies are plain.
    #[inline]
    pub(crate) fn charge(
        &self,
        set: &QuotaSet,
        cost: u64,
        mut holder: impl FnMut(Option<usize>) -> Attributed,
    ) -> Result<Question, Outcome> {
        let [part] = &*set.parts else {
            return self.plan(set, cost, holder).map(Question::Plan);
        };
        let holder = holder(part.key)?.ok_or(Outcome::Unlimited)?;
        // A store in memory has no names of callers.
        let plan = PlanRef::new(&part.policies, holder.partition, cost).filter(|_| holder.label.is_none());
        Ok(match plan.and_then(|plan| self.guard.charge(&plan)) {
            Some(charged) => Question::Charged(charged),
            None => Question::Plan(holder.extend(None, &part.policies, cost)),
        })
    }

    #[inline]
    pub(crate) fn log_decision(&self, log: &LayerTelemetry, decision: &Decision, selection: &Selection) {
        log.decided(self.scope(), selection.tier(), decision);
        let tells_more = selection.set.as_ref().is_some_and(|set| set.has_shadows_or_overages);
        if tells_more && decision.outcome().is_admitted() {
            self.log_shadows_and_overages(log, decision, selection);
        }
    }

    fn log_shadows_and_overages(&self, log: &LayerTelemetry, decision: &Decision, selection: &Selection) {
        for over in decision.over_quota() {
            let (now, policy) = (telemetry::now(), over.policy().name());
            log.over_quota(now, self.scope(), selection.tier(), policy);
        }
        for would_reject in decision.shadow_violated() {
            let (now, policy) = (telemetry::now(), would_reject.policy().name());
            log.would_reject(now, self.scope(), selection.tier(), policy);
        }
    }
}
