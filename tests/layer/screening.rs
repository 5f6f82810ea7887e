//! Requests that are not counted, and requests that are rejected without a count.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    thread,
};

use bytes::Bytes;
use http::{HeaderName, Method, Request, Response, StatusCode};
use proptest::prelude::*;
use serde_json::json;
use test_kit::{Answered, TestStore, limits, limits_by, request, send};
use tower_quota::{
    Access, AccessList, AccessRules, ConfigError, ConfigErrorKind, Exemption, MissingKey, Outcome, PartitionKey,
    QuotaPolicy, RateLimitLayer, RateLimitLayerBuilder, Tiers,
    key::{self, ForwardingField, KeyExtractor, PeerAddress},
};

/// A store that counts its calls.
#[derive(Clone, Debug, Default)]
struct Counting(TestStore);

impl Counting {
    fn asked(&self) -> usize {
        self.0.calls() + self.0.settlements()
    }

    /// A layer whose only policy is used up by one request.
    fn builder(&self) -> RateLimitLayerBuilder {
        self.keyed(key::header("x-user-id"))
    }

    fn keyed(&self, key: impl KeyExtractor) -> RateLimitLayerBuilder {
        let builder = limits_by(key, self.0.clone());
        builder.policy(QuotaPolicy::per_day("day", 1))
    }

    fn exempting(&self, exemption: Exemption) -> RateLimitLayer {
        self.builder().exempt(exemption).build().unwrap()
    }
}

fn has_limits(response: &Response<Bytes>) -> bool {
    let limits = ["ratelimit", "ratelimit-policy", "retry-after"];
    limits.iter().any(|name| response.headers().contains_key(*name))
}

fn get(path: &str) -> Request<String> {
    let mut request = request("alice");
    *request.uri_mut() = path.parse().unwrap();
    request
}

fn from(address: &str, path: &str) -> Request<String> {
    let mut request = get(path);
    let peer = SocketAddr::new(address.parse().unwrap(), 50_000);
    request.extensions_mut().insert(PeerAddress(peer));
    request
}

fn user(name: &str) -> PartitionKey {
    PartitionKey::new("x-user-id", name)
}

#[tokio::test]
async fn a_path_is_compared_byte_for_byte_without_its_query() {
    let layer = Counting::default().exempting(Exemption::path("/health"));
    for exempt in ["/health", "/health?a"] {
        assert_eq!(send(&layer, get(exempt)).await.outcome(), Outcome::Unlimited);
    }
    for other in ["/health/", "/healthy", "/Health", "/%68ealth", "//health"] {
        assert_ne!(send(&layer, get(other)).await.outcome(), Outcome::Unlimited, "{other}");
    }
}

#[test]
fn mistakes_in_exemptions_name_the_value() {
    let error = |exemption| Counting::default().builder().exempt(exemption).build().unwrap_err();
    let unread = |network| format!("exemption: {network:?} is not an IP address or network");
    let unsound = |path| {
        let needed = "must start with '/' and have no query, backslashes, empty or dot segments, or encoded delimiters";
        format!("exemption: invalid path {path:?}: {needed}")
    };
    let network = |networks: &[&str]| Exemption::network(key::client_ip(), networks);
    for (exemption, message) in [
        (Exemption::path("health"), unsound("health")),
        (Exemption::path("/a?b"), unsound("/a?b")),
        (Exemption::path_prefix("/a/../b"), unsound("/a/../b")),
        (network(&["10.0.0.0/8", "10.0.0.0/33"]), unread("10.0.0.0/33")),
        (Exemption::path("/").and(network(&["here"])), unread("here")),
    ] {
        let error = error(exemption);
        assert_eq!((error.kind(), error.to_string()), (ConfigErrorKind::Exemption, message));
    }
    let proxies = key::client_ip().trusted_proxies(ForwardingField::Forwarded, ["there"]);
    assert_eq!(
        error(Exemption::network(proxies, ["::1"])).to_string(),
        r#"key: trusted proxy "there" is not an IP address or network"#
    );
    let with = |count| {
        let exemptions = (0..count).map(|_| Exemption::path("/health"));
        exemptions.fold(Counting::default().builder(), RateLimitLayerBuilder::exempt)
    };
    assert!(with(64).build().is_ok());
    let error = with(65).build().unwrap_err();
    assert_eq!(error.to_string(), "exemptions: 65 exceed the limit of 64");
}

