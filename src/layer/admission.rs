//! What all services of one layer share: who is counted, by which policies, and what the client is told.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Extensions, Response, StatusCode, header, request, request::Parts, response};
use http_body::Body;

use super::{
    body::RateLimitBody,
    charge::{ActualCost, OpenCharge, SlotHandle},
    content::Reader,
};
use crate::{
    clock::Clock,
    decision::{Decision, Outcome},
    guard::{Deciding, Guard},
    key::KeyExtractor,
    partition::{PartitionId, PartitionKey, Scope},
    plan::{Costs, Plan},
    rejection::{Rejection, Responder},
    response_fields::{Delay, PolicyFields},
    rules::{FollowUp, Policies, QuotaSet, Selection},
    screening::{Caller, Screened, Screening},
    settlement::Settlement,
    telemetry::LayerTelemetry,
};

/// What happens to a request for which no key is found, or not one of the
/// [named keys](crate::RateLimitLayerBuilder::named_key).
///
/// A client may be able to have no key by what it sends: see
/// [`trusted_proxies`](crate::key::ClientIp::trusted_proxies). So no choice but [`Allow`](Self::Allow) lets a request
/// without a key escape the limits.
///
/// ```
/// # use http::{Request, Response};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # use tower_quota::{MemoryStore, QuotaPolicy, RateLimitBody, RateLimitLayer, key};
/// # async fn send(layer: &RateLimitLayer, request: http::request::Builder) -> Response<RateLimitBody<String>> {
/// #     let inner = service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
/// #     layer.layer(inner).oneshot(request.body(()).unwrap()).await.unwrap()
/// # }
/// # use tower_quota::NoKey;
/// # tokio_test::block_on(async {
/// let layer = |no_key| RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 100))
///     .no_key(no_key)
///     .build();
///
/// let shared = layer(NoKey::Share)?;
/// send(&shared, Request::get("/from/somebody")).await;
/// let another = send(&shared, Request::get("/from/somebody/else")).await;
/// assert_eq!(another.headers()["ratelimit"], r#""hour";r=98;t=3528"#);
///
/// let uncounted = send(&layer(NoKey::Allow)?, Request::get("/")).await;
/// assert_eq!(uncounted.status(), 200);
/// assert!(!uncounted.headers().contains_key("ratelimit"));
///
/// assert_eq!(send(&layer(NoKey::Reject)?, Request::get("/")).await.status(), 403);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoKey {
    /// Pass it on, uncounted. Policies that count by a key that is found apply all the same.
    Allow,
    /// Reject it with status 403.
    Reject,
    /// Count it in one partition that all such requests share, and no other. The default. Whoever can send requests
    /// without a key can use up the quota of that partition, and of no caller who has a key.
    #[default]
    Share,
}

pub(crate) struct Limits {
    pub(super) scope: Scope,
    pub(super) scope_name: String,
    pub(super) key: Box<dyn KeyExtractor>,
    pub(super) shared_partition: PartitionId,
    pub(super) named_keys: Vec<NamedKey>,
    pub(super) readable_keys: bool,
    pub(super) no_key: NoKey,
    pub(super) screening: Screening,
    pub(super) policies: Arc<Policies>,
    pub(super) guard: Arc<Guard>,
    pub(super) responder: Responder,
    pub(super) status: StatusCode,
    pub(super) cost: Cost,
    pub(super) actual_cost: Option<Box<ActualCostOf>>,
    pub(super) decision_in_request: bool,
    pub(super) log: LayerTelemetry,
}

/// A key by which some policies count.
pub(super) struct NamedKey {
    key: Box<dyn KeyExtractor>,
    shared_partition: PartitionId,
}

impl NamedKey {
    pub(super) fn of(scope: &Scope, keys: Vec<(String, Box<dyn KeyExtractor>)>) -> Vec<Self> {
        let named = |(name, key): (String, Box<dyn KeyExtractor>)| Self {
            shared_partition: Limits::shared_partition(scope, &name),
            key,
        };
        keys.into_iter().map(named).collect()
    }
}

