//! A Redis behind TLS. The certificates that a process trusts come from its environment.

use std::{
    env, fs,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SignatureScheme,
    client::{ResolvesClientCert, Resumption},
    crypto::ring,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
    server::WebPkiClientVerifier,
    sign,
};
use test_kit::{RedisCluster, eventually};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tokio_rustls::TlsAcceptor;
use tower_quota::{Outcome, PartitionKey, Plan, PolicySet, QuotaPolicy, RedisStore, Scope, Store};

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
    thousands_of_decisions_are_made_while_the_client_certificate_changes_and_connections_are_closed();
}

#[tokio::main]
async fn a_store_reaches_redis_by_tls_with_the_provider_that_the_program_installs() {
    let server = test_kit::RedisServer::start();
    let certificate = Certificate::new();
    let proxy = certificate.proxy(server.port()).await;
    certificate.run(URL, &proxy.url("localhost")).await;
    crate::passed("a_store_reaches_redis_by_tls_with_the_provider_that_the_program_installs");
}

#[tokio::main]
async fn a_store_reaches_every_node_of_a_cluster_by_tls() {
    let cluster = tokio::task::spawn_blocking(|| RedisCluster::start(3, 0)).await.unwrap();
    let info = cluster.nodes[0].command(&["INFO", "server"]);
    if ["redis_version:5.", "redis_version:6."]
        .iter()
        .any(|major| info.contains(major))
    {
        // Before version 7, a node does not report a port to its clients if the port is announced at run time.
        return;
    }
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

/// Between two batches no call is in flight, so that none is lost with the connections that the server closes.
#[tokio::main(flavor = "current_thread")]
async fn thousands_of_decisions_are_made_while_the_client_certificate_changes_and_connections_are_closed() {
    const BATCHES: usize = 200;
    const BATCH: usize = 20;
    // A test before this one may have installed it.
    let _ = ring::default_provider().install_default();
    let server = test_kit::RedisServer::start();
    let (certificate, [first, second]) = (Certificate::new(), [Certificate::new(), Certificate::new()]);
    let gate = Arc::new(Gate {
        config: Mutex::new(certificate.demanding(&[&first])),
        presented: Mutex::default(),
        cut: Notify::new(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("rediss://localhost:{}/", listener.local_addr().unwrap().port());
    tokio::spawn(Arc::clone(&gate).run(listener, server.port()));

    let presents = Arc::new(Presents(Mutex::new(first.certified_key())));
    let store = store_presenting(&presents, &certificate, url);
    // Nothing is refilled while the test runs.
    let slow = QuotaPolicy::new("slow", 1_000_000, Duration::from_secs(1_000_000_000));
    let policies = PolicySet::new([slow]).unwrap();
    let partition = Scope::new("rotation").partition(&PartitionKey::new("user", "alice"));

    let mut undecided = 0;
    for batch in 0..BATCHES {
        match batch {
            40 => *gate.config.lock().unwrap() = certificate.demanding(&[&first, &second]),
            80 => *presents.0.lock().unwrap() = second.certified_key(),
            120 => *gate.config.lock().unwrap() = certificate.demanding(&[&second]),
            160 => {
                assert_eq!(gate.presented(&second), 0);
                gate.cut.notify_waiters();
                while gate.presented(&second) < 2 {
                    tokio::task::yield_now().await;
                }
            }
            _ => {}
        }
        let plans = (0..BATCH).map(|_| Plan::new(policies.clone(), partition, 1));
        let decisions = join_all(plans.map(|plan| store.decide(plan))).await;
        undecided += decisions.iter().filter(|decision| decision.is_err()).count();
    }
    assert_eq!(undecided, 0, "of {}", BATCHES * BATCH);
    let left = store.peek(Plan::new(policies, partition, 1)).await.unwrap();
    let charged = 1_000_000 - left.allowances().next().unwrap().remaining();
    assert_eq!(charged, (BATCHES * BATCH) as u64);
    assert_eq!(gate.presented(&first), 2);
    crate::passed("thousands_of_decisions_are_made_while_the_client_certificate_changes_and_connections_are_closed");
}

/// A store that trusts this certificate of the server.
fn store_presenting(presents: &Arc<Presents>, trusted: &Certificate, url: String) -> RedisStore {
    let config = ClientConfig::builder().with_root_certificates(trusting(&[trusted]));
    let mut config = config.with_client_cert_resolver(Arc::clone(presents) as Arc<dyn ResolvesClientCert>);
    config.resumption = Resumption::disabled();
    let builder = RedisStore::builder(url).connection_timeout(Duration::from_secs(30));
    builder.tls_config(config).build().unwrap()
}

fn trusting(certificates: &[&Certificate]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.0.cert.der().clone()).unwrap();
    }
    roots
}

/// The client certificate of the moment.
#[derive(Debug)]
struct Presents(Mutex<Arc<sign::CertifiedKey>>);

impl ResolvesClientCert for Presents {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<sign::CertifiedKey>> {
        Some(Arc::clone(&self.0.lock().unwrap()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Takes TLS off connections with a client certificate.
struct Gate {
    config: Mutex<Arc<ServerConfig>>,
    /// The certificate of each connection.
    presented: Mutex<Vec<CertificateDer<'static>>>,
    cut: Notify,
}

impl Gate {
    async fn run(self: Arc<Self>, listener: TcpListener, target: u16) {
        while let Ok((client, _)) = listener.accept().await {
            let gate = Arc::clone(&self);
            tokio::spawn(async move {
                let acceptor = TlsAcceptor::from(Arc::clone(&gate.config.lock().unwrap()));
                let mut client = acceptor.accept(client).await?;
                let certificate = client.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
                gate.presented.lock().unwrap().push(certificate);
                let mut server = TcpStream::connect(("127.0.0.1", target)).await?;
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    () = gate.cut.notified() => {}
                }
                std::io::Result::Ok(())
            });
        }
    }

    /// The number of connections with this certificate.
    fn presented(&self, by: &Certificate) -> usize {
        let presented = self.presented.lock().unwrap();
        presented
            .iter()
            .filter(|certificate| *certificate == by.0.cert.der())
            .count()
    }
}

/// A certificate that only the child trusts.
struct Certificate(CertifiedKey<KeyPair>);

impl Certificate {
    fn new() -> Self {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        Self(generate_simple_self_signed(names).unwrap())
    }

    fn key(&self) -> PrivatePkcs8KeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.signing_key.serialize_der())
    }

    fn certified_key(&self) -> Arc<sign::CertifiedKey> {
        let key = ring::sign::any_supported_type(&self.key().into()).unwrap();
        Arc::new(sign::CertifiedKey::new(vec![self.0.cert.der().clone()], key))
    }

    /// The settings of a server that has this certificate and demands one of these of its clients.
    fn demanding(&self, clients: &[&Self]) -> Arc<ServerConfig> {
        let verifier = WebPkiClientVerifier::builder(Arc::new(trusting(clients))).build();
        let config = ServerConfig::builder().with_client_cert_verifier(verifier.unwrap());
        let config = config.with_single_cert(vec![self.0.cert.der().clone()], self.key().into());
        Arc::new(config.unwrap())
    }

    /// Takes TLS off and passes the rest on to this port.
    async fn proxy(&self, target: u16) -> Proxy {
        let key = self.key();
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
        let connections = Arc::clone(&proxy.connections);
        tokio::spawn(terminate_tls(listener, acceptor, target, connections));
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
    // Among this many callers, each node owns the slots of some.
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
