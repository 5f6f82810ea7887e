//! Each mistake of `docs/mistakes.md` is made, and its event read: once, with its name and the address of its section.

use std::net::SocketAddr;

use http::request;
use tower_quota::{
    AccessList, Exemption, FailureMode, MissingKey, PartitionKey, Rules, ToPartitionKey, WeakPermit,
    key::{ForwardingField, PeerAddress},
};

use super::*;

fn builder(store: impl Store) -> RateLimitLayerBuilder {
    RateLimitLayer::builder(store)
        .scope("mistakes")
        .policy(QuotaPolicy::per_hour("hour", 1_000_000))
}

fn by_user() -> RateLimitLayerBuilder {
    builder(MemoryStore::new()).key(key::header("x-user-id"))
}

fn by_address(client_ip: key::ClientIp) -> RateLimitLayer {
    builder(MemoryStore::new()).key(client_ip).build().unwrap()
}

fn behind(field: ForwardingField) -> RateLimitLayer {
    by_address(key::client_ip().trusted_proxies(field, ["10.0.0.0/8"]))
}

fn real_ip() -> ForwardingField {
    ForwardingField::SingleAddress("X-Real-IP".into())
}

fn from(peer: &str) -> request::Builder {
    Request::builder().extension(PeerAddress(SocketAddr::new(peer.parse().unwrap(), 4711)))
}

fn alice() -> request::Builder {
    Request::builder().header("x-user-id", "alice")
}

/// The lines of requests through these layers, the first of which is the outermost.
fn lines_through(layers: &[&RateLimitLayer], requests: impl IntoIterator<Item = request::Builder>) -> Vec<String> {
    lines_of_task(async {
        for request in requests {
            let (request, handler) = (request.body(String::new()).unwrap(), service_fn(ok));
            match layers {
                [layer] => drop(layer.layer(handler).oneshot(request).await.unwrap()),
                [outer, inner] => {
                    let service = outer.layer(inner.layer(handler));
                    drop(service.oneshot(request).await.unwrap());
                }
                _ => unreachable!("one layer or two"),
            }
        }
    })
}

fn lines_of(layer: &RateLimitLayer, request: impl Fn() -> request::Builder) -> Vec<String> {
    lines_through(&[layer], (0..10).map(|_| request()))
}

/// Asserts that there is exactly one line: the event of this mistake, with these texts.
fn assert_told(lines: &[String], name: &str, says: &[&str]) {
    let [line] = lines else { panic!("{name}: {lines:#?}") };
    assert!(line.starts_with("WARN tower_quota: "), "{line}");
    assert!(line.ends_with(&mistake(name)), "{line}");
    for text in says {
        assert!(line.contains(text), "{text:?} is not in {line}");
    }
}

const NOTHING: [String; 0] = [];

