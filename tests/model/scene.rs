//! The real layers next to the model: both take each step, and everything observable is compared.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, header, request::Parts};
use http_body_util::BodyExt;
use proptest::{prelude::*, test_runner::TestCaseError};
use tokio::{
    task::yield_now,
    time::{advance, timeout},
};
use tower::{Service as _, ServiceExt};
use tower_quota::{
    AccessList, Algorithm, Caller, ChargeTime, Decision, Exemption, FailureMode, Limiter, MemoryStore, PartitionId,
    PartitionKey, Permit, Plan, PolicySet, QuotaUnit, RateLimitLayer, Refund, RefundOutcome, Scope, Store, Tiers,
    WithPermit,
    clock::{Clock, Timestamp},
    key,
};

use super::{
    accounts::Verdict,
    expected::{Charge, Decided, Holder, Model, Observed, Part, StoreId, merged, sorted},
    fields::{Answer, Lists},
    handler::{AnyBody, Order, Passed, Service, finish, handler, report, wrapped},
    remote::Remote,
    settings::{Dialect, Setting},
    steps::{Ask, AskForm, End, Pass, PermitEnd, Sent, Step},
};

/// The first moment of 2026, where every window begins.
const START: u64 = 1_767_225_600_000_000;

const SCOPES: [&str; 2] = ["outer", "inner"];

type Check = Result<(), TestCaseError>;

pub struct Scene {
    setting: Setting,
    model: Model,
    clock: Clock,
    /// The main one and the fallback, in memory and as the limiters see them.
    memory: [MemoryStore; 2],
    stores: [Remote; 2],
    access: AccessList,
    limiters: Vec<Limiter>,
    /// The sets of policies of the model, as stores know them.
    sets: HashMap<usize, PolicySet>,
    service: Service,
    passed: Passed,
    /// Responses that are not read yet, and the charges of their requests.
    kept: Vec<(AnyBody, Vec<Charge>, Sent)>,
    permits: Vec<(Permit, Option<Charge>)>,
    /// The wait of the last rejection, and the whole seconds that the client received.
    wait: (Duration, u64),
}

/// The end of a request.
enum Seen {
    Answered(Response<AnyBody>),
    Failed,
    Cancelled,
}

fn number(request: &Parts, name: &str) -> u64 {
    request.headers[name].to_str().unwrap().parse().unwrap()
}

fn layer(limiter: &Limiter, dialect: Dialect) -> Option<RateLimitLayer> {
    RateLimitLayer::with_limiter(limiter.clone())
        .key(key::header("x-user-id"))
        .named_key("team", key::header("x-team"))
        .tiers(Tiers::from_fn(|request| request.headers.get("x-tier")?.to_str().ok()))
        .cost_by(|request| number(request, "x-cost"))
        .unit_cost("tokens", |request| number(request, "x-tokens"))
        .exempt(Exemption::path("/health"))
        .response_fields(dialect.fields())
        .decision_in_request()
        .decision_in_response()
        .build()
        .ok()
}

fn user(caller: u8) -> PartitionKey {
    PartitionKey::new("x-user-id", caller.to_string())
}

fn team(team: u8) -> PartitionKey {
    PartitionKey::new("x-team", team.to_string())
}

/// Requests without a key share one that has no name for a test.
fn partition(holder: Holder) -> Option<PartitionId> {
    match holder {
        Holder::User(limiter, caller) => Some(Scope::new(SCOPES[limiter]).partition(&user(caller?))),
        Holder::Team(limiter, number) => Some(Scope::new(SCOPES[limiter]).keyed_by("team").partition(&team(number))),
    }
}

