//! The last moments of `Timestamp`: sums of times saturate, and nothing panics.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::select};
use test_kit::{Answered, memory, request, send};
use tower_quota::{
    ActualCost, Algorithm, Caller, ChargeTime, Direction, Limiter, PartitionKey, Permit, QuotaPolicy, QuotaUnit,
    RateLimitLayer, RateLimitLayerBuilder, Refund, ResponseFields, Store,
    calendar::{CalendarPeriod, CalendarWindow},
    clock::{Clock, Timestamp},
    fields::LegacyReset,
    key,
};

use crate::test_util::own_store::OwnStore;

const SECOND: u64 = 1_000_000;

/// The longest window, in seconds.
const LONGEST: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
enum Act {
    Check(u64),
    Peek(u64),
    Hold { charged: u64, actual: u64 },
    Settle(u64),
    HoldAndRelease,
    Refund(u64),
    RefundFromAnyTime(u64),
    Reset,
    Send,
    Advance(u64),
    TurnBack(u64),
}

/// Each algorithm with windows of several lengths, and with a lockout.
fn algorithms() -> Vec<QuotaPolicy> {
    use Algorithm::{
        FixedWindow, LeakyBucketMeter, LeakyBucketQueue, SlidingWindowCounter, SlidingWindowLog, StrictTokenBucket,
        TokenBucket,
    };

    let others = [FixedWindow, SlidingWindowCounter, SlidingWindowLog, LeakyBucketMeter];
    let mut policies = Vec::new();
    for seconds in [1, 60, LONGEST] {
        let policy = |algorithm| QuotaPolicy::new("policy", 4, Duration::from_secs(seconds)).with_algorithm(algorithm);
        let mut of_length = vec![policy(TokenBucket), policy(StrictTokenBucket).with_burst_capacity(2)];
        of_length.extend(others.map(policy));
        let locks_out = |policy: &QuotaPolicy| policy.clone().with_lockout(Duration::from_secs(LONGEST));
        policies.extend(of_length.iter().map(locks_out));
        policies.extend(of_length);
        policies.push(policy(LeakyBucketQueue { max_waiting: 2 }));
    }
    policies
}

/// One policy for each way to count.
fn policies() -> Vec<QuotaPolicy> {
    let mut policies = algorithms();
    for period in [CalendarPeriod::Day, CalendarPeriod::WEEK, CalendarPeriod::MONTH] {
        let window = CalendarWindow::new(period, "Europe/Berlin");
        policies.push(QuotaPolicy::per_calendar("policy", 4, window));
    }
    let minute = QuotaPolicy::per_minute("policy", 4).with_algorithm(Algorithm::FixedWindow);
    policies.extend([
        QuotaPolicy::concurrent("policy", 2),
        minute.clone().with_prefetch(2),
        minute.clone().with_overage(50),
        minute.clone().with_content_bytes(Direction::Both),
        minute.with_unit("rows"),
        QuotaPolicy::per_minute("policy", 4).shadow(),
        QuotaPolicy::per_minute("policy", 0),
    ]);
    policies
}

fn act() -> impl Strategy<Value = Act> {
    let cost = 0..6_u64;
    let micros = select(vec![0, 1, SECOND, 59 * SECOND, 61 * SECOND, LONGEST * SECOND]);
    prop_oneof![
        3 => cost.clone().prop_map(Act::Check),
        1 => cost.clone().prop_map(Act::Peek),
        2 => (cost.clone(), cost.clone()).prop_map(|(charged, actual)| Act::Hold { charged, actual }),
        1 => cost.clone().prop_map(Act::Settle),
        1 => Just(Act::HoldAndRelease),
        1 => cost.clone().prop_map(Act::Refund),
        1 => cost.prop_map(Act::RefundFromAnyTime),
        1 => Just(Act::Reset),
        2 => Just(Act::Send),
        2 => micros.clone().prop_map(Act::Advance),
        1 => micros.prop_map(Act::TurnBack),
    ]
}

