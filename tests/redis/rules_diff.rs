//! The difference between two versions of rules is right about counts: a store continues the counts of each policy in a
//! reported change, and does not continue counts that are reported as reset.

use std::time::Duration;

use futures_util::future::join_all;
use test_kit::memory;
use tower_quota::{
    Algorithm, Direction, MemoryStore, Outcome, Plan, QuotaPolicy, QuotaUnit, Rules, Store,
    calendar::{CalendarPeriod, CalendarWindow},
    clock::Clock,
    updates::{ChangeKind, RulesDiff},
};

use super::shared_store;
use super::support::{self, START, user};

/// All kinds of policies that a store counts in different ways.
fn policies(name: &str, quota: u64) -> Vec<QuotaPolicy> {
    use Algorithm::*;

    let mut policies = Vec::new();
    let algorithms = [
        TokenBucket,
        StrictTokenBucket,
        LeakyBucketMeter,
        LeakyBucketQueue { max_waiting: 5 },
        FixedWindow,
        SlidingWindowCounter,
        SlidingWindowLog,
    ];
    for algorithm in algorithms {
        for window in [3_600, 86_400] {
            let policy = QuotaPolicy::new(name.to_owned(), quota, Duration::from_secs(window));
            policies.push(policy.with_algorithm(algorithm));
        }
    }
    let timed = || QuotaPolicy::new(name.to_owned(), quota, Duration::from_secs(86_400));
    policies.push(timed().with_content_bytes(Direction::Both));
    policies.push(timed().with_content_bytes(Direction::Request));
    policies.push(timed().with_unit("tokens"));
    policies.push(timed().with_unit("rows"));
    policies.push(timed().keyed_by("team"));
    policies.push(timed().with_burst_capacity(20).hidden());
    policies.push(timed().shadow());
    policies.push(timed().with_lockout(Duration::from_secs(60)));
    policies.push(QuotaPolicy::concurrent("", quota).with_name(name.to_owned()));
    for zone in ["Europe/Berlin", "Asia/Tokyo"] {
        for period in [CalendarPeriod::Day, CalendarPeriod::MONTH] {
            let window = CalendarWindow::new(period, zone);
            policies.push(QuotaPolicy::per_calendar(name.to_owned(), quota, window));
        }
    }
    policies
}

fn rules(policy: &QuotaPolicy) -> Rules {
    Rules::new().policy(policy.clone())
}

/// The plan of a caller that a layer would charge for a policy.
fn plan(policy: &QuotaPolicy, number: usize) -> Plan {
    let caller = user(&format!("diff by {:?}", policy.key_name()), number.to_be_bytes());
    let plan = support::plan([policy.clone()], caller, 1).with_content_bytes(1, 1);
    plan.with_units("tokens", 1).with_units("rows", 1)
}

async fn remaining(store: &impl Store, policy: &QuotaPolicy, number: usize) -> u64 {
    support::remaining(&store.peek(plan(policy, number)).await.unwrap())[0]
}

/// One request is counted by the old policy. Returns `true` if the new one knows of it.
async fn is_continued(store: &impl Store, old: &QuotaPolicy, new: &QuotaPolicy, number: usize) -> bool {
    let decision = store.decide(plan(old, number)).await.unwrap();
    assert_eq!(decision.outcome(), Outcome::Allowed, "{old:?}");
    let unused = remaining(store, new, 1_000_000 + number).await;
    remaining(store, new, number).await < unused
}

/// Returns `true` if the difference reports that all counts continue.
fn says_continued(old: &QuotaPolicy, new: &QuotaPolicy) -> bool {
    let diff = RulesDiff::between(&rules(old), &rules(new));
    let kinds: Vec<_> = diff.changes().iter().map(|change| change.kind()).collect();
    match &*kinds {
        [] | [ChangeKind::Changed] => true,
        [ChangeKind::CountsReset] => false,
        // Another name for another unit: neither takes the place of the other.
        [ChangeKind::Added, ChangeKind::Removed] => false,
        other => panic!("{other:?} of {old:?} and {new:?}"),
    }
}