/// A layer with an access list.
fn listed(store: &Counting) -> (AccessList, RateLimitLayerBuilder) {
    let list = AccessList::new(key::client_ip());
    (list.clone(), store.builder().access_list(list))
}

#[tokio::test]
async fn rules_change_while_the_service_runs() {
    let store = Counting::default();
    let (list, builder) = listed(&store);
    let layer = builder.build().unwrap();
    let attacker = || from("203.0.113.9", "/");
    assert_eq!(send(&layer, attacker()).await.outcome(), Outcome::Allowed);
    assert_eq!(send(&layer, attacker()).await.outcome(), Outcome::Rejected);
    let asked = store.asked();

    list.update(|rules| rules.set_network("203.0.113.0/24", Access::Block))
        .unwrap();
    let blocked = send(&layer, attacker()).await;
    assert_eq!((blocked.code(), blocked.outcome()), (403, Outcome::Blocked));
    assert!(!has_limits(&blocked));

    list.update(|rules| rules.set_network("203.0.113.9", Access::Allow))
        .unwrap();
    for _ in 0..9 {
        let allowed = send(&layer, attacker()).await;
        assert_eq!((allowed.code(), allowed.outcome()), (200, Outcome::Unlimited));
        assert!(!has_limits(&allowed));
    }
    assert_eq!(store.asked(), asked, "neither of them asks the store");

    list.update(|rules| rules.remove_network("203.0.113.9")).unwrap();
    assert_eq!(send(&layer, attacker()).await.outcome(), Outcome::Blocked);
    list.replace(AccessRules::new());
    assert_eq!(send(&layer, attacker()).await.outcome(), Outcome::Rejected);
}

#[tokio::test]
async fn a_block_goes_before_all_else() {
    let tiers = Tiers::from_fn(|_| None).unlimited("all");
    let list = AccessList::new(key::client_ip());
    let builder = limits(TestStore::default()).tiers(tiers).skip_cors_preflight();
    let builder = builder.exempt(Exemption::path_prefix("/")).access_list(list.clone());
    let layer = builder.build().unwrap();
    let preflight = || {
        let mut request = from("203.0.113.9", "/");
        *request.method_mut() = Method::OPTIONS;
        for name in ["origin", "access-control-request-method"] {
            request.headers_mut().insert(name, "x".parse().unwrap());
        }
        request
    };
    assert_eq!(send(&layer, preflight()).await.outcome(), Outcome::Unlimited);
    list.update(|rules| {
        rules.set_network("203.0.113.9", Access::Block)?;
        rules.set_key(user("alice"), Access::Allow)
    })
    .unwrap();
    assert_eq!(send(&layer, preflight()).await.outcome(), Outcome::Blocked);
    list.update(|rules| {
        rules.set_network("203.0.113.9", Access::Allow)?;
        rules.set_key(user("alice"), Access::Block)
    })
    .unwrap();
    assert_eq!(send(&layer, preflight()).await.outcome(), Outcome::Blocked);
    layer.limiter().rules().disable();
    assert_eq!(send(&layer, preflight()).await.outcome(), Outcome::Blocked);
}

