//! Requests that a limiter charges in its `MemoryStore` at once, next to the same requests through a store that hides
//! what it is, so that each has a plan; and next to a model of the documented arithmetic.
//!
//! `MEMORY_PATH_REQUESTS=1000000 cargo test -p tower-quota-tests --all-features --test layer memory_path` makes so many
//! requests, which differ in each run.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use proptest::{prelude::*, test_runner::RngSeed};
use tower::{Layer, Service};
use tower_quota::{
    Access, AccessList, ActualCost, Algorithm, CallerQuotas, Capacity, ChargeTime, Decision, Exemption, Limiter,
    Measurement, MemoryStore, Outcome, Permit, Plan, QuotaPolicy, RateLimitBody, RateLimitLayer, RateLimitLayerBuilder,
    Refund, ResolvedTier, ResponseFields, Rules, Settlement, Store, StoreFuture, Tiers, WeakPermit, WithPermit,
    clock::{Clock, Timestamp},
    fields::EmitWhen,
    key::{self, ForwardingField, PeerAddress},
};

use super::TextBody;

const START: u64 = 1_700_000_000_000_000;
const STEPS: usize = 60;

fn config() -> ProptestConfig {
    let requests = std::env::var("MEMORY_PATH_REQUESTS").map(|number| number.parse().expect("a number"));
    let (requests, rng_seed) = match requests {
        Ok(requests) => (requests, RngSeed::Random),
        Err(_) => (12_000, RngSeed::Fixed(0)),
    };
    ProptestConfig {
        cases: requests / STEPS as u32,
        rng_seed,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Forwards all calls but `as_memory`.
#[derive(Clone, Debug)]
struct Hidden(MemoryStore);

impl Store for Hidden {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        self.0.acquire(plan)
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.0.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.0.reset(plan)
    }
}

/// Forwards all calls, and counts those with a plan.
#[derive(Clone, Debug)]
struct Counted(MemoryStore, Arc<AtomicUsize>);

impl Store for Counted {
    fn acquire(&self, plan: Plan) -> StoreFuture<Measurement> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.acquire(plan)
    }

    fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        self.0.settle(settlement)
    }

    fn reset(&self, plan: Plan) -> StoreFuture<()> {
        self.0.reset(plan)
    }

    fn as_memory(&self) -> Option<&MemoryStore> {
        self.0.as_memory()
    }
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    name: &'static str,
    quota: u64,
    seconds: u64,
    burst: u64,
    /// Most policies have no other settings than their algorithm.
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Bucket,
    Window,
    Meter,
    Individual,
    IndividualWindow,
    Shadow,
    Hidden,
    Keyed,
    Lockout,
    Initial,
    LockingWindow,
    Sliding,
    Closed,
}

impl Limit {
    fn policy(self) -> QuotaPolicy {
        let policy = QuotaPolicy::new(self.name, self.quota, Duration::from_secs(self.seconds));
        let burst = || policy.clone().with_burst_capacity(self.burst);
        let window = || policy.clone().with_algorithm(Algorithm::FixedWindow);
        match self.kind {
            Kind::Bucket => burst(),
            Kind::Shadow => burst().shadow(),
            Kind::Hidden => burst().hidden(),
            Kind::Keyed => burst().show_partition_key(),
            Kind::Lockout => burst().with_lockout(Duration::from_secs(3)),
            Kind::Initial => burst().with_initial_units(self.burst / 2),
            Kind::Window => window(),
            Kind::LockingWindow => window().with_lockout(Duration::from_secs(3)),
            Kind::Meter => policy.with_algorithm(Algorithm::LeakyBucketMeter),
            Kind::Sliding => policy.with_algorithm(Algorithm::SlidingWindowCounter),
            Kind::Closed => QuotaPolicy::new(self.name, 0, Duration::from_secs(self.seconds)),
            Kind::Individual => policy.with_caller_quotas(1..=1_000),
            Kind::IndividualWindow => window().with_caller_quotas(1..=1_000),
        }
    }
}

