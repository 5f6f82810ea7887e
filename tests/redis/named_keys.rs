//! Keys of different names are different callers, in memory and in Redis, whatever their values are.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use proptest::{prelude::*, sample::select};
use test_kit::{Answered, memory, request, send, shared_server};
use tower_quota::{
    Algorithm, Caller, ChargeTime, Limiter, LimiterBuilder, MissingKey, PartitionKey, Permit, QuotaPolicy,
    RateLimitLayer, Refund, RefundOutcome, Scope, Store, ToPartitionKey, clock::Clock, key,
};

use super::support::{HANG, START, for_any, fresh_scope, left, redis};

const DIGEST_KEY: [u8; 32] = [7; 32];

/// The main key, and names that begin like other names, or like kinds of keys.
const NAMES: [Option<&str>; 5] = [None, Some("team"), Some("tea"), Some("m"), Some("text")];

/// Values that are equal in text, or contain a name.
fn values() -> Vec<PartitionKey> {
    let of_team = |value: &str| PartitionKey::new("team", value);
    vec![
        "7".to_partition_key(),
        7_u64.to_partition_key(),
        of_team("7"),
        of_team("").and("7".to_partition_key()),
        PartitionKey::new("m", "7"),
        PartitionKey::new("", "team/text:7"),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Digests,
    Readable,
    WithDigestKey,
}

/// A store with a scope that no other test uses.
struct Place {
    store: Arc<dyn Store>,
    clock: Clock,
    scope: String,
    form: Form,
}

impl Place {
    fn all() -> [Self; 4] {
        let clock = Clock::manual(START);
        let memory: Arc<dyn Store> = Arc::new(memory(&clock));
        let redis: Arc<dyn Store> = Arc::new(redis(&clock));
        [
            (&memory, Form::Digests),
            (&redis, Form::Digests),
            (&redis, Form::Readable),
            (&redis, Form::WithDigestKey),
        ]
        .map(|(store, form)| Self {
            store: Arc::clone(store),
            clock: clock.clone(),
            scope: fresh_scope(),
            form,
        })
    }

    fn builder(&self) -> LimiterBuilder {
        let builder = Limiter::builder(Arc::clone(&self.store))
            .scope(&self.scope)
            .deadline(HANG)
            .clock(self.clock.clone());
        match self.form {
            Form::Digests => builder,
            Form::Readable => builder.readable_keys(),
            Form::WithDigestKey => builder.digest_key(DIGEST_KEY),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Check(u64),
    Hold,
    Peek,
    Refund { units: u64, id: Option<u8> },
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<(Holder, Step)>> {
    let step = prop_oneof![
        4 => (1..=3_u64).prop_map(Step::Check),
        1 => Just(Step::Hold),
        1 => Just(Step::Peek),
        2 => (1..=3_u64, proptest::option::of(0..3_u8)).prop_map(|(units, id)| Step::Refund { units, id }),
        1 => Just(Step::Reset),
    ];
    prop::collection::vec(((0..NAMES.len(), 0..values().len()), step), 1..50)
}

/// The positions of a name and a value.
type Holder = (usize, usize);

/// For each name a limiter of the same scope, whose policies have the same names, and the counts that are expected.
struct Scene {
    limiters: Vec<Limiter>,
    /// The remaining units and slots of a new caller.
    new: [u64; 2],
    has_refunds: bool,
    used: HashMap<Holder, u64>,
    permits: HashMap<Holder, Vec<Permit>>,
    refunded: HashSet<(Holder, u8)>,
}

impl Scene {
    async fn new(place: &Place, algorithm: Algorithm) -> Self {
        let day = QuotaPolicy::per_day("day", 12).with_algorithm(algorithm);
        let policies = [day, QuotaPolicy::concurrent("slots", 3)];
        let limiter = |name: Option<&'static str>| {
            let by = |policy: QuotaPolicy| name.into_iter().fold(policy, QuotaPolicy::keyed_by);
            let builder = policies
                .iter()
                .fold(place.builder(), |builder, policy| builder.policy(by(policy.clone())));
            name.into_iter().fold(builder, LimiterBuilder::named_key).build()
        };
        let limiters = NAMES.map(|name| limiter(name).unwrap());
        Self {
            new: left(&limiters[0].caller("new")).await.try_into().unwrap(),
            limiters: limiters.into(),
            has_refunds: algorithm != Algorithm::LeakyBucketMeter,
            used: HashMap::new(),
            permits: HashMap::new(),
            refunded: HashSet::new(),
        }
    }

    fn caller(&self, (name, value): Holder) -> Caller {
        let (limiter, value) = (&self.limiters[name], &values()[value]);
        NAMES[name].map_or_else(|| limiter.caller(value), |name| limiter.keyed_by(name, value))
    }

    fn left(&self, holder: Holder) -> [u64; 2] {
        let used = self.used.get(&holder).copied().unwrap_or(0);
        let held = self.permits.get(&holder).map_or(0, Vec::len);
        [self.new[0] - used, self.new[1] - held as u64]
    }

    async fn take(&mut self, holder: Holder, step: Step) {
        let caller = self.caller(holder);
        let [remaining, slots] = self.left(holder);
        match step {
            Step::Check(cost) => {
                let is_admitted = cost <= remaining;
                let decision = caller.cost(cost).check().await;
                assert_eq!(decision.outcome().is_admitted(), is_admitted, "{holder:?}");
                *self.used.entry(holder).or_default() += if is_admitted { cost } else { 0 };
            }
            Step::Hold => {
                let permit = caller.hold().await;
                assert_eq!(permit.is_ok(), remaining > 0 && slots > 0, "{holder:?}");
                *self.used.entry(holder).or_default() += u64::from(permit.is_ok());
                self.permits.entry(holder).or_default().extend(permit);
            }
            Step::Peek => assert_eq!(left(&caller).await, [remaining, slots], "{holder:?}"),
            Step::Refund { units, id } => self.refund(holder, units, id).await,
            Step::Reset => {
                caller.reset().await.unwrap();
                self.used.remove(&holder);
            }
        }
    }

    async fn refund(&mut self, holder: Holder, units: u64, id: Option<u8>) {
        let expected = match id {
            _ if !self.has_refunds => RefundOutcome::NotApplicable,
            Some(id) if !self.refunded.insert((holder, id)) => RefundOutcome::Duplicate,
            _ => RefundOutcome::Refunded,
        };
        let refund = Refund::new(units, ChargeTime::Now);
        let refund = id.iter().fold(refund, |refund, id| refund.with_id(format!("job {id}")));
        let refunded = self.caller(holder).refund(&refund).await.unwrap();
        assert_eq!(refunded, expected, "{holder:?}");
        if expected == RefundOutcome::Refunded {
            let used = self.used.entry(holder).or_default();
            *used = used.saturating_sub(units);
        }
    }

    async fn check_all(&self) {
        for name in 0..NAMES.len() {
            for value in 0..values().len() {
                let holder = (name, value);
                assert_eq!(left(&self.caller(holder)).await, self.left(holder), "{holder:?}");
            }
        }
    }
}

#[test]
fn no_call_about_one_key_reaches_a_key_of_another_name_or_value() {
    let algorithms = select(vec![
        Algorithm::TokenBucket,
        Algorithm::StrictTokenBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog,
        Algorithm::LeakyBucketMeter,
    ]);
    for_any(
        48,
        (algorithms, 0..4_usize, steps()),
        async |(algorithm, place, steps)| {
            let mut scene = Scene::new(&Place::all()[place], algorithm).await;
            for (holder, step) in steps {
                scene.take(holder, step).await;
            }
            scene.check_all().await;
        },
    );
}

/// A user and a team with equal keys.
fn seven() -> PartitionKey {
    key::header("x-user-id").key_of("7")
}

/// Ten requests per user, and `team` for teams.
fn limiter(place: &Place, team: QuotaPolicy) -> Limiter {
    let builder = place
        .builder()
        .named_key("team")
        .policy(QuotaPolicy::per_day("user", 10))
        .policy(team.keyed_by("team"));
    builder.build().unwrap()
}

fn team() -> QuotaPolicy {
    QuotaPolicy::per_day("team", 5)
}

/// The units of a batch are in no store.
#[tokio::test]
async fn a_reset_of_a_user_leaves_the_batch_of_the_team_of_the_same_value() {
    for place in Place::all() {
        let team = QuotaPolicy::per_day("team", 100).with_prefetch(20);
        let builder = place.builder().on_missing_key(MissingKey::Allow).named_key("team");
        let builder = builder.policy(QuotaPolicy::per_day("user", 10));
        let limiter = builder.policy(team.keyed_by("team")).build().unwrap();
        let seven = limiter.keyed_by("team", &seven());
        for _ in 0..10 {
            assert!(seven.check().await.outcome().is_admitted());
        }
        limiter.caller(&self::seven()).reset().await.unwrap();
        limiter.flush(HANG).await.unwrap();
        assert_eq!(left(&seven).await, [90], "{:?}", place.form);
    }
}

#[tokio::test]
async fn requests_are_charged_to_a_user_and_a_team_of_one_value_which_are_reset_apart() {
    for place in Place::all() {
        let limiter = limiter(&place, team());
        let layer = RateLimitLayer::with_limiter(limiter.clone())
            .key(key::header("x-user-id"))
            .named_key("team", key::header("x-user-id"))
            .build()
            .unwrap();
        assert_eq!(send(&layer, request("7")).await.code(), 200);
        let (user, team) = (limiter.caller(&seven()), limiter.keyed_by("team", &seven()));
        let both = async || (left(&user).await, left(&team).await);
        assert_eq!(both().await, (vec![9], vec![4]), "{:?}", place.form);
        team.reset().await.unwrap();
        assert_eq!(both().await, (vec![9], vec![5]), "{:?}", place.form);
        assert_eq!(send(&layer, request("7")).await.code(), 200);
        user.reset().await.unwrap();
        assert_eq!(both().await, (vec![10], vec![4]), "{:?}", place.form);
    }
}

#[tokio::test]
async fn an_operator_finds_the_redis_key_of_a_team() {
    for place in &Place::all()[1..] {
        let caller = limiter(place, team()).caller("alice").keyed_by("team", "red");
        assert!(caller.check().await.outcome().is_admitted());
        let digest = |scope: Scope| {
            let red = scope.keyed_by("team").partition(&"red".to_partition_key());
            format!("quota:{{{}}}", BASE64_URL_SAFE_NO_PAD.encode(red.to_bytes()))
        };
        let key = match place.form {
            Form::Digests => digest(Scope::new(&place.scope)),
            Form::Readable => format!("quota:{{scope:{}/team/text:red}}", place.scope.replace(' ', "%20")),
            Form::WithDigestKey => digest(Scope::with_digest_key(&place.scope, &DIGEST_KEY)),
        };
        assert_eq!(shared_server().command(&["EXISTS", &key]).trim(), "1", "{key}");
    }
}
