use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode, header, request::Parts};

use super::{
    attribution::Extractors,
    content::{Reader, announced_bytes},
    cost::RequestCost,
    lingering_close::LingeringClose,
    registry::{PassedLayers, RegisteredLayer},
};
use crate::{
    access::{KeyedRequest, Screened, Screening},
    decision::{Allowance, Costs, Decision, Outcome},
    limiter::{Limiter, MemoryCharge, OpenCharge, Question, WeakPermit, WithPermit},
    mistake::Diagnostics,
    partition::PartitionId,
    policy::CallerQuotas,
    response::{
        fields::Told,
        rejection::{Rejection, Responder},
    },
    rules::{Active, NoTier, QuotaSet, ResolvedTier, Selection, SetView, TierSource, ViewClaim},
    telemetry::{self, LayerTelemetry},
};

pub(super) fn caller_quotas(request: &Parts) -> Option<&CallerQuotas> {
    let resolved = || request.extensions.get::<ResolvedTier>()?.quotas();
    request.extensions.get().or_else(resolved)
}

pub(crate) struct Limits {
    pub(super) limiter: Limiter,
    /// The position of this layer's prepared costs and fields in the limiter's policy sets.
    pub(super) view: ViewClaim,
    pub(super) screening: Screening,
    pub(super) keys: Extractors,
    pub(super) tiers: TierSource,
    pub(super) cost: RequestCost,
    pub(super) responder: Responder,
    pub(super) status: StatusCode,
    pub(super) lingering_close: LingeringClose,
    pub(super) decision_in_request: bool,
    pub(super) decision_in_response: bool,
    /// True if nothing but the fields of a usual response depends on its decision.
    pub(super) tells_numbers: bool,
    pub(super) log: LayerTelemetry,
    pub(super) neighbour: Arc<RegisteredLayer>,
}

pub(super) enum Admission {
    Call(Admitted),
    Queue(Duration, Admitted),
    Reject(Response<Bytes>),
}

pub(super) enum Admitted {
    Charged(MemoryCharge),
    /// `charge` is `None` if the cost can no longer change.
    Decided {
        decision: Decision,
        policies: Option<Arc<QuotaSet>>,
        charge: Option<Arc<OpenCharge>>,
    },
}

impl Admitted {
    #[inline]
    pub(super) fn open_charge(&self) -> Option<&Arc<OpenCharge>> {
        match self {
            Self::Charged(_) => None,
            Self::Decided { charge, .. } => charge.as_ref(),
        }
    }

    #[inline]
    pub(super) fn passed_on(&self) {
        if let Some(charge) = self.open_charge() {
            charge.passed_on();
        }
    }
}

impl Limits {
    pub(super) fn ask(&self, request: &Parts) -> Question {
        if LayerTelemetry::explains() {
            self.log_explanation(request);
        }
        self.question(request, None)
    }

    #[cold]
    fn log_explanation(&self, request: &Parts) {
        self.log.explained(telemetry::now(), || self.explain(request));
    }

    /// With `lines`, records each step for an explanation, instead of charging the request, emitting events and
    /// updating metrics.
    pub(super) fn question(&self, request: &Parts, mut lines: Option<&mut Vec<String>>) -> Question {
        let limiter = &*self.limiter.0;
        let active = limiter.policies.active();
        let caller = self.keys.caller(request);
        let mut selection = Selection::default();
        let access_list = limiter.access_list.as_ref();
        let screened = self.screening.screen(&caller, access_list, active.is_on());
        if let Some(lines) = &mut lines {
            lines.push(format!("access: {screened}"));
        }
        let (percent, at_once) = match screened {
            Screened::Off => {
                return Question::Decided(Decision::without_policies(Outcome::Unlimited, None), selection);
            }
            Screened::Counted(percent) => (percent, None),
            Screened::Blocked => (100, Some((Outcome::Blocked, None))),
            Screened::Allowed | Screened::Exempt(_) | Screened::Preflight => (100, Some((Outcome::Unlimited, None))),
            Screened::Overloaded(wait) => (100, Some((Outcome::Overloaded, Some(wait)))),
            Screened::Abnormal(usage) => {
                let (violated, wait) = usage.into_parts();
                selection.violated = violated;
                (100, Some((Outcome::Abnormal, wait)))
            }
        };
        match (at_once, self.select(&active, &caller, percent, lines.as_deref_mut())) {
            (None, Some(set)) => self.charge_or_plan(set, &caller, lines),
            (at_once, set) => {
                let (outcome, wait) = at_once.unwrap_or((Outcome::Unlimited, None));
                selection.set = set;
                Question::Decided(Decision::without_policies(outcome, wait), selection)
            }
        }
    }