#[test]
fn a_forwarding_field_without_a_named_proxy_is_told_once() {
    for (field, value) in [
        ("x-forwarded-for", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9"),
        ("x-real-ip", "203.0.113.9"),
        ("cf-connecting-ip", "203.0.113.9"),
        ("true-client-ip", "203.0.113.9"),
        ("fly-client-ip", "203.0.113.9"),
        ("fastly-client-ip", "203.0.113.9"),
        ("x-client-ip", "203.0.113.9"),
        ("x-cluster-client-ip", "203.0.113.9"),
        ("x-azure-clientip", "203.0.113.9"),
        ("x-envoy-external-address", "203.0.113.9"),
        ("x-original-forwarded-for", "203.0.113.9"),
    ] {
        for (peer, kind) in [
            ("10.0.0.1", "private"),
            ("::1", "private"),
            ("::ffff:100.64.0.1", "private"),
            ("198.51.100.7", "public"),
        ] {
            let layer = by_address(key::client_ip());
            let says = [&*format!("field={field}"), &format!("peer={kind}"), "scope=mistakes"];
            assert_told(
                &lines_of(&layer, || from(peer).header(field, value)),
                "proxy-not-named",
                &says,
            );
            assert_eq!(lines_of(&layer, || from(peer).header(field, value)), NOTHING, "once");
        }
    }
}

#[test]
fn a_peer_that_the_list_of_proxies_lacks_is_told_once() {
    let own = ForwardingField::SingleAddress("X-Edge-Client".into());
    for (layer, field) in [
        (behind(ForwardingField::XForwardedFor), "x-forwarded-for"),
        (behind(own), "x-edge-client"),
    ] {
        let lines = lines_of(&layer, || from("172.17.0.1").header(field, "203.0.113.9"));
        assert_told(&lines, "proxy-not-named", &[&format!("field={field}"), "peer=private"]);
    }
}

/// An event about the operator's own proxy is not used up by a stranger's field.
#[test]
fn a_stranger_with_a_forwarding_field_does_not_hide_the_proxy_that_is_not_named() {
    let layer = by_address(key::client_ip());
    let with_field = |peer: &'static str| from(peer).header("x-forwarded-for", "203.0.113.9");
    let lines = lines_of(&layer, || with_field("192.0.2.1"));
    assert_told(&lines, "proxy-not-named", &["peer=public"]);
    let lines = lines_of(&layer, || with_field("10.0.0.1"));
    assert_told(&lines, "proxy-not-named", &["peer=private"]);
    assert_eq!(lines_of(&layer, || with_field("10.0.0.1")), NOTHING);
}

/// As many strangers as it takes hide no proxy for longer than an hour.
#[test]
fn a_proxy_that_is_not_named_is_told_also_if_the_first_requests_do_not_come_through_it() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    let layer = RateLimitLayerBuilder::from(Limiter::builder(store).clock(clock.clone()))
        .scope("mistakes")
        .policy(QuotaPolicy::per_hour("hour", 1_000_000))
        .key(key::header("x-user-id").or_else(key::client_ip()))
        .build()
        .unwrap();
    let through_it = || from("10.0.0.1").header("x-forwarded-for", "203.0.113.9");
    let strangers = || {
        lines_through(
            &[&layer],
            (0..2_000).map(|_| from("198.51.100.7").header("x-user-id", "7")),
        )
    };
    assert_eq!(strangers(), NOTHING);
    for (pause, is_told) in [(0, false), (3_599, false), (2, true), (0, false), (7_200, false)] {
        clock.advance(Duration::from_secs(pause));
        // The first one only shows that the hour is over.
        let lines = lines_through(&[&layer], (0..2).map(|_| through_it()));
        match is_told {
            true => assert_told(&lines, "proxy-not-named", &["peer=private"]),
            false => assert_eq!(lines, NOTHING, "{pause}"),
        }
        // The next requests end the inspection, and nobody has a user ID: not a mistake of an hour.
        assert_eq!(
            lines_through(&[&layer], (0..1_000).map(|_| from("198.51.100.7"))),
            NOTHING
        );
    }
}

#[test]
fn a_second_proxy_that_is_not_trusted_is_told_if_most_requests_come_through_it() {
    let requests = |share: usize, list: &'static str| {
        (0..1_000).map(move |number| match number % 10 < share {
            true => from("10.0.0.1").header("x-forwarded-for", list),
            false => from("10.0.0.1").header("x-forwarded-for", "203.0.113.9"),
        })
    };
    let lines = |share, list| lines_through(&[&behind(ForwardingField::XForwardedFor)], requests(share, list));
    assert_told(&lines(6, "203.0.113.9, 192.168.0.7"), "second-proxy", &[]);
    assert_told(&lines(10, "203.0.113.9, 192.168.0.7, 10.0.0.2"), "second-proxy", &[]);
    // A client of the private network, with or without a field; a public client that invents a list; a trusted hop.
    for (share, list) in [
        (1, "203.0.113.9, 192.168.0.7"),
        (10, "192.168.0.7"),
        (10, "192.168.0.7, 203.0.113.9"),
        (10, "203.0.113.9, 10.0.0.2"),
    ] {
        assert_eq!(lines(share, list), NOTHING, "{list}");
    }
}

#[test]
fn a_trusted_proxy_that_never_writes_its_field_is_told() {
    let lines = |through_proxy: fn(usize) -> bool, fields: usize| {
        let layer = behind(ForwardingField::XForwardedFor);
        let requests = (0..1_000).map(|number| match through_proxy(number) {
            true if number < fields => from("10.0.0.1").header("x-forwarded-for", "203.0.113.9"),
            true => from("10.0.0.1"),
            false => from("203.0.113.9"),
        });
        lines_through(&[&layer], requests)
    };
    assert_told(&lines(|_| true, 0), "key-never-there", &["part=header x-forwarded-for"]);
    assert_told(&lines(|number| number % 10 == 0, 0), "key-never-there", &[]);
    // One client came through the proxy, and the others are its health checks. Without a proxy, nothing is missing.
    assert_eq!(lines(|_| true, 1), NOTHING);
    assert_eq!(lines(|_| false, 0), NOTHING);
}