/// Fields in which a client behind a proxy that appends has made what the proxy writes unreadable, and others that show
/// no client.
fn hiding_fields() -> Vec<(ForwardingField, Vec<String>)> {
    let forwarded = [
        r#"x=", for=203.0.113.9"#.to_owned(),
        r#"for=10.0.0.9;host="a, for=203.0.113.9;by="10.0.0.1""#.to_owned(),
        format!("x={}, for=203.0.113.9", "a".repeat(8 * 1024)),
        "for=unknown".to_owned(),
        "for=_hidden, for=10.0.0.2".to_owned(),
        String::new(),
    ];
    let x_forwarded_for = [
        "unknown".to_owned(),
        "203.0.113.9, , 10.0.0.2".to_owned(),
        "203.0.113.9:99999".to_owned(),
        format!("10.0.0.2{}", " ".repeat(8 * 1024)),
    ];
    let of = |field: ForwardingField| move |line| (field.clone(), vec![line]);
    let forwarded = forwarded.into_iter().map(of(ForwardingField::Forwarded));
    let real_ip = || ForwardingField::SingleAddress("X-Real-IP".into());
    let one_address = ["unknown", "203.0.113.9, 10.0.0.2", ""].map(|line| (real_ip(), vec![line.to_owned()]));
    let twice = ["203.0.113.9", "10.0.0.2"].map(str::to_owned).to_vec();
    forwarded
        .chain(one_address)
        .chain([(real_ip(), twice)])
        .chain(x_forwarded_for.into_iter().map(of(ForwardingField::XForwardedFor)))
        .chain([(
            ForwardingField::Forwarded,
            vec![r#"for=10.0.0.2;host=""#.to_owned(), "for=10.0.0.2".to_owned()],
        )])
        .collect()
}

fn trusting(field: &ForwardingField) -> key::ClientIp {
    key::client_ip().trusted_proxies(field.clone(), ["10.0.0.0/8"])
}

/// A request from the trusted proxy with these field lines.
fn forwarding(field: &ForwardingField, lines: &[String]) -> Request<String> {
    let mut request = from("10.0.0.1", "/");
    let name = match field {
        ForwardingField::Forwarded => "forwarded",
        ForwardingField::SingleAddress(name) => &**name,
        _ => "x-forwarded-for",
    };
    for line in lines {
        let name: HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, line.parse().unwrap());
    }
    request
}

/// X38: of a walk of too many hops, the last one is counted, and opens no door.
#[tokio::test]
async fn a_client_that_hides_behind_its_proxy_is_in_no_network_of_the_proxy() {
    let too_many = vec![vec!["10.0.0.2"; 33].join(",")];
    let of_hops = [(ForwardingField::XForwardedFor, too_many)];
    for (field, lines) in hiding_fields().into_iter().chain(of_hops) {
        let list = AccessList::new(trusting(&field));
        let networks = |rules: &mut AccessRules| {
            rules.set_network("10.0.0.0/8", Access::Allow)?;
            rules.set_network("203.0.113.0/24", Access::Block)
        };
        list.update(networks).unwrap();
        let store = Counting::default();
        let exemption = Exemption::network(trusting(&field), ["10.0.0.0/8"]);
        let builder = store.keyed(trusting(&field)).access_list(list).exempt(exemption);
        let layer = builder.build().unwrap();
        let mut passed = 0;
        for _ in 0..20 {
            passed += u32::from(send(&layer, forwarding(&field, &lines)).await.status() == 200);
        }
        assert_eq!(passed, 1, "{lines:?}");
        // A request that names no other client comes from the machine itself, which is allowed.
        for request in [forwarding(&field, &[]), from("10.3.4.5", "/")] {
            assert_eq!(send(&layer, request).await.outcome(), Outcome::Unlimited);
        }
    }
}

/// X38
#[tokio::test]
async fn the_choice_for_requests_without_a_key_decides_about_clients_that_hide() {
    for (field, lines) in hiding_fields() {
        let layer = |no_key| {
            let builder = Counting::default().keyed(trusting(&field));
            builder.on_missing_key(no_key).build().unwrap()
        };
        for (no_key, outcomes) in [
            (MissingKey::Reject, [Outcome::MissingKey; 2]),
            (MissingKey::Share, [Outcome::Allowed, Outcome::Rejected]),
            (MissingKey::Allow, [Outcome::Unlimited; 2]),
        ] {
            let layer = layer(no_key);
            for outcome in outcomes {
                let answer = send(&layer, forwarding(&field, &lines)).await;
                assert_eq!(answer.outcome(), outcome, "{no_key:?} {lines:?}");
            }
            // Clients that hide do not use up the quota of a known client.
            let clients = [forwarding(&field, &[]), from("203.0.113.9", "/")];
            for request in clients {
                assert_eq!(send(&layer, request).await.outcome(), Outcome::Allowed);
            }
        }
    }
}