/// What stores know of a caller.
#[derive(Clone)]
pub(super) struct Who {
    pub(super) partition: PartitionId,
    /// What operators see in its place, if that is what they want.
    pub(super) label: Option<Arc<str>>,
}

pub(super) type CostOf = dyn Fn(&request::Parts) -> u64 + Send + Sync;
pub(super) type ActualCostOf = dyn Fn(&response::Parts) -> Option<u64> + Send + Sync;

/// What a request costs before anybody knows better.
pub(super) enum Cost {
    Of(Box<CostOf>),
    Same(u64),
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(_) => f.write_str("Cost::Of(..)"),
            Self::Same(cost) => write!(f, "Cost::Same({cost})"),
        }
    }
}

/// A decision, the policies that it is about, and what is open of the request's charge.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) decision: Decision,
    pub(super) policies: Option<Arc<QuotaSet>>,
    pub(super) charge: Option<Arc<OpenCharge>>,
}

impl Verdict {
    /// The inner service is called now.
    pub(super) fn passed_on(&self) {
        if let Some(charge) = &self.charge {
            charge.passed_on();
        }
    }

    /// The inner service has failed before it could be called: nothing stays charged.
    pub(super) fn unserved(self) {
        if let Some(charge) = &self.charge {
            charge.unserved();
        }
    }
}

/// When an allowed request is passed on.
pub(super) enum Turn {
    In(Duration),
    Now,
}

impl Turn {
    pub(super) fn of(limits: &Limits, verdict: &Verdict) -> Self {
        // Of what is not open, nothing could be given back if the service fails meanwhile.
        if verdict.charge.is_none() {
            return Self::Now;
        }
        match verdict.decision.delay() {
            Duration::ZERO => Self::Now,
            delay => {
                limits.log.queued(Clock::system().now(), &limits.scope_name, delay);
                Self::In(delay)
            }
        }
    }
}

impl Limits {
    /// The partition of requests without this key.
    pub(super) fn shared_partition(scope: &Scope, name: &str) -> PartitionId {
        scope.partition(&PartitionKey::own("no key", name.as_bytes()))
    }

    /// screening → key → policy → plan → guard
    pub(super) fn decide(&self, request: &Parts) -> (Deciding, Selection) {
        let active = self.policies.active();
        let caller = Caller::new(request, &*self.key);
        let screened = self.screening.screen(&caller);
        if !active.is_on() && !matches!(screened, Screened::Decided(Outcome::Blocked, _)) {
            return (
                Deciding::Decided(Decision::unmeasured(Outcome::Unlimited)),
                Selection::default(),
            );
        }
        // While new rules are tried or grants given, policies depend on who the caller is.
        let known = active.depends_on_caller().then(|| self.partition(&caller, None));
        let known_partition = known
            .as_ref()
            .and_then(|known| known.as_ref().ok())
            .map(|who| who.partition);
        let mut selection = self.policies.select(&active, request, known_partition);
        if selection.is_unknown {
            self.log.unknown_tier(&self.scope_name);
        }
        let decided = |outcome, wait| Deciding::Decided(Decision::without_policies(outcome, wait));
        let percent = match screened {
            Screened::Counted(percent) => percent,
            Screened::Decided(outcome, wait) => return (decided(outcome, wait), selection),
        };
        let Some(set) = &selection.set else {
            return (decided(Outcome::Unlimited, None), selection);
        };
        let mut set = self.policies.at_capacity(set, percent);
        if let Some(partition) = known_partition {
            set = self.policies.granted(&active, set, partition, || self.guard.now());
        }
        let deciding = match self.plan(&set, &caller, known) {
            Ok(plan) => self.guard.decide(plan),
            Err(outcome) => decided(outcome, None),
        };
        selection.set = Some(set);
        (deciding, selection)
    }