#[test]
fn a_field_that_names_a_second_proxy_is_not_told_as_missing() {
    let layer = behind(ForwardingField::XForwardedFor);
    let requests = (0..1_000).map(|number| match number % 5 {
        // A health check of the proxy.
        0 => from("10.0.0.1"),
        _ => from("10.0.0.1").header("x-forwarded-for", "203.0.113.9, 192.168.0.7"),
    });
    assert_told(&lines_through(&[&layer], requests), "second-proxy", &[]);
}

#[test]
fn a_trusted_proxy_that_never_writes_the_field_of_an_access_list_or_an_exemption_is_told() {
    let client_ip = || key::client_ip().trusted_proxies(ForwardingField::XForwardedFor, ["10.0.0.0/8"]);
    let list = by_user().access_list(AccessList::new(client_ip()));
    let exemption = by_user().exempt(Exemption::network(client_ip(), ["192.0.2.0/24"]));
    for layer in [list, exemption].map(|layer| layer.build().unwrap()) {
        let requests = (0..1_000).map(|_| from("10.0.0.1").header("x-user-id", "alice"));
        let lines = lines_through(&[&layer], requests);
        assert_told(&lines, "key-never-there", &["part=header x-forwarded-for"]);
    }
}

#[test]
fn an_upgrade_whose_slot_no_program_has_taken_is_told_once() {
    let layer = by_user().policy(QuotaPolicy::concurrent("at once", 2)).build().unwrap();
    let answer = |status: u16, takes: bool| {
        lines_while(|| {
            let handler = service_fn(move |request: Request<String>| async move {
                let permit = request
                    .extensions()
                    .get()
                    .and_then(WeakPermit::upgrade)
                    .filter(|_| takes);
                let mut response = Response::new(Full::<Bytes>::default());
                *response.status_mut() = status.try_into().unwrap();
                // As a connection would keep it.
                tokio::spawn(async move {
                    tokio::task::yield_now().await;
                    drop(permit);
                });
                Ok::<_, Infallible>(response)
            });
            let request = alice().body(String::new()).unwrap();
            tokio_test::block_on(layer.layer(handler).oneshot(request)).unwrap();
        })
    };
    assert_eq!(answer(200, false), NOTHING);
    assert_eq!(answer(101, true), NOTHING);
    assert_told(&answer(101, false), "slot-not-taken", &[]);
    assert_eq!(answer(101, false), NOTHING, "once");
}

#[test]
fn a_server_that_forbids_a_command_is_told_with_what_becomes_of_requests() {
    let told = |error: &'static str, mode| {
        let forbidding = move || StoreFuture::ready(Err(StoreError::new(StoreErrorKind::Failed, error)));
        let layer = builder(Answering(forbidding))
            .key(key::header("x-user-id"))
            .failure_mode(mode);
        let layer = layer.build().unwrap();
        let lines = lines_of(&layer, alice);
        let told: Vec<_> = lines.into_iter().filter(|line| line.contains("mistake=")).collect();
        told
    };
    let forbidden = "NoPerm: this user has no permissions to run the 'evalsha' command";
    assert_told(
        &told(forbidden, FailureMode::Open),
        "no-permission",
        &["requests=pass unlimited", "'evalsha'", "scope=mistakes"],
    );
    let in_script = "ResponseError: The user executing the script can't access at least one of the keys";
    assert_told(
        &told(in_script, FailureMode::Closed),
        "no-permission",
        &["requests=get a 503"],
    );
    assert_eq!(told("ERR of another kind", FailureMode::Open), NOTHING);
}

#[test]
fn layers_that_are_built_for_each_request_are_told_once() {
    let build_and_ask = |scope: &str, requests: usize| {
        let layer = RateLimitLayer::builder(MemoryStore::new())
            .scope(scope)
            .policy(QuotaPolicy::per_hour("hour", 9));
        let layer = layer.key(key::header("x-user-id")).build().unwrap();
        lines_through(&[&layer], (0..requests).map(|_| alice()))
    };
    let lines = |scope: &str, requests| lines_while(|| (0..150).for_each(|_| drop(build_and_ask(scope, requests))));
    assert_told(&lines("each", 1), "layer-for-each-request", &["scope=each"]);
    assert_eq!(lines("each", 1), NOTHING, "once");
    assert_eq!(lines("used", 2), NOTHING);
}

