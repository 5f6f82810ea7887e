//! Requests that a limiter charges in its `MemoryStore` at once, next to the same requests through a store that hides
//! what it is, so that each has a plan; and next to a model of the documented arithmetic.
//!
//! `MEMORY_PATH_REQUESTS=1000000 cargo test -p tower-quota-tests --all-features --test layer memory_path` makes so many
//! requests, which differ in each run.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use proptest::{prelude::*, test_runner::RngSeed};
use test_kit::{TestStore, Timing};
use tower::{Layer, Service};
use tower_quota::{
    Access, AccessList, ActualCost, Algorithm, CallerQuotas, Capacity, ChargeTime, Decision, Exemption, LateCharge,
    Limiter, Measurement, MemoryStore, Outcome, Permit, Plan, QuotaPolicy, RateLimitBody, RateLimitLayer,
    RateLimitLayerBuilder, Refund, ResolvedTier, ResponseFields, Rules, Settlement, Store, StoreFuture, Tiers,
    WeakPermit, WithPermit,
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
    /// Counted by team instead of by user.
    is_of_team: bool,
    /// Most policies have no other settings than their algorithm.
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Bucket,
    Window,
    Meter,
    Strict,
    Overage,
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
        let policy = self.policy_of_user();
        match self.is_of_team {
            true => policy.keyed_by("team"),
            false => policy,
        }
    }

    fn policy_of_user(self) -> QuotaPolicy {
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
            Kind::Strict => policy.with_algorithm(Algorithm::StrictTokenBucket),
            Kind::Overage => window().with_overage(50),
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
        2 => prop_oneof![Just(Kind::Individual), Just(Kind::IndividualWindow), Just(Kind::Strict)],
        1 => prop_oneof![
            Just(Kind::Overage),
            Just(Kind::Shadow), Just(Kind::Hidden), Just(Kind::Keyed), Just(Kind::Lockout), Just(Kind::Initial),
            Just(Kind::LockingWindow), Just(Kind::Sliding), Just(Kind::Closed),
        ],
    ];
    let kind = if is_plain { plain().boxed() } else { kind.boxed() };
    let (quota, burst) = ((1..12_u64, large(MOST)), (1..20_u64, large(MOST)));
    let seconds = (prop::sample::select(vec![1, 2, 7, 60]), large(LONGEST));
    let is_of_team = prop::bool::weighted(if is_plain { 0.0 } else { 0.04 });
    let limit = (quota, seconds, burst, is_of_team, kind);
    prop::collection::vec(limit, 1..if is_plain { 4 } else { 5 }).prop_map(move |limits| {
        let limits = ["a", "b", "c", "d"].into_iter().zip(limits);
        let limit = |(name, (quota, seconds, burst, is_of_team, kind)): (_, (Number, Number, Number, _, _))| {
            // Large buckets are counted at slightly lower rates, which the model does not know.
            let number = |(small, large): Number| large.filter(|_| kind == Kind::Window || !is_plain).unwrap_or(small);
            Limit {
                name,
                quota: number(quota),
                seconds: number(seconds),
                burst: number(burst),
                is_of_team,
                kind,
            }
        };
        limits.map(limit).collect()
    })
}

type Number = (u64, Option<u64>);

/// The largest quota, and the longest window in seconds.
const MOST: u64 = 999_999_999_999_999;
const LONGEST: u64 = 1_000_000_000;

fn large(most: u64) -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.06, (0..3_u64).prop_map(move |less| most - less))
}

#[derive(Clone, Debug, Default)]
struct Setting {
    rules: [Vec<Limit>; 2],
    /// Then the rules of each number are those of its first tier, and the others those of the second.
    has_tiers: bool,
    /// Requests then pass a layer of the other limiter, too.
    is_nested: bool,
    /// With one partition, each new one evicts the other.
    max_partitions: usize,
    fields: usize,
    responder: usize,
    status: u16,
    is_told_to_service: bool,
    is_told_to_client: bool,
    has_actual_cost: bool,
}

prop_compose! {
    fn settings()(
        rules in [limits(false), limits(false)],
        max_partitions in prop_oneof![6 => Just(1_000), 1 => Just(1)],
        fields in prop_oneof![6 => Just(0), 2 => 1..FIELDS],
        responder in prop_oneof![4 => Just(0), 1 => 1..3_usize],
        status in prop_oneof![4 => Just(429), 1 => prop::sample::select(vec![503, 404])],
        [has_tiers, is_nested, is_told_to_service] in [(); 3].map(|()| prop::bool::weighted(0.2)),
        [is_told_to_client, has_actual_cost] in [(); 2].map(|()| prop::bool::weighted(0.2)),
    ) -> Setting {
        Setting {
            rules, has_tiers, is_nested, max_partitions, fields, responder, status,
            is_told_to_service, is_told_to_client, has_actual_cost,
        }
    }
}