/// The key of the layer is known, so that nothing else keeps a blocked client out which hides its address.
///
/// X38
#[tokio::test]
async fn clients_without_an_address_are_in_no_network_and_can_be_blocked() {
    let list = AccessList::new(trusting(&ForwardingField::Forwarded));
    let builder = Counting::default().builder().access_list(list.clone());
    let layer = builder.build().unwrap();
    let hidden = || forwarding(&ForwardingField::Forwarded, &[r#"x=", for=203.0.113.9"#.to_owned()]);
    list.update(|rules| {
        rules.set_key(user("alice"), Access::Allow)?;
        rules.block_unknown_addresses(true);
        Ok::<_, ConfigError>(())
    })
    .unwrap();
    assert!(!list.rules().is_empty());
    for request in [hidden(), get("/")] {
        assert_eq!(send(&layer, request).await.outcome(), Outcome::Blocked);
    }
    assert_eq!(send(&layer, from("192.0.2.1", "/")).await.outcome(), Outcome::Unlimited);
    list.update(|rules| {
        rules.block_unknown_addresses(false);
        rules.set_network("0.0.0.0/0", Access::Block)?;
        rules.set_network("::/0", Access::Block)
    })
    .unwrap();
    for request in [hidden(), get("/")] {
        assert_eq!(send(&layer, request).await.outcome(), Outcome::Unlimited);
    }
    for address in ["192.0.2.1", "2001:db8::1"] {
        assert_eq!(send(&layer, from(address, "/")).await.outcome(), Outcome::Blocked);
    }
}

#[tokio::test]
async fn a_blocked_client_is_told_so_with_403_and_no_reason_with_429() {
    let forbidden =
        json!({"type": "about:blank", "title": "Forbidden", "status": 403, "detail": "The client is blocked."});
    let unexplained = json!({"type": "about:blank", "title": "Too Many Requests", "status": 429});
    for (status, grpc_status, expected) in [
        (StatusCode::FORBIDDEN, "7", forbidden),
        (StatusCode::TOO_MANY_REQUESTS, "8", unexplained),
    ] {
        let (list, builder) = listed(&Counting::default());
        let builder = builder
            .blocked_status(status)
            .rejection_status(StatusCode::SERVICE_UNAVAILABLE);
        let layer = builder.build().unwrap();
        list.update(|rules| rules.set_key(user("alice"), Access::Block))
            .unwrap();
        let blocked = send(&layer, get("/")).await;
        let problem: serde_json::Value = serde_json::from_slice(blocked.body()).unwrap();
        assert_eq!((blocked.status(), problem), (status, expected));
        let mut grpc = get("/");
        let headers = grpc.headers_mut();
        headers.insert("content-type", "application/grpc".parse().unwrap());
        let grpc = send(&layer, grpc).await;
        assert_eq!((grpc.code(), grpc.field("grpc-status")), (200, grpc_status));
        assert!(!has_limits(&blocked) && !has_limits(&grpc));
        // Only rejections because of a quota have the status that is chosen for them.
        for status in [200, 503] {
            assert_eq!(send(&layer, request("bob")).await.status(), status);
        }
    }
    let (_, builder) = listed(&Counting::default());
    let error = builder.blocked_status(StatusCode::NOT_FOUND).build().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::RejectionStatus);
    assert_eq!(error.to_string(), "blocked status 404 is not 403 or 429");
}

#[test]
fn a_change_that_fails_changes_nothing_and_names_the_value() {
    let list = AccessList::new(key::client_ip());
    let failing = |rules: &mut AccessRules| {
        rules.set_key(user("mallory"), Access::Block)?;
        rules.set_network("10.0.0.0/33", Access::Block)
    };
    let error = list.update(failing).unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::AccessRules);
    let message = r#"access rules: "10.0.0.0/33" is not an IP address or network"#;
    assert_eq!(error.to_string(), message);
    assert!(list.rules().is_empty());
    assert!(list.update(|rules| rules.remove_network("nowhere")).is_err());
}

