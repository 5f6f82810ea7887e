//! The TLS settings of a store.

use std::sync::Arc;

use super::RedisStoreBuilder;

/// # TLS
impl RedisStoreBuilder {
    /// Sets the TLS configuration of all connections by `rediss:` URLs, those to sentinels included: client certificates,
    /// roots of your own.
    ///
    /// Client certificates rotate without a restart if `client_auth_cert_resolver` returns the one of the moment: it is
    /// called at each handshake. Open connections keep the certificate that they were opened with. A URL with `#insecure` does
    /// not use this configuration. Default: the roots that the system trusts, without a client certificate. Needs the feature
    /// `redis-rustls`.
    ///
    /// A resumed TLS session keeps its old certificate, so disable resumption.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use rustls::{ClientConfig, RootCertStore, client::{ResolvesClientCert, Resumption}};
    /// use tower_quota::{ConfigError, RedisStore};
    ///
    /// /// `certificates` returns the client certificate of the moment.
    /// fn store(roots: RootCertStore, certificates: Arc<dyn ResolvesClientCert>) -> Result<RedisStore, ConfigError> {
    ///     let config = ClientConfig::builder().with_root_certificates(roots);
    ///     let mut config = config.with_client_cert_resolver(certificates);
    ///     config.resumption = Resumption::disabled();
    ///     RedisStore::builder("rediss://limits.example/").tls_config(config).build()
    /// }
    /// ```
    #[must_use]
    pub fn tls_config(mut self, config: impl Into<Arc<rustls::ClientConfig>>) -> Self {
        self.tls.config = Some(config.into());
        self
    }
}