/// A request, and the response of the service.
#[derive(Clone, Debug, Default)]
struct Sent {
    user: u8,
    is_gold: bool,
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
    CheckPart(u8, u64),
    Hold(u8, u64),
    Peek(u8),
    Reset(u8),
    /// Of units that were charged so many microseconds ago.
    Refund(u8, u64, u64),
    ChargeLate(u8, u64),
    /// Of the first permit that is held, to these units.
    Settle(u64),
    Advance(u64),
    ClockBack(u64),
    Replace(usize),
    RollOut(u8),
    Switch(bool),
}

prop_compose! {
    fn sent()(
        user in 0..4_u8,
        is_gold in any::<bool>(),
        cost in prop_oneof![
            24 => Just(1), 8 => 0..25_u64, 1 => prop::sample::select(vec![(1 << 53) - 1, 1 << 53, u64::MAX]),
        ],
        percent in prop_oneof![12 => Just(100), 1 => 0..100_u8],
        permit in prop::option::weighted(0.1, (0..HOLD + 3).prop_map(|units| units.min(HOLD))),
        status in prop_oneof![8 => Just(200), 1 => Just(302), 1 => Just(304), 1 => Just(500)],
        actual in prop::option::weighted(0.1, 0..6_u64),
        inner in prop_oneof![6 => Just(0), 1 => 1..5_usize],
        content in prop_oneof![6 => Just(0), 1 => 1..CONTENT.len()],
        quota in prop::option::weighted(0.2, 0..40_u64),
    ) -> Sent {
        Sent { user, is_gold, cost, percent, permit, status, actual, inner, content, quota }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        24 => sent().prop_map(Step::Send),
        4 => (0..3_u8, 0..4_u64).prop_map(|(user, cost)| Step::Check(user, cost)),
        2 => (0..3_u8, 0..4_u64).prop_map(|(user, cost)| Step::CheckOther(user, cost)),
        1 => (0..3_u8, 0..25_u64).prop_map(|(user, cost)| Step::CheckPart(user, cost)),
        1 => (0..3_u8, 0..4_u64).prop_map(|(user, cost)| Step::Hold(user, cost)),
        1 => (0..3_u8).prop_map(Step::Peek),
        1 => (0..3_u8).prop_map(Step::Reset),
        1 => (0..3_u8, 0..5_u64, 0..9_000_000_u64).prop_map(|(user, units, ago)| Step::Refund(user, units, ago)),
        1 => (0..3_u8, 0..5_u64).prop_map(|(user, units)| Step::ChargeLate(user, units)),
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

impl Setting {
    fn rules(&self, number: usize) -> Rules {
        let policies = |number: usize| self.rules[number].iter().map(|limit| limit.policy());
        match self.has_tiers {
            true => Rules::new()
                .tier("free", policies(number))
                .tier("gold", policies(1 - number)),
            false => policies(number).fold(Rules::new(), Rules::policy),
        }
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// What the client and programs outside see of a response, whose problem details name the violated policies.
fn shown<B>(response: Response<RateLimitBody<B>>) -> String
where
    RateLimitBody<B>: Body<Data = Bytes, Error: Debug>,
{
    let told = response.extensions().get::<Decision>().cloned();
    let plan = told.as_ref().and_then(Decision::plan);
    let charges = plan.map(Plan::charges).into_iter().flatten();
    let charges: Vec<_> = charges.map(|charge| (charge.partition(), charge.cost())).collect();
    let decision = format!("{told:?} {charges:?}");
    let (status, mut headers) = (response.status(), response.headers().clone());
    // A date is computed by the system's clock, which goes on between the sides.
    if let Some(date) = headers.get_mut("retry-after")
        && date.to_str().is_ok_and(|date| date.ends_with("GMT"))
    {
        *date = HeaderValue::from_static("a date");
    }
    let body = response.into_body().collect().now_or_never().unwrap();
    let body = body.unwrap().to_bytes();
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
    inner: Option<RateLimitLayer>,
    clock: Clock,
    recorder: PrometheusRecorder,
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
        let [tier, team] = if self.is_gold {
            ["gold", "red"]
        } else {
            ["free", "blue"]
        };
        headers.insert("x-tier", HeaderValue::from_static(tier));
        headers.insert("x-team", HeaderValue::from_static(team));
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
        let recorder = PrometheusBuilder::new().build_recorder();
        let limiter = |number: usize| {
            let limiter = Limiter::builder(store.clone()).scope("memory").clock(clock.clone());
            limiter.named_key("team").rules(setting.rules(number)).build().ok()
        };
        let (limiter, other) = (limiter(0)?, limiter(1)?);
        let layer = Self::layer(setting, &limiter, is_prepared)?;
        let inner = Self::layer(setting, &other, is_prepared)?;
        Some(Self {
            limiter,
            other,
            layer,
            inner: setting.is_nested.then_some(inner),
            clock: clock.clone(),
            recorder,
            held: Arc::default(),
        })
    }

    fn layer(setting: &Setting, limiter: &Limiter, is_prepared: bool) -> Option<RateLimitLayer> {
        let cost = |request: &http::request::Parts| number(&request.headers, "x-cost").unwrap_or(0);
        let mut layer = RateLimitLayer::with_limiter(limiter.clone())
            .key(key::header("x-user"))
            .named_key("team", key::header("x-team"))
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
        if setting.has_tiers {
            layer = layer.tiers(Tiers::from_fn(|request| request.headers.get("x-tier")?.to_str().ok()));
        }
        if setting.is_told_to_service {
            layer = layer.decision_in_request();
        }
        if setting.is_told_to_client {
            layer = layer.decision_in_response();
        }
        if setting.has_actual_cost {
            layer = layer.actual_cost(|response| number(&response.headers, "x-actual"));
        }
        layer.build().ok()
    }

    /// What operators see, sorted, except for the calls of the store and what layers of other tests change.
    fn metrics(&self) -> Vec<String> {
        let others = ["store_seconds", "rejection_cache_hits", "new_partitions", "limits_off"];
        let page = self.recorder.handle().render();
        let is_other = |line: &str| others.iter().any(|other| line.contains(other));
        let mut lines: Vec<_> = page.lines().filter(|line| !is_other(line)).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }

    /// Everything that the client and programs see of a request.
    fn send(&self, sent: &Sent) -> String {
        let (status, actual, inner) = (sent.status, sent.actual, INNER[sent.inner]);
        let held = Arc::clone(&self.held);
        let service = tower::service_fn(move |request: Request<TextBody>| {
            let seen = request.extensions().get::<Decision>();
            let seen = seen.map(|decision| format!("{decision:?}"));
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
        });
        match &self.inner {
            None => Self::call(self.layer.layer(service), sent),
            Some(inner) => Self::call(self.layer.layer(inner.layer(service)), sent),
        }
    }

    fn call<B>(
        mut service: impl Service<Request<TextBody>, Response = Response<RateLimitBody<B>>, Error = Infallible>,
        sent: &Sent,
    ) -> String
    where
        RateLimitBody<B>: Body<Data = Bytes, Error: Debug>,
    {
        let response = service.call(sent.request()).now_or_never();
        shown(response.expect("nothing waits").unwrap())
    }

    fn take(&self, step: &Step, setting: &Setting) -> String {
        metrics::with_local_recorder(&self.recorder, || self.take_recorded(step, setting))
    }

    fn take_recorded(&self, step: &Step, setting: &Setting) -> String {
        let rules = self.limiter.rules();
        match step {
            Step::Send(sent) => self.send(sent),
            Step::Settle(units) => {
                let permit = self.held.lock().unwrap().pop_front();
                format!("{:?}", permit.map(|permit| permit.settle(*units)))
            }
            Step::Replace(number) => rules.replace(setting.rules(*number)).is_ok().to_string(),
            Step::RollOut(percent) => rules.roll_out(*percent, setting.rules(1)).is_ok().to_string(),
            Step::Switch(true) => format!("{:?}", rules.enable()),
            Step::Switch(false) => format!("{:?}", rules.disable()),
            _ => self.ask(step, setting),
        }
    }

    /// About a caller, without a request.
    fn ask(&self, step: &Step, setting: &Setting) -> String {
        let caller_of = |limiter: &Limiter, user: &u8| {
            let caller = limiter.caller(&key::header("x-user").key_of(user.to_string()));
            let caller = caller.keyed_by("team", &key::header("x-team").key_of("red"));
            caller.tier(setting.has_tiers.then_some("gold"))
        };
        let caller = |user: &u8| caller_of(&self.limiter, user);
        match step {
            Step::Check(user, cost) => {
                let decision = caller(user).cost(*cost).check().now_or_never().unwrap();
                format!("{decision:?} {:?} {:?}", decision.decided_at(), decision.granted())
            }
            Step::CheckOther(user, cost) => {
                let decision = caller_of(&self.other, user).cost(*cost).check().now_or_never().unwrap();
                format!("{decision:?}")
            }
            Step::CheckPart(user, cost) => {
                let decision = caller(user).cost(*cost).partial().check().now_or_never().unwrap();
                format!("{decision:?} {:?}", decision.granted())
            }
            Step::Hold(user, cost) => match caller(user).cost(*cost).hold().now_or_never().unwrap() {
                Ok(permit) => {
                    self.held.lock().unwrap().push_back(permit);
                    "held".to_owned()
                }
                Err(decision) => format!("{decision:?}"),
            },
            Step::Peek(user) => format!("{:?}", caller(user).peek().now_or_never().unwrap()),
            Step::Reset(user) => format!("{:?}", caller(user).reset().now_or_never().unwrap()),
            Step::Refund(user, units, ago) => {
                let charged = self.clock.now().as_micros() - ago;
                let refund = Refund::new(*units, ChargeTime::At(Timestamp::from_micros(charged)));
                format!("{:?}", caller(user).refund(&refund).now_or_never().unwrap())
            }
            Step::ChargeLate(user, units) => {
                let charge = LateCharge::new(*units);
                format!("{:?}", caller(user).charge(&charge).now_or_never().unwrap())
            }
            _ => String::new(),
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
        (self.units() * self.unit()).saturating_sub(self.used)
    }

    fn fits(&self, cost: u64) -> bool {
        self.used + u128::from(cost) * self.unit() <= self.units() * self.unit()
    }

    /// Microseconds; `None` if the limit never admits the cost.
    fn wait(&self, cost: u64) -> Option<u128> {
        let missing = (self.used + u128::from(cost) * self.unit()).saturating_sub(self.units() * self.unit());
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
            Side::new(&setting, TestStore::new(hidden, Timing::AtOnce), &clock, false),
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
        prop_assert_eq!(at_once.metrics(), planned.metrics());
    }

    #[test]
    fn a_request_that_needs_no_plan_is_charged_as_documented(
        limits in limits(true),
        steps in prop::collection::vec((0..3_u8, 1..4_u64, prop_oneof![Just(0), 0..3_000_000_u64]), STEPS),
    ) {
        let clock = Clock::manual(Timestamp::from_micros(START));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let rules = [limits.clone(), limits.clone()];
        let setting = Setting { rules, max_partitions: 1_000, status: 429, ..Setting::default() };
        let side = Side::new(&setting, store, &clock, true).expect("the policies are valid");
        let model = || limits.iter().map(Model::new).collect::<Vec<_>>();
        let mut users = [model(), model(), model()];
        for (user, cost, micros) in steps {
            clock.advance(Duration::from_micros(micros));
            users.iter_mut().flatten().for_each(|model| model.advance(micros));
            let models = &mut users[usize::from(user)];
            let violated: Vec<_> = models.iter().filter(|model| !model.fits(cost)).collect();
            let sent = Sent { user, cost, percent: 100, status: 200, ..Sent::default() };
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

/// The same name under four algorithms, each with a count of its own.
fn algorithms() -> [Limit; 4] {
    [
        (Kind::Bucket, 7),
        (Kind::Window, 7),
        (Kind::Window, 60),
        (Kind::Meter, 7),
    ]
    .map(|(kind, seconds)| Limit {
        name: "a",
        quota: 5,
        seconds,
        burst: 4,
        is_of_team: false,
        kind,
    })
}

/// Permits are numbered, and may be settled under other rules than they were charged.
#[derive(Clone, Debug)]
enum Work {
    Hold(usize, u64),
    Settle(usize, u64),
    Reset(usize),
    Replace(usize),
    Advance(u64),
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        8 => (0..2_usize, 1..6_u64).prop_map(|(user, cost)| Work::Hold(user, cost)),
        4 => (0..100_usize, 0..12_u64).prop_map(|(permit, units)| Work::Settle(permit, units)),
        1 => (0..2_usize).prop_map(Work::Reset),
        2 => (0..4_usize).prop_map(Work::Replace),
        4 => prop_oneof![3 => 0..3_000_000_u64, 1 => 0..70_000_000_u64].prop_map(Work::Advance),
    ]
}

/// The charge of a permit, and the level of its count after it.
struct Charge {
    permit: Permit,
    user: usize,
    rules: usize,
    cost: u64,
    at: u64,
    level: u128,
    lifetime: u32,
}

/// A caller's counts, which begin anew together when nothing is used of any of them.
struct Counts {
    models: [Model; 4],
    lifetime: u32,
}

impl Counts {
    fn begin(&mut self, lifetime: u32) {
        if self.models.iter().all(|model| model.used == 0) {
            self.lifetime = lifetime;
        }
    }

    /// A bucket refunds only what has not returned by itself, and a meter nothing.
    fn settle(&mut self, charge: &Charge, units: u64, lifetime: u32) {
        let (is_same_lifetime, kind) = (self.lifetime == charge.lifetime, self.models[charge.rules].limit.kind);
        if units == charge.cost || units < charge.cost && kind == Kind::Meter {
            return;
        }
        self.begin(lifetime);
        let model = &mut self.models[charge.rules];
        let difference = u128::from(units.abs_diff(charge.cost)) * model.unit();
        let age = u128::from(model.now - charge.at);
        if units > charge.cost {
            let bound = 2 * model.units() * model.unit();
            model.used += difference.min(bound.saturating_sub(model.used));
        } else if is_same_lifetime && age < model.unit() {
            let left = match kind {
                Kind::Window if age <= u128::from(model.now) % model.unit() => difference,
                Kind::Window => 0,
                _ => charge.level.saturating_sub(age * u128::from(model.limit.quota)),
            };
            model.used = model.used.saturating_sub(difference.min(left));
        }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn after_changes_of_the_algorithm_each_has_its_own_count(work in prop::collection::vec(work(), STEPS)) {
        let clock = Clock::manual(Timestamp::from_micros(START));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let rules = algorithms().map(|limit| Rules::new().policy(limit.policy()));
        let limiter = Limiter::builder(store).scope("memory").clock(clock.clone()).rules(rules[0].clone());
        let limiter = limiter.build().unwrap();
        let mut counts = [(); 2].map(|()| Counts { models: algorithms().map(|limit| Model::new(&limit)), lifetime: 0 });
        let (mut charges, mut active): (Vec<Charge>, _) = (vec![], 0);
        let caller = |user: usize| limiter.caller(["alice", "bob"][user]);
        for (step, work) in work.into_iter().enumerate() {
            let lifetime = step as u32 + 1;
            match work {
                Work::Hold(user, cost) => {
                    let model = &counts[user].models[active];
                    match caller(user).cost(cost).hold().now_or_never().unwrap() {
                        Ok(permit) => {
                            prop_assert!(model.fits(cost), "{:?}", work);
                            counts[user].begin(lifetime);
                            let model = &mut counts[user].models[active];
                            model.used += u128::from(cost) * model.unit();
                            let (at, level) = (model.now, model.used);
                            let lifetime = counts[user].lifetime;
                            charges.push(Charge { permit, user, rules: active, cost, at, level, lifetime });
                        }
                        Err(decision) => {
                            prop_assert!(!model.fits(cost), "{:?}", work);
                            let wait = model.wait(cost).map(|micros| Duration::from_micros(micros as u64));
                            prop_assert_eq!(decision.retry_after(), wait);
                        }
                    }
                }
                Work::Settle(number, units) if !charges.is_empty() => {
                    let charge = charges.swap_remove(number % charges.len());
                    counts[charge.user].settle(&charge, units, lifetime);
                    charge.permit.settle(units);
                }
                Work::Settle(..) => {}
                Work::Reset(user) => {
                    caller(user).reset().now_or_never().unwrap().unwrap();
                    counts[user].models.iter_mut().for_each(|model| model.used = 0);
                }
                Work::Replace(number) => {
                    active = number;
                    limiter.rules().replace(rules[number].clone()).unwrap();
                }
                Work::Advance(micros) => {
                    clock.advance(Duration::from_micros(micros));
                    counts.iter_mut().flat_map(|counts| &mut counts.models).for_each(|model| model.advance(micros));
                }
            }
            for (user, counts) in counts.iter().enumerate() {
                let left = caller(user).peek().now_or_never().unwrap().unwrap().unwrap();
                let model = &counts.models[active];
                let free = model.free() / model.unit();
                let remaining = left.allowances().next().unwrap().remaining();
                prop_assert_eq!(u128::from(remaining), free, "{} after step {}", user, step);
            }
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
    assert!(TestStore::new(store, Timing::AtOnce).as_memory().is_none());
}
