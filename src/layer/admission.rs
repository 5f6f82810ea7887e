//! The way of a request up to the inner service: the layer asks for a decision, then judges.

use std::{cell::LazyCell, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode, header, request::Parts};

use super::{
    attribution::{Attributed, Attribution},
    charge::{OpenCharge, SlotHandle},
    content::Reader,
    cost::RequestCost,
    registry::{PassedLayers, RegisteredLayer},
    usage::UsageHandle,
};
use crate::{
    access::{KeyedRequest, Screened, Screening},
    clock::Clock,
    decision::{Allowance, Costs, Decision, Outcome, Plan},
    guard::{DecisionState, Guard},
    mistake::Diagnostics,
    response::rejection::{Rejection, Responder},
    rules::{FollowUp, Policies, QuotaSet, ResolvedTier, Selection},
    telemetry::LayerTelemetry,
};

/// The part that all services of one layer share.
pub(crate) struct Limits {
    pub(super) screening: Screening,
    pub(super) attribution: Attribution,
    pub(super) policies: Arc<Policies>,
    pub(super) cost: RequestCost,
    pub(super) guard: Arc<Guard>,
    pub(super) responder: Responder,
    pub(super) status: StatusCode,
    pub(super) decision_in_request: bool,
    pub(super) decision_in_response: bool,
    pub(super) log: LayerTelemetry,
    pub(super) neighbour: Arc<RegisteredLayer>,
}

/// The judgement on a request.
pub(super) enum Admission {
    /// The inner service is called now.
    Call(Admitted),
    /// The inner service is called when the request has waited for its turn.
    Queue(Duration, Admitted),
    Reject(Response<Bytes>),
}

/// An allowed request: its decision, the policies behind it, and the part of its charge that may still change.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) decision: Decision,
    pub(super) policies: Option<Arc<QuotaSet>>,
    pub(super) charge: Option<Arc<OpenCharge>>,
}

impl Limits {
    /// Screening → rules → attribution → plan → guard.
    pub(super) fn ask(&self, request: &Parts) -> (DecisionState, Selection) {
        let (question, selection) = self.question(request);
        let deciding = match question {
            Ok(plan) => self.guard.decide(plan),
            Err(decision) => DecisionState::Decided(decision),
        };
        (deciding, selection)
    }

    /// The plan for the store, or the decision about a request that needs none. The order within the screening: access list
    /// → kill switch → exemptions → hooks of the application.
    pub(super) fn question(&self, request: &Parts) -> (Result<Plan, Decision>, Selection) {
        let at_once = |outcome, wait| Err(Decision::without_policies(outcome, wait));
        let active = self.policies.active();
        let caller = self.attribution.caller(request);
        let Some(screened) = self.screening.screen(&caller, active.is_on()) else {
            return (at_once(Outcome::Unlimited, None), Selection::default());
        };
        let main = LazyCell::new(|| self.attribution.attribute(&caller, None, &self.log));
        // While new rules are tried or grants given, policies depend on the caller.
        let partition_of_main = || Some(main.as_ref().ok()?.as_ref()?.partition);
        let partition = active.depends_on_caller().then(partition_of_main).flatten();
        let mut selection = self.policies.select(&active, request, partition);
        if selection.is_unknown {
            self.log.unknown_tier(self.scope_name());
        }
        if selection.is_unresolved {
            self.log.unresolved_tier(self.scope_name());
        }
        let percent = match screened {
            Screened::Counted(percent) => percent,
            Screened::Decided(outcome, wait) => return (at_once(outcome, wait), selection),
            Screened::Abnormal(usage) => {
                let (violated, wait) = usage.into_parts();
                selection.violated = violated;
                return (at_once(Outcome::Abnormal, wait), selection);
            }
        };
        let Some(set) = selection.set.take() else {
            return (at_once(Outcome::Unlimited, None), selection);
        };
        let mut set = self.policies.at_capacity(set, percent);
        if let Some(partition) = partition {
            set = self.policies.granted(&active, set, partition, || self.guard.now());
        }
        let question = self.plan(&set, &caller, &main);
        selection.set = Some(set);
        (question.or_else(|outcome| at_once(outcome, None)), selection)
    }

    /// Looks at one of the first requests for mistakes in how layers stand around each other, and in how the screening finds
    /// addresses. Keys are looked at where they are needed.
    pub(super) fn watch(&self, request: &mut Parts) {
        if self.log.is_watching() {
            let passed = request.extensions.get_or_insert_default::<PassedLayers>();
            self.log.watched(self.scope_name(), passed.note(&self.neighbour));
            let mut findings = Diagnostics::default();
            self.screening.diagnose(request, &mut findings);
            self.log.found(self.scope_name(), findings);
        }
    }