#[test]
fn a_second_access_list_and_one_with_unreadable_proxies_are_errors_of_build() {
    let with = |list: &AccessList| Counting::default().builder().access_list(list.clone());
    let list = AccessList::new(key::client_ip());
    assert!(with(&list).build().is_ok());
    let error = with(&list).access_list(list).build().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::AccessRules);
    let message = "access list: set twice; a limiter has one access list, which limiters can share";
    assert_eq!(error.to_string(), message);
    let unreadable = key::client_ip().trusted_proxies(ForwardingField::Forwarded, ["there"]);
    let error = with(&AccessList::new(unreadable)).build().unwrap_err();
    assert_eq!(error.kind(), ConfigErrorKind::Key);
}

#[test]
fn rules_are_bounded_in_number() {
    let mut rules = AccessRules::new();
    let key = |number: u32| PartitionKey::new("n", number.to_be_bytes());
    for number in 0..1_000_000 {
        rules.set_key(key(number), Access::Block).unwrap();
    }
    let full = "access rules: limit of 1000000 rules exceeded";
    let key_error = rules.set_key(key(1_000_000), Access::Block).unwrap_err();
    let network_error = rules.set_network("::1", Access::Block).unwrap_err();
    assert_eq!([key_error, network_error].map(|error| error.to_string()), [full; 2]);
    rules.set_key(key(7), Access::Allow).unwrap();
    assert!(rules.remove_key(&key(8)) && !rules.remove_key(&key(8)));
    rules.set_network("::1", Access::Block).unwrap();
    assert_eq!(rules.len(), 1_000_000);
}

#[test]
fn changes_made_at_the_same_time_are_all_made() {
    let list = AccessList::new(key::client_ip());
    thread::scope(|scope| {
        for third in 0..8 {
            let list = &list;
            scope.spawn(move || {
                for network in (0..50).map(|fourth| format!("10.0.{third}.{fourth}")) {
                    let change = list.update(|rules| {
                        thread::yield_now();
                        rules.set_network(network, Access::Block)
                    });
                    change.unwrap();
                }
            });
        }
    });
    assert_eq!(list.rules().len(), 400);
}

#[test]
fn what_is_printed_names_nobody() {
    let list = AccessList::new(key::client_ip());
    list.update(|rules| {
        rules.set_key(user("mallory"), Access::Block)?;
        rules.set_network("203.0.113.9", Access::Block)
    })
    .unwrap();
    assert_eq!(format!("{list:?}"), "AccessList(AccessRules { networks: 1, keys: 1 })");
    let exemption = Exemption::key(user("monitor")).and(Exemption::network(key::client_ip(), ["203.0.113.9"]));
    assert_eq!(format!("{exemption:?}"), "key and network");
}

/// Addresses that often are in the same networks.
fn addresses() -> impl Strategy<Value = IpAddr> {
    let bits = || prop::collection::vec(0_u8..4, 4);
    prop_oneof![
        bits().prop_map(|bits| IpAddr::from([10 + bits[0], bits[1], bits[2] << 6, bits[3]])),
        bits().prop_map(|bits| IpAddr::from([0x2001, 0xdb8, bits[0].into(), 0, 0, 0, bits[1].into(), bits[2].into()])),
        bits().prop_map(|bits| IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, bits[0].into()])),
    ]
}

fn accesses() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::Allow), Just(Access::Block), Just(Access::Limit)]
}

/// A change of the rules: about a network or a key, and `None` to remove the rule.
#[derive(Clone, Debug)]
enum Change {
    Key(u8, Option<Access>),
    Network(IpAddr, u8, Option<Access>),
}

fn changes() -> impl Strategy<Value = Change> {
    let access = || prop::option::weighted(0.8, accesses());
    prop_oneof![
        (0_u8..4, access()).prop_map(|(key, access)| Change::Key(key, access)),
        (addresses(), 0_u8..=128, access()).prop_map(|(address, length, access)| {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            Change::Network(address, length % (bits + 1), access)
        }),
    ]
}

/// The bits of an address in a space where all IPv4 addresses are mapped ones; `::/0` therefore does not contain IPv4.
fn bits(address: IpAddr) -> (bool, u128) {
    match address.to_canonical() {
        IpAddr::V4(address) => (true, u128::from(u32::from(address)) << 96),
        IpAddr::V6(address) => (false, u128::from(address)),
    }
}

/// Everything is walked, and nothing is clever.
#[derive(Default)]
struct Oracle {
    keys: Vec<(u8, Access)>,
    networks: Vec<((bool, u128), u8, Access)>,
}

