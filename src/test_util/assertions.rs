//! Failure messages contain the whole decision.

use std::fmt::Write;

use http::Response;

use crate::decision::{Allowance, Decision, Outcome};

/// Returns the decision on the request from its response.
///
/// If a layer rejected the request, this is the decision of the innermost such layer; otherwise, of the outermost
/// layer. The [module](crate::test_util) has an example.
///
/// # Panics
///
/// Panics if the response has no decision, because the request passed through no layer, or the response was received
/// over a network connection. Responses to allowed requests only contain a decision if the store is [for
/// tests](crate::StoreTraits::for_tests), like `ScriptedStore`, or if
/// [`decision_in_response`](crate::RateLimitLayerBuilder::decision_in_response) is set.
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
/// Panics if the policy did not reject the request, or if the decision has no policy with this name.
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
/// Panics if the outcome differs.
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
        let _ = write!(story, "; {name:?}: {remaining} left");
        let _ = match allowance.retry_after() {
            Some(wait) => write!(story, ", rejects for {wait:?}"),
            None if allowance.is_violated() => write!(story, ", can never admit a cost of {}", allowance.cost()),
            None => Ok(()),
        };
    }
    story
}