fn limits(is_plain: bool) -> impl Strategy<Value = Vec<Limit>> {
    let plain = || prop_oneof![3 => Just(Kind::Bucket), 3 => Just(Kind::Window), 1 => Just(Kind::Meter)];
    let kind = prop_oneof![
        12 => plain(),
        2 => prop_oneof![Just(Kind::Individual), Just(Kind::IndividualWindow)],
        1 => prop_oneof![
            Just(Kind::Shadow), Just(Kind::Hidden), Just(Kind::Keyed), Just(Kind::Lockout), Just(Kind::Initial),
            Just(Kind::LockingWindow), Just(Kind::Sliding), Just(Kind::Closed),
        ],
    ];
    let kind = if is_plain { plain().boxed() } else { kind.boxed() };
    let limit = (1..12_u64, prop::sample::select(vec![1, 2, 7, 60]), 1..20_u64, kind);
    prop::collection::vec(limit, 1..if is_plain { 4 } else { 5 }).prop_map(|limits| {
        let limits = ["a", "b", "c", "d"].into_iter().zip(limits);
        let limit = |(name, (quota, seconds, burst, kind))| Limit {
            name,
            quota,
            seconds,
            burst,
            kind,
        };
        limits.map(limit).collect()
    })
}

#[derive(Clone, Debug)]
struct Setting {
    rules: [Vec<Limit>; 2],
    /// With one partition, each new one evicts the other.
    max_partitions: usize,
    fields: usize,
    responder: usize,
    status: u16,
    is_told_to_service: bool,
    is_told_to_client: bool,
    has_actual_cost: bool,
}

fn settings() -> impl Strategy<Value = Setting> {
    let flag = || prop::bool::weighted(0.2);
    let fields = prop_oneof![6 => Just(0), 2 => 1..FIELDS];
    let responder = prop_oneof![4 => Just(0), 1 => 1..3_usize];
    let status = prop_oneof![4 => Just(429), 1 => prop::sample::select(vec![503, 404])];
    let rules = [limits(false), limits(false)];
    let max_partitions = prop_oneof![6 => Just(1_000), 1 => Just(1)];
    (
        (rules, max_partitions),
        fields,
        responder,
        status,
        flag(),
        flag(),
        flag(),
    )
        .prop_map(
            |(
                (rules, max_partitions),
                fields,
                responder,
                status,
                is_told_to_service,
                is_told_to_client,
                has_actual_cost,
            )| Setting {
                rules,
                max_partitions,
                fields,
                responder,
                status,
                is_told_to_service,
                is_told_to_client,
                has_actual_cost,
            },
        )
}

/// A request, and the response of the service.
#[derive(Clone, Debug)]
struct Sent {
    user: u8,
    cost: u64,
    percent: u8,
    /// The units that a permit settles at once, or [`HOLD`].
    permit: Option<u64>,
    status: u16,
    actual: Option<u64>,
    inner: usize,
    content: usize,
    /// The individual quota of the caller for policy `a`.
    quota: Option<u64>,
}

/// The permit is settled later.
const HOLD: u64 = 6;

#[derive(Clone, Debug)]
enum Step {
    Send(Sent),
    Check(u8, u64),
    CheckOther(u8, u64),
    Peek(u8),
    Reset(u8),
    /// Of units that were charged so many microseconds ago.
    Refund(u8, u64, u64),
    /// Of the first permit that is held, to these units.
    Settle(u64),
    Advance(u64),
    ClockBack(u64),
    Replace(usize),
    RollOut(u8),
    Switch(bool),
}

