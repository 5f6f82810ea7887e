//! What every store has to do, shown on each of them by the same tests.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tower_quota::{
    CheckedPolicies, Decision, MemoryStore, Outcome, PartitionKey, Plan, QuotaPolicy, RedisStore, Scope, Store,
    clock::{Clock, Timestamp},
};

/// A store with a clock of its own, and partitions that no other test uses.
struct Bench {
    store: Arc<dyn Store>,
    clock: Clock,
    scope: &'static str,
}

impl Bench {
    fn memory(scope: &'static str) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        Self {
            store: Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap()),
            clock,
            scope,
        }
    }

    fn redis(scope: &'static str) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let store = RedisStore::builder(support::shared_server().url())
            .clock(clock.clone())
            .build()
            .unwrap();
        Self {
            store: Arc::new(store),
            clock,
            scope,
        }
    }

    fn plan(&self, policies: &[QuotaPolicy], user: &str, cost: u64) -> Plan {
        let policies = CheckedPolicies::new(policies.iter().cloned()).unwrap();
        Plan::new(
            policies,
            Scope::new(self.scope).partition(&PartitionKey::new("user", user)),
            cost,
        )
    }

    async fn acquire(&self, policies: &[QuotaPolicy], cost: u64) -> Decision {
        self.store.acquire(self.plan(policies, "alice", cost)).await.unwrap()
    }

    /// What is left, without taking anything.
    async fn remaining(&self, policies: &[QuotaPolicy]) -> Vec<u64> {
        self.acquire(policies, 0)
            .await
            .allowances()
            .map(|allowance| allowance.remaining())
            .collect()
    }
}

macro_rules! on_every_store {
    ($($(#[$attribute:meta])* async fn $name:ident($bench:ident) $body:block)+) => {
        $(mod $name {
            use super::*;

            async fn shown($bench: Bench) $body

            $(#[$attribute])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn in_memory() {
                shown(Bench::memory(stringify!($name))).await;
            }

            $(#[$attribute])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn in_redis() {
                shown(Bench::redis(stringify!($name))).await;
            }
        })+
    };
}

const SECOND: QuotaPolicy = QuotaPolicy::per_second("second", 5);
const DAY: QuotaPolicy = QuotaPolicy::per_day("day", 100);

on_every_store! {
    /// L25, L11
    async fn a_thousand_at_once_never_pass_more_than_the_limit(bench) {
        let tasks = (0..1_000).map(|_| {
            let (store, plan) = (Arc::clone(&bench.store), bench.plan(&[DAY], "alice", 1));
            tokio::spawn(async move { store.acquire(plan).await.unwrap().outcome() })
        });
        let outcomes = join_all(tasks).await;
        let allowed = outcomes.iter().filter(|outcome| matches!(outcome, Ok(Outcome::Allowed))).count();
        assert_eq!(allowed, 100);
    }

    /// L27, X14
    async fn a_refusal_takes_from_no_window(bench) {
        bench.acquire(&[SECOND, DAY], 5).await;
        for _ in 0..10 {
            let refused = bench.acquire(&[SECOND, DAY], 1).await;
            assert_eq!(refused.outcome(), Outcome::Refused);
            let violated: Vec<_> = refused.violated().map(|allowance| allowance.policy().name().to_owned()).collect();
            assert_eq!(violated, ["second"]);
        }
        assert_eq!(bench.remaining(&[SECOND, DAY]).await, [0, 95]);
    }

    /// E2
    async fn partitions_do_not_share_anything(bench) {
        for user in ["alice", "bob"] {
            let decision = bench.store.acquire(bench.plan(&[SECOND], user, 5)).await.unwrap();
            assert_eq!(decision.outcome(), Outcome::Allowed, "{user}");
        }
    }

    async fn a_cost_of_zero_asks_without_taking(bench) {
        assert_eq!(bench.remaining(&[SECOND, DAY]).await, [5, 100]);
        bench.acquire(&[SECOND, DAY], 2).await;
        for _ in 0..3 {
            assert_eq!(bench.remaining(&[SECOND, DAY]).await, [3, 98]);
        }
    }

    async fn a_cost_above_a_capacity_is_never_rather_than_later(bench) {
        for cost in [6, 1_000_000, u64::MAX] {
            let never = bench.acquire(&[SECOND, DAY], cost).await;
            assert_eq!((never.outcome(), never.retry_after()), (Outcome::Refused, None));
        }
        assert_eq!(bench.remaining(&[SECOND, DAY]).await, [5, 100]);
    }

    /// A roll-out: instances with the old policies and instances with the new ones serve the same callers for a while.
    async fn instances_with_older_and_newer_policies_double_nobodys_quota(bench) {
        let (old, new) = ([SECOND, DAY], [DAY, QuotaPolicy::per_hour("hour", 50)]);
        bench.acquire(&old, 5).await;
        bench.acquire(&new, 7).await;
        assert_eq!(bench.remaining(&old).await, [0, 88]);
        assert_eq!(bench.remaining(&new).await, [88, 43]);
        // The second fills up by its own rate although only the new instances write.
        bench.clock.advance(Duration::from_millis(400));
        bench.acquire(&new, 1).await;
        bench.clock.advance(Duration::from_millis(200));
        assert_eq!(bench.remaining(&[SECOND]).await, [3]);
        bench.clock.advance(Duration::from_secs(10));
        bench.acquire(&new, 1).await;
        assert_eq!(bench.remaining(&old).await, [5, 86]);
    }

    /// What was used stays used; only the capacity and the rate change.
    async fn a_changed_quota_keeps_the_used_units(bench) {
        let per_day = |quota| [QuotaPolicy::per_day("day", quota)];
        bench.acquire(&per_day(100), 40).await;
        assert_eq!(bench.remaining(&per_day(1_000)).await, [960]);
        assert_eq!(bench.remaining(&per_day(50)).await, [10]);
        // In the new numbers forty units would take almost six days; a caller is never held for longer
        // than a full bucket and as much again.
        let held = bench.acquire(&per_day(7), 1).await;
        assert_eq!(held.retry_after(), Some(Duration::from_micros(98_742_857_143)));
        bench.acquire(&per_day(1_000), 1).await;
        assert_eq!(bench.remaining(&per_day(100)).await, [59]);
    }

    async fn a_clock_that_steps_back_neither_gives_nor_holds(bench) {
        bench.acquire(&[SECOND], 5).await;
        bench.clock.set(Timestamp::from_micros(1_000_000_000_000_000));
        assert_eq!(bench.remaining(&[SECOND]).await, [0]);
        let refused = bench.acquire(&[SECOND], 1).await;
        assert_eq!(refused.retry_after(), Some(Duration::from_millis(200)));
    }

    async fn other_scopes_are_other_buckets(bench) {
        bench.acquire(&[SECOND], 5).await;
        let alice = PartitionKey::new("user", "alice");
        let elsewhere = Scope::new("another scope of this test").partition(&alice);
        let plan = Plan::new(CheckedPolicies::new([SECOND]).unwrap(), elsewhere, 5);
        assert_eq!(bench.store.acquire(plan).await.unwrap().outcome(), Outcome::Allowed);
    }
}