    /// What the store is asked, or what becomes of a request without a key.
    fn plan(&self, set: &QuotaSet, caller: &Caller<'_>, known: Option<Result<Who, Outcome>>) -> Result<Plan, Outcome> {
        let request = caller.request();
        let cost = match &self.cost {
            Cost::Of(cost) => cost(request),
            Cost::Same(cost) => *cost,
        };
        let mut plan: Option<Plan> = None;
        for part in &set.parts {
            let known = known.clone().filter(|_| part.key.is_none());
            let who = match known.unwrap_or_else(|| self.partition(caller, part.key)) {
                Ok(who) => who,
                // Policies that count by another key apply all the same.
                Err(Outcome::Unlimited) => continue,
                Err(outcome) => return Err(outcome),
            };
            let extended = match plan {
                Some(plan) => plan.and(part.policies.clone(), who.partition),
                None => Plan::new(part.policies.clone(), who.partition, cost),
            };
            plan = Some(extended.labelled(who.partition, who.label.as_ref()));
        }
        let plan = plan.ok_or(Outcome::Unlimited)?;
        if set.follow_up.counts_request_bytes {
            return Ok(plan.with_content_bytes(self.announced_bytes(request), 0));
        }
        Ok(plan)
    }

    /// Whose quota a request uses by the main key or one that has a name, or what becomes of it because nobody knows.
    fn partition(&self, caller: &Caller<'_>, key: Option<usize>) -> Result<Who, Outcome> {
        let (who, shared_partition) = match key.map(|key| &self.named_keys[key]) {
            Some(named) => {
                let key = named.key.extract(caller.request());
                (key.map(|key| self.who(&key)), named.shared_partition)
            }
            None => (caller.key().map(|key| self.who(key)), self.shared_partition),
        };
        if let Some(who) = who {
            return Ok(who);
        }
        self.log.no_key(&self.scope_name);
        match self.no_key {
            NoKey::Allow => Err(Outcome::Unlimited),
            NoKey::Reject => Err(Outcome::Unattributed),
            NoKey::Share => Ok(Who {
                partition: shared_partition,
                label: None,
            }),
        }
    }

    /// What stores know of a caller.
    pub(super) fn who(&self, key: &PartitionKey) -> Who {
        Who {
            partition: self.scope.partition(key),
            label: self.readable_keys.then(|| self.label(key)).flatten(),
        }
    }

    /// `scope/kind:value`; a digest is as good for what is too long to be read.
    fn label(&self, key: &PartitionKey) -> Option<Arc<str>> {
        const MAX_LENGTH: usize = 200;

        let scope = PartitionKey::new("scope", &self.scope_name).and(key.clone());
        scope.to_text(MAX_LENGTH).map(Arc::from)
    }

    /// The length that a request says its content has.
    fn announced_bytes(&self, request: &Parts) -> u64 {
        let length = request.headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let has_content = !request.method.is_safe() || request.headers.contains_key(header::TRANSFER_ENCODING);
        if length.is_none() && has_content && request.extensions.get::<Reader>().is_none() {
            self.log.uncounted_content(&self.scope_name);
        }
        length.unwrap_or(0)
    }