impl Scene {
    /// `None` if the settings are not valid.
    pub fn new(setting: &Setting) -> Option<Self> {
        let clock = Clock::manual(Timestamp::from_micros(START));
        let memory = [(); 2].map(|()| MemoryStore::builder().clock(clock.clone()).build().unwrap());
        let stores = [
            Remote::new(memory[0].clone(), setting.is_remote),
            Remote::new(memory[1].clone(), false),
        ];
        let access = AccessList::new(key::client_ip());
        let limiters = setting.limiters.iter().zip(SCOPES).map(|(limiter, scope)| {
            let builder = Limiter::builder(stores[0].clone())
                .scope(scope)
                .clock(clock.clone())
                .access_list(access.clone())
                .named_key("team")
                .rules(limiter.rules[0].rules())
                .rejection_cache(if limiter.has_cache { 100 } else { 0 })
                .failure_mode(if limiter.fails_closed {
                    FailureMode::Closed
                } else {
                    FailureMode::Open
                });
            let builder = if setting.has_fallback {
                builder.fallback(stores[1].clone())
            } else {
                builder
            };
            builder.build().ok()
        });
        let limiters: Vec<Limiter> = limiters.collect::<Option<_>>()?;
        let mut setting = setting.clone();
        let (passed, mut service) = (Passed::default(), handler());
        for layer_setting in setting.layers.iter_mut().rev() {
            let limiter = &limiters[layer_setting.limiter];
            let built = layer(limiter, layer_setting.dialect).or_else(|| {
                // Older dialects cannot show all policies.
                layer_setting.dialect = Dialect::Draft11;
                layer(limiter, Dialect::Draft11)
            });
            service = wrapped(&built?, service, &passed, &stores);
        }
        Some(Self {
            model: Model::new(&setting, START.into()),
            setting,
            clock,
            memory,
            stores,
            access,
            limiters,
            sets: HashMap::new(),
            service,
            passed,
            kept: vec![],
            permits: vec![],
            wait: Default::default(),
        })
    }

    pub async fn take(&mut self, step: &Step) -> Check {
        let limiter = |number: usize| number % self.limiters.len();
        match step {
            Step::Pass(pass) => self.pass(*pass),
            Step::Send(sent) => self.send(sent).await?,
            Step::Body { which, is_read } => {
                if let Some(position) = self.kept.len().checked_sub(which + 1) {
                    let (body, charges, sent) = self.kept.remove(position);
                    self.end_body(body, charges, &sent, *is_read).await;
                }
            }
            Step::Ask {
                limiter: number,
                ask,
                form,
            } => self.ask(limiter(*number), ask, *form).await?,
            Step::Permit { which, end } => self.end_permit(*which, *end),
            Step::Refund {
                limiter: number,
                ask,
                ago,
            } => self.refund(limiter(*number), ask, *ago).await?,
            Step::Reset { limiter: number, ask } => self.reset(limiter(*number), ask).await?,
            Step::TopUp {
                limiter: number,
                caller,
                units,
                seconds,
            } => {
                let until = self.model.now + i128::from(*seconds) * 1_000_000;
                self.model.top_up(limiter(*number), *caller, *units, until);
            }
            Step::Replace { limiter: number, rules } => {
                let number = limiter(*number);
                let new = self.setting.limiters[number].rules[*rules].rules();
                if self.limiters[number].rules().replace(new).is_ok() {
                    self.model.limiters[number].rules = *rules;
                    self.model.limiters[number].has_several_rules = true;
                }
            }
            Step::Switch { limiter: number, is_on } => {
                let rules = self.limiters[limiter(*number)].rules();
                if *is_on {
                    rules.enable()
                } else {
                    rules.disable()
                }
                self.model.limiters[limiter(*number)].is_off = !is_on;
            }
            Step::Access { caller, access } => {
                self.access
                    .update(|rules| rules.set_key(user(*caller), *access))
                    .unwrap();
                self.model.access.insert(*caller, *access);
            }
            Step::Fault(fault) => {
                *self.stores[0].fault() = *fault;
                self.model.fault = *fault;
            }
        }
        self.settle_down().await;
        self.compare_all().await
    }

    /// Ends all work and checks that nothing is held afterwards.
    pub async fn finish(mut self) -> Check {
        self.take(&Step::Fault(None)).await?;
        while let Some((body, charges, sent)) = self.kept.pop() {
            self.end_body(body, charges, &sent, false).await;
        }
        while !self.permits.is_empty() {
            self.end_permit(0, PermitEnd::Drop);
        }
        self.settle_down().await;
        self.compare_all().await?;
        for (_, (.., policies), verdict) in self.all_left(StoreId::Main) {
            for (told, policy) in verdict.policies.iter().zip(&*policies) {
                let is_slots = policy.unit() == QuotaUnit::ConcurrentRequests;
                let is_free = told.remaining == i128::from(policy.quota());
                prop_assert!(!is_slots || is_free || self.model.has_lost_slots, "{:?}", told);
            }
        }
        Ok(())
    }

