//! Requests through a layer on real servers, and what became of them.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Response, StatusCode};
use http_body_util::Full;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_quota::{Decision, Outcome, RateLimitBody, RateLimitLayer};

use crate::{hello, request};

/// Longer than anything in a test can take unless it hangs.
pub const HANG: Duration = Duration::from_secs(30);

/// Sends a request of this user through a layer whose key is the header `x-user-id`. A request that hangs fails the test,
/// and so does one with a status that a user must not see.
async fn send(layer: &RateLimitLayer, user: &str) -> Response<RateLimitBody<Full<Bytes>>> {
    let sent = layer.layer(hello()).oneshot(request(user));
    let response = timeout(HANG, sent).await.expect("no request hangs").unwrap();
    let expected = match outcome_of(&response) {
        Outcome::Allowed | Outcome::FailedOpen | Outcome::Unlimited => StatusCode::OK,
        Outcome::Rejected => StatusCode::TOO_MANY_REQUESTS,
        outcome => panic!("{outcome:?}"),
    };
    assert_eq!(response.status(), expected);
    response
}

fn outcome_of<B>(response: &Response<B>) -> Outcome {
    response.extensions().get().map_or(Outcome::Allowed, Decision::outcome)
}

/// Returns what was decided about a request of this user, by a layer that shows it in each response.
pub async fn ask(layer: &RateLimitLayer, user: &str) -> Decision {
    let response = send(layer, user).await;
    response.extensions().get::<Decision>().unwrap().clone()
}

pub async fn outcome(layer: &RateLimitLayer, user: &str) -> Outcome {
    outcome_of(&send(layer, user).await)
}

pub async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let wait = async {
        while !condition().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HANG, wait)
        .await
        .unwrap_or_else(|_| panic!("still not so: {what}"));
}

/// Waits until requests of this user are decided on.
pub async fn until_decided(layer: &RateLimitLayer, user: &str) {
    until("requests are decided on", || async {
        outcome(layer, user).await != Outcome::FailedOpen
    })
    .await;
}

/// Sends twenty requests at once, of which exactly `limit` must pass.
pub async fn assert_limit_holds(layer: &RateLimitLayer, user: &str, limit: usize) {
    let outcomes = join_all((0..20).map(|_| outcome(layer, user))).await;
    let count = |wanted: Outcome| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    assert_eq!(
        (count(Outcome::Allowed), count(Outcome::Rejected)),
        (limit, 20 - limit),
        "{user}"
    );
}

/// The outcomes of one user's requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub allowed: usize,
    pub rejected: usize,
    pub failed_open: usize,
}

/// Requests of many users, without pause, until it is stopped.
#[derive(Debug)]
pub struct Load {
    is_over: Arc<AtomicBool>,
    allowed: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<Vec<Tally>>>,
}

impl Load {
    /// Starts `tasks` tasks, each of which cycles through all users.
    pub fn start(layer: &RateLimitLayer, users: &[String], tasks: usize) -> Self {
        let (is_over, allowed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let task = |number: usize| {
            let (layer, users) = (layer.clone(), users.to_vec());
            let (is_over, allowed) = (Arc::clone(&is_over), Arc::clone(&allowed));
            tokio::spawn(async move {
                let mut tallies = vec![Tally::default(); users.len()];
                for turn in number.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let user = turn % users.len();
                    match outcome(&layer, &users[user]).await {
                        Outcome::Allowed => {
                            tallies[user].allowed += 1;
                            allowed.fetch_add(1, Ordering::Relaxed);
                        }
                        Outcome::Rejected => tallies[user].rejected += 1,
                        _ => tallies[user].failed_open += 1,
                    }
                    // Faster requests would only take the machine from the servers.
                    sleep(Duration::from_millis(1)).await;
                }
                tallies
            })
        };
        Self {
            tasks: (0..tasks).map(task).collect(),
            is_over,
            allowed,
        }
    }

    /// Waits until it is felt.
    pub async fn is_under_way(&self) {
        until("requests of the load are let through", || async {
            self.allowed.load(Ordering::Relaxed) > 0
        })
        .await;
    }

    /// Ends the load, and returns the outcomes of each user's requests.
    pub async fn stop(self) -> Vec<Tally> {
        self.is_over.store(true, Ordering::Relaxed);
        let tallies = join_all(self.tasks).await.into_iter().map(Result::unwrap);
        let sum = |mut sum: Vec<Tally>, tallies: Vec<Tally>| {
            for (sum, tally) in sum.iter_mut().zip(tallies) {
                sum.allowed += tally.allowed;
                sum.rejected += tally.rejected;
                sum.failed_open += tally.failed_open;
            }
            sum
        };
        tallies.reduce(sum).unwrap()
    }
}
