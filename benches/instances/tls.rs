//! A server that also listens for TLS, if the feature `redis-rustls` is enabled.

use test_kit::RedisServer;
use tower_quota::RedisStore;

/// A new store that connects through TLS.
type ByTls = Box<dyn Fn() -> RedisStore>;

#[cfg(not(feature = "redis-rustls"))]
pub(super) fn start() -> (RedisServer, Option<ByTls>) {
    (RedisServer::start(), None)
}

#[cfg(feature = "redis-rustls")]
pub(super) fn start() -> (RedisServer, Option<ByTls>) {
    use std::sync::Arc;

    use rcgen::generate_simple_self_signed;
    use rustls::{ClientConfig, RootCertStore, crypto::ring};
    use test_kit::{Setup, free_port};

    const FILE: &str = "server.pem";

    ring::default_provider()
        .install_default()
        .expect("no other provider is installed");
    let certified = generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("the name is valid");
    let mut roots = RootCertStore::empty();
    roots
        .add(certified.cert.der().clone())
        .expect("the certificate is valid");
    let config = Arc::new(
        ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth(),
    );

    let port = free_port(false).to_string();
    let arguments = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        FILE,
        "--tls-key-file",
        FILE,
        "--tls-auth-clients",
        "no",
    ];
    let server = RedisServer::start_with(Setup {
        arguments: arguments.map(str::to_owned).into(),
        file: Some((FILE, certified.cert.pem() + &certified.signing_key.serialize_pem())),
        ..Setup::default()
    });
    let store = move || {
        let builder = RedisStore::builder(format!("rediss://127.0.0.1:{port}/"));
        builder
            .tls_config(Arc::clone(&config))
            .build()
            .expect("the settings are valid")
    };
    (server, Some(Box::new(store)))
}
