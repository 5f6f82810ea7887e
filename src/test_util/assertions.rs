//! Assertions about what was decided. When one fails, the message tells the whole decision.

use std::fmt::Write;

use http::Response;

use crate::decision::{Allowance, Decision, Outcome};

/// The decision about the request of this response: that of the innermost layer that has rejected it, or else of the
/// outermost one.
///
/// You want it where the assertions here do not help.
///
/// # Panics
///
/// If the response carries no decision: the request has passed no layer, or the response has come over a connection. That of
/// an allowed request has one if the store is [for tests](crate::StoreTraits::for_tests), as a `ScriptedStore` is, or if the
/// builder was asked to put it [into responses](crate::RateLimitLayerBuilder::decision_in_response).
///
/// ```
/// # tokio_test::block_on(async {
/// use tower_quota::test_util::{ScriptedStore, decision};
/// # use tower::{Layer, ServiceExt, service_fn};
/// # use tower_quota::{QuotaPolicy, RateLimitLayer, key};
///
/// # let layer = RateLimitLayer::builder(ScriptedStore::new()).scope("items").key(key::client_ip())
/// #     .policy(QuotaPolicy::per_minute("minute", 5)).build().unwrap();
/// # let service = layer.layer(service_fn(async |_: http::Request<()>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// # }));
/// # let send = service.oneshot(http::Request::new(()));
/// let response = send.await.unwrap();
/// let minute = decision(&response).allowances().next().unwrap();
/// assert_eq!(minute.policy().name(), "minute");
/// assert_eq!(minute.cost(), 1);
/// # });
/// ```
#[track_caller]
pub fn decision<B>(response: &Response<B>) -> &Decision {
    let Some(decision) = response.extensions().get() else {
        panic!(
            "the response with status {} carries no decision: \
             has the request passed a `RateLimitLayer`, was the response made in this process, and if it is to have a \
             decision although the request was allowed, is the store one for tests, or `decision_in_response` set?",
            response.status()
        );
    };
    decision
}

/// Asserts that the policy of this name has rejected the request. Others may have rejected it, too.
///
/// # Panics
///
/// If not, or if there is no policy of this name; the message says what was decided.
///
/// ```should_panic
/// # tokio_test::block_on(async {
/// use tower_quota::{QuotaPolicy, RateLimitLayer, key};
/// use tower_quota::test_util::{ScriptedStore, assert_rejected_by};
/// # use tower::{Layer, ServiceExt, service_fn};
///
/// let layer = RateLimitLayer::builder(ScriptedStore::new())
///     .policy(QuotaPolicy::per_second("burst", 1))
///     .policy(QuotaPolicy::per_day("daily", 100))
///     // … scope and key
/// #     .scope("items").key(key::client_ip()).build().unwrap();
/// # let service = layer.layer(service_fn(async |_: http::Request<()>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// # }));
/// # let send = async || service.clone().oneshot(http::Request::new(())).await;
/// send().await.unwrap();
/// let second = send().await.unwrap();
/// assert_rejected_by(&second, "burst");
/// // panics: the policy "daily" has not rejected the request; status 429 Too Many Requests, Rejected; "burst": …
/// assert_rejected_by(&second, "daily");
/// # });
/// ```
#[track_caller]
pub fn assert_rejected_by<B>(response: &Response<B>, policy: &str) {
    assert_outcome(response, Outcome::Rejected);
    assert!(
        allowance(response, policy).is_violated(),
        "the policy {policy:?} has not rejected the request; {}",
        story(response)
    );
}

/// Asserts what was decided.
///
/// # Panics
///
/// If it was something else; the message says what.
///
/// ```
/// # tokio_test::block_on(async {
/// use tower_quota::{Outcome, StoreErrorKind};
/// use tower_quota::test_util::{Answer, ScriptedStore, assert_outcome};
/// # use tower_quota::{QuotaPolicy, RateLimitLayer, key};
/// # use tower::{Layer, ServiceExt, service_fn};
///
/// let store = ScriptedStore::new();
/// store.answer(Answer::Failed(StoreErrorKind::Unavailable));
/// # let layer = RateLimitLayer::builder(store).scope("items").key(key::client_ip())
/// #     .policy(QuotaPolicy::per_minute("minute", 5)).build().unwrap();
/// # let service = layer.layer(service_fn(async |_: http::Request<()>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// # }));
/// # let send = service.oneshot(http::Request::new(()));
/// let response = send.await.unwrap();
/// assert_outcome(&response, Outcome::FailedOpen);
///
/// let wrong = std::panic::AssertUnwindSafe(|| assert_outcome(&response, Outcome::Allowed));
/// assert!(std::panic::catch_unwind(wrong).is_err());
/// # });
/// ```
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
///
/// ```
/// # tokio_test::block_on(async {
/// use tower_quota::{QuotaPolicy, RateLimitLayer, key, test_util::{ScriptedStore, remaining}};
/// # use tower::{Layer, ServiceExt, service_fn};
///
/// let layer = RateLimitLayer::builder(ScriptedStore::new())
///     .policy(QuotaPolicy::per_day("daily", 100))
///     .cost_by(|_| 30)
///     // … scope and key
/// #     .scope("items").key(key::client_ip()).build().unwrap();
/// # let service = layer.layer(service_fn(async |_: http::Request<()>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// # }));
/// # let send = async || service.clone().oneshot(http::Request::new(())).await;
/// assert_eq!(remaining(&send().await.unwrap(), "daily"), 70);
/// assert_eq!(remaining(&send().await.unwrap(), "daily"), 40);
/// # });
/// ```
#[track_caller]
pub fn remaining<B>(response: &Response<B>, policy: &str) -> u64 {
    allowance(response, policy).remaining()
}

#[track_caller]
fn allowance<'a, B>(response: &'a Response<B>, policy: &str) -> Allowance<'a> {
    let mut allowances = decision(response).allowances();
    let Some(allowance) = allowances.find(|allowance| allowance.policy().name() == policy) else {
        panic!("the decision has no policy {policy:?}; {}", story(response));
    };
    allowance
}

/// The decision in one line.
#[track_caller]
fn story<B>(response: &Response<B>) -> String {
    let decision = decision(response);
    let mut story = format!("status {}, {:?}", response.status(), decision.outcome());
    for allowance in decision.allowances() {
        let (name, remaining) = (allowance.policy().name(), allowance.remaining());
        // Writing to a string does not fail.
        let _ = write!(story, "; {name:?}: {remaining} left");
        let _ = match allowance.retry_after() {
            Some(wait) => write!(story, ", rejects for {wait:?}"),
            None if allowance.is_violated() => write!(story, ", rejects for good a cost of {}", allowance.cost()),
            None => Ok(()),
        };
    }
    story
}