    #[inline]
    fn charge_or_plan(
        &self,
        set: Arc<QuotaSet>,
        caller: &KeyedRequest<'_>,
        lines: Option<&mut Vec<String>>,
    ) -> Question {
        let request = caller.request;
        if let Some(lines) = lines {
            return self.explained_plan(set, caller, lines);
        }
        let holder = |key| self.keys.attribute(&self.limiter, caller, key, &self.log);
        let question = self.limiter.0.charge(set, self.cost.of(request), holder);
        self.with_units(question, request, |request| self.watched_bytes(request))
    }

    #[cold]
    fn explained_plan(&self, set: Arc<QuotaSet>, caller: &KeyedRequest<'_>, lines: &mut Vec<String>) -> Question {
        let (limiter, request) = (&*self.limiter.0, caller.request);
        let mut holder = |key| self.explain_key(caller, key, lines);
        let planned = Question::planned(limiter.plan(&set, self.cost.of(request), &mut holder), set);
        self.with_units(planned, request, announced_bytes)
    }

    /// During a rollout, the policies depend on the caller, whose partition is then computed again for the plan.
    #[cold]
    pub(super) fn partition(&self, caller: &KeyedRequest<'_>) -> Option<PartitionId> {
        let main = self.keys.holder(&self.limiter.0.keys, caller, None);
        Some(main.ok()??.partition)
    }

    #[inline]
    fn select(
        &self,
        active: &Active,
        caller: &KeyedRequest<'_>,
        percent: u8,
        lines: Option<&mut Vec<String>>,
    ) -> Option<Arc<QuotaSet>> {
        let (request, mut asked) = (caller.request, None);
        let tier = || *asked.insert(self.tiers.tier_of(request));
        let (partition, now) = (|| self.partition(caller), || self.limiter.0.guard.now());
        let set = active.select(percent, partition, tier, || caller_quotas(request), now);
        if let Some(lines) = lines {
            self.explain_selection(active, caller, asked, set.as_deref(), lines);
            return set.map(Cow::into_owned);
        }
        if asked == Some(Err(NoTier::First)) && self.tiers.has_not_asked(request) {
            self.log.unresolved_tier();
        }
        let set = set?;
        if set.replaces(asked.and_then(Result::ok)) {
            self.log.unknown_tier();
        }
        Some(set.into_owned())
    }

    /// Checks some requests for layers in the wrong order, and for misconfigured client addresses in the
    /// screening. Keys are checked when they are extracted.
    #[inline]
    pub(super) fn watch(&self, request: &mut Parts) {
        if self.log.is_watching() {
            self.check_first_request(request);
        }
    }

    #[cold]
    fn check_first_request(&self, request: &mut Parts) {
        let is_marked = self.log.watched();
        if is_marked || request.extensions.get::<PassedLayers>().is_some() {
            let passed = request.extensions.get_or_insert_default::<PassedLayers>();
            if passed.note(&self.neighbour) {
                self.log.layer_twice();
            }
        }
        let mut findings = Diagnostics::default();
        self.screening.diagnose(request, &mut findings);
        if let Some(list) = &self.limiter.0.access_list {
            list.diagnose(request, &mut findings);
        }
        if !findings.found.is_empty() || !findings.parts.is_empty() {
            self.log.found(findings);
        }
    }

    /// Makes no decision if the request is admitted and nobody can read the decision before the response.
    #[inline]
    pub(super) fn judge_charge(&self, charge: MemoryCharge, request: &mut Parts) -> Admission {
        if !charge.charged.fits {
            return Admission::Reject(self.reject_charge(charge, request));
        }
        if self.decision_in_request || request.extensions.get::<WithPermit>().is_some() {
            let (decision, set) = charge.decide();
            return self.judge_marked(decision, Selection::of(set), request);
        }
        self.log.allowed(charge.set.tier());
        self.log.resume_watching(Some(charge.charged.now));
        Admission::Call(Admitted::Charged(charge))
    }

    pub(super) fn judge(&self, mut decision: Decision, selection: Selection, request: &mut Parts) -> Admission {
        if selection.set.as_ref().is_some_and(|set| set.is_reduced) {
            decision.set_reduced_capacity();
        }
        self.judge_marked(decision, selection, request)
    }

    fn judge_marked(&self, decision: Decision, selection: Selection, request: &mut Parts) -> Admission {
        self.limiter.0.log_decision(&self.log, &decision, &selection);
        if !decision.outcome().is_admitted() {
            let fields = self.prepared(selection.set.as_deref());
            let told = self.view.fields().told(&decision, fields);
            return Admission::Reject(self.reject(decision, &told, &selection, request));
        }
        self.log.resume_watching(decision.now());
        self.admit(decision, selection.set, request)
    }

    pub(super) fn scope_name(&self) -> &str {
        self.limiter.scope()
    }

    #[inline]
    fn with_units(
        &self,
        question: Question,
        request: &Parts,
        announced: impl FnOnce(&Parts) -> Option<u64>,
    ) -> Question {
        let Question::Plan(mut plan, selection) = question else {
            return question;
        };
        if let Some(set) = &selection.set {
            let units = &set.view(self.view.position).units;
            plan = self.cost.in_units(plan, units, request);
            if set.counts_request_bytes {
                plan = plan.with_content_bytes(announced(request).unwrap_or(0), 0);
            }
        }
        Question::Plan(plan, selection)
    }