    /// The number of calls of each store.
    fn calls(&self) -> [usize; 2] {
        self.stores.each_ref().map(Remote::calls)
    }

    /// Tasks of cancelled requests come to their ends.
    async fn settle_down(&self) {
        for _ in 0..4 {
            yield_now().await;
        }
    }

    fn pass(&mut self, pass: Pass) {
        let (wait, told) = self.wait;
        let time = match pass {
            Pass::Micros(micros) => Duration::from_micros(micros),
            Pass::AlmostTheWait => wait.saturating_sub(Duration::from_micros(1)),
            Pass::TheWait => wait,
            Pass::RetryAfter => Duration::from_secs(told),
        };
        self.clock.advance(time);
        self.model.now = self.clock.now().as_micros().into();
    }

    async fn send(&mut self, sent: &Sent) -> Check {
        let order = Order {
            work: sent.work.clone(),
            has_begun: Arc::default(),
        };
        let before = self.calls();
        self.passed.lock().unwrap().clear();
        let mut service = self.service.clone();
        let call = service.ready().await.unwrap().call(self.request(sent, &order));
        let seen = self.drive(call, sent.polls).await;
        let passed = std::mem::take(&mut *self.passed.lock().unwrap());
        let (mut charges, mut answers, mut asked) = (vec![], vec![], before);
        let mut rejected = None;
        for (number, setting) in self.setting.layers.clone().into_iter().enumerate() {
            let (decision, by_now) = match (passed.get(number), &seen) {
                (Some((decision, calls)), _) => (Some(decision), *calls),
                (None, Seen::Answered(response)) => (response.extensions().get(), self.calls()),
                (None, _) => (None, self.calls()),
            };
            if decision.is_none() && by_now == asked {
                // The request was cancelled before it called a store.
                self.model.abandoned(setting.limiter, &sent.ask);
                break;
            }
            let observed = Observed {
                is_asked: by_now[0] > asked[0],
                decision,
            };
            asked = by_now;
            let decided = self
                .model
                .decide(setting.limiter, (&sent.ask, true), sent.is_exempt, &observed)?;
            let has_passed = passed.get(number).is_some();
            if decision.is_some() {
                prop_assert_eq!(has_passed, decided.outcome.is_admitted());
            }
            rejected = rejected.or(decision.filter(|_| !has_passed).cloned());
            let Decided {
                outcome,
                policies,
                told,
                charge,
            } = decided;
            answers.push(Answer {
                dialect: setting.dialect,
                outcome,
                policies,
                told,
            });
            charges.push(charge);
            if !has_passed {
                break;
            }
        }
        let has_begun = order.has_begun.load(Ordering::SeqCst);
        if has_begun {
            self.hand_on(sent, &mut charges);
        }
        match seen {
            Seen::Answered(response) => self.answered(sent, response, charges, answers, rejected).await,
            Seen::Failed => {
                charges
                    .into_iter()
                    .flatten()
                    .rev()
                    .for_each(|charge| self.model.end(charge));
                Ok(())
            }
            Seen::Cancelled => {
                let count = passed.len();
                // A layer passes a request on when its turn has come.
                for (number, charge) in charges.into_iter().enumerate().rev() {
                    match charge {
                        Some(charge) if number < count => self.model.end(charge),
                        Some(charge) => self.model.cancel(charge),
                        None => {}
                    }
                }
                Ok(())
            }
        }
    }

