//! The program `envoy` as a process, with a gRPC client on a real connection.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::{Child, ChildStderr, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use envoy_types::pb::{
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
            rate_limit_service_client::RateLimitServiceClient,
            rate_limit_service_server::SERVICE_NAME,
        },
    },
    google::protobuf::UInt64Value,
};
use futures_util::future::join_all;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use test_kit::shared_server;
use tonic::{Code as GrpcCode, IntoRequest, Request, Status, body::Body};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

/// No decision takes this long unless the store hangs.
const NO_DEADLINE: [&str; 2] = ["--deadline", "60000"];

/// The process, which is killed when this is dropped.
struct Server {
    process: Child,
    stderr: BufReader<ChildStderr>,
    url: String,
}

/// Unlike a tonic channel, this client does not enforce `grpc-timeout` itself.
type Connection = Client<HttpConnector, Body>;

fn start(rules: &Value, arguments: &[&str]) -> Server {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = format!("{}/envoy-{number}.json", env!("CARGO_TARGET_TMPDIR"));
    fs::write(&file, rules.to_string()).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_envoy"))
        .args(["--rules", &file, "--listen", "127.0.0.1:0"])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = BufReader::new(process.stderr.take().unwrap());
    let url = String::new();
    Server { process, stderr, url }
}

impl Server {
    fn start(rules: &Value, arguments: &[&str]) -> Self {
        let mut server = start(rules, arguments);
        let line = server.line();
        let address = line.trim().strip_prefix("listening on ").expect(&line);
        server.url = format!("http://{address}");
        server
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    fn connection() -> Connection {
        Client::builder(TokioExecutor::new()).http2_only(true).build_http()
    }

    async fn send(&self, request: impl IntoRequest<RateLimitRequest>) -> Result<RateLimitResponse, Status> {
        let origin = self.url.parse().unwrap();
        let mut client = RateLimitServiceClient::with_origin(Self::connection(), origin);
        Ok(client.should_rate_limit(request).await?.into_inner())
    }

    async fn hit(&self, domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitResponse {
        self.send(request(domain, descriptors)).await.unwrap()
    }

    fn streams<'a>(&'a self, domain: &'a str, user: &'a str) -> Streams<'a> {
        let server = self;
        Streams { server, domain, user }
    }

