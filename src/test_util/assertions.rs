//! Assertions about what was decided. When one fails, the message tells the whole decision.

use std::{fmt::Write, time::Duration};

use http::Response;

use crate::decision::{Allowance, Decision, Outcome};

/// What was decided about the request that this is the response to; the decision of the innermost layer that has
/// refused it, or else of the outermost one.
///
/// # Panics
///
/// If the response carries no decision: the request has passed no layer, or the response has come over a connection.
#[track_caller]
pub fn decision<B>(response: &Response<B>) -> &Decision {
    let Some(decision) = response.extensions().get() else {
        panic!(
            "the response with status {} carries no decision: \
             has the request passed a `RateLimitLayer`, and was the response made in this process?",
            response.status()
        );
    };
    decision
}

/// Asserts that the request was counted and passed on.
///
/// # Panics
///
/// If not; the message says what was decided.
///
/// ```should_panic
/// # tokio_test::block_on(async {
/// use tower_quota::{QuotaPolicy, RateLimitLayer, key};
/// use tower_quota::test_util::{Answer, ScriptedStore, assert_allowed};
/// # use tower::{Layer, ServiceExt, service_fn};
///
/// let store = ScriptedStore::new();
/// store.answer(Answer::Refused);
/// # let layer = RateLimitLayer::builder(store).scope("items").key(key::client_ip())
/// #     .policy(QuotaPolicy::per_minute("minute", 5)).build().unwrap();
/// # let service = layer.layer(service_fn(async |_: http::Request<()>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// # }));
/// # let send = service.oneshot(http::Request::new(()));
/// let response = send.await.unwrap();
/// // panics: the outcome is not Allowed; status 429 Too Many Requests, Refused; "minute": 0 left, refuses for 12s
/// assert_allowed(&response);
/// # });
/// ```
#[track_caller]
pub fn assert_allowed<B>(response: &Response<B>) {
    assert_outcome(response, Outcome::Allowed);
}

/// Asserts that the request was refused because a quota was used up, whichever.
///
/// # Panics
///
/// If not; the message says what was decided.
#[track_caller]
pub fn assert_refused<B>(response: &Response<B>) {
    assert_outcome(response, Outcome::Refused);
}

/// Asserts that the policy of this name has refused the request. Others may have refused it, too.
///
/// # Panics
///
/// If not; the message says what was decided.
#[track_caller]
pub fn assert_refused_by<B>(response: &Response<B>, policy: &str) {
    assert_refused(response);
    assert!(
        allowance(response, policy).is_violated(),
        "the policy {policy:?} has not refused the request; {}",
        story(response)
    );
}

/// Asserts what was decided.
///
/// # Panics
///
/// If it was something else; the message says what.
#[track_caller]
pub fn assert_outcome<B>(response: &Response<B>, outcome: Outcome) {
    assert!(
        decision(response).outcome() == outcome,
        "the outcome is not {outcome:?}; {}",
        story(response)
    );
}

/// Whole units that the policy of this name has left, this request's charge taken off if it passed.
///
/// # Panics
///
/// If there is no policy of this name in the decision: nothing is known about any after a failure, or in a tier without
/// limits.
#[track_caller]
pub fn remaining<B>(response: &Response<B>, policy: &str) -> u64 {
    allowance(response, policy).remaining()
}

/// After which time a refused request passes if nobody else asks, exact to the microsecond: the time to
/// [advance](crate::clock::Clock::advance) the clock by.
///
/// # Panics
///
/// If the request was not refused, or if it never passes.
#[track_caller]
pub fn retry_after<B>(response: &Response<B>) -> Duration {
    let Some(wait) = decision(response).retry_after() else {
        panic!("there is no time after which the request passes; {}", story(response));
    };
    wait
}

#[track_caller]
fn allowance<'a, B>(response: &'a Response<B>, policy: &str) -> Allowance<'a> {
    let mut allowances = decision(response).allowances();
    let Some(allowance) = allowances.find(|allowance| allowance.policy().name() == policy) else {
        panic!("the decision has no policy {policy:?}; {}", story(response));
    };
    allowance
}

/// What was decided, in one line.
#[track_caller]
fn story<B>(response: &Response<B>) -> String {
    let decision = decision(response);
    let mut story = format!("status {}, {:?}", response.status(), decision.outcome());
    for allowance in decision.allowances() {
        let (name, remaining) = (allowance.policy().name(), allowance.remaining());
        // Writing to a string does not fail.
        let _ = write!(story, "; {name:?}: {remaining} left");
        let _ = match allowance.retry_after() {
            Some(wait) => write!(story, ", refuses for {wait:?}"),
            None if allowance.is_violated() => write!(story, ", refuses for good a cost of {}", allowance.cost()),
            None => Ok(()),
        };
    }
    story
}
