//! A Redis behind TLS. Not a libtest program: it starts itself again, because the certificates that a process trusts
//! come from its environment.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::{
    env, fs,
    process::{Command, Stdio},
    sync::Arc,
};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ServerConfig, crypto::ring, pki_types::PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower_quota::{CheckedPolicies, Outcome, PartitionKey, Plan, QuotaPolicy, RedisStore, Scope, Store};

/// What the parent tells the child, and by which it knows that it is one.
const URL: &str = "TOWER_QUOTA_TEST_URL";

fn main() {
    match env::var(URL) {
        Ok(url) => decides_by_tls(&url),
        Err(_) => a_store_reaches_redis_by_tls_with_the_provider_that_the_program_installs(),
    }
}

#[tokio::main]
async fn a_store_reaches_redis_by_tls_with_the_provider_that_the_program_installs() {
    let server = support::RedisServer::start();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into())
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("rediss://localhost:{}/", listener.local_addr().unwrap().port());
    tokio::spawn(terminate_tls(
        listener,
        TlsAcceptor::from(Arc::new(config)),
        server.port(),
    ));

    let trusted = env::temp_dir().join(format!("tower-quota-{}.pem", std::process::id()));
    fs::write(&trusted, cert.pem()).unwrap();
    let mut child = Command::new(env::current_exe().unwrap());
    child
        .env(URL, &url)
        .env("SSL_CERT_FILE", &trusted)
        .env_remove("SSL_CERT_DIR")
        .stdin(Stdio::null());
    let status = tokio::task::spawn_blocking(move || child.status()).await.unwrap();
    fs::remove_file(&trusted).unwrap();
    assert!(status.unwrap().success());
    println!("test a_store_reaches_redis_by_tls_with_the_provider_that_the_program_installs ... ok");
}

/// Takes TLS off and passes the rest on.
async fn terminate_tls(listener: TcpListener, acceptor: TlsAcceptor, target: u16) {
    while let Ok((client, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let mut client = acceptor.accept(client).await?;
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
    let store = RedisStore::new(url).unwrap();
    let policies = CheckedPolicies::new([QuotaPolicy::per_day("daily", 1)]).unwrap();
    for expected in [Outcome::Allowed, Outcome::Refused] {
        let plan = Plan::new(
            policies.clone(),
            Scope::new("tls").partition(&PartitionKey::new("user", "alice")),
            1,
        );
        assert_eq!(store.acquire(plan).await.unwrap().outcome(), expected);
    }
}