    fn health(&self) -> HealthClient<Connection> {
        HealthClient::with_origin(Self::connection(), self.url.parse().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    request_of(domain, descriptors.iter().map(descriptor).collect())
}

fn request_of(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    let domain = domain.to_owned();
    RateLimitRequest {
        domain,
        descriptors,
        hits_addend: 0,
    }
}

/// The window is a day, so that no units are restored while a test runs.
fn day(quota: u64) -> Value {
    json!({"name": "day", "quota": quota, "window_seconds": 86_400})
}

fn policies(quota: u64) -> Value {
    json!({"api": {"policies": [day(quota)]}})
}

/// Returns for each descriptor `true` if it is within its limits, and the remaining units.
fn remaining(response: &RateLimitResponse) -> Vec<(bool, u32)> {
    let status = |status: &DescriptorStatus| (status.code() == Code::Ok, status.limit_remaining);
    response.statuses.iter().map(status).collect()
}

fn header<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let mut headers = response.response_headers_to_add.iter();
    headers.find(|header| header.key == name).map(|header| &*header.value)
}

#[tokio::test]
async fn the_request_after_the_quota_is_over_limit() {
    let server = Server::start(&policies(3), &[]);
    let hit = async || server.hit("api", &[&[("user", "alice")]]).await;
    for left in [2, 1, 0] {
        let response = hit().await;
        assert_eq!(response.overall_code(), Code::Ok);
        assert_eq!(remaining(&response), [(true, left)]);
        let beginning = format!(r#""day";r={left};t="#);
        assert!(header(&response, "ratelimit").unwrap().starts_with(&beginning));
        assert_eq!(header(&response, "retry-after"), None);
    }
    let response = hit().await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(remaining(&response), [(false, 0)]);
    let limit = response.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((&*limit.name, limit.requests_per_unit), ("day", 3));
    assert_eq!(limit.unit(), Unit::Day);
    let reset = response.statuses[0].duration_until_reset.as_ref().unwrap();
    assert!((0..=86_400).contains(&reset.seconds), "{reset:?}");
    assert_eq!(header(&response, "ratelimit-policy"), Some(r#""day";q=3;w=86400"#));
    assert!(header(&response, "retry-after").is_some());

    let other_user = server.hit("api", &[&[("user", "bob")]]).await;
    assert_eq!(remaining(&other_user), [(true, 2)]);
    // The partition key consists of the entries, in order.
    let with_path = server.hit("api", &[&[("user", "alice"), ("path", "/")]]).await;
    assert_eq!(remaining(&with_path), [(true, 2)]);
}

#[tokio::test]
async fn descriptors_are_charged_all_or_none() {
    let tier = |name: &str, quota| json!({"name": name, "policies": [day(quota)]});
    let admin = json!({"name": "user=admin", "unlimited": true});
    let rules =
        json!({"api": {"tiers": [admin, tier("user", 2), tier("generic_key=login,user", 1), tier("address", 5)]}});
    let server = Server::start(&rules, &[]);
    let address: &[_] = &[("address", "192.0.2.1")];
    let hit = async |user| server.hit("api", &[&[("user", user)], address]).await;
    for left in [[(true, 1), (true, 4)], [(true, 0), (true, 3)]] {
        assert_eq!(remaining(&hit("alice").await), left);
    }
    let rejected = hit("alice").await;
    assert_eq!(rejected.overall_code(), Code::OverLimit);
    assert_eq!(remaining(&rejected), [(false, 0), (true, 3)]);
    assert_eq!(remaining(&hit("bob").await), [(true, 1), (true, 2)]);

    // The tiers of several entries, of a value, and no tier.
    let login = server.hit("api", &[&[("generic_key", "login"), ("user", "bob")]]).await;
    assert_eq!(remaining(&login), [(true, 0)]);
    assert_eq!(login.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 1);
    let no_tier: &[_] = &[("generic_key", "x"), ("user", "bob")];
    let response = server
        .hit("api", &[&[("user", "admin")], &[("path", "/")], no_tier])
        .await;
    assert_eq!(response.overall_code(), Code::Ok);
    assert!(response.statuses.iter().all(|status| status.current_limit.is_none()));
    // A descriptor that occurs twice is charged once.
    let twice = server.hit("api", &[&[("user", "carol")], &[("user", "carol")]]).await;
    assert_eq!(remaining(&twice), [(true, 1), (true, 1)]);
}

#[tokio::test]
async fn a_request_that_the_rules_do_not_cover_is_an_error() {
    let server = Server::start(&policies(3), &[]);
    let error = async |request: RateLimitRequest| server.send(request).await.unwrap_err().code();
    let alice: [&[_]; 1] = [&[("user", "alice")]];
    assert_eq!(error(request("web", &alice)).await, GrpcCode::NotFound);
    assert_eq!(error(request("api", &[&[]])).await, GrpcCode::InvalidArgument);
    assert_eq!(remaining(&server.hit("api", &alice).await), [(true, 2)]);
}

#[tokio::test]
async fn hits_are_the_cost() {
    let server = Server::start(&policies(5), &[]);
    let hit = async |hits_addend, value: Option<u64>| {
        let mut request = request("api", &[&[("user", "alice")]]);
        request.hits_addend = hits_addend;
        request.descriptors[0].hits_addend = value.map(|value| UInt64Value { value });
        remaining(&server.send(request).await.unwrap())
    };
    assert_eq!(hit(3, None).await, [(true, 2)]);
    assert_eq!(hit(3, None).await, [(false, 2)]);
    assert_eq!(hit(3, Some(0)).await, [(true, 2)]);
    assert_eq!(hit(3, Some(1)).await, [(true, 1)]);
    assert_eq!(hit(0, None).await, [(true, 0)]);
}

/// The arguments of each kind of store.
fn stores() -> [Vec<&'static str>; 2] {
    static URL: LazyLock<String> = LazyLock::new(|| shared_server().url());
    [Vec::new(), [&["--store", &**URL], &NO_DEADLINE[..]].concat()]
}

/// A store that never answers, to which the kernel accepts connections.
fn silent_store() -> (TcpListener, String) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("redis://{}/", silent.local_addr().unwrap());
    (silent, store)
}

/// A descriptor as Envoy 1.40 sends it: with the number of hits if its `rate_limits` has a `hits_addend`.
fn descriptor(entries: &[(&str, &str)], hits: Option<u64>) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: hits.map(|value| UInt64Value { value }),
        ..request("", &[entries]).descriptors.remove(0)
    }
}

/// Streams of one user: checks when they begin, and reports when they end.
struct Streams<'a> {
    server: &'a Server,
    domain: &'a str,
    user: &'a str,
}