#[test]
fn no_field_and_a_believed_field_are_no_mistake() {
    assert_eq!(lines_of(&by_address(key::client_ip()), || from("10.0.0.1")), NOTHING);
    let layer = behind(ForwardingField::XForwardedFor);
    assert_eq!(
        lines_of(&layer, || from("10.0.0.1").header("x-forwarded-for", "203.0.113.9")),
        NOTHING
    );
    // A health check of the proxy, and a client's own field beside the one that the proxy writes.
    assert_eq!(lines_of(&layer, || from("10.0.0.1")), NOTHING);
    let both = || {
        from("10.0.0.1")
            .header("x-forwarded-for", "203.0.113.9")
            .header("x-real-ip", "192.0.2.66")
    };
    assert_eq!(lines_of(&layer, both), NOTHING);
    // A caller that is known by name needs no address.
    let by_user = builder(MemoryStore::new()).key(key::header("x-user-id").or_else(key::client_ip()));
    let by_user = by_user.build().unwrap();
    assert_eq!(
        lines_of(&by_user, || alice().header("forwarded", "for=1.1.1.1")),
        NOTHING
    );
}

#[test]
fn a_trusted_proxy_that_writes_another_field_is_told_once() {
    for (layer, named, field) in [
        (behind(ForwardingField::Forwarded), "forwarded", "x-forwarded-for"),
        (behind(ForwardingField::XForwardedFor), "x-forwarded-for", "forwarded"),
        (behind(real_ip()), "x-real-ip", "cf-connecting-ip"),
    ] {
        let lines = lines_of(&layer, || from("10.0.0.1").header(field, "203.0.113.9"));
        let says = [&*format!("field={field}"), &format!("named={named}")];
        assert_told(&lines, "other-forwarding-field", &says);
        assert_eq!(
            lines_of(&layer, || from("10.0.0.1").header(field, "203.0.113.9")),
            NOTHING,
            "once"
        );
    }
}

/// A named key, and the second part of a key, are looked at like the main one.
#[test]
fn a_proxy_that_only_a_part_of_the_keys_should_trust_is_told() {
    let request = || {
        from("10.0.0.1")
            .header("x-user-id", "alice")
            .header("x-forwarded-for", "203.0.113.9")
    };
    let named = by_user()
        .named_key("address", key::client_ip())
        .policy(QuotaPolicy::per_hour("address", 1_000).keyed_by("address"));
    assert_told(&lines_of(&named.build().unwrap(), request), "proxy-not-named", &[]);
    let both = builder(MemoryStore::new()).key(key::header("x-user-id").and(key::client_ip()));
    assert_told(&lines_of(&both.build().unwrap(), request), "proxy-not-named", &[]);
}

/// Access lists and exemptions have separate settings for the same proxies.
#[test]
fn a_proxy_that_an_access_list_or_an_exemption_does_not_know_is_told() {
    let request = || {
        from("10.0.0.1")
            .header("x-user-id", "alice")
            .header("x-forwarded-for", "203.0.113.9")
    };
    let list = by_user().access_list(AccessList::new(key::client_ip()));
    let network = Exemption::network(key::client_ip(), ["192.0.2.0/24"]);
    let exemption = by_user().exempt(network.and(Exemption::path("/health")));
    for layer in [list, exemption] {
        assert_told(
            &lines_of(&layer.build().unwrap(), request),
            "proxy-not-named",
            &["field=x-forwarded-for"],
        );
    }
    assert_eq!(lines_of(&by_user().build().unwrap(), request), NOTHING);
}

#[test]
fn a_service_without_connect_info_is_told_once_and_not_also_that_there_is_no_key() {
    let layer = by_address(key::client_ip());
    assert_told(
        &lines_of(&layer, Request::builder),
        "no-peer-address",
        &["connect info"],
    );
    assert_eq!(
        lines_through(&[&layer], (0..2_000).map(|_| Request::builder())),
        NOTHING
    );
}

#[test]
fn a_request_without_a_key_is_told_once() {
    for no_key in [MissingKey::Share, MissingKey::Reject, MissingKey::Allow] {
        let layer = by_user().on_missing_key(no_key);
        assert_told(
            &lines_of(&layer.build().unwrap(), Request::builder),
            "no-key",
            &["scope=mistakes"],
        );
    }
}

