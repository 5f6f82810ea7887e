//! Assertions about what was decided. When one fails, the message tells the whole decision.

use std::{fmt::Write, time::Duration};

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
/// store.answer(Answer::Rejected);
/// # let layer = RateLimitLayer::builder(store).scope("items").key(key::client_ip())
/// #     .policy(QuotaPolicy::per_minute("minute", 5)).build().unwrap();
/// # let service = layer.layer(service_fn(async |_: http::Request<()>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// # }));
/// # let send = service.oneshot(http::Request::new(()));
/// let response = send.await.unwrap();
/// // panics: the outcome is not Allowed; status 429 Too Many Requests, Rejected; "minute": 0 left, rejects for 12s
/// assert_allowed(&response);
/// # });
/// ```
#[track_caller]
pub fn assert_allowed<B>(response: &Response<B>) {
    assert_outcome(response, Outcome::Allowed);
}

/// Asserts that the request was rejected because a quota was used up, whichever.
///
/// It does not accept other rejections: of a [blocked](Outcome::Blocked) client, or for an
/// [unavailable store](Outcome::FailedClosed). For those there is [`assert_outcome`].
///
/// # Panics
///
/// If not; the message says what was decided.
///
/// ```should_panic
/// # tokio_test::block_on(async {
/// use tower_quota::test_util::{Answer, ScriptedStore, assert_rejected};
/// # use tower_quota::{QuotaPolicy, RateLimitLayer, key};
/// # use tower::{Layer, ServiceExt, service_fn};
///
/// let store = ScriptedStore::new();
/// store.answer(Answer::Allowed);
/// # let layer = RateLimitLayer::builder(store).scope("items").key(key::client_ip())
/// #     .policy(QuotaPolicy::per_minute("minute", 5)).build().unwrap();
/// # let service = layer.layer(service_fn(async |_: http::Request<()>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// # }));
/// # let send = service.oneshot(http::Request::new(()));
/// let response = send.await.unwrap();
/// // panics: the outcome is not Rejected; status 200 OK, Allowed; "minute": 4 left
/// assert_rejected(&response);
/// # });
/// ```
#[track_caller]
pub fn assert_rejected<B>(response: &Response<B>) {
    assert_outcome(response, Outcome::Rejected);
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
    assert_rejected(response);
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

/// The time after which a rejected request passes if no other request comes, exact to the microsecond: the time to
/// [advance](crate::clock::Clock::advance) the clock by.
///
/// # Panics
///
/// If the request was not rejected, or if it never passes.
///
/// ```
/// # tokio_test::block_on(async {
/// use std::time::Duration;
/// use tower_quota::{QuotaPolicy, RateLimitLayer, key};
/// use tower_quota::test_util::{ScriptedStore, assert_allowed, assert_rejected, retry_after};
/// # use tower::{Layer, ServiceExt, service_fn};
///
/// let store = ScriptedStore::new();
/// let layer = RateLimitLayer::builder(store.clone())
///     .policy(QuotaPolicy::per_minute("minute", 2))
///     // … scope and key
/// #     .scope("items").key(key::client_ip()).build().unwrap();
/// # let service = layer.layer(service_fn(async |_: http::Request<()>| {
/// #     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// # }));
/// # let send = async || service.clone().oneshot(http::Request::new(())).await.unwrap();
/// # for _ in 0..2 { send().await; }
/// let third = send().await;
/// assert_eq!(retry_after(&third), Duration::from_secs(30));
///
/// store.clock().advance(retry_after(&third) - Duration::from_micros(1));
/// assert_rejected(&send().await);
/// store.clock().advance(Duration::from_micros(1));
/// assert_allowed(&send().await);
/// # });
/// ```
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