impl Streams<'_> {
    async fn send(&self, hits: Option<u64>) -> RateLimitResponse {
        let descriptor = descriptor(&[("generic_key", "llm"), ("user", self.user)], hits);
        self.server
            .send(request_of(self.domain, vec![descriptor]))
            .await
            .unwrap()
    }

    /// Sends the check before a stream, and returns `true` if it passes. By default, the filter sends no `hits`.
    async fn begin(&self, hits: Option<u64>) -> bool {
        self.send(hits).await.overall_code() == Code::Ok
    }

    async fn end(&self, tokens: u64) {
        let response = self.send(Some(tokens)).await;
        assert_eq!(response.overall_code(), Code::Ok);
        assert_eq!(remaining(&response), [(true, 0)]);
    }

    /// Returns the used units of a token bucket with 1,000 units a day, which restores a unit in 86.4 s.
    async fn debt(&self) -> u64 {
        let response = self.send(None).await;
        assert_eq!(remaining(&response), [(false, 0)]);
        let wait: f64 = header(&response, "retry-after").unwrap().parse().unwrap();
        (wait / 86.4).round() as u64 + 999
    }
}

fn tokens(domain: &str, reports: Option<bool>) -> Value {
    let mut rules = json!({domain: {"policies": [{"name": "tokens", "quota": 1_000, "window_seconds": 86_400}]}});
    if let Some(reports) = reports {
        rules[domain]["reports"] = json!(reports);
    }
    rules
}

#[tokio::test]
async fn streams_begin_until_the_reports_of_earlier_ones_have_used_the_quota() {
    for store in stores() {
        let domain = "streams one after another";
        let server = Server::start(&tokens(domain, Some(true)), &store);
        for (user, check, used) in [
            ("alice", None, 1_203),
            ("bob", Some(1), 1_203),
            ("carol", Some(0), 1_200),
        ] {
            let streams = server.streams(domain, user);
            let mut begun = 0;
            for _ in 0..12 {
                if streams.begin(check).await {
                    begun += 1;
                    streams.end(400).await;
                }
            }
            assert_eq!((begun, streams.debt().await), (3, used), "{user}, {store:?}");
        }
    }
}

#[tokio::test]
async fn the_reports_of_concurrent_streams_add_a_debt_of_one_quota() {
    for store in stores() {
        let domain = "concurrent streams";
        let server = Server::start(&tokens(domain, Some(true)), &store);
        let streams = server.streams(domain, "alice");
        assert_eq!(join_all((0..12).map(|_| streams.begin(None))).await, [true; 12]);
        join_all((0..12).map(|_| streams.end(400))).await;
        assert_eq!(streams.debt().await, 2_000, "{store:?}");
    }
}

/// A domain without `reports`, or a tier that sets it to `false`, checks every cost.
#[tokio::test]
async fn a_cost_is_a_report_only_where_the_rules_say_so() {
    let tier = |name: &str| json!({"name": name, "policies": [day(10)]});
    let mut tiers = [tier("user"), tier("team"), tier("model")];
    tiers[1]["reports"] = json!(true);
    tiers[2]["reports"] = json!(false);
    for (domain, expected) in [(None, [false, true, false]), (Some(true), [true, true, false])] {
        let mut rules = json!({"api": {"tiers": tiers}});
        if let Some(reports) = domain {
            rules["api"]["reports"] = json!(reports);
        }
        let server = Server::start(&rules, &[]);
        for (key, is_report) in ["user", "team", "model"].into_iter().zip(expected) {
            let mut report = request("api", &[&[(key, "a")]]);
            report.hits_addend = 12;
            let response = server.send(report).await.unwrap();
            assert_eq!(response.overall_code() == Code::Ok, is_report, "{key}, {domain:?}");
            let left = if is_report { (false, 0) } else { (true, 9) };
            let check = server.hit("api", &[&[(key, "a")]]).await;
            assert_eq!(remaining(&check), [left], "{key}, {domain:?}");
        }
    }
}