/// An operator who looks at a request hides no mistake from the log.
#[test]
fn an_explanation_emits_no_event_and_leaves_it_to_the_next_request() {
    let tiers = Tiers::resolved().tier("free", [QuotaPolicy::per_hour("hour", 1_000_000)]);
    let by_tier = RateLimitLayer::builder(MemoryStore::new())
        .scope("mistakes")
        .tiers(tiers);
    for (layer, name) in [(builder(MemoryStore::new()), "no-key"), (by_tier, "no-tier-layer")] {
        let layer = layer.key(key::header("x-user-id")).on_missing_key(MissingKey::Allow);
        let layer = layer.build().unwrap();
        let (request, ()) = Request::new(()).into_parts();
        assert_eq!(lines_while(|| drop(layer.explain(&request))), NOTHING);
        let lines = lines_of(&layer, Request::builder);
        assert!(lines.iter().any(|line| line.ends_with(&mistake(name))), "{lines:?}");
    }
}

/// A rollout selects callers by their keys.
#[test]
fn an_exempt_request_needs_no_key_during_a_rollout_either() {
    let layer = by_user().exempt(Exemption::when(|_| true)).build().unwrap();
    let minute = Rules::new().policy(QuotaPolicy::per_minute("minute", 200));
    layer.limiter().rules().roll_out(50, minute).unwrap();
    assert_eq!(lines_of(&layer, Request::builder), NOTHING);
}

#[test]
fn a_part_of_the_key_that_none_of_a_thousand_requests_has_is_told_once() {
    #[derive(Clone)]
    struct UserId(u64);

    impl ToPartitionKey for UserId {
        fn to_partition_key(&self) -> PartitionKey {
            self.0.to_partition_key()
        }
    }

    let layer = || {
        let key = key::extension::<UserId>()
            .or_else(key::header("x-api-key"))
            .or_else(key::client_ip());
        builder(MemoryStore::new()).key(key).build().unwrap()
    };
    let anonymous = || from("192.0.2.1").header("x-api-key", "4711");
    let missing = layer();
    let lines = lines_through(&[&missing], (0..1_100).map(|_| anonymous()));
    assert_told(&lines, "key-never-there", &["part=extension ", "UserId"]);
    assert_eq!(
        lines_through(&[&missing], (0..1_100).map(|_| anonymous())),
        NOTHING,
        "once"
    );

    // One user is enough, and fewer than a hundred requests without a user are not.
    let mut requests: Vec<_> = (0..1_100).map(|_| anonymous()).collect();
    requests[500] = anonymous().extension(UserId(7));
    assert_eq!(lines_through(&[&layer()], requests), NOTHING);
    let users = (0..1_100).map(|number| match number % 20 {
        0 => from("192.0.2.1"),
        _ => anonymous().extension(UserId(7)),
    });
    assert_eq!(
        lines_through(&[&layer()], users),
        NOTHING,
        "an API key is seldom asked for"
    );
}

/// The layer looks for mistakes in the first thousand requests only.
#[test]
fn later_requests_are_not_looked_at() {
    let layer = by_address(key::client_ip());
    assert_eq!(lines_through(&[&layer], (0..1_000).map(|_| from("10.0.0.1"))), NOTHING);
    assert_eq!(
        lines_of(&layer, || from("10.0.0.1").header("x-forwarded-for", "203.0.113.9")),
        NOTHING
    );
    assert_eq!(lines_through(&[&layer, &layer], [from("10.0.0.1")]), NOTHING);
}

#[test]
fn the_same_limits_twice_on_a_request_are_told_once() {
    let store = MemoryStore::new();
    let limits = || builder(store.clone()).key(key::header("x-user-id")).build().unwrap();
    let alice = || (0..10).map(|_| alice());
    let (one, other) = (limits(), limits());
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    let behind_an_arc = builder(shared).key(key::header("x-user-id")).build().unwrap();
    for (outer, inner) in [(&one, &one.clone()), (&limits(), &other), (&limits(), &behind_an_arc)] {
        let lines = lines_through(&[outer, inner], alice());
        assert_told(&lines, "layer-twice", &["scope=mistakes"]);
    }
    assert_eq!(lines_through(&[&one, &one], alice()), NOTHING, "once");
}