    /// Returns the announced length. Logs an event if the length is unknown and no layer counts the bytes.
    fn watched_bytes(&self, request: &Parts) -> Option<u64> {
        let length = announced_bytes(request);
        let has_content = !request.method.is_safe() || request.headers.contains_key(header::TRANSFER_ENCODING);
        if length.is_none() && has_content && request.extensions.get::<Reader>().is_none() {
            self.log.uncounted_content();
        }
        length
    }

    /// Keeps the charge open if its cost may still change.
    #[inline]
    fn admit(&self, decision: Decision, policies: Option<Arc<QuotaSet>>, request: &mut Parts) -> Admission {
        if self.decision_in_request {
            request.extensions.insert(Decision::clone(&decision));
        }
        let stays_open = policies.as_ref().is_some_and(|set| set.stays_open);
        let stays_open = stays_open || request.extensions.get::<WithPermit>().is_some();
        if stays_open && decision.charged() != Costs::NOTHING {
            return self.admit_open(decision, policies, request);
        }
        Admission::Call(Admitted::Decided {
            decision,
            policies,
            charge: None,
        })
    }

    /// Only requests with an open charge are queued, because another charge could not be refunded if the service failed
    /// during the delay.
    #[inline(never)]
    fn admit_open(&self, decision: Decision, policies: Option<Arc<QuotaSet>>, request: &mut Parts) -> Admission {
        let told = decision.clone();
        let charge = OpenCharge::new(Arc::clone(&self.limiter.0.guard), decision, &request.method);
        if policies.as_ref().is_some_and(|set| set.counts_request_bytes)
            && let Some(reader) = request.extensions.get::<Reader>()
        {
            reader.count_for(&charge);
        }
        let outer = request.extensions.remove();
        request.extensions.insert(WeakPermit::new(&charge, outer));
        let delay = told.delay();
        let admitted = Admitted::Decided {
            decision: told,
            policies,
            charge: Some(charge),
        };
        if delay.is_zero() {
            return Admission::Call(admitted);
        }
        self.log.queued(telemetry::now(), delay);
        Admission::Queue(delay, admitted)
    }

    fn log_cost_above_capacity(&self, decision: &Decision) {
        let is_dear = |by: &Allowance<'_>| by.retry_after().is_none() && !by.policy().is_closed();
        if let Some(never) = decision.violated().find(is_dear) {
            self.log.cost_above_capacity(never.policy(), never.cost());
        }
    }

    /// Not inlined, so that admitted requests run through less code.
    #[inline(never)]
    fn reject_charge(&self, charge: MemoryCharge, request: &Parts) -> Response<Bytes> {
        let (fields, policies) = (self.view.fields(), charge.policies());
        let policy = || charge.charged.rejecting_policy(policies);
        self.log.rejected(charge.set.tier(), policy);
        let takes_numbers = charge.set.view(self.view.position).takes_numbers;
        let told = takes_numbers.then(|| fields.told_of_charge(&charge.charged, policies));
        let (decision, set) = charge.decide();
        let told = told.unwrap_or_else(|| fields.told(&decision, self.prepared(Some(&set))));
        self.reject(decision, &told, &Selection::of(set), request)
    }

    #[inline(never)]
    fn reject(&self, decision: Decision, told: &Told, selection: &Selection, request: &Parts) -> Response<Bytes> {
        // A violated policy without a wait leaves the decision without a wait.
        if told.wait().is_none() {
            self.log_cost_above_capacity(&decision);
        }
        let fields = self.prepared(selection.set.as_deref());
        let status = self.screening.rejection_status(decision.outcome(), self.status);
        let violated = selection.violated_by(decision.outcome());
        let view = selection.set.as_ref().map(|set| set.view(self.view.position));
        let known = view.zip(told.violated.filter(|violated| *violated != 0));
        let rejection = Rejection::new(&decision, request, self.scope_name())
            .with_status(status)
            .with_wait(told.wait())
            .showing_keys(self.view.fields().can_show_partition_keys())
            .naming(&violated)
            .with_known(known.map(|(view, violated)| (&*view.rejections, violated)));
        let is_kept = |view: &SetView| view.keeps_rejections && self.responder.is_default();
        let kept = known.filter(|(view, _)| is_kept(view) && rejection.is_by_quotas() && !rejection.is_grpc());
        let known = || kept.and_then(|(view, violated)| view.rejections.get(status, violated));
        let mut response = match known().and_then(|known| known.response(told, fields)) {
            Some(response) => response,
            None => {
                let mut response = self.responder.respond(&rejection);
                self.view.fields().tell(&decision, fields, told, &mut response);
                if let Some(known) = known() {
                    known.keep(&response);
                }
                response
            }
        };
        self.insert_decision(decision, &mut response);
        response
    }
}