/// The report of one descriptor is charged even if the check of another one is rejected.
#[tokio::test]
async fn a_report_beside_a_rejected_check_is_charged() {
    let rules = json!({"api": {"tiers": [
        {"name": "address", "policies": [day(1)]},
        {"name": "user", "reports": true, "policies": [day(10)]},
    ]}});
    let server = Server::start(&rules, &[]);
    for (code, left) in [(Code::Ok, 6), (Code::OverLimit, 2)] {
        let (address, user) = ([("address", "a")], [("user", "alice")]);
        let descriptors = vec![descriptor(&address, None), descriptor(&user, Some(3))];
        let response = server.send(request_of("api", descriptors)).await.unwrap();
        assert_eq!(response.overall_code(), code);
        assert_eq!(remaining(&response), [(code == Code::Ok, 0), (true, 0)]);
        assert_eq!(remaining(&server.hit("api", &[&user]).await), [(true, left)]);
    }
}

#[tokio::test]
async fn a_report_that_the_store_does_not_confirm_is_an_error() {
    let (_silent, store) = silent_store();
    for mode in [&[][..], &["--closed"]] {
        let arguments = [&["--store", &store], mode].concat();
        let server = Server::start(&tokens("api", Some(true)), &arguments);
        let mut report = request("api", &[&[("user", "alice")]]);
        report.hits_addend = 400;
        assert_eq!(server.send(report).await.unwrap_err().code(), GrpcCode::Unavailable);
    }
}

#[tokio::test]
async fn descriptors_with_different_costs_are_charged_all_or_none() {
    for store in stores() {
        let tier = |name: &str, quota| json!({"name": name, "policies": [day(quota)]});
        let rules = json!({"different costs": {"tiers": [tier("address", 9), tier("user", 1_000)]}});
        let server = Server::start(&rules, &store);
        let send = async |costs: [Option<u64>; 2], request_hits| {
            let keys = [("address", "192.0.2.1"), ("user", "alice")];
            let descriptors = keys.iter().zip(costs).map(|(entry, hits)| descriptor(&[*entry], hits));
            let mut request = request_of("different costs", descriptors.collect());
            request.hits_addend = request_hits;
            remaining(&server.send(request).await.unwrap())
        };
        assert_eq!(send([None, Some(250)], 0).await, [(true, 8), (true, 750)]);
        assert_eq!(send([None, Some(250)], 3).await, [(true, 5), (true, 500)]);
        assert_eq!(send([Some(0), Some(500)], 7).await, [(true, 5), (true, 0)]);
        assert_eq!(send([Some(2), Some(0)], 7).await, [(true, 3), (true, 0)]);
        assert_eq!(send([Some(1), Some(250)], 7).await, [(true, 3), (false, 0)]);
        assert_eq!(send([Some(4), Some(0)], 7).await, [(false, 3), (true, 0)]);
        assert_eq!(send([Some(0), Some(0)], 7).await, [(true, 3), (true, 0)]);
    }
}

#[tokio::test]
async fn a_descriptor_that_occurs_twice_is_charged_the_higher_cost() {
    let server = Server::start(&policies(10), &[]);
    let alice = |hits| descriptor(&[("user", "alice")], hits);
    let request = request_of("api", vec![alice(Some(0)), alice(Some(4)), alice(None)]);
    assert_eq!(remaining(&server.send(request).await.unwrap()), [(true, 6); 3]);
}

fn with_limit(domain: &str, hits: u64, requests_per_unit: u32, unit: Unit) -> RateLimitRequest {
    let unit = unit.into();
    let alice = RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit,
        }),
        ..descriptor(&[("user", "alice")], Some(hits))
    };
    request_of(domain, vec![alice])
}