fn near_the_end() -> impl Strategy<Value = u64> {
    let window = LONGEST * SECOND;
    let before = select(vec![0, 1, SECOND, 61 * SECOND, 7 * 86_400 * SECOND, window, 2 * window]);
    (before, 0..2 * SECOND).prop_map(|(before, more)| u64::MAX - before - more)
}

struct Scene {
    clock: Clock,
    layer: RateLimitLayer,
    permits: Vec<Permit>,
    charged_at: Timestamp,
}

impl Scene {
    fn new(store: impl Store, clock: &Clock, policy: &QuotaPolicy, fields: ResponseFields) -> Self {
        let layer = RateLimitLayerBuilder::from(Limiter::builder(store).clock(clock.clone()))
            .scope("end")
            .key(key::header("x-user-id"))
            .policy(policy.clone())
            .response_fields(fields);
        let layer = match policy.unit() {
            QuotaUnit::Custom(_) => layer.unit_cost("rows", |_| 1),
            _ => layer,
        };
        Self {
            clock: clock.clone(),
            layer: layer.build().unwrap(),
            permits: Vec::new(),
            charged_at: Timestamp::default(),
        }
    }

    fn alice(&self, cost: u64) -> Caller {
        let alice = self.layer.limiter().caller(&PartitionKey::new("x-user-id", "alice"));
        alice.cost(cost).units("rows", cost)
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Check(cost) => self.check(cost).await,
            Act::Peek(cost) => drop(self.alice(cost).peek().await.unwrap()),
            Act::Hold { charged, actual } => {
                if let Ok(permit) = self.alice(charged).hold().await {
                    permit.finish("rows", actual);
                    self.permits.push(permit);
                }
            }
            Act::Settle(cost) => {
                if let Some(permit) = self.permits.pop() {
                    permit.settle(cost);
                }
            }
            Act::HoldAndRelease => drop(self.alice(1).hold().await),
            Act::Refund(units) => self.refund(units, ChargeTime::At(self.charged_at)).await,
            Act::RefundFromAnyTime(units) => self.refund(units, ChargeTime::Now).await,
            Act::Reset => self.alice(1).reset().await.unwrap(),
            Act::Send => {
                let mut sent = request("alice");
                sent.extensions_mut().insert(ActualCost(3));
                let _ = send(&self.layer, sent).await.code();
            }
            Act::Advance(micros) => self.clock.advance(Duration::from_micros(micros)),
            Act::TurnBack(micros) => {
                let back = self.clock.now().as_micros().saturating_sub(micros);
                self.clock.set(Timestamp::from_micros(back));
            }
        }
    }

    async fn check(&mut self, cost: u64) {
        let decision = self.alice(cost).check().await;
        self.charged_at = decision.decided_at().unwrap_or_default();
        for own in decision.allowances() {
            let _ = (own.availability(), own.full_after(), own.effective_window());
        }
    }

    async fn refund(&self, units: u64, charged: ChargeTime) {
        let refund = Refund::new(units, charged).with_units("rows", units);
        let refund = refund.with_id(units.to_string());
        let _ = self.alice(1).refund(&refund).await.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn at_the_end_of_time_sums_saturate_and_nothing_panics(
        policy in select(policies()),
        start in near_the_end(),
        is_in_bytes: bool,
        has_dates: bool,
        acts in vec(act(), 1..12),
    ) {
        let clock = Clock::manual(Timestamp::from_micros(start));
        let fields = match has_dates {
            true => ResponseFields::legacy(LegacyReset::UnixTime),
            false => ResponseFields::draft11(),
        };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut scene = match is_in_bytes {
                true => Scene::new(OwnStore::new(clock.clone()), &clock, &policy, fields),
                false => Scene::new(memory(&clock), &clock, &policy, fields),
            };
            for act in acts {
                scene.act(act).await;
            }
        });
    }
}