    /// Call, queue or reject: the only place where a decision becomes one of them.
    pub(super) fn judge(&self, mut decision: Decision, selection: Selection, request: &mut Parts) -> Admission {
        self.log_decision(&decision, &selection);
        if selection.set.as_ref().is_some_and(|set| set.is_reduced) {
            decision.set_reduced_capacity();
        }
        if !decision.outcome().is_admitted() {
            return Admission::Reject(self.reject(decision, &selection, request));
        }
        if self.log.is_watching()
            && self.policies.ask_for_no_tier()
            && let Some(tier) = request.extensions.get::<ResolvedTier>()
        {
            self.log.tier_passed(tier.is_read());
        }
        let admitted = self.admit(decision, selection.set, request);
        // Without an open charge there would be no refund if the service failed meanwhile.
        let delay = admitted.charge.as_ref().map(|_| admitted.decision.delay());
        match delay.unwrap_or_default() {
            Duration::ZERO => Admission::Call(admitted),
            delay => {
                self.log.queued(Clock::system().now(), self.scope_name(), delay);
                Admission::Queue(delay, admitted)
            }
        }
    }

    pub(super) fn scope_name(&self) -> &str {
        &self.attribution.scope_name
    }

    /// The question to the store, or the outcome if no policy applies or the request may not be counted.
    fn plan(
        &self,
        set: &QuotaSet,
        caller: &KeyedRequest<'_>,
        main: &LazyCell<Attributed, impl FnOnce() -> Attributed>,
    ) -> Result<Plan, Outcome> {
        let request = caller.request;
        let cost = self.cost.of(request);
        let mut plan: Option<Plan> = None;
        for part in &set.parts {
            let by_name = |_| self.attribution.attribute(caller, part.key, &self.log);
            let by_name = part.key.map(by_name);
            let attributed = by_name.as_ref().unwrap_or_else(|| main);
            let Some(holder) = attributed.as_ref().map_err(|outcome| *outcome)? else {
                continue;
            };
            let extended = match plan {
                Some(plan) => plan.and(part.policies.clone(), holder.partition),
                None => Plan::new(part.policies.clone(), holder.partition, cost),
            };
            plan = Some(extended.labelled(holder.partition, holder.label.as_ref()));
        }
        let plan = plan.ok_or(Outcome::Unlimited)?;
        let plan = self.cost.in_units(plan, &set.units, request);
        if set.follow_up.counts_request_bytes {
            return Ok(plan.with_content_bytes(self.announced_bytes(request), 0));
        }
        Ok(plan)
    }

    /// The length that a request says its content has.
    fn announced_bytes(&self, request: &Parts) -> u64 {
        let length = request.headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let has_content = !request.method.is_safe() || request.headers.contains_key(header::TRANSFER_ENCODING);
        if length.is_none() && has_content && request.extensions.get::<Reader>().is_none() {
            self.log.uncounted_content(self.scope_name());
        }
        length.unwrap_or(0)
    }

    /// Counts a decision, and what shadows would have rejected of an admitted one.
    pub(super) fn log_decision(&self, decision: &Decision, selection: &Selection) {
        self.log.decided(self.scope_name(), selection.tier(), decision);
        let has_shadows = selection.set.as_ref().is_some_and(|set| set.has_shadows);
        if !has_shadows || !decision.outcome().is_admitted() {
            return;
        }
        for would_reject in decision.shadow_violated() {
            let (now, policy) = (Clock::system().now(), would_reject.policy().name());
            self.log.would_reject(now, self.scope_name(), selection.tier(), policy);
        }
    }

    /// Keeps the charge open if anything of it may still change.
    fn admit(&self, decision: Decision, policies: Option<Arc<QuotaSet>>, request: &mut Parts) -> Admitted {
        if self.decision_in_request {
            request.extensions.insert(Decision::clone(&decision));
        }
        let follow_up = policies.as_ref().map_or(FollowUp::default(), |set| set.follow_up);
        if !follow_up.is_needed() || decision.charged() == Costs::NOTHING {
            return Admitted {
                decision,
                policies,
                charge: None,
            };
        }
        let told = decision.clone();
        let charge = OpenCharge::new(Arc::clone(&self.guard), decision, &request.method);
        if follow_up.counts_request_bytes
            && let Some(reader) = request.extensions.get::<Reader>()
        {
            reader.count_for(&charge);
        }
        if follow_up.has_slots {
            let outer = request.extensions.remove();
            request.extensions.insert(SlotHandle::new(&charge, outer));
        }
        if follow_up.has_units {
            let outer = request.extensions.remove();
            request.extensions.insert(UsageHandle::new(&charge, outer));
        }
        Admitted {
            decision: told,
            policies,
            charge: Some(charge),
        }
    }

    /// The response to a request that is rejected.
    fn reject(&self, decision: Decision, selection: &Selection, request: &Parts) -> Response<Bytes> {
        let is_dear = |by: &Allowance<'_>| by.retry_after().is_none() && !by.policy().is_closed();
        if let Some(never) = decision.violated().find(is_dear) {
            self.log
                .cost_above_capacity(self.scope_name(), never.policy(), never.cost());
        }
        let fields = self.policies.fields();
        let times = fields.times(&decision);
        let status = self.screening.rejection_status(decision.outcome(), self.status);
        let violated = selection.violated_by(decision.outcome());
        let rejection = Rejection::new(&decision, request, self.scope_name())
            .with_status(status)
            .with_wait(times.wait())
            .showing_keys(fields.can_show_partition_keys())
            .naming(&violated);
        let mut response = self.responder.respond(&rejection);
        self.tell(decision, selection.set.as_deref(), times, &mut response);
        response
    }
}