async fn the_claims_hold(store: impl Store) {
    let all = [policies("first", 10), policies("second", 20)].concat();
    let mut continued = 0;
    for (row, old) in all.iter().enumerate() {
        let pairs = all.iter().enumerate().map(async |(column, new)| {
            let claim = says_continued(old, new);
            let number = row * all.len() + column;
            assert_eq!(
                claim,
                is_continued(&store, old, new, number).await,
                "{old:?} and then {new:?}"
            );
            assert!(claim || old != new);
            usize::from(claim)
        });
        continued += join_all(pairs).await.iter().sum::<usize>();
    }
    assert!(continued > all.len(), "not only equal policies go on");
}

#[tokio::test]
async fn what_is_said_to_start_anew_does_and_the_rest_goes_on_in_memory() {
    the_claims_hold(MemoryStore::new()).await;
}

#[tokio::test]
async fn what_is_said_to_start_anew_does_and_the_rest_goes_on_in_redis() {
    the_claims_hold(shared_store().key_prefix("diff:").build().unwrap()).await;
}

#[tokio::test]
async fn a_policy_that_was_closed_goes_on_with_what_it_had_counted_and_the_difference_says_so() {
    let store = MemoryStore::new();
    let plain = |quota| {
        let (policies, is_plain) = (policies("closed", quota), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 22]);
        is_plain.map(|index| policies[index].clone())
    };
    for (number, (open, closed)) in plain(10).iter().zip(&plain(0)).enumerate() {
        assert!(says_continued(open, closed) && says_continued(closed, open));
        store.decide(plan(open, number)).await.unwrap();
        let decision = store.decide(plan(closed, number)).await.unwrap();
        assert_eq!(decision.outcome(), Outcome::Rejected);
        let full = remaining(&store, open, 1_000_000 + number).await;
        assert!(remaining(&store, open, number).await < full, "{open:?}");
    }
}

/// The most requests that a policy admits at once.
fn most(policy: &QuotaPolicy) -> u64 {
    let cost = match policy.unit() {
        QuotaUnit::ContentBytes(Direction::Both) => 2,
        _ => 1,
    };
    policy.burst_capacity() / cost
}

/// Requests of one caller that pass while two instances decide in turn, for two seconds: one by the old policy, one by the
/// new one.
async fn side_by_side(store: &impl Store, clock: &Clock, old: &QuotaPolicy, new: &QuotaPolicy, number: usize) -> u64 {
    let (mut passed, plans) = (0, [old, new].map(|policy| plan(policy, number)));
    for step in 0..40 {
        for plan in &plans {
            let decision = store.decide(plan.clone()).await.unwrap();
            passed += u64::from(decision.outcome() == Outcome::Allowed);
        }
        if step % 20 == 0 {
            clock.advance(Duration::from_secs(1));
        }
    }
    passed
}

/// Until all instances have the new rules, a caller gets the larger quota where the counts continue, and both quotas
/// where they reset. No caller gets less or more than that.
async fn quotas_neither_double_nor_vanish(store: impl Store, clock: Clock, stride: usize) {
    let of = |name, quota| policies(name, quota).into_iter().filter(|policy| !policy.is_shadow());
    let (old, new): (Vec<_>, Vec<_>) = (
        of("first", 10).collect(),
        of("first", 20).chain(of("second", 20)).collect(),
    );
    for (row, old) in old.iter().enumerate() {
        for (column, new) in new
            .iter()
            .enumerate()
            .filter(|(column, _)| (row + column) % stride == 0)
        {
            let passed = side_by_side(&store, &clock, old, new, row * 1_000 + column).await;
            let (old_most, new_most) = (most(old), most(new));
            let bound = match says_continued(old, new) {
                true => old_most.max(new_most),
                false => old_most + new_most,
            };
            // A count that is carried from one window to another is rounded up each time.
            assert!(
                (bound - 1..=bound).contains(&passed),
                "{passed} of {bound}: {old:?} beside {new:?}"
            );
        }
    }
}

#[tokio::test]
async fn two_versions_side_by_side_neither_double_a_quota_nor_take_one_away_in_memory() {
    let clock = Clock::manual(START);
    quotas_neither_double_nor_vanish(memory(&clock), clock, 3).await;
}

#[tokio::test]
async fn two_versions_side_by_side_neither_double_a_quota_nor_take_one_away_in_redis() {
    let clock = Clock::manual(START);
    let store = shared_store().key_prefix("side-by-side:").clock(clock.clone());
    quotas_neither_double_nor_vanish(store.build().unwrap(), clock, 7).await;
}
