//! Batches of prefetched units whose replies miss the deadline.

#![allow(clippy::disallowed_methods, reason = "Redis does not follow virtual time")]

use std::time::Duration;

use futures_util::{FutureExt, future::join_all};
use test_kit::{Mode, Proxy, RedisServer, request};
use tokio::time::sleep;
use tower_quota::{Algorithm, Limiter, QuotaPolicy, RateLimitLayer, RedisStore};

use crate::metrics::{Page, builder_of, send};

const QUOTA: u64 = 3_000;

fn instance(url: &str) -> RateLimitLayer {
    let policy = QuotaPolicy::per_day("day", QUOTA).with_algorithm(Algorithm::FixedWindow);
    builder_of(Limiter::builder(RedisStore::new(url).unwrap()).deadline(Duration::from_millis(50)))
        .policy(policy.with_prefetch(100))
        .build()
        .unwrap()
}

fn outcomes(page: &Page, outcome: &str) -> u64 {
    let series = format!(r#"decisions_total{{scope="test",tier="",policy="",outcome="{outcome}"}}"#);
    page.find(&series).unwrap_or(0.0) as u64
}

fn late(page: &Page, fate: &str) -> u64 {
    page.by("late_batches_total", "fate", fate) as u64
}

/// Sends requests of one caller for `millis` milliseconds, one every 4 ms to each instance.
async fn load(instances: &[RateLimitLayer], millis: u64) {
    for _ in 0..millis / 4 {
        for layer in instances {
            let layer = layer.clone();
            let mut sent = Box::pin(async move { send(&layer, request("alice")).await });
            if (&mut sent).now_or_never().is_none() {
                tokio::spawn(sent);
            }
        }
        sleep(Duration::from_millis(4)).await;
    }
}

/// At least four stalls, and so many that a batch was late.
async fn load_with_stalls(instances: &[RateLimitLayer], server: &RedisServer, is_late: impl Fn() -> bool) {
    load(instances, 500).await;
    for stalls in 0..12 {
        if stalls >= 4 && is_late() {
            break;
        }
        server.pause();
        load(instances, 120).await;
        server.resume();
        load(instances, 200).await;
    }
}

/// Found with a proxy: of 1 500 units, up to 449 were charged and out of reach of all instances, and no counter showed it.
#[tokio::test]
async fn of_a_window_with_stalls_at_most_one_unit_in_a_hundred_is_lost_and_late_batches_are_counted() {
    let page = Page::start();
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    proxy.set_mode(Mode::Delay(Duration::from_micros(7_500)));
    let instances = [instance(&proxy.url()), instance(&proxy.url())];
    load_with_stalls(&instances, &server, || {
        late(&page, "kept") + late(&page, "returned") > 0
    })
    .await;
    // Units that are held go back in the meantime, and are used up then.
    for _ in 0..2 {
        sleep(Duration::from_millis(1_500)).await;
        join_all(
            instances
                .iter()
                .map(|layer| async { while send(layer, request("alice")).await == 200 {} }),
        )
        .await;
    }
    let (allowed, failed_open) = (outcomes(&page, "allowed"), outcomes(&page, "failed_open"));
    let late = ["kept", "returned", "unknown"].map(|fate| late(&page, fate));
    assert!(allowed <= QUOTA, "{allowed}");
    assert!(
        allowed + failed_open >= QUOTA * 99 / 100,
        "{allowed} and {failed_open}, late {late:?}"
    );
    assert!(late[0] + late[1] > 0, "{late:?}");
}