    /// Waits for the response, or drops the request after `polls` polls.
    async fn drive<F>(&self, call: F, polls: Option<usize>) -> Seen
    where
        F: Future<Output = Result<Response<AnyBody>, &'static str>>,
    {
        let mut call = Box::pin(AssertUnwindSafe(call).catch_unwind());
        let Some(polls) = polls else {
            return match call.await {
                Ok(Ok(response)) => Seen::Answered(response),
                Ok(Err(_)) | Err(_) => Seen::Failed,
            };
        };
        for _ in 0..polls {
            if let Some(Ok(Ok(response))) = pin!(&mut call).now_or_never() {
                return Seen::Answered(response);
            }
            yield_now().await;
        }
        drop(call);
        // The decision is made despite the cancellation, no later than its deadline.
        advance(Duration::from_millis(200)).await;
        self.settle_down().await;
        Seen::Cancelled
    }

    /// The handler uses its permit.
    fn hand_on(&mut self, sent: &Sent, charges: &mut [Option<Charge>]) {
        for charge in charges.iter_mut().flatten().filter(|_| uses_permit(sent)) {
            for said in &sent.work.reports {
                self.model.report(charge, *said);
            }
            match sent.work.permit {
                None | Some(PermitEnd::Drop) => {}
                Some(PermitEnd::Settle(cost)) => charge.cost(cost),
                Some(PermitEnd::Refund) => {
                    charge.cost(0);
                    charge.waive_estimates();
                }
                Some(PermitEnd::Report(said)) => self.model.report(charge, said),
            }
        }
    }

