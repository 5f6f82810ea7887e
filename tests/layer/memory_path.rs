//! Requests that a limiter charges in its `MemoryStore` at once, next to the same requests through a store that hides
//! what it is, so that each has a plan; and next to a model of the documented arithmetic.
//!
//! `MEMORY_PATH_REQUESTS=1000000 cargo test -p tower-quota-tests --all-features --test layer memory_path` makes so many
//! requests, which differ in each run.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use proptest::{prelude::*, test_runner::RngSeed};
use tower::{Layer, Service};
use tower_quota::{
    ActualCost, Algorithm, CallerQuotas, Capacity, Decision, Exemption, Limiter, Measurement, MemoryStore, Outcome,
    Plan, QuotaPolicy, RateLimitBody, RateLimitLayer, ResponseFields, Rules, Settlement, Store, StoreFuture,
    WeakPermit, WithPermit,
    clock::{Clock, Timestamp},
    fields::EmitWhen,
    key,
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

#[derive(Clone, Copy, Debug)]
struct Bucket {
    name: &'static str,
    quota: u64,
    seconds: u64,
    burst: u64,
    /// Most policies have no other settings.
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Shadow,
    Hidden,
    Keyed,
    Lockout,
    Initial,
    Window,
    Queue,
    Closed,
    Individual,
}

impl Bucket {
    fn policy(self) -> QuotaPolicy {
        let policy = QuotaPolicy::new(self.name, self.quota, Duration::from_secs(self.seconds));
        let burst = || policy.clone().with_burst_capacity(self.burst);
        match self.kind {
            Kind::Plain => burst(),
            Kind::Shadow => burst().shadow(),
            Kind::Hidden => burst().hidden(),
            Kind::Keyed => burst().show_partition_key(),
            Kind::Lockout => burst().with_lockout(Duration::from_secs(3)),
            Kind::Initial => burst().with_initial_units(self.burst / 2),
            Kind::Window => policy.with_algorithm(Algorithm::FixedWindow),
            Kind::Queue => policy.with_algorithm(Algorithm::LeakyBucketMeter),
            Kind::Closed => QuotaPolicy::new(self.name, 0, Duration::from_secs(self.seconds)),
            Kind::Individual => policy.with_caller_quotas(1..=1_000),
        }
    }
}

fn buckets(is_plain: bool) -> impl Strategy<Value = Vec<Bucket>> {
    let kind = prop_oneof![
        12 => Just(Kind::Plain),
        2 => Just(Kind::Individual),
        1 => prop_oneof![
            Just(Kind::Shadow), Just(Kind::Hidden), Just(Kind::Keyed), Just(Kind::Lockout), Just(Kind::Initial),
            Just(Kind::Window), Just(Kind::Queue), Just(Kind::Closed),
        ],
    ];
    let bucket = (1..12_u64, prop::sample::select(vec![1, 2, 7, 60]), 1..20_u64, kind);
    prop::collection::vec(bucket, 1..if is_plain { 4 } else { 5 }).prop_map(move |buckets| {
        let buckets = ["a", "b", "c", "d"].into_iter().zip(buckets);
        let bucket = |(name, (quota, seconds, burst, kind))| Bucket {
            name,
            quota,
            seconds,
            burst,
            kind: if is_plain { Kind::Plain } else { kind },
        };
        buckets.map(bucket).collect()
    })
}

#[derive(Clone, Debug)]
struct Setting {
    rules: [Vec<Bucket>; 2],
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
    let rules = [buckets(false), buckets(false)];
    (rules, fields, responder, status, flag(), flag(), flag()).prop_map(
        |(rules, fields, responder, status, is_told_to_service, is_told_to_client, has_actual_cost)| Setting {
            rules,
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
    permit: Option<u64>,
    status: u16,
    actual: Option<u64>,
    inner: usize,
    content: usize,
    /// The individual quota of the caller for policy `a`.
    quota: Option<u64>,
}

#[derive(Clone, Debug)]
enum Step {
    Send(Sent),
    Check(u8, u64),
    CheckOther(u8, u64),
    Peek(u8),
    Reset(u8),
    Advance(u64),
    ClockBack(u64),
    Replace(usize),
    RollOut(u8),
    Switch(bool),
}

fn sent() -> impl Strategy<Value = Sent> {
    let seldom = || prop::option::weighted(0.1, 0..6_u64);
    let status = prop_oneof![8 => Just(200), 1 => Just(302), 1 => Just(304), 1 => Just(500)];
    let percent = prop_oneof![12 => Just(100), 1 => 0..100_u8];
    let (cost, inner) = (
        prop_oneof![24 => Just(1), 8 => 0..25_u64, 1 => prop::sample::select(vec![(1 << 53) - 1, 1 << 53, u64::MAX])],
        prop_oneof![6 => Just(0), 1 => 1..5_usize],
    );
    let quota = prop::option::weighted(0.2, 0..40_u64);
    let content = prop_oneof![6 => Just(0), 1 => 1..CONTENT.len()];
    (
        0..4_u8,
        cost,
        percent,
        seldom(),
        status,
        seldom(),
        inner,
        content,
        quota,
    )
        .prop_map(
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

fn rules(buckets: &[Bucket]) -> Rules {
    let policies = buckets.iter().map(|bucket| bucket.policy());
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
    let (status, headers) = (response.status(), format!("{:?}", response.headers()));
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
    format!("{status} {headers} {body:?} {decision}")
}

/// A limiter and a layer on its store, and a limiter with other policies of the same names there.
struct Side {
    limiter: Limiter,
    other: Limiter,
    layer: RateLimitLayer,
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

impl Side {
    /// `None` if the settings are not valid. Responses that a closure makes are not prepared.
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
        layer = match setting.responder {
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
        };
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
        Some(Self { limiter, other, layer })
    }

    /// Everything that the client and programs see of a request.
    fn send(&self, sent: &Sent) -> String {
        let (status, actual, inner) = (sent.status, sent.actual, INNER[sent.inner]);
        let mut service = self.layer.layer(tower::service_fn(move |request: Request<TextBody>| {
            let seen = request
                .extensions()
                .get::<Decision>()
                .map(|decision| format!("{decision:?}"));
            if let Some(permit) = request.extensions().get().and_then(WeakPermit::upgrade) {
                match number(request.headers(), "x-permit") {
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

/// A token bucket as documented: units return one by one at an even rate, up to the burst capacity.
///
/// Amounts are in parts of a unit, as many as the window has microseconds.
struct Model {
    bucket: Bucket,
    /// What is used of the burst capacity.
    used: u128,
}

impl Model {
    fn unit(&self) -> u128 {
        u128::from(self.bucket.seconds) * 1_000_000
    }

    fn advance(&mut self, micros: u64) {
        let returned = u128::from(micros) * u128::from(self.bucket.quota);
        self.used = self.used.saturating_sub(returned);
    }

    fn free(&self) -> u128 {
        u128::from(self.bucket.burst) * self.unit() - self.used
    }

    /// The item of the field: the whole units that remain, and when they have returned, or else the next one.
    fn item(&self) -> String {
        let (remaining, rate) = (self.free() / self.unit(), u128::from(self.bucket.quota));
        let missing = match remaining {
            0 => self.unit() - self.free(),
            remaining => remaining * self.unit(),
        };
        let seconds = missing.div_ceil(rate).div_ceil(1_000_000);
        format!(r#""{}";r={remaining};t={seconds}"#, self.bucket.name)
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_request_that_needs_no_plan_is_answered_like_one_with_a_plan(setting in settings(), steps in steps()) {
        let clock = Clock::manual(Timestamp::from_micros(START));
        let stores = [(); 2].map(|()| MemoryStore::builder().clock(clock.clone()).build().unwrap());
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
        buckets in buckets(true),
        steps in prop::collection::vec((0..3_u8, 1..4_u64, prop_oneof![Just(0), 0..3_000_000_u64]), STEPS),
    ) {
        let clock = Clock::manual(Timestamp::from_micros(START));
        let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
        let setting = Setting {
            rules: [buckets.clone(), buckets.clone()],
            fields: 0,
            responder: 0,
            status: 429,
            is_told_to_service: false,
            is_told_to_client: false,
            has_actual_cost: false,
        };
        let side = Side::new(&setting, store, &clock, true).expect("the policies are valid");
        let model = || buckets.iter().map(|bucket| Model { bucket: *bucket, used: 0 }).collect::<Vec<_>>();
        let mut users = [model(), model(), model()];
        for (user, cost, micros) in steps {
            clock.advance(Duration::from_micros(micros));
            users.iter_mut().flatten().for_each(|model| model.advance(micros));
            let models = &mut users[usize::from(user)];
            let fits = models.iter().all(|model| model.free() >= u128::from(cost) * model.unit());
            let sent = Sent { user, cost, percent: 100, permit: None, status: 200, actual: None, inner: 0, content: 0, quota: None };
            let seen = side.send(&sent);
            if !fits {
                prop_assert!(seen.starts_with("429"), "{}", seen);
                continue;
            }
            models.iter_mut().for_each(|model| model.used += u128::from(cost) * model.unit());
            let field: Vec<String> = models.iter().map(Model::item).collect();
            prop_assert!(seen.starts_with("200"), "{}", seen);
            prop_assert!(seen.contains(&format!("{:?}", field.join(", "))), "{:?} in {}", field, seen);
        }
    }
}

/// The limiter of the tests above really charges at once.
#[test]
fn only_the_store_itself_and_a_shared_pointer_to_it_say_what_they_are() {
    let store = MemoryStore::new();
    assert!(store.as_memory().is_some() && std::sync::Arc::new(store.clone()).as_memory().is_some());
    assert!(Hidden(store).as_memory().is_none());
}
