//! Policies whose new callers begin with less than a full bucket, in memory and in Redis.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::select};
use tower_quota::{Algorithm, ChargeTime, Outcome, QuotaPolicy, Settlement};

use super::ledger::{Caller, SECOND, for_any, remaining};

const HOUR: u64 = 3_600 * SECOND;

/// One unit per second, and at most 60.
fn minute() -> QuotaPolicy {
    QuotaPolicy::per_minute("minute", 60)
}

fn with(initial: Option<u64>) -> QuotaPolicy {
    initial.map_or(minute(), |units| minute().with_initial_units(units))
}

/// A client may come later than it was told.
#[tokio::test]
async fn a_bucket_that_was_announced_full_stays_full_for_an_hour_and_the_caller_is_new_some_time_later() {
    for (first, charged) in [(3, Outcome::Allowed), (6, Outcome::Rejected)] {
        for caller in Caller::of_each_store() {
            let policy = with(Some(5));
            let decision = caller.decide(&policy, first).await;
            assert_eq!(decision.outcome(), charged, "{:?}", caller.store);
            let full = decision.allowances().next().unwrap().full_after().unwrap().as_micros() as u64;
            caller.step((full + HOUR - 1) as i64);
            assert_eq!(caller.left(&policy).await, 60, "{:?}", caller.store);
            // The state lasts for two fillings and an hour.
            caller.step((2 * 60 * SECOND) as i64);
            assert_eq!(caller.left(&policy).await, 5, "{:?}", caller.store);
        }
    }
}

#[tokio::test]
async fn a_peek_shows_the_initial_units_and_does_not_start_the_refill() {
    for caller in Caller::of_each_store() {
        let policy = with(Some(5));
        for _ in 0..2 {
            let peeked = caller.store.peek(caller.plan([policy.clone()], 8)).await.unwrap();
            assert_eq!(remaining(&peeked), [5], "{:?}", caller.store);
            caller.step((3 * SECOND) as i64);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Charge(u64),
    /// The actual cost of the last charge.
    Settle(u64),
    Refund(u64),
    Reset,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        6 => (0..=70_u64).prop_map(Step::Charge),
        2 => (0..=70_u64).prop_map(Step::Settle),
        1 => (1..=10_u64).prop_map(Step::Refund),
        1 => Just(Step::Reset),
        4 => prop_oneof![0..5 * SECOND, 0..70 * SECOND, HOUR..2 * HOUR].prop_map(Step::Wait),
    ];
    vec((0..2_usize, step), 1..40)
}

/// The client does not come before the wait for the other policy is over.
#[tokio::test]
async fn a_wait_for_another_policy_does_not_make_the_caller_new() {
    let day = QuotaPolicy::per_day("day", 1);
    let window = |algorithm| day.clone().with_algorithm(algorithm);
    let others = [
        day.clone(),
        window(Algorithm::FixedWindow),
        window(Algorithm::SlidingWindowCounter),
        window(Algorithm::SlidingWindowLog),
        QuotaPolicy::per_hour("hour", 1).with_lockout(Duration::from_secs(40 * 86_400)),
        QuotaPolicy::per_calendar_month("month", 1, "Europe/Berlin"),
    ];
    for other in others {
        for caller in Caller::of_each_store() {
            let decide = async |cost| {
                let plan = caller.plan([with(Some(1)), other.clone()], cost);
                caller.store.decide(plan).await.unwrap()
            };
            assert_eq!(decide(1).await.outcome(), Outcome::Allowed, "{other:?}");
            let wait = decide(1).await.retry_after().unwrap().as_micros() as i64;
            caller.step(wait);
            assert_eq!(caller.left(&with(Some(1))).await, 60, "{other:?}");
            assert_eq!(decide(1).await.outcome(), Outcome::Allowed, "{other:?}");
        }
    }
}

/// During a roll-out, some instances have the setting and others have none or another value.
#[test]
fn instances_with_different_initial_units_admit_nothing_that_one_with_full_buckets_would_reject() {
    let initial = || select(vec![None, Some(0), Some(5), Some(59), Some(60)]);
    for_any(120, ([initial(), initial()], steps()), async |(initial, steps)| {
        let policies = initial.map(with);
        for (caller, usual) in Caller::of_each_store().iter().zip(&Caller::of_each_store()) {
            let mut open = None;
            for (instance, step) in &steps {
                let policy = &policies[*instance];
                match step {
                    Step::Charge(cost) => {
                        let decision = caller.decide(policy, *cost).await;
                        if decision.outcome() == Outcome::Allowed {
                            open = Some((decision, usual.allowed(&minute(), *cost).await));
                        }
                    }
                    Step::Settle(cost) => {
                        if let Some((decision, usual_decision)) = open.take() {
                            caller.settle(Settlement::new(&decision, *cost)).await;
                            usual.settle(Settlement::new(&usual_decision, *cost)).await;
                        }
                    }
                    Step::Refund(units) => {
                        for (caller, policy) in [(caller, policy), (usual, &minute())] {
                            let plan = caller.plan([policy.clone()], *units);
                            caller.settle(Settlement::refund(plan, ChargeTime::Now)).await;
                        }
                    }
                    Step::Reset => {
                        for caller in [caller, usual] {
                            caller.store.reset(caller.plan([minute()], 1)).await.unwrap();
                        }
                    }
                    Step::Wait(micros) => {
                        caller.step(*micros as i64);
                        usual.step(*micros as i64);
                    }
                }
                for policy in &policies {
                    let (left, most) = (caller.left(policy).await, usual.left(&minute()).await);
                    assert!(left <= most, "{:?}: {left} of {most} after {step:?}", caller.store);
                }
            }
        }
    });
}
