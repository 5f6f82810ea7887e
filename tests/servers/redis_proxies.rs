//! Proxies that distribute the keys of a store among several servers.

#![allow(clippy::disallowed_methods, reason = "a proxy listens in its own time")]

use std::{
    fmt::Write,
    fs,
    process::{Child, Command},
    time::Duration,
};

use test_kit::{RedisServer, free_port, shared_cluster};
use tokio::net::TcpStream;
use tower_quota::{Algorithm, Limiter, Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Store};

struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts the program of a variable with a file, and waits until it listens.
async fn start(variable: &str, arguments: &[&str], port: u16, configuration: &str) -> Proxy {
    let program = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is the path of the proxy"));
    let folder = std::env::temp_dir().join(format!("redis-proxy-{port}"));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("configuration.yaml");
    fs::write(&file, configuration).unwrap();
    let mut command = Command::new(program);
    let proxy = Proxy(command.args(arguments).arg("-c").arg(file).spawn().unwrap());
    for _ in 0..500 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return proxy;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{variable} does not listen");
}

async fn twemproxy(port: u16, servers: &[u16]) -> Proxy {
    let mut text = format!(
        "limits:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  hash_tag: '{{}}'\n  distribution: ketama\n  redis: \
         true\n  servers:\n"
    );
    for server in servers {
        writeln!(text, "   - 127.0.0.1:{server}:1").unwrap();
    }
    let statistics = free_port(false).to_string();
    start("NUTCRACKER", &["-s", &statistics], port, &text).await
}

async fn envoy(port: u16, servers: &[u16], kind: &str) -> Proxy {
    let address = |port: u16| format!("{{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}");
    let endpoints: Vec<String> = servers
        .iter()
        .map(|server| format!("{{endpoint: {}}}", address(*server)))
        .collect();
    let text = format!(
        r#"
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: limits
          settings: {{op_timeout: 30s, enable_hashtagging: true}}
          prefix_routes: {{catch_all_route: {{cluster: servers}}}}
  clusters:
  - name: servers
    connect_timeout: 30s
    {kind}
    load_assignment: {{cluster_name: servers, endpoints: [{{lb_endpoints: [{}]}}]}}
"#,
        endpoints.join(", ")
    );
    let arguments = ["--disable-hot-restart", "--concurrency", "1", "-l", "error"];
    start("ENVOY", &arguments, port, &text).await
}

/// Two instances decide in turn about callers of all servers.
async fn decide_through(port: u16, name: &str) {
    let store = || {
        let store =
            RedisStore::builder(format!("redis://127.0.0.1:{port}/")).connection_timeout(Duration::from_secs(60));
        store.one_slot_per_call(true).build().unwrap()
    };
    let stores = [store(), store()];
    let limiter = Limiter::builder(stores[0].clone()).scope("proxies");
    let limiter = limiter.policy(QuotaPolicy::per_hour("hour", 1)).build().unwrap();
    limiter
        .ready(Duration::from_secs(60))
        .await
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let policies = PolicySet::new([
        QuotaPolicy::per_day("day", 6),
        QuotaPolicy::per_day("log", 7).with_algorithm(Algorithm::SlidingWindowLog),
        QuotaPolicy::concurrent("slots", 8),
    ])
    .unwrap();
    let of = |kind: &str, user: u32| Scope::new("proxies").partition(&PartitionKey::new(kind, user.to_be_bytes()));
    for user in 0..30 {
        let mut outcomes = Vec::new();
        for number in 0..7 {
            let plan = Plan::new(policies.clone(), of("user", user), 1).and(policies.clone(), of("address", user));
            let decision = stores[number % 2].decide(plan).await;
            outcomes.push(decision.unwrap_or_else(|error| panic!("{name}: {error}")).outcome());
        }
        let (last, first) = outcomes.split_last().unwrap();
        assert!(
            first.iter().all(|outcome| *outcome == Outcome::Allowed),
            "{name}: {outcomes:?}"
        );
        assert_eq!(*last, Outcome::Rejected, "{name}");
    }
}

/// `make proxy-test` runs this, which needs Twemproxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Twemproxy"]
async fn behind_twemproxy_instances_share_the_quota_of_each_caller() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let port = free_port(false);
    let _proxy = twemproxy(port, &servers.each_ref().map(RedisServer::port)).await;
    decide_through(port, "twemproxy").await;
    assert_used(&servers);
}

/// `make proxy-test` runs this, which needs Envoy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Envoy"]
async fn behind_envoy_instances_share_the_quota_of_each_caller() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let port = free_port(false);
    let _proxy = envoy(port, &servers.each_ref().map(RedisServer::port), "lb_policy: MAGLEV").await;
    decide_through(port, "envoy").await;
    assert_used(&servers);
}

fn assert_used(servers: &[RedisServer]) {
    for server in servers {
        assert_ne!(server.command(&["DBSIZE"]).trim(), "0");
    }
}

/// `make proxy-test` runs this, which needs Envoy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Envoy"]
async fn behind_envoy_a_cluster_is_ready() {
    let nodes: Vec<u16> = shared_cluster().nodes.iter().map(RedisServer::port).collect();
    let kind = "cluster_type: {name: envoy.clusters.redis, typed_config: {'@type': \
                type.googleapis.com/google.protobuf.Struct, value: {}}}\n    lb_policy: CLUSTER_PROVIDED";
    let port = free_port(false);
    let _proxy = envoy(port, &nodes, kind).await;
    decide_through(port, "envoy in front of a cluster").await;
}