impl Oracle {
    fn holds(network: (bool, u128), length: u8, (is_v4, bits): (bool, u128)) -> bool {
        network.0 == is_v4 && (0..length).all(|bit| (network.1 ^ bits) >> (127 - bit) & 1 == 0)
    }

    fn change(&mut self, change: &Change) {
        match *change {
            Change::Key(key, access) => {
                self.keys.retain(|(other, _)| *other != key);
                self.keys.extend(access.map(|access| (key, access)));
            }
            Change::Network(address, length, access) => {
                let network = bits(address);
                let is_mapped = address.is_ipv6() && network.0;
                let (network, length) = match length.checked_sub(96) {
                    Some(length) if is_mapped => (network, length),
                    // Less than the whole prefix of mapped addresses: a network of IPv6.
                    _ if is_mapped => ((false, 0xffff << 32 | network.1 >> 96), length),
                    _ => (network, length),
                };
                let same =
                    |other: &((bool, u128), u8, Access)| other.1 == length && Self::holds(network, length, other.0);
                self.networks.retain(|other| !same(other));
                self.networks.extend(access.map(|access| (network, length, access)));
            }
        }
    }

    fn access(&self, address: IpAddr, key: u8) -> Access {
        let holding = self.networks.iter().filter(|it| Self::holds(it.0, it.1, bits(address)));
        let by_network = holding.max_by_key(|it| it.1).map(|it| it.2);
        let by_key = self.keys.iter().find(|it| it.0 == key).map(|it| it.1);
        let both = [by_network, by_key];
        let mut first = [Access::Block, Access::Allow].into_iter();
        first
            .find(|access| both.contains(&Some(*access)))
            .unwrap_or(Access::Limit)
    }
}

fn apply(rules: &mut AccessRules, change: &Change) -> Result<(), ConfigError> {
    match change {
        Change::Key(key, Some(access)) => rules.set_key(PartitionKey::new("k", [*key]), *access),
        Change::Key(key, None) => {
            rules.remove_key(&PartitionKey::new("k", [*key]));
            Ok(())
        }
        Change::Network(address, length, Some(access)) => rules.set_network(network(*address, *length), *access),
        Change::Network(address, length, None) => rules.remove_network(network(*address, *length)).map(drop),
    }
}

/// The network of this length that has the address.
fn network(address: IpAddr, length: u8) -> String {
    let mask = |bits: u32| u128::MAX.checked_shl(bits - u32::from(length)).unwrap_or(0);
    let first = match address {
        IpAddr::V4(address) => IpAddr::V4((address.to_bits() & mask(32) as u32).into()),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & mask(128)).into()),
    };
    format!("{first}/{length}")
}

