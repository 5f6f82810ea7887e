//! The program `envoy` as a process, with a gRPC client on a real connection.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::{Child, ChildStderr, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
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
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(descriptor).collect(),
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
        assert!(
            header(&response, "ratelimit")
                .unwrap()
                .starts_with(&format!(r#""day";r={left};t="#))
        );
        assert_eq!(header(&response, "retry-after"), None);
    }
    let response = hit().await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(remaining(&response), [(false, 0)]);
    let limit = response.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!(
        (&*limit.name, limit.requests_per_unit, limit.unit()),
        ("day", 3, Unit::Day)
    );
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
    let hit = async |user| {
        server
            .hit("api", &[&[("user", user)], &[("address", "192.0.2.1")]])
            .await
    };
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
    let unlimited: [&[_]; 3] = [
        &[("user", "admin")],
        &[("path", "/")],
        &[("generic_key", "x"), ("user", "bob")],
    ];
    let response = server.hit("api", &unlimited).await;
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
    let mut own_limit = request("api", &alice);
    own_limit.descriptors[0].limit = Some(RateLimitOverride::default());
    assert_eq!(error(own_limit).await, GrpcCode::Unimplemented);
    let mut different = request("api", &[alice[0], &[("user", "bob")]]);
    different.descriptors[1].hits_addend = Some(UInt64Value { value: 2 });
    assert_eq!(error(different).await, GrpcCode::Unimplemented);
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

#[tokio::test]
async fn a_store_that_hangs_delays_no_answer_beyond_the_timeout_of_envoy() {
    // The kernel accepts the connections.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("redis://{}/", silent.local_addr().unwrap());
    for (mode, code, message) in [
        (&[][..], Code::Ok, "until it works, requests are admitted uncounted\n"),
        (
            &["--closed"][..],
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
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("redis://{}/", silent.local_addr().unwrap());
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
        service: service.to_owned(),
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
    for (policy, message) in [
        (slots, r#"domain "api": policy "slots": Envoy only counts requests"#),
        (closed, r#"domain "api": policy "day": "#),
    ] {
        let mut server = start(&json!({"api": {"policies": [policy]}}), &[]);
        let mut text = String::new();
        server.stderr.read_to_string(&mut text).unwrap();
        assert!(text.contains(message), "{text}");
        assert!(!server.process.wait().unwrap().success());
    }
}
