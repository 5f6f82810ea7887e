//! Assertions about decisions. Failure messages contain the whole decision.

use std::fmt::Write;

use http::Response;

use crate::decision::{Allowance, Decision, Outcome};

/// Returns the decision on the request from its response.
///
/// If a layer rejected the request, returns the decision of the innermost such layer; otherwise, of the outermost
/// layer. Use this for checks that the other functions of this module do not cover.
///
/// # Panics
///
/// Panics if the response has no decision. This is the case if the request passed through no layer, or if the response
/// was received over a network connection. Responses to allowed requests only contain a decision if the store is [for
/// tests](crate::StoreTraits::for_tests), like `ScriptedStore`, or if
/// [`decision_in_response`](crate::RateLimitLayerBuilder::decision_in_response) is set.
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
             check that the request passed a `RateLimitLayer` and that the response was created in this process; \
             decisions about allowed requests require a test store or `decision_in_response`",
            response.status()
        );
    };
    decision
}

/// Asserts that `policy` rejected the request. Other policies may have rejected it, too.
///
/// # Panics
///
/// Panics if the policy did not reject the request, or if the decision has no policy with this name. The message
/// contains the decision.
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
/// // panics: the policy "daily" did not reject the request; status 429 Too Many Requests, Rejected; "burst": …
/// assert_rejected_by(&second, "daily");
/// # });
/// ```
#[track_caller]
pub fn assert_rejected_by<B>(response: &Response<B>, policy: &str) {
    assert_outcome(response, Outcome::Rejected);
    assert!(
        allowance(response, policy).is_violated(),
        "the policy {policy:?} did not reject the request; {}",
        story(response)
    );
}

/// Asserts the outcome of the request.
///
/// # Panics
///
/// Panics if the outcome differs. The message contains the decision.
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

/// Returns the remaining units of `policy`, rounded down, after any charge for this request.
///
/// # Panics
///
/// Panics if the decision has no policy with this name, for example because the store failed or the user's tier is
/// unlimited.
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

#[track_caller]
fn story<B>(response: &Response<B>) -> String {
    let decision = decision(response);
    let mut story = format!("status {}, {:?}", response.status(), decision.outcome());
    for allowance in decision.allowances() {
        let (name, remaining) = (allowance.policy().name(), allowance.remaining());
        // Writing to a string cannot fail.
        let _ = write!(story, "; {name:?}: {remaining} left");
        let _ = match allowance.retry_after() {
            Some(wait) => write!(story, ", rejects for {wait:?}"),
            None if allowance.is_violated() => write!(story, ", can never admit a cost of {}", allowance.cost()),
            None => Ok(()),
        };
    }
    story
}
