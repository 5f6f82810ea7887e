//! Quotas with an overage, in memory and in Redis.

use proptest::{collection::vec, prelude::*, sample::select};
use tower_quota::{
    Algorithm, Allowance, Decision, Outcome, Plan, QuotaPolicy, Settlement,
    calendar::{CalendarPeriod, CalendarWindow},
};

use super::ledger::{Caller, SECOND};
use super::support::for_any;

const WINDOWS: [Algorithm; 3] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
    Algorithm::SlidingWindowLog,
];

/// Of every algorithm that can have an overage, and a quota of few or many units.
fn policies() -> impl Strategy<Value = QuotaPolicy> {
    let algorithms = prop_oneof![3 => select(WINDOWS.to_vec()).prop_map(Some), 1 => Just(None)];
    (algorithms, 1..=20_u64, 5..=300_u32).prop_map(|(algorithm, quota, percent)| {
        let policy = match algorithm {
            Some(algorithm) => QuotaPolicy::per_minute("soft", quota).with_algorithm(algorithm),
            None => QuotaPolicy::per_calendar("soft", quota, CalendarWindow::new(CalendarPeriod::Day, "UTC")),
        };
        policy.with_overage(percent)
    })
}

/// A pause in microseconds, and the cost of the charge after it with its actual cost.
fn charges() -> impl Strategy<Value = Vec<(u64, u64, Option<u64>)>> {
    let pause = prop_oneof![Just(0), 0..5 * SECOND, 0..40 * SECOND];
    let actual = prop_oneof![5 => Just(None), 1 => (0..30_u64).prop_map(Some)];
    vec((pause, 0..=12_u64, actual), 0..25)
}

fn soft(decision: &Decision) -> Allowance<'_> {
    decision.allowances().next().unwrap()
}

async fn peek(caller: &Caller, plan: &Plan) -> Decision {
    caller.store.peek(plan.clone()).await.unwrap()
}

/// Moves the clock to the end of the effective window, and asserts that no unit of the quota is available earlier.
async fn assert_ends_with_the_next_unit(caller: &Caller, plan: &Plan, decision: &Decision) {
    let (now, window) = (caller.clock.now(), soft(decision).effective_window().unwrap());
    let context = format!("{:?} {decision:?}", caller.store);
    let end = now.saturating_add(window);
    caller.clock.set(end);
    caller.step(-1);
    assert_eq!(soft(&peek(caller, plan).await).remaining(), 0, "too late: {context}");
    caller.clock.set(end);
    assert!(soft(&peek(caller, plan).await).remaining() > 0, "too early: {context}");
    caller.clock.set(now);
}

#[test]
fn the_time_of_an_exhausted_quota_with_an_overage_ends_with_its_next_unit() {
    for_any(
        400,
        (policies(), charges(), 0..=8_u64),
        async |(policy, charges, cost)| {
            for caller in Caller::of_each_store() {
                for (pause, cost, actual) in &charges {
                    caller.step(*pause as i64);
                    let charged = caller.decide(&policy, *cost).await;
                    if let Some(actual) = actual {
                        caller.settle(Settlement::new(&charged, *actual)).await;
                    }
                }
                let plan = caller.plan([policy.clone()], cost);
                for is_peek in [true, false, true] {
                    let decision = match is_peek {
                        true => peek(&caller, &plan).await,
                        false => caller.store.decide(plan.clone()).await.unwrap(),
                    };
                    let (soft, now) = (soft(&decision), caller.clock.now());
                    if let Some(wait) = soft.retry_after() {
                        // The wait of the ceiling.
                        assert_eq!(soft.effective_window(), Some(wait), "{decision:?}");
                        caller.clock.set(now.saturating_add(wait));
                        assert_eq!(peek(&caller, &plan).await.outcome(), Outcome::Allowed, "{decision:?}");
                        caller.clock.set(now);
                    } else if soft.remaining() == 0 && !soft.is_violated() {
                        assert_ends_with_the_next_unit(&caller, &plan, &decision).await;
                    }
                }
            }
        },
    );
}