    async fn answered(
        &mut self,
        sent: &Sent,
        response: Response<AnyBody>,
        mut charges: Vec<Option<Charge>>,
        mut answers: Vec<Answer>,
        rejected: Option<Decision>,
    ) -> Check {
        let is_empty = rejected.is_none() && sent.work.end == End::Empty;
        let actual = sent.work.actual.filter(|_| rejected.is_none());
        for (charge, answer) in charges.iter_mut().zip(&mut answers).rev() {
            let Some(charge) = charge else { continue };
            charge.has_ended = is_empty;
            if rejected.is_some() {
                charge.waive_estimates();
            }
            self.model.begin_response(charge, actual);
            answer.told = self.model.told_after(charge, &answer.told);
        }
        // The reported time of such a debt is inexact: a reading does not include when the units of a log expire, and a
        // bucket keeps its old rate until the first charge by other rules.
        let is_late = charges.iter().flatten().any(Charge::is_late);
        let mut policies = answers.iter().flat_map(|answer| &answer.policies);
        let is_vague = policies.any(|policy| policy.algorithm() == Algorithm::SlidingWindowLog)
            || self.model.limiters.iter().any(|limiter| limiter.has_several_rules);
        let charges: Vec<Charge> = charges.into_iter().flatten().collect();
        let (head, body) = response.into_parts();
        if !is_late || !is_vague {
            check_fields(&head.headers, &answers, rejected.is_some())?;
        }
        let status = match answers.last().map(|answer| answer.outcome) {
            Some(tower_quota::Outcome::Rejected) => 429,
            Some(tower_quota::Outcome::FailedClosed) => 503,
            Some(tower_quota::Outcome::Blocked) => 403,
            _ => 200,
        };
        prop_assert_eq!(head.status.as_u16(), status);
        if let Some(rejected) = &rejected {
            let content = body.collect().await.unwrap().to_bytes();
            let problem: serde_json::Value = serde_json::from_slice(&content).unwrap();
            if status == 429 {
                let mut names: Vec<String> = serde_json::from_value(problem["violated-policies"].clone()).unwrap();
                names.sort();
                prop_assert_eq!(names, answers.last().unwrap().violated());
            }
            if let Some(wait) = rejected.retry_after() {
                let told = head.headers[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
                self.wait = (wait, told);
            }
            self.end_charges(charges, true);
            return Ok(());
        }
        match sent.work.end {
            End::Empty | End::Read => self.end_body(body, charges, sent, true).await,
            End::Kept => self.kept.push((body, charges, sent.clone())),
            _ => self.end_body(body, charges, sent, false).await,
        }
        Ok(())
    }

    async fn end_body(&mut self, body: AnyBody, mut charges: Vec<Charge>, sent: &Sent, is_read: bool) {
        if !is_read {
            drop(body);
            self.end_charges(charges, false);
            return;
        }
        body.collect().await.unwrap();
        let reports = sent
            .work
            .streamed
            .iter()
            .filter(|_| uses_permit(sent) && sent.work.end != End::Empty);
        for said in reports {
            for charge in &mut charges {
                self.model.report(charge, *said);
            }
        }
        self.end_charges(charges, true);
    }

    fn end_charges(&mut self, charges: Vec<Charge>, has_ended: bool) {
        for mut charge in charges {
            charge.has_ended |= has_ended;
            self.model.end(charge);
        }
    }

    fn request(&self, sent: &Sent, order: &Order) -> Request<String> {
        let ask = &sent.ask;
        let mut request = Request::get(if sent.is_exempt { "/health" } else { "/" })
            .header("x-team", ask.team.to_string())
            .header("x-cost", ask.cost)
            .header("x-tokens", ask.tokens)
            .extension(order.clone());
        if let Some(caller) = ask.caller {
            request = request
                .header("x-user-id", caller.to_string())
                .extension(self.model.quotas(caller));
        }
        if let Some(tier) = ask.tier {
            request = request.header("x-tier", tier);
        }
        if uses_permit(sent) {
            request = request.extension(WithPermit);
        }
        request.body(String::new()).unwrap()
    }

    fn caller(&self, limiter: usize, ask: &Ask) -> Caller {
        let number = ask.caller.unwrap_or(0);
        let caller = self.limiters[limiter]
            .caller(&user(number))
            .quotas(self.model.quotas(number));
        let caller = caller.keyed_by("team", &team(ask.team)).tier(ask.tier);
        caller.cost(ask.cost).units("tokens", ask.tokens)
    }

    async fn ask(&mut self, limiter: usize, ask: &Ask, form: AskForm) -> Check {
        let (caller, before) = (self.caller(limiter, ask), self.calls());
        let ask = &with_key(ask);
        let (permit, decision) = match form {
            AskForm::Check => (None, caller.check().await),
            AskForm::Hold => match caller.hold().await {
                Ok(permit) => {
                    let decision = permit.decision().clone();
                    (Some(permit), decision)
                }
                Err(decision) => (None, decision),
            },
            AskForm::Peek => return self.peek(limiter, ask, &caller).await,
        };
        let observed = Observed {
            is_asked: self.calls()[0] > before[0],
            decision: Some(&decision),
        };
        let slots = matches!(form, AskForm::Hold);
        let decided = self.model.decide(limiter, (ask, slots), false, &observed)?;
        prop_assert_eq!(decision.outcome(), decided.outcome);
        if let Some(permit) = permit {
            self.permits
                .push((permit, decided.charge.filter(|charge| charge.is_counted)));
        }
        Ok(())
    }

    async fn peek(&mut self, limiter: usize, ask: &Ask, caller: &Caller) -> Check {
        let told = timeout(Duration::from_secs(1), caller.clone().cost(0).peek()).await;
        let Ok(Ok(told)) = told else {
            let is_unknown = ask.tier == Some("gold");
            prop_assert!(self.model.fault.is_some() || is_unknown);
            return Ok(());
        };
        let left = self.model.left(StoreId::Main, limiter, ask);
        let expected = merged(left.into_iter().map(|(_, verdict)| verdict).collect());
        if let Some(told) = &told {
            prop_assert_eq!(sorted(Verdict::of(told)).policies, expected.policies);
        } else {
            prop_assert!(expected.policies.is_empty());
        }
        Ok(())
    }

    fn end_permit(&mut self, which: usize, end: PermitEnd) {
        let Some(position) = self.permits.len().checked_sub(which + 1) else {
            return;
        };
        let (permit, mut charge) = self.permits.remove(position);
        if let (PermitEnd::Report(said), Some(charge)) = (end, &mut charge) {
            self.model.report(charge, said);
        }
        if let PermitEnd::Report(said) = end {
            report(&permit, said);
            self.permits.push((permit, charge));
            return;
        }
        finish(permit, end);
        let Some(mut charge) = charge else { return };
        match end {
            PermitEnd::Settle(cost) => charge.cost(cost),
            PermitEnd::Refund => charge.is_unserved = true,
            PermitEnd::Drop | PermitEnd::Report(_) => {}
        }
        self.end_charges(vec![charge], true);
    }

    async fn refund(&mut self, limiter: usize, ask: &Ask, ago: Option<u64>) -> Check {
        let ask = &Ask {
            cost: ask.cost.max(1),
            ..with_key(ask)
        };
        let charged_at = ago.map(|ago| self.model.now - i128::from(ago));
        let charged = charged_at.map_or(ChargeTime::Now, |at| ChargeTime::At(Timestamp::from_micros(at as u64)));
        let refund = Refund::new(ask.cost, charged).with_units("tokens", ask.tokens);
        let caller = self.caller(limiter, ask);
        let told = timeout(Duration::from_secs(1), caller.refund(&refund)).await;
        if ask.tier == Some("gold") && matches!(told, Ok(Err(_))) {
            return Ok(());
        }
        let has_any = self.model.refund(limiter, ask, charged_at);
        match told {
            Ok(Ok(outcome)) => prop_assert_eq!(outcome == RefundOutcome::Refunded, has_any),
            Ok(Err(_)) | Err(_) => prop_assert!(self.model.fault.is_some()),
        }
        Ok(())
    }

    async fn reset(&mut self, limiter: usize, ask: &Ask) -> Check {
        let told = timeout(Duration::from_secs(1), self.caller(limiter, ask).reset()).await;
        match told {
            Ok(Ok(())) if self.model.fault.is_none() => self.model.reset(limiter, &with_key(ask)),
            told => prop_assert!(self.model.fault.is_some() && !matches!(told, Ok(Ok(())))),
        }
        Ok(())
    }

    /// The rest of each holder's policies.
    fn all_left(&mut self, store: StoreId) -> Vec<(PartitionId, Part, Verdict)> {
        let mut all = vec![];
        for limiter in 0..self.limiters.len() {
            for caller in 0..3 {
                let ask = Ask {
                    caller: Some(caller),
                    team: caller % 2,
                    tier: None,
                    cost: 0,
                    tokens: 0,
                };
                let left = self.model.left(store, limiter, &ask).into_iter();
                all.extend(left.filter_map(|(part, verdict)| Some((partition(part.0)?, part, verdict))));
            }
        }
        all
    }

    /// Compares the state of every caller with the model, because a step may affect callers other than its own.
    async fn compare_all(&mut self) -> Check {
        for (id, store) in [StoreId::Main, StoreId::Fallback].into_iter().zip(self.memory.clone()) {
            if id == StoreId::Fallback && self.stores[1].calls() == 0 {
                continue;
            }
            for (partition, (_, set, policies), expected) in self.all_left(id) {
                let known = self.sets.entry(set);
                let set = known.or_insert_with(|| PolicySet::new(policies.iter().cloned()).unwrap());
                let told = Verdict::of(&store.peek(Plan::new(set.clone(), partition, 0)).await.unwrap());
                prop_assert_eq!(told, expected, "{:?} {:?}", id, policies);
            }
        }
        Ok(())
    }
}

/// Returns `true` if the request has a permit for its handler.
fn uses_permit(sent: &Sent) -> bool {
    !sent.work.reports.is_empty() || sent.work.permit.is_some() || !sent.work.streamed.is_empty()
}

/// A limiter's caller always has a key here.
fn with_key(ask: &Ask) -> Ask {
    Ask {
        caller: Some(ask.caller.unwrap_or(0)),
        ..ask.clone()
    }
}

/// Compares the fields that all layers send, from the outermost to the one that rejected.
fn check_fields(headers: &HeaderMap, answers: &[Answer], is_rejected: bool) -> Check {
    let lists = answers.iter().rev().fold(Lists::default(), Lists::within);
    if answers
        .first()
        .is_some_and(|answer| matches!(answer.dialect, Dialect::Draft11 | Dialect::None))
    {
        prop_assert_eq!(Lists::read(headers), lists, "{:?}", answers);
    } else if let [answer] = answers {
        answer.check_closest(headers)?;
    }
    let told = headers
        .get(header::RETRY_AFTER)
        .map(|value| value.to_str().unwrap().parse().unwrap());
    let expected = answers.last().filter(|_| is_rejected).and_then(Answer::retry_after);
    prop_assert_eq!(told, expected, "{:?}", answers);
    Ok(())
}