/// The count is the same with and without an override.
#[tokio::test]
async fn an_override_lowers_the_limit_of_the_policy_with_its_unit() {
    let minute = json!({"name": "minute", "quota": 1_000, "window_seconds": 60, "algorithm": "fixed_window"});
    let policies = [
        day(10),
        json!({"name": "day", "quota": 10, "window_seconds": 86_400, "burst_capacity": 40}),
        json!({"name": "day", "quota": 40, "window_seconds": 86_400, "algorithm": "strict_token_bucket"}),
    ];
    for store in stores() {
        for (number, policy) in policies.iter().enumerate() {
            let domain = format!("overrides of {number}");
            let rules = json!({&domain: {"tiers": [{"name": "user", "policies": [minute, policy]}]}});
            let server = Server::start(&rules, &store);
            let send = async |hits, quota, unit| server.send(with_limit(&domain, hits, quota, unit)).await.unwrap();
            let code = async |hits, quota, unit| send(hits, quota, unit).await.overall_code();

            let limited = send(2, 3, Unit::Day).await;
            assert_eq!(limited.overall_code(), Code::Ok);
            let day = limited.statuses[0].current_limit.as_ref().unwrap();
            assert_eq!((day.requests_per_unit, day.unit()), (3, Unit::Day));
            assert_eq!(code(2, 3, Unit::Day).await, Code::OverLimit, "{policy}");
            assert_eq!(code(0, 0, Unit::Day).await, Code::OverLimit, "{policy}");
            assert_eq!(code(0, 1, Unit::Minute).await, Code::OverLimit, "{policy}");
            assert_eq!(code(2, 8, Unit::Day).await, Code::Ok, "{policy}");
        }
    }
}

#[tokio::test]
async fn a_report_with_an_override_adds_a_debt_of_the_lower_quota() {
    let server = Server::start(&tokens("overrides", Some(true)), &[]);
    for (hits, code) in [(1, Code::Ok), (1_000, Code::Ok), (1, Code::OverLimit)] {
        let response = server.send(with_limit("overrides", hits, 100, Unit::Day)).await;
        assert_eq!(response.unwrap().overall_code(), code);
    }
    let left = remaining(&server.hit("overrides", &[&[("user", "alice")]]).await);
    assert_eq!(left, [(true, 799)]);
}

/// An error would have the effect that Envoy admits the request.
#[tokio::test]
async fn what_a_policy_cannot_follow_is_logged_once_and_the_rules_decide() {
    let meter = json!({"name": "meter", "quota": 2, "window_seconds": 86_400, "algorithm": "leaky_bucket_meter"});
    let rules = json!({"overrides": {"tiers": [{"name": "user", "policies": [meter]}]}});
    let mut server = Server::start(&rules, &[]);
    for (quota, unit) in [(3, Unit::Day), (1, Unit::Hour), (1, Unit::Unknown)] {
        let response = server.send(with_limit("overrides", 0, quota, unit)).await.unwrap();
        assert_eq!(remaining(&response), [(true, 1)]);
    }
    let mut refund = request("overrides", &[&[("user", "alice")]]);
    refund.descriptors[0].is_negative_hits = true;
    refund.hits_addend = 2;
    for _ in 0..2 {
        assert_eq!(remaining(&server.send(refund.clone()).await.unwrap()), [(true, 1)]);
    }
    let unit = "domain \"overrides\", tier \"user\": ignored limit 3 per DAY: ";
    let negative = "domain \"overrides\", tier \"user\": ignored is_negative_hits: ";
    for beginning in [unit, negative] {
        let line = server.line();
        assert!(line.starts_with(beginning), "{line}");
    }
    let _ = server.process.kill();
    assert_eq!(server.line(), "");
}

#[tokio::test]
async fn negative_hits_refund_units_up_to_the_quota() {
    for store in stores() {
        let rules = json!({"refunds": {"policies": [day(10)]}});
        let server = Server::start(&rules, &store);
        let send = async |hits, is_negative_hits| {
            let mut alice = descriptor(&[("user", "alice")], Some(hits));
            alice.is_negative_hits = is_negative_hits;
            let response = server.send(request_of("refunds", vec![alice])).await;
            remaining(&response.unwrap())
        };
        assert_eq!(send(9, false).await, [(true, 1)]);
        assert_eq!(send(4, true).await, [(true, 0)]);
        assert_eq!(send(1, false).await, [(true, 4)]);
        assert_eq!(send(100, true).await, [(true, 0)]);
        assert_eq!(send(0, false).await, [(true, 10)]);
    }
}

/// Tonic ignores these timeouts, too. The deadline of the limiter applies, whose decision has a retry time.
#[tokio::test]
async fn a_malformed_timeout_does_not_shorten_the_deadline() {
    let (_silent, store) = silent_store();
    let server = Server::start(&policies(3), &["--store", &store, "--closed"]);
    for timeout in ["5x", "5", "n", "000000005n", "\u{b5}", "5N", "-5n"] {
        let mut request = Request::new(request("api", &[&[("user", "alice")]]));
        let value = tonic::metadata::MetadataValue::try_from(timeout.as_bytes()).unwrap();
        request.metadata_mut().insert("grpc-timeout", value);
        let response = server.send(request).await.unwrap();
        assert_eq!(header(&response, "retry-after"), Some("1"), "{timeout}");
    }
}

