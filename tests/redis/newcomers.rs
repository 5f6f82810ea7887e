//! Policies whose new callers begin with less than a full bucket, in memory and in Redis.

use proptest::{collection::vec, prelude::*, sample::select};
use tower_quota::{ChargeTime, Outcome, QuotaPolicy, Settlement};

use super::ledger::{Caller, SECOND};
use super::support::for_any;

const HOUR: u64 = 3_600 * SECOND;

/// One unit per second, and at most 60.
fn minute() -> QuotaPolicy {
    QuotaPolicy::per_minute("minute", 60)
}

fn with(initial: Option<u64>) -> QuotaPolicy {
    initial.map_or(minute(), |units| minute().with_initial_units(units))
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