/// Only some of the later requests are marked, whatever their number is.
#[test]
fn the_same_limits_twice_on_later_requests_are_told() {
    for once in 32..64 {
        let layer = by_user().build().unwrap();
        let alice = |count| (0..count).map(|_| alice());
        assert_eq!(lines_through(&[&layer], alice(once)), NOTHING);
        let lines = lines_through(&[&layer, &layer], alice(40));
        assert_told(&lines, "layer-twice", &["scope=mistakes"]);
    }
}

#[test]
fn different_limits_on_a_request_are_no_mistake() {
    let store = MemoryStore::new();
    let limits = |store: &MemoryStore, scope: &str, name: &'static str| {
        let builder = RateLimitLayer::builder(store.clone())
            .scope(scope)
            .key(key::header("x-user-id"));
        builder.policy(QuotaPolicy::per_hour(name, 10)).build().unwrap()
    };
    let alice = || [from("192.0.2.1").header("x-user-id", "alice")];
    let one = limits(&store, "one", "hour");
    let by_address = RateLimitLayer::builder(store.clone())
        .scope("one")
        .key(key::client_ip());
    for other in [
        by_address.policy(QuotaPolicy::per_hour("hour", 10)).build().unwrap(),
        limits(&store, "other", "hour"),
        limits(&store, "one", "other"),
        limits(&MemoryStore::new(), "one", "hour"),
    ] {
        assert_eq!(lines_through(&[&one, &other], alice()), NOTHING);
    }
    // A request that is sent again is another one.
    assert_eq!(
        lines_through(&[&one], [alice(), alice()].into_iter().flatten()),
        NOTHING
    );
}

#[test]
fn one_scope_and_policy_name_with_two_quotas_on_one_store_is_told_when_the_second_layer_is_built() {
    fn layer(store: impl Store, scope: &str, policy: QuotaPolicy) -> (RateLimitLayer, Vec<String>) {
        let builder = RateLimitLayer::builder(store)
            .scope(scope)
            .key(key::header("x-user-id"));
        let mut layer = None;
        let lines = lines_while(|| layer = Some(builder.policy(policy).build().unwrap()));
        (layer.unwrap(), lines)
    }
    let store = MemoryStore::new();
    let hour = |quota| QuotaPolicy::per_hour("hour", quota);
    let (first, lines) = layer(store.clone(), "api", hour(10));
    assert_eq!(lines, NOTHING);

    for differing in [
        hour(11),
        QuotaPolicy::per_minute("hour", 10),
        hour(10).with_burst_capacity(20),
    ] {
        let (_second, lines) = layer(store.clone(), "api", differing);
        assert_told(&lines, "two-quotas", &["scope=api", "policy=hour"]);
    }
    let (behind_an_arc, lines) = layer(Arc::new(store.clone()), "api", hour(11));
    assert_told(&lines, "two-quotas", &["scope=api", "policy=hour"]);
    drop(behind_an_arc);
    for (store, scope, policy) in [
        (store.clone(), "api", hour(10)),
        (store.clone(), "api", QuotaPolicy::per_hour("other", 11)),
        (store.clone(), "api", hour(11).with_algorithm(Algorithm::FixedWindow)),
        (store.clone(), "mails", hour(11)),
        (MemoryStore::new(), "api", hour(11)),
    ] {
        assert_eq!(layer(store, scope, policy).1, NOTHING);
    }
    // A layer that is gone has no quota.
    drop(first);
    assert_eq!(layer(store, "api", hour(12)).1, NOTHING);
}

/// Equal values of the main key and of named keys are different callers.
#[test]
fn policies_of_one_name_by_different_keys_are_no_two_quotas() {
    let store = MemoryStore::new();
    let user = || key::header("x-user-id");
    let builder = || RateLimitLayer::builder(store.clone()).scope("api").key(user());
    let by = |name: &'static str, quota| {
        let builder = builder().named_key(name, user());
        builder.policy(QuotaPolicy::per_hour("hour", quota).keyed_by(name))
    };
    let mut layers = Vec::new();
    let mut lines_of = |builder: RateLimitLayerBuilder| lines_while(|| layers.push(builder.build().unwrap()));
    assert_eq!(lines_of(builder().policy(QuotaPolicy::per_hour("hour", 10))), NOTHING);
    assert_eq!(lines_of(by("user", 11)), NOTHING);
    assert_eq!(lines_of(by("account", 12)), NOTHING);
    assert_told(&lines_of(by("user", 13)), "two-quotas", &["scope=api", "policy=hour"]);
}