    /// Before the inner service is called: keeps the charge open if anything of it may still change.
    pub(super) fn admit(&self, decision: Decision, selection: Selection, request: &mut Parts) -> Verdict {
        self.log.decided(&self.scope_name, selection.tier(), &decision);
        self.log_shadows(&decision, &selection);
        let policies = selection.set;
        let decision = with_capacity(decision, policies.as_deref());
        if self.decision_in_request {
            request.extensions.insert(decision.clone());
        }
        let follow_up = policies.as_ref().map_or(FollowUp::NOTHING, |set| set.follow_up);
        if !follow_up.is_needed() || decision.charged() == Costs::NOTHING {
            return Verdict {
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
        Verdict {
            decision: told,
            policies,
            charge: Some(charge),
        }
    }

    fn log_shadows(&self, decision: &Decision, selection: &Selection) {
        if !selection.set.as_ref().is_some_and(|set| set.has_shadows) {
            return;
        }
        for would_reject in decision.shadow_violated() {
            let (now, policy) = (Clock::system().now(), would_reject.policy().name());
            self.log.would_reject(now, &self.scope_name, selection.tier(), policy);
        }
    }

    /// The response to a request that is rejected.
    pub(super) fn reject(&self, decision: Decision, selection: &Selection, request: &Parts) -> Response<Bytes> {
        self.log.decided(&self.scope_name, selection.tier(), &decision);
        let policies = selection.set.as_deref();
        let never = decision.violated().find(|allowance| allowance.retry_after().is_none());
        if let Some(never) = never {
            self.log
                .cost_above_capacity(&self.scope_name, never.policy(), never.cost());
        }
        let decision = with_capacity(decision, policies);
        let delay = self.policies.fields().delay();
        let wait = self.policies.fields().rejection_wait(&decision, delay);
        let status = self.screening.rejection_status(decision.outcome(), self.status);
        let rejection = Rejection::new(&decision, request, status, wait);
        let mut response = self.responder.respond(&rejection);
        self.tell(decision, policies, delay, &mut response);
        response
    }

    /// The inner service has answered: settles what is known by now, and tells the client.
    pub(super) fn answer<B: Body<Data = Bytes>>(
        &self,
        verdict: Verdict,
        response: Response<B>,
    ) -> Response<RateLimitBody<B>> {
        let Verdict {
            mut decision,
            policies,
            mut charge,
        } = verdict;
        let (mut head, body) = response.into_parts();
        if decision.admitted().is_some() {
            if is_rejected(&head.extensions) {
                self.give_back(&mut decision, charge.take());
            } else {
                self.settle(&mut decision, charge.as_deref(), &head, &body);
            }
        }
        let mut response = Response::from_parts(head, ());
        self.tell(
            decision,
            policies.as_deref(),
            self.policies.fields().delay(),
            &mut response,
        );
        head = response.into_parts().0;
        let charge = charge.filter(|_| !body.is_end_stream());
        Response::from_parts(head, RateLimitBody::passed(body, charge))
    }

    /// Nothing was done for the request: a layer of ours inside of this one has rejected it.
    fn give_back(&self, decision: &mut Decision, charge: Option<Arc<OpenCharge>>) {
        match charge {
            Some(charge) => charge.unserved(),
            None => self.guard.settle(decision, Settlement::unused(decision)),
        }
        decision.set_charged(Costs::NOTHING);
    }

    fn settle(
        &self,
        decision: &mut Decision,
        charge: Option<&OpenCharge>,
        head: &response::Parts,
        body: &impl Body<Data = Bytes>,
    ) {
        let told = head.extensions.get::<ActualCost>().map(|ActualCost(cost)| *cost);
        let cost = told.or_else(|| self.actual_cost.as_ref()?(head));
        let mut charged = decision.charged();
        charged.requests = cost.unwrap_or(charged.requests);
        match charge {
            Some(charge) => charge.announce(&mut charged, body.size_hint().exact()),
            None if charged != decision.charged() => {
                self.guard.settle(decision, Settlement::change(decision, charged));
            }
            None => {}
        }
        decision.set_charged(charged);
    }

    /// Adds what the client is told.
    fn tell<B>(&self, decision: Decision, policies: Option<&QuotaSet>, delay: Delay, response: &mut Response<B>) {
        let nothing = PolicyFields::default();
        let fields = policies.map_or(&nothing, |set| &set.fields);
        self.policies.fields().tell(&decision, fields, delay, response);
        // A layer of ours inside of this one may have rejected what this one has allowed.
        if !is_rejected(response.extensions()) {
            // The charge is the layer's: what others find here can be read, and not settled.
            let _ = decision.take_receipt();
            response.extensions_mut().insert(decision);
        }
    }
}

/// The decision, if it was made by lowered policies with a note of that.
fn with_capacity(decision: Decision, policies: Option<&QuotaSet>) -> Decision {
    if policies.is_some_and(|set| set.is_reduced) {
        return decision.made_with_reduced_capacity();
    }
    decision
}

/// Whether a layer of ours has rejected the request that this is the response to.
fn is_rejected(response: &Extensions) -> bool {
    let decision = response.get::<Decision>();
    decision.is_some_and(|decision| !decision.outcome().is_pass())
}
