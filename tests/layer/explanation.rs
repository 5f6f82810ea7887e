//! Explanations of requests.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use http::request::Parts;
use test_kit::{Answered, TestStore, limits_by, limits_of, memory, request, rows, send};
use tower_quota::{
    Access, AccessList, CallerQuotas, Capacity, Exemption, MissingKey, Outcome, ResolvedTier, Rules, Tiers,
    key::{ForwardingField, KeyExtractor, PeerAddress},
};

use super::*;

const MINUTE: QuotaPolicy = QuotaPolicy::per_minute("minute", 5).with_caller_quotas(1..=10);

fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}

fn parts(request: Request<String>) -> Parts {
    request.into_parts().0
}

fn from(peer: &str, fields: &[(&'static str, &'static str)]) -> Parts {
    let mut request = request("alice");
    for (name, value) in fields {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    if let Ok(peer) = format!("{peer}:4711").parse::<SocketAddr>() {
        request.extensions_mut().insert(PeerAddress(peer));
    }
    parts(request)
}

/// A line of the text that begins like this.
fn line(layer: &RateLimitLayer, request: &Parts, start: &str) -> String {
    let text = layer.explain(request).to_string();
    let line = text.lines().find(|line| line.starts_with(start));
    line.unwrap_or_else(|| panic!("no {start} in {text}")).to_owned()
}

fn assert_line(text: &str, expected: &str) {
    assert!(
        text.lines().any(|line| line == expected),
        "{expected} is not in\n{text}"
    );
}

#[tokio::test]
async fn it_says_by_which_proxies_the_address_was_found_or_why_it_was_not() {
    let key = || key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.0/8"]);
    let layer = limits_by(key(), memory(&clock())).policy(MINUTE).build().unwrap();
    let forwarded = |list| from("10.0.0.1", &[("x-forwarded-for", list)]);
    let untrusted = from("192.0.2.9", &[("x-forwarded-for", "6.6.6.6")]);
    for (request, expected) in [
        (
            forwarded("6.6.6.6, 192.0.2.1, 10.0.0.2"),
            "client 192.0.2.1, from x-forwarded-for, through the trusted proxies 10.0.0.1, 10.0.0.2",
        ),
        (
            from("10.0.0.1", &[]),
            "client 10.0.0.1: the peer, a trusted proxy without x-forwarded-for",
        ),
        (
            untrusted,
            "client 192.0.2.9: the peer, not a trusted proxy; its x-forwarded-for is ignored",
        ),
        (from("192.0.2.9", &[]), "client 192.0.2.9: the peer"),
        (
            forwarded("192.0.2.1, unknown, 10.0.0.2"),
            "no client address: the next entry of x-forwarded-for after 10.0.0.1, 10.0.0.2 is not an address",
        ),
        (from("", &[]), "no client address: the request has no peer address"),
    ] {
        assert_line(&layer.explain(&request).to_string(), expected);
    }
}

fn of(user: &str, path: &str, tier: Option<&str>) -> Request<String> {
    let mut request = request(user);
    *request.uri_mut() = path.parse().unwrap();
    if let Some(tier) = tier {
        request.extensions_mut().insert(ResolvedTier::new(tier));
    }
    request
}

/// The text contains the line `expected` and no caller's name. With the remaining units, it predicts the layer's
/// decision.
async fn assert_explained(layer: &RateLimitLayer, request: impl Fn() -> Request<String>, expected: &str) {
    let explanation = layer.explain(&parts(request()));
    let text = explanation.to_string();
    assert_line(&text, expected);
    assert!(!text.contains("alice") && !text.contains("mallory"), "{text}");

    let read = explanation.clone().with_remaining().await.unwrap();
    let first = |decision: &tower_quota::Decision| decision.allowances().next().unwrap().remaining();
    let decided = send(layer, request()).await;
    match explanation.outcome() {
        Some(outcome) => assert_eq!(outcome, decided.outcome()),
        None => assert_eq!(first(read.decision().unwrap()), first(decided.decision()) + 1),
    }
}

/// The key, its partition and the outcome match the request.
#[tokio::test]
async fn it_agrees_with_the_decision_and_charges_nothing() {
    let (access, mallory) = (
        AccessList::new(key::client_ip()),
        PartitionKey::new("x-user-id", "mallory"),
    );
    access.update(|rules| rules.set_key(mallory, Access::Block)).unwrap();
    let premium = QuotaPolicy::per_minute("minute", 50);
    let tiers = Tiers::resolved().tier("free", [MINUTE]).tier("premium", [premium]);
    let layer = limits_of(Limiter::builder(memory(&clock())).access_list(access))
        .tiers(tiers.unlimited("admin"))
        .exempt(Exemption::path("/health"))
        .build()
        .unwrap();
    let cases = r#"
        alice | / | | tier "free": the first one, because the request has none
        alice | / | premium | tier "premium"
        alice | / | gold | tier "free": the first one, because "gold" is unknown
        alice | / | admin | tier "admin"
        alice | /health | | access: exempt by path "/health"
        mallory | /health | | access: blocked by the access list
    "#;
    for [user, path, tier, expected] in &rows(cases) {
        let tier = Some(&**tier).filter(|tier| !tier.is_empty());
        assert_explained(&layer, || of(user, path, tier), expected).await;
    }
}

#[tokio::test]
async fn it_asks_the_store_only_when_it_is_told_to_read_what_remains() {
    let store = TestStore::new(memory(&clock()), test_kit::Timing::default());
    let builder = limits_of(Limiter::builder(store.clone()));
    let layer = builder.policy(MINUTE).build().unwrap();
    let explanation = layer.explain(&parts(request("alice")));
    assert_eq!((store.calls(), explanation.outcome()), (0, None));
    assert!(explanation.decision().is_none() && explanation.to_string().ends_with("policy \"minute\": quota 5"));
    let read = explanation.with_remaining().await.unwrap();
    assert!(read.to_string().ends_with("policy \"minute\": 5 of 5 left"), "{read}");
}

#[tokio::test]
async fn it_says_if_a_key_is_missing_and_what_happens_to_such_requests() {
    for (missing, expected) in [
        (MissingKey::Share, "key: missing; such requests share partition "),
        (MissingKey::Allow, "key: missing; its policies do not apply"),
        (MissingKey::Reject, "key: missing; the request is rejected"),
    ] {
        let limiter = Limiter::builder(memory(&clock())).on_missing_key(missing);
        let layer = limits_of(limiter).policy(MINUTE).build().unwrap();
        assert!(line(&layer, &parts(Request::new(String::new())), "key").starts_with(expected));
    }
}

#[tokio::test]
async fn it_has_named_keys_own_quotas_reduced_capacity_and_the_switch() {
    let layer = limits_of(Limiter::builder(memory(&clock())))
        .named_key("team", key::header("x-team"))
        .policy(MINUTE)
        .policy(QuotaPolicy::per_day("of team", 9).keyed_by("team"))
        .capacity(|_| Capacity::reduced_to(50).unwrap())
        .build()
        .unwrap();
    let mut request = request("alice");
    request.headers_mut().insert("x-team", "red".parse().unwrap());
    request.extensions_mut().insert(CallerQuotas::new().quota("minute", 8));
    let request = parts(request);
    let scope = tower_quota::Scope::new("test").keyed_by("team");
    let digest = scope.partition(&key::header("x-team").extract(&request).unwrap());
    let team = format!("key \"team\": x-team, partition {digest}");
    assert_eq!(line(&layer, &request, "key \"team\""), team);
    assert!(line(&layer, &request, "access").ends_with("the service has 50% of its capacity"));
    assert!(line(&layer, &request, "quotas").contains("individual"));
    let read = layer.explain(&request).with_remaining().await.unwrap().to_string();
    let policies = "policy \"minute\": 4 of 4 left\npolicy \"of team\": 4 of 4 left";
    assert!(read.ends_with(policies), "{read}");
    assert!(read.starts_with("scope \"test\": allowed by its policies\n"), "{read}");

    let rules = layer.limiter().rules();
    let tried = Rules::new().policy(QuotaPolicy::per_minute("minute", 1));
    rules.roll_out(100, tried).unwrap();
    assert!(line(&layer, &request, "rules").contains("rollout"));
    rules.disable();
    assert_eq!(line(&layer, &request, "access"), "access: all limits are disabled");
    assert_eq!(layer.explain(&request).outcome(), Some(Outcome::Unlimited));
}

type Calls = Arc<Mutex<Vec<&'static str>>>;

/// Records each call of a closure.
fn recorded<T, F>(calls: &Calls, name: &'static str, value: F) -> impl Fn(&Parts) -> T + use<T, F>
where
    F: Fn(&Parts) -> T,
{
    let calls = Arc::clone(calls);
    move |request| {
        calls.lock().unwrap().push(name);
        value(request)
    }
}

/// The explanation is a record of the steps, not a repetition of them.
#[tokio::test]
async fn an_explanation_calls_each_closure_as_often_as_a_request_and_none_while_the_limits_are_switched_off() {
    let calls = Calls::default();
    let tier = recorded(&calls, "tier", |_| ());
    let tiers = Tiers::from_fn(move |request| {
        tier(request);
        Some("free")
    });
    let tokens = QuotaPolicy::per_minute("tokens", 9).with_unit("tokens");
    let is_health = |request: &Parts| request.uri.path() == "/health";
    let layer = limits_of(Limiter::builder(memory(&clock())))
        .tiers(tiers.tier("free", [MINUTE, tokens]))
        .exempt(Exemption::when(recorded(&calls, "exempt", is_health)))
        .abnormal_usage(recorded(&calls, "abnormal", |_| None))
        .capacity(recorded(&calls, "capacity", |_| Capacity::full()))
        .cost_by(recorded(&calls, "cost", |_| 1))
        .unit_cost("tokens", recorded(&calls, "unit", |_| 2))
        .build()
        .unwrap();
    let rules = layer.limiter().rules();
    let all = ["exempt", "abnormal", "capacity", "tier", "cost", "unit"];
    for (path, is_on, expected) in [
        ("/", true, &all[..]),
        ("/health", true, &["exempt", "tier"]),
        ("/", false, &[]),
    ] {
        if !is_on {
            rules.disable();
        }
        send(&layer, of("alice", path, None)).await;
        assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), expected);
        let _ = layer.explain(&parts(of("alice", path, None)));
        assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), expected);
    }
}