#[test]
fn tiers_of_one_layer_may_have_the_quotas_that_they_like() {
    let store = MemoryStore::new();
    let tiers = |premium| {
        let tiers = Tiers::from_fn(|_| None).tier("free", [QuotaPolicy::per_hour("hour", 10)]);
        let tiers = tiers.tier("premium", [QuotaPolicy::per_hour("hour", premium)]);
        RateLimitLayer::builder(store.clone())
            .scope("tiers")
            .key(key::header("x-user-id"))
            .tiers(tiers)
            .build()
            .unwrap()
    };
    let mut layers = Vec::new();
    assert_eq!(lines_while(|| layers.extend([tiers(100), tiers(100)])), NOTHING);
    assert_told(&lines_while(|| layers.push(tiers(101))), "two-quotas", &["policy=hour"]);
}

/// Two handles on one server are known by its address, database and prefix.
#[cfg(feature = "redis")]
#[test]
fn two_handles_on_one_redis_are_one_store() {
    use tower_quota::RedisStore;

    let identity = |url: &str| RedisStore::new(url).unwrap().traits().identity();
    let one = identity("redis://10.0.0.1/");
    assert!(one.is_some());
    assert_eq!(one, identity("redis://limiter:secret@10.0.0.1:6379/0"));
    for other in ["redis://10.0.0.2/", "redis://10.0.0.1:6380/", "redis://10.0.0.1/1"] {
        assert_ne!(one, identity(other), "{other}");
    }
    let prefixed = RedisStore::builder("redis://10.0.0.1/")
        .key_prefix("staging:")
        .build()
        .unwrap();
    assert_ne!(one, prefixed.traits().identity());
    let cluster = |urls: [&str; 2]| RedisStore::cluster(urls).unwrap().traits().identity();
    let urls = ["redis://10.0.0.1/", "redis://10.0.0.2/"];
    assert_eq!(cluster(urls), cluster([urls[1], urls[0]]));
    assert_ne!(cluster(urls), one);
}

#[test]
fn a_caller_that_is_given_by_a_key_of_another_kind_than_those_of_requests_is_told_once() {
    let user = key::header("x-user-id");
    let layer = builder(MemoryStore::new())
        .key(
            user.clone()
                .or_else(key::from_fn(|_| Some("a guest".to_partition_key()))),
        )
        .build()
        .unwrap();
    let limiter = layer.limiter();
    let given = |key: &dyn Fn() -> PartitionKey| lines_while(|| drop(limiter.caller(&key())));
    let other = || PartitionKey::new("user", "alice");
    let send = |requests| lines_through(&[&layer], (0..requests).map(|_| alice()));
    assert_eq!(send(400), NOTHING);
    // The others may still come.
    assert_eq!(given(&other), NOTHING);
    assert_eq!(send(100), NOTHING);
    assert_eq!(given(&|| user.key_of("alice")), NOTHING);
    assert_told(&given(&other), "key-of-another-kind", &["scope=mistakes", "kind=user"]);
    assert_eq!(given(&other), NOTHING);

    // Without requests there is nothing that a caller could be compared with.
    let alone = Limiter::builder(MemoryStore::new())
        .scope("mistakes")
        .policy(QuotaPolicy::per_hour("hour", 1))
        .build()
        .unwrap();
    assert_eq!(lines_while(|| drop(alone.caller("alice"))), NOTHING);
}

#[test]
fn layers_of_one_limiter_are_no_two_quotas_also_when_rules_have_changed_between_them() {
    let hour = |quota| QuotaPolicy::per_hour("hour", quota);
    let limiter = Limiter::builder(MemoryStore::new())
        .scope("mistakes")
        .policy(hour(10))
        .build()
        .unwrap();
    let layer = || {
        let builder = RateLimitLayer::with_limiter(limiter.clone());
        builder.key(key::header("x-user-id")).build().unwrap()
    };
    let first = layer();
    limiter.rules().replace(Rules::new().policy(hour(20))).unwrap();
    let mut second = None;
    assert_eq!(lines_while(|| second = Some(layer())), NOTHING);
    // The layers still charge a request twice.
    let second = second.unwrap();
    let lines = lines_through(&[&first, &second], [alice()]);
    assert_told(&lines, "layer-twice", &["scope=mistakes"]);
}