#[tokio::test]
async fn a_store_that_hangs_delays_no_answer_beyond_the_timeout_of_envoy() {
    let (_silent, store) = silent_store();
    for (mode, code, message) in [
        (&[][..], Code::Ok, "until it works, requests are admitted uncounted\n"),
        (
            &["--closed"],
            Code::OverLimit,
            "until it works, requests are rejected\n",
        ),
    ] {
        let arguments = [&["--store", &store], &NO_DEADLINE[..], mode].concat();
        let mut server = Server::start(&policies(3), &arguments);
        let mut request = Request::new(request("api", &[&[("user", "alice")]]));
        request.set_timeout(Duration::from_secs(1));
        let response = server.send(request).await.unwrap();
        assert_eq!(response.overall_code(), code);
        assert_eq!(response.statuses[0].code(), code);
        assert_eq!(response.statuses[0].current_limit, None);
        let line = server.line();
        assert!(line.starts_with("store: ") && line.ends_with(message), "{line}");
    }
}

/// The deadline of the limiter applies to clients without a timeout.
#[tokio::test]
async fn a_store_that_hangs_delays_no_answer_beyond_the_deadline() {
    let (_silent, store) = silent_store();
    let server = Server::start(&policies(3), &["--store", &store, "--closed"]);
    let response = server.hit("api", &[&[("user", "alice")]]).await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(header(&response, "retry-after"), Some("1"));
}

/// Needs two threads: the connection responds to the server while the test waits for the server to exit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_health_is_that_of_the_service_and_ends_with_it() {
    let mut server = Server::start(&policies(3), &[]);
    let of = |service: &str| HealthCheckRequest {
        service: service.into(),
    };
    for service in ["", SERVICE_NAME] {
        let response = server.health().check(of(service)).await.unwrap();
        assert_eq!(response.into_inner().status(), ServingStatus::Serving);
    }
    let unknown = server.health().check(of("other")).await.unwrap_err();
    assert_eq!(unknown.code(), GrpcCode::NotFound);

    let mut changes = server.health().watch(of(SERVICE_NAME)).await.unwrap().into_inner();
    let first = changes.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    let pid = server.process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(changes.message().await.unwrap().is_none());
    assert!(server.process.wait().unwrap().success());
}

#[tokio::test]
async fn processes_with_one_redis_apply_one_limit() {
    let url = shared_server().url();
    let arguments = [&["--store", &url], &NO_DEADLINE[..]].concat();
    let servers = [(), ()].map(|()| Server::start(&policies(4), &arguments));
    let descriptors: [&[_]; 2] = [&[("user", "alice")], &[("address", "192.0.2.1")]];
    for left in [3, 2, 1, 0] {
        let server = &servers[left % 2];
        let left = u32::try_from(left).unwrap();
        assert_eq!(remaining(&server.hit("api", &descriptors).await), [(true, left); 2]);
    }
    for server in &servers {
        let response = server.hit("api", &descriptors).await;
        assert_eq!(response.overall_code(), Code::OverLimit);
    }
}

#[test]
fn rules_that_envoy_cannot_follow_are_rejected_at_the_start() {
    let slots = json!({"name": "slots", "quota": 3, "unit": "concurrent_requests"});
    let closed = json!({"name": "day", "quota": 3, "window_seconds": 0});
    let reports = json!({"policies": [day(1)], "reports": 1});
    for (rules, message) in [
        (
            json!({"policies": [slots]}),
            r#"domain "api": policy "slots": Envoy only counts requests"#,
        ),
        (json!({"policies": [closed]}), r#"domain "api": policy "day": "#),
        (
            json!({"tiers": [{"name": "user"}]}),
            r#"domain "api": tier "user": either `policies` or"#,
        ),
        (reports, "invalid type: integer `1`, expected a boolean at line 1"),
    ] {
        let mut server = start(&json!({"api": rules}), &[]);
        let mut text = String::new();
        server.stderr.read_to_string(&mut text).unwrap();
        assert!(text.contains(message), "{text}");
        assert!(!server.process.wait().unwrap().success());
    }
}