/// The exemptions of a layer, and the requests to which they apply.
#[derive(Clone, Debug)]
enum Exempt {
    And(Box<(Exempt, Exempt)>),
    Key(u8),
    Method(Method),
    Network(IpAddr, u8),
    Path(&'static str),
    PathPrefix(&'static str),
    When(u8),
}

#[derive(Clone, Debug)]
struct Asked {
    method: Method,
    path: &'static str,
    peer: Option<IpAddr>,
    user: Option<u8>,
    flag: u8,
}

const PATHS: [&str; 8] = ["/", "/a", "/a/", "/a/b", "/a/b/c", "/ab", "/b", "/A"];

fn methods() -> impl Strategy<Value = Method> {
    prop::sample::select(vec![Method::GET, Method::POST, Method::HEAD])
}

fn exempts() -> impl Strategy<Value = Exempt> {
    let one = prop_oneof![
        (0_u8..3).prop_map(Exempt::Key),
        methods().prop_map(Exempt::Method),
        (addresses(), 0_u8..=32).prop_map(|(address, length)| Exempt::Network(address.to_canonical(), length)),
        prop::sample::select(&PATHS).prop_map(Exempt::Path),
        prop::sample::select(&PATHS).prop_map(Exempt::PathPrefix),
        (0_u8..3).prop_map(Exempt::When),
    ];
    one.prop_recursive(2, 4, 2, |one| {
        (one.clone(), one).prop_map(|both| Exempt::And(Box::new(both)))
    })
}

prop_compose! {
    fn asked()(
        method in methods(),
        path in prop::sample::select(&PATHS),
        peer in prop::option::of(addresses()),
        user in prop::option::of(0_u8..3),
        flag in 0_u8..3,
    ) -> Asked {
        Asked { method, path, peer, user, flag }
    }
}

impl Exempt {
    fn build(&self) -> Exemption {
        match self.clone() {
            Self::And(both) => both.0.build().and(both.1.build()),
            Self::Key(key) => Exemption::key(user(&key.to_string())),
            Self::Method(method) => Exemption::method(method),
            Self::Network(address, length) => Exemption::network(key::client_ip(), [network(address, length)]),
            Self::Path(path) => Exemption::path(path),
            Self::PathPrefix(path) => Exemption::path_prefix(path),
            Self::When(flag) => Exemption::when(move |request| request.headers["x-flag"] == flag.to_string()),
        }
    }

    /// Returns `true` if the exemption applies, computed independently of the crate.
    fn applies(&self, asked: &Asked) -> bool {
        let segments = |path: &'static str| path.trim_matches('/').split('/').filter(|segment| !segment.is_empty());
        match self {
            Self::And(both) => both.0.applies(asked) && both.1.applies(asked),
            Self::Key(key) => asked.user == Some(*key),
            Self::Method(method) => asked.method == *method,
            Self::Network(address, length) => asked
                .peer
                .is_some_and(|peer| Oracle::holds(bits(*address), *length, bits(peer))),
            Self::Path(path) => asked.path == *path,
            Self::PathPrefix(path) => {
                let prefix: Vec<_> = segments(path).collect();
                segments(asked.path).take(prefix.len()).eq(prefix)
            }
            Self::When(flag) => asked.flag == *flag,
        }
    }
}

impl Asked {
    fn request(&self) -> Request<String> {
        let mut request = Request::builder().method(&self.method).uri(self.path);
        if let Some(user) = self.user {
            request = request.header("x-user-id", user.to_string());
        }
        if let Some(peer) = self.peer {
            request = request.extension(PeerAddress(SocketAddr::new(peer, 50_000)));
        }
        let request = request.header("x-flag", self.flag.to_string());
        request.body(String::new()).unwrap()
    }
}

proptest! {
    /// An exempt caller is never charged, regardless of usage; all others are counted, and rejected when the quota is
    /// exhausted.
    #[test]
    fn exempt_is_to_whom_all_of_any_exemption_applies_and_nobody_else(
        exempts in prop::collection::vec(exempts(), 0..5),
        requests in prop::collection::vec(asked(), 1..20),
    ) {
        let store = Counting::default();
        let builder = exempts.iter().fold(store.builder(), |builder, exempt| builder.exempt(exempt.build()));
        let layer = builder.build().unwrap();
        let mut counted = HashSet::new();
        for asked in &requests {
            let before = store.asked();
            let answer = tokio_test::block_on(send(&layer, asked.request()));
            let expected = if exempts.iter().any(|exempt| exempt.applies(asked)) {
                Outcome::Unlimited
            } else if counted.insert(asked.user) {
                Outcome::Allowed
            } else {
                Outcome::Rejected
            };
            prop_assert_eq!(answer.outcome(), expected, "{:?}", asked);
            prop_assert_eq!(store.asked() > before, expected != Outcome::Unlimited);
            prop_assert_eq!(has_limits(&answer), expected != Outcome::Unlimited);
        }
    }

    #[test]
    fn a_look_up_finds_what_walking_all_rules_finds(
        changes in prop::collection::vec(changes(), 0..40),
        requests in prop::collection::vec((addresses(), 0_u8..4), 20),
    ) {
        let (mut rules, mut oracle) = (AccessRules::new(), Oracle::default());
        for change in &changes {
            apply(&mut rules, change).unwrap();
            oracle.change(change);
        }
        prop_assert_eq!(rules.len(), oracle.keys.len() + oracle.networks.len());
        for (address, key) in requests {
            let found = rules.access(Some(address), Some(&PartitionKey::new("k", [key])));
            prop_assert_eq!(found, oracle.access(address, key), "{} {}", address, key);
        }
    }
}