fn sent() -> impl Strategy<Value = Sent> {
    let seldom = || prop::option::weighted(0.1, 0..6_u64);
    let permit = prop::option::weighted(0.1, 0..HOLD + 3).prop_map(|permit| permit.map(|units| units.min(HOLD)));
    let status = prop_oneof![8 => Just(200), 1 => Just(302), 1 => Just(304), 1 => Just(500)];
    let percent = prop_oneof![12 => Just(100), 1 => 0..100_u8];
    let (cost, inner) = (
        prop_oneof![24 => Just(1), 8 => 0..25_u64, 1 => prop::sample::select(vec![(1 << 53) - 1, 1 << 53, u64::MAX])],
        prop_oneof![6 => Just(0), 1 => 1..5_usize],
    );
    let quota = prop::option::weighted(0.2, 0..40_u64);
    let content = prop_oneof![6 => Just(0), 1 => 1..CONTENT.len()];
    (0..4_u8, cost, percent, permit, status, seldom(), inner, content, quota).prop_map(
        |(user, cost, percent, permit, status, actual, inner, content, quota)| Sent {
            user,
            cost,
            percent,
            permit,
            status,
            actual,
            inner,
            content,
            quota,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        24 => sent().prop_map(Step::Send),
        4 => (0..3_u8, 0..4_u64).prop_map(|(user, cost)| Step::Check(user, cost)),
        2 => (0..3_u8, 0..4_u64).prop_map(|(user, cost)| Step::CheckOther(user, cost)),
        1 => (0..3_u8).prop_map(Step::Peek),
        1 => (0..3_u8).prop_map(Step::Reset),
        1 => (0..3_u8, 0..5_u64, 0..9_000_000_u64).prop_map(|(user, units, ago)| Step::Refund(user, units, ago)),
        1 => (0..5_u64).prop_map(Step::Settle),
        8 => (0..3_000_000_u64).prop_map(Step::Advance),
        1 => prop_oneof![0..200_000_000_u64, Just(400_000_000_000_000)].prop_map(Step::Advance),
        1 => (0..12_000_000_u64).prop_map(Step::ClockBack),
        1 => (0..2_usize).prop_map(Step::Replace),
        1 => (0..100_u8).prop_map(Step::RollOut),
        1 => any::<bool>().prop_map(Step::Switch),
    ];
    prop::collection::vec(step, STEPS)
}

/// The fields that the service has set before the layer.
const INNER: [&[(&str, &str)]; 5] = [
    &[],
    &[
        ("ratelimit", r#""inner";r=1;t=9"#),
        ("ratelimit-policy", r#""inner";q=7;w=10"#),
    ],
    &[("ratelimit", r#""a";r=0;t=900"#)],
    &[("retry-after", "20")],
    &[("ratelimit", "not a list"), ("x-ratelimit-limit", "4")],
];

/// The content types of requests.
const CONTENT: [&str; 4] = ["", "application/json", "application/grpc", "application/grpc-web+proto"];

const FIELDS: usize = 13;

fn fields(number: usize) -> ResponseFields {
    match number {
        0 => ResponseFields::draft11(),
        1 => ResponseFields::in_between(),
        2 => ResponseFields::draft06(),
        3 => ResponseFields::none(),
        4 => ResponseFields::draft11().tightest_only(),
        5 => ResponseFields::draft11().with_retry_after_as_date(),
        6 => ResponseFields::draft11().emit_when(EmitWhen::Rejected),
        7 => ResponseFields::draft11().within_rate(),
        8 => ResponseFields::draft11().map_remaining(|allowance| allowance.remaining() / 2),
        9 => ResponseFields::draft11().without_policies(),
        10 => ResponseFields::draft11().without_limits(),
        11 => ResponseFields::draft11().with_extra_fields(|decision, headers| {
            headers.insert("x-reduced", decision.is_capacity_reduced().to_string().parse().unwrap());
        }),
        _ => ResponseFields::draft11().with_draft06_limit(),
    }
}

fn rules(limits: &[Limit]) -> Rules {
    let policies = limits.iter().map(|limit| limit.policy());
    policies.fold(Rules::new(), Rules::policy)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// What the client and programs outside see of a response, whose problem details name the violated policies.
fn shown(response: Response<RateLimitBody<TextBody>>) -> String {
    let told = response.extensions().get::<Decision>().cloned();
    let plan = told.as_ref().and_then(Decision::plan);
    let charges = plan.map(|plan| {
        plan.charges()
            .map(|charge| (charge.partition(), charge.cost()))
            .collect::<Vec<_>>()
    });
    let decision = format!("{told:?} {charges:?}");
    let (status, mut headers) = (response.status(), response.headers().clone());
    // A date is computed by the system's clock, which goes on between the sides.
    if let Some(date) = headers.get_mut("retry-after")
        && date.to_str().is_ok_and(|date| date.ends_with("GMT"))
    {
        *date = HeaderValue::from_static("a date");
    }
    let body = response
        .into_body()
        .collect()
        .now_or_never()
        .unwrap()
        .unwrap()
        .to_bytes();
    if let (Some(told), Some(problem)) = (told, body.strip_prefix(b"{".as_slice()))
        && told.outcome() == Outcome::Rejected
    {
        let violated = told.violated().map(|allowance| allowance.policy());
        let names: Vec<_> = violated
            .filter(|policy| !policy.is_hidden())
            .map(QuotaPolicy::name)
            .collect();
        let list = format!("\"violated-policies\":{names:?}}}").replace(", ", ",");
        assert!(problem.ends_with(list.as_bytes()), "{list} in {body:?}");
    }
    format!("{status} {headers:?} {body:?} {decision}")
}

/// A limiter and a layer on its store, and a limiter with other policies of the same names there.
struct Side {
    limiter: Limiter,
    other: Limiter,
    layer: RateLimitLayer,
    clock: Clock,
    held: Arc<Mutex<VecDeque<Permit>>>,
}

impl Sent {
    fn request(&self) -> Request<TextBody> {
        let mut request = Request::new(TextBody::default());
        let headers = request.headers_mut();
        if self.user < 3 {
            headers.insert("x-user", self.user.to_string().parse().unwrap());
        }
        headers.insert("x-cost", self.cost.into());
        if self.content > 0 {
            headers.insert("content-type", HeaderValue::from_static(CONTENT[self.content]));
        }
        headers.insert("x-percent", u64::from(self.percent).into());
        if let Some(permit) = self.permit {
            headers.insert("x-permit", permit.into());
            request.extensions_mut().insert(WithPermit);
        }
        if let Some(quota) = self.quota {
            request.extensions_mut().insert(CallerQuotas::new().quota("a", quota));
        }
        request
    }
}

/// Responses that a closure makes are not prepared.
fn responding(layer: RateLimitLayerBuilder, responder: usize, is_prepared: bool) -> RateLimitLayerBuilder {
    match responder {
        0 if is_prepared => layer,
        0 => layer.respond_with(|rejection| rejection.to_response()),
        1 => layer.respond_with(|rejection| {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = rejection.status();
            response
        }),
        _ => layer.respond_with(|rejection| {
            let mut response = rejection.to_response();
            let wait = format!("{:?}", rejection.retry_after());
            response.headers_mut().insert("x-wait", wait.parse().unwrap());
            response
        }),
    }
}

impl Side {
    /// `None` if the settings are not valid.
    fn new(setting: &Setting, store: impl Store + Clone, clock: &Clock, is_prepared: bool) -> Option<Self> {
        let limiter = |number: usize| {
            let limiter = Limiter::builder(store.clone()).scope("memory").clock(clock.clone());
            limiter.rules(rules(&setting.rules[number])).build().ok()
        };
        let (limiter, other) = (limiter(0)?, limiter(1)?);
        let cost = |request: &http::request::Parts| number(&request.headers, "x-cost").unwrap_or(0);
        let mut layer = RateLimitLayer::with_limiter(limiter.clone())
            .key(key::header("x-user"))
            .cost_by(cost)
            .exempt(Exemption::path("/health"))
            .capacity(|request| match number(&request.headers, "x-percent") {
                Some(0) => Capacity::exhausted(Duration::from_secs(4)),
                Some(percent @ 1..100) => Capacity::reduced_to(percent as u8).unwrap(),
                _ => Capacity::full(),
            })
            .rejection_status(StatusCode::from_u16(setting.status).unwrap())
            .response_fields(fields(setting.fields));
        layer = responding(layer, setting.responder, is_prepared);
        if setting.is_told_to_service {
            layer = layer.decision_in_request();
        }
        if setting.is_told_to_client {
            layer = layer.decision_in_response();
        }
        if setting.has_actual_cost {
            layer = layer.actual_cost(|response| number(&response.headers, "x-actual"));
        }
        let layer = layer.build().ok()?;
        Some(Self {
            limiter,
            other,
            layer,
            clock: clock.clone(),
            held: Arc::default(),
        })
    }

    /// Everything that the client and programs see of a request.
    fn send(&self, sent: &Sent) -> String {
        let (status, actual, inner) = (sent.status, sent.actual, INNER[sent.inner]);
        let held = Arc::clone(&self.held);
        let mut service = self.layer.layer(tower::service_fn(move |request: Request<TextBody>| {
            let seen = request
                .extensions()
                .get::<Decision>()
                .map(|decision| format!("{decision:?}"));
            if let Some(permit) = request.extensions().get().and_then(WeakPermit::upgrade) {
                match number(request.headers(), "x-permit") {
                    Some(HOLD) => held.lock().unwrap().push_back(permit),
                    Some(0) => permit.refund(),
                    Some(cost) => permit.settle(cost),
                    None => {}
                }
            }
            let mut response = Response::new(TextBody::from(seen.unwrap_or_default()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            for (name, value) in inner {
                response.headers_mut().append(*name, value.parse().unwrap());
            }
            if let Some(actual) = actual {
                response.headers_mut().insert("x-actual", actual.into());
                response.extensions_mut().insert(ActualCost(actual));
            }
            std::future::ready(Ok::<_, Infallible>(response))
        }));
        let response = service
            .call(sent.request())
            .now_or_never()
            .expect("nothing waits")
            .unwrap();
        shown(response)
    }

    fn take(&self, step: &Step, setting: &Setting) -> String {
        let caller_of = |limiter: &Limiter, user: &u8| limiter.caller(&key::header("x-user").key_of(user.to_string()));
        let caller = |user: &u8| caller_of(&self.limiter, user);
        match step {
            Step::Send(sent) => self.send(sent),
            Step::Check(user, cost) => {
                let decision = caller(user).cost(*cost).check().now_or_never().unwrap();
                format!("{decision:?} {:?} {:?}", decision.decided_at(), decision.granted())
            }
            Step::CheckOther(user, cost) => {
                let decision = caller_of(&self.other, user).cost(*cost).check().now_or_never().unwrap();
                format!("{decision:?}")
            }
            Step::Peek(user) => format!("{:?}", caller(user).peek().now_or_never().unwrap()),
            Step::Reset(user) => format!("{:?}", caller(user).reset().now_or_never().unwrap()),
            Step::Refund(user, units, ago) => {
                let charged = self.clock.now().as_micros() - ago;
                let refund = Refund::new(*units, ChargeTime::At(Timestamp::from_micros(charged)));
                format!("{:?}", caller(user).refund(&refund).now_or_never().unwrap())
            }
            Step::Settle(units) => {
                let permit = self.held.lock().unwrap().pop_front();
                format!("{:?}", permit.map(|permit| permit.settle(*units)))
            }
            Step::Replace(number) => {
                format!(
                    "{:?}",
                    self.limiter.rules().replace(rules(&setting.rules[*number])).is_ok()
                )
            }
            Step::RollOut(percent) => {
                format!(
                    "{:?}",
                    self.limiter
                        .rules()
                        .roll_out(*percent, rules(&setting.rules[1]))
                        .is_ok()
                )
            }
            Step::Switch(true) => format!("{:?}", self.limiter.rules().enable()),
            Step::Switch(false) => format!("{:?}", self.limiter.rules().disable()),
            Step::Advance(_) | Step::ClockBack(_) => String::new(),
        }
    }
}

/// A limit as documented: the units of a bucket return one by one at an even rate, up to its capacity, and those of a
/// window at its end, all at once.
///
/// Amounts are in parts of a unit, as many as the window has microseconds.
struct Model {
    limit: Limit,
    used: u128,
    now: u64,
}

impl Model {
    fn new(limit: &Limit) -> Self {
        Self {
            limit: *limit,
            used: 0,
            now: START,
        }
    }

    fn unit(&self) -> u128 {
        u128::from(self.limit.seconds) * 1_000_000
    }

    fn units(&self) -> u128 {
        match self.limit.kind {
            Kind::Window => self.limit.quota.into(),
            Kind::Meter => 1,
            _ => self.limit.burst.into(),
        }
    }

    fn window_left(&self) -> u128 {
        self.unit() - u128::from(self.now) % self.unit()
    }

    fn advance(&mut self, micros: u64) {
        let returned = match self.limit.kind {
            Kind::Window if self.window_left() > micros.into() => 0,
            Kind::Window => self.used,
            _ => u128::from(micros) * u128::from(self.limit.quota),
        };
        self.used = self.used.saturating_sub(returned);
        self.now += micros;
    }

    fn free(&self) -> u128 {
        self.units() * self.unit() - self.used
    }

    fn fits(&self, cost: u64) -> bool {
        self.free() >= u128::from(cost) * self.unit()
    }

    /// Microseconds; `None` if the limit never admits the cost.
    fn wait(&self, cost: u64) -> Option<u128> {
        let missing = u128::from(cost) * self.unit() - self.free();
        (u128::from(cost) <= self.units()).then(|| match self.limit.kind {
            Kind::Window => self.window_left(),
            _ => missing.div_ceil(self.limit.quota.into()),
        })
    }

    /// The item of the field: the whole units that remain, and when they have returned, or else the next one. For a
    /// window, at least the time that they take at twice the rate.
    fn item(&self) -> String {
        let (remaining, rate) = (self.free() / self.unit(), u128::from(self.limit.quota));
        let missing = match remaining {
            0 => self.unit() - self.free(),
            remaining => remaining * self.unit(),
        };
        let micros = match self.limit.kind {
            Kind::Window => (remaining * self.unit()).div_ceil(2 * rate).max(self.window_left()),
            _ => missing.div_ceil(rate),
        };
        let seconds = micros.div_ceil(1_000_000);
        format!(r#""{}";r={remaining};t={seconds}"#, self.limit.name)
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_request_that_needs_no_plan_is_answered_like_one_with_a_plan(setting in settings(), steps in steps()) {
        let clock = Clock::manual(Timestamp::from_micros(START));
        let store = || MemoryStore::builder().clock(clock.clone()).max_partitions(setting.max_partitions);
        let stores = [(); 2].map(|()| store().build().unwrap());
        let [at_once, hidden] = stores.clone();
        let sides = (
            Side::new(&setting, at_once, &clock, true),
            Side::new(&setting, Hidden(hidden), &clock, false),
        );
        let (Some(at_once), Some(planned)) = sides else { return Ok(()) };
        for step in &steps {
            match step {
                Step::Advance(micros) => clock.advance(Duration::from_micros(*micros)),
                Step::ClockBack(micros) => clock.set(Timestamp::from_micros(clock.now().as_micros() - micros)),
                _ => {}
            }
            prop_assert_eq!(at_once.take(step, &setting), planned.take(step, &setting), "{:?}", step);
        }
        prop_assert_eq!(stores[0].partitions(), stores[1].partitions());
    }

    #[test]
    fn a_request_that_needs_no_plan_is_charged_as_documented(
        limits in limits(true),
        steps in prop::collection::vec((0..3_u8, 1..4_u64, prop_oneof![Just(0), 0..3_000_000_u64]), STEPS),
    ) {
        let clock = Clock::manual(Timestamp::from_micros(START));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let setting = Setting {
            rules: [limits.clone(), limits.clone()],
            max_partitions: 1_000,
            fields: 0,
            responder: 0,
            status: 429,
            is_told_to_service: false,
            is_told_to_client: false,
            has_actual_cost: false,
        };
        let side = Side::new(&setting, store, &clock, true).expect("the policies are valid");
        let model = || limits.iter().map(Model::new).collect::<Vec<_>>();
        let mut users = [model(), model(), model()];
        for (user, cost, micros) in steps {
            clock.advance(Duration::from_micros(micros));
            users.iter_mut().flatten().for_each(|model| model.advance(micros));
            let models = &mut users[usize::from(user)];
            let violated: Vec<_> = models.iter().filter(|model| !model.fits(cost)).collect();
            let sent = Sent { user, cost, percent: 100, permit: None, status: 200, actual: None, inner: 0, content: 0, quota: None };
            let seen = side.send(&sent);
            if !violated.is_empty() {
                let waits: Option<Vec<u128>> = violated.iter().map(|model| model.wait(cost)).collect();
                let wait = waits.map(|waits| waits.into_iter().max().unwrap().div_ceil(1_000_000));
                let field = wait.map(|seconds| format!(r#""retry-after": "{seconds}""#));
                prop_assert!(seen.starts_with("429"), "{}", seen);
                prop_assert_eq!(seen.contains("retry-after"), field.is_some(), "{}", seen);
                prop_assert!(seen.contains(field.as_deref().unwrap_or("")), "{:?} in {}", field, seen);
                continue;
            }
            models.iter_mut().for_each(|model| model.used += u128::from(cost) * model.unit());
            let field: Vec<String> = models.iter().map(Model::item).collect();
            prop_assert!(seen.starts_with("200"), "{}", seen);
            prop_assert!(seen.contains(&format!("{:?}", field.join(", "))), "{:?} in {}", field, seen);
        }
    }
}

fn hour() -> QuotaPolicy {
    QuotaPolicy::per_hour("hour", 3)
}

fn day() -> QuotaPolicy {
    QuotaPolicy::per_day("day", 3).with_algorithm(Algorithm::FixedWindow)
}

fn by_user(layer: RateLimitLayerBuilder) -> RateLimitLayerBuilder {
    layer.key(key::header("x-user"))
}

type Setup = fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder;

/// Returns the plans for six requests, of which three are rejected.
fn plans(name: &str, setup: Setup) -> usize {
    let clock = Clock::manual(Timestamp::from_micros(START));
    let store = Counted(MemoryStore::builder().clock(clock).build().unwrap(), Arc::default());
    let builder = RateLimitLayer::builder(store.clone()).scope("memory");
    let layer = setup(builder).build().unwrap();
    let mut service = layer.layer(tower::service_fn(|_: Request<TextBody>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(TextBody::default())))
    }));
    let statuses = [(); 6].map(|()| {
        let request = Request::get("/")
            .header("x-user", "alice")
            .header("x-forwarded-for", "192.0.2.1");
        let mut request = request.body(TextBody::default()).unwrap();
        request
            .extensions_mut()
            .insert(PeerAddress("10.0.0.1:4711".parse().unwrap()));
        request.extensions_mut().insert(ResolvedTier::new("gold"));
        request
            .extensions_mut()
            .insert(CallerQuotas::new().quota("individual", 3));
        service.call(request).now_or_never().unwrap().unwrap().status().as_u16()
    });
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429], "{name}");
    store.1.load(Ordering::Relaxed)
}

#[test]
fn common_requests_need_no_plan() {
    let setups: [(&str, Setup); 9] = [
        ("a bucket", |layer| by_user(layer).policy(hour())),
        ("a window", |layer| by_user(layer).policy(day())),
        ("three windows", |layer| {
            let window = |name| QuotaPolicy::per_day(name, 4).with_algorithm(Algorithm::FixedWindow);
            by_user(layer).policy(window("a")).policy(day()).policy(window("b"))
        }),
        ("a mixture", |layer| {
            let strict = QuotaPolicy::per_day("strict", 9).with_algorithm(Algorithm::StrictTokenBucket);
            by_user(layer).policy(day()).policy(strict).policy(hour())
        }),
        ("a client address behind a proxy", |layer| {
            let key = key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.0/8"]);
            layer.key(key).policy(day())
        }),
        ("a tier", |layer| {
            by_user(layer).tiers(Tiers::resolved().tier("free", [hour()]).tier("gold", [day()]))
        }),
        ("an individual quota", |layer| {
            by_user(layer).policy(QuotaPolicy::per_hour("individual", 9).with_caller_quotas(1..=9))
        }),
        ("an access list", |layer| {
            let list = AccessList::new(key::client_ip());
            let update = list.update(|rules| rules.set_network("203.0.113.0/24", Access::Block));
            update.unwrap();
            by_user(layer).access_list(list).policy(day())
        }),
        ("an exemption and a cost", |layer| {
            by_user(layer).exempt(Exemption::path("/health")).cost(1).policy(day())
        }),
    ];
    for (name, setup) in setups {
        assert_eq!(plans(name, setup), 0, "{name}");
    }
    let sliding: Setup = |layer| by_user(layer).policy(hour().with_algorithm(Algorithm::SlidingWindowCounter));
    assert_eq!(plans("a sliding window", sliding), 6);
}

/// The units used under the former policy are counted apart until they have expired.
#[test]
fn after_a_change_of_the_algorithm_a_busy_caller_soon_needs_no_plan_again() {
    let clock = Clock::manual(Timestamp::from_micros(START));
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let store = Counted(store, Arc::default());
    let bucket = || QuotaPolicy::per_minute("minute", 30);
    let limiter = Limiter::builder(store.clone())
        .scope("memory")
        .clock(clock.clone())
        .policy(bucket());
    let limiter = limiter.build().unwrap();
    let mut plans = vec![];
    for second in 0..6 {
        if second == 2 {
            let window = bucket().with_algorithm(Algorithm::FixedWindow);
            limiter.rules().replace(Rules::new().policy(window)).unwrap();
        }
        let decision = limiter.caller("alice").check().now_or_never().unwrap();
        assert_eq!(decision.outcome(), Outcome::Allowed);
        plans.push(store.1.swap(0, Ordering::Relaxed));
        clock.advance(Duration::from_secs(1));
    }
    // A unit returns in two seconds, so two are used again after four.
    assert_eq!(plans, [0, 0, 1, 1, 1, 0]);
}

/// The limiter of the tests above really charges at once.
#[test]
fn only_the_store_itself_and_a_shared_pointer_to_it_say_what_they_are() {
    let store = MemoryStore::new();
    assert!(store.as_memory().is_some() && Arc::new(store.clone()).as_memory().is_some());
    assert!(Hidden(store).as_memory().is_none());
}
