//! A Redis behind TLS. The certificates that a process trusts come from its environment.

use std::{
    env, fs,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::{ServerConfig, crypto::ring, pki_types::PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower_quota::{Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Store};

use crate::support::{RedisCluster, eventually};

/// The variables that make a process a child, with the URL of the server or of a node of the cluster.
const URL: &str = "TOWER_QUOTA_TEST_TLS";
const CLUSTER_URL: &str = "TOWER_QUOTA_TEST_TLS_CLUSTER";

/// Runs as a process that a test has started, if it is one.
pub(crate) fn child() -> bool {
    match (env::var(URL), env::var(CLUSTER_URL)) {
        (Ok(url), _) => decides_by_tls(&url),
        (_, Ok(url)) => decides_by_tls_in_a_cluster(&url),
        _ => return false,
    }
    true
}

pub(crate) fn run() {
    a_store_reaches_redis_by_tls_with_the_provider_that_the_program_installs();
    a_store_reaches_every_node_of_a_cluster_by_tls();
}

#[tokio::main]
async fn a_store_reaches_redis_by_tls_with_the_provider_that_the_program_installs() {
    let server = crate::support::RedisServer::start();
    let certificate = Certificate::new();
    let proxy = certificate.proxy(server.port()).await;
    certificate.run(URL, &proxy.url("localhost")).await;
    crate::passed("a_store_reaches_redis_by_tls_with_the_provider_that_the_program_installs");
}

#[tokio::main]
async fn a_store_reaches_every_node_of_a_cluster_by_tls() {
    let cluster = tokio::task::spawn_blocking(|| RedisCluster::start(3, 0)).await.unwrap();
    let certificate = Certificate::new();
    let mut proxies = Vec::new();
    for node in &cluster.nodes {
        let proxy = certificate.proxy(node.port()).await;
        // From now on the cluster sends its clients to the proxy.
        let announced = ["CONFIG", "SET", "cluster-announce-port", &proxy.port.to_string()];
        assert_eq!(node.command(&announced), "OK");
        proxies.push(proxy);
    }
    for node in &cluster.nodes {
        eventually("a node knows where to send clients", || {
            let slots = node.command(&["CLUSTER", "SLOTS"]);
            proxies.iter().all(|proxy| slots.contains(&proxy.port.to_string()))
        });
    }
    certificate.run(CLUSTER_URL, &proxies[0].url("localhost")).await;
    for proxy in &proxies {
        assert!(proxy.connections.load(Ordering::SeqCst) > 0);
    }
    crate::passed("a_store_reaches_every_node_of_a_cluster_by_tls");
}

/// A certificate that only the child trusts.
struct Certificate(CertifiedKey<KeyPair>);

impl Certificate {
    fn new() -> Self {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        Self(generate_simple_self_signed(names).unwrap())
    }

    /// Takes TLS off and passes the rest on to this port.
    async fn proxy(&self, target: u16) -> Proxy {
        let key = PrivatePkcs8KeyDer::from(self.0.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.0.cert.der().clone()], key.into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy {
            port: listener.local_addr().unwrap().port(),
            connections: Arc::default(),
        };
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(terminate_tls(
            listener,
            acceptor,
            target,
            Arc::clone(&proxy.connections),
        ));
        proxy
    }

    /// Starts this program again, as the child.
    async fn run(&self, variable: &str, url: &str) {
        let trusted = env::temp_dir().join(format!("tower-quota-{variable}-{}.pem", std::process::id()));
        fs::write(&trusted, self.0.cert.pem()).unwrap();
        let mut child = Command::new(env::current_exe().unwrap());
        child
            .env(variable, url)
            .env("SSL_CERT_FILE", &trusted)
            .env_remove("SSL_CERT_DIR")
            .stdin(Stdio::null());
        let status = tokio::task::spawn_blocking(move || child.status()).await.unwrap();
        fs::remove_file(&trusted).unwrap();
        assert!(status.unwrap().success());
    }
}

struct Proxy {
    port: u16,
    /// That have spoken TLS.
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    fn url(&self, host: &str) -> String {
        format!("rediss://{host}:{}/", self.port)
    }
}

async fn terminate_tls(listener: TcpListener, acceptor: TlsAcceptor, target: u16, connections: Arc<AtomicUsize>) {
    while let Ok((client, _)) = listener.accept().await {
        let (acceptor, connections) = (acceptor.clone(), Arc::clone(&connections));
        tokio::spawn(async move {
            let mut client = acceptor.accept(client).await?;
            connections.fetch_add(1, Ordering::SeqCst);
            let mut server = TcpStream::connect(("127.0.0.1", target)).await?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        });
    }
}

#[tokio::main]
async fn decides_by_tls(url: &str) {
    let error = RedisStore::new(url).unwrap_err().to_string();
    assert!(error.contains("install one first"), "{error}");

    ring::default_provider().install_default().unwrap();
    admits_one(&RedisStore::new(url).unwrap(), "alice").await;
}

#[tokio::main]
async fn decides_by_tls_in_a_cluster(url: &str) {
    let error = RedisStore::cluster([url]).unwrap_err().to_string();
    assert!(error.contains("install one first"), "{error}");

    ring::default_provider().install_default().unwrap();
    let store = RedisStore::cluster([url]).unwrap();
    // So many callers have slots of every node.
    for user in 0..50 {
        admits_one(&store, &user.to_string()).await;
    }
}

async fn admits_one(store: &RedisStore, user: &str) {
    let policies = PolicySet::new([QuotaPolicy::per_day("daily", 1)]).unwrap();
    let partition = Scope::new("tls").partition(&PartitionKey::new("user", user));
    for expected in [Outcome::Allowed, Outcome::Rejected] {
        let plan = Plan::new(policies.clone(), partition, 1);
        assert_eq!(store.decide(plan).await.unwrap().outcome(), expected);
    }
}
