//! Several processes on one Redis are one limit.

use std::env;

use futures_util::future::join_all;
use http::StatusCode;
use test_kit::{RedisServer, limits, request};
use tower_quota::{Decision, Outcome, QuotaPolicy, RateLimitLayer, RedisStore};

use crate::together;

const PROCESSES: usize = 4;
const REQUESTS: usize = 250;
const LIMIT: u64 = 100;

/// The variable that makes a process a child, with the URL from its parent.
const URL: &str = "TOWER_QUOTA_TEST_INSTANCE";

/// Runs as a process that a test has started, if it is one.
pub(crate) fn child() -> bool {
    env::var(URL).is_ok_and(|url| {
        instance(&url);
        true
    })
}

pub(crate) fn run() {
    four_processes_with_250_parallel_requests_each_let_exactly_100_of_a_day_pass();
}

/// L11, L25
fn four_processes_with_250_parallel_requests_each_let_exactly_100_of_a_day_pass() {
    let server = RedisServer::start();
    let admitted: Vec<u64> = together(PROCESSES, URL, &server.url());
    assert_eq!(admitted.iter().sum::<u64>(), LIMIT, "{admitted:?}");
    crate::passed("four_processes_with_250_parallel_requests_each_let_exactly_100_of_a_day_pass");
}

#[tokio::main]
async fn instance(url: &str) {
    let builder = limits(RedisStore::new(url).unwrap()).policy(QuotaPolicy::per_day("daily", LIMIT));
    let layer = builder.build().unwrap();
    send(&layer, "warm-up").await;
    crate::wait_for_the_others();
    let requests = (0..REQUESTS).map(|_| {
        let layer = layer.clone();
        tokio::spawn(async move { send(&layer, "alice").await })
    });
    let mut admitted = 0;
    for outcome in join_all(requests).await {
        match outcome.unwrap() {
            Outcome::Allowed => admitted += 1,
            outcome => assert_eq!(outcome, Outcome::Rejected),
        }
    }
    println!("{admitted}");
}

async fn send(layer: &RateLimitLayer, user: &str) -> Outcome {
    let response = test_kit::send(layer, request(user)).await;
    let outcome = response.extensions().get().map_or(Outcome::Allowed, Decision::outcome);
    assert_eq!(outcome == Outcome::Allowed, response.status() == StatusCode::OK);
    outcome
}
