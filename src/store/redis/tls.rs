use std::sync::Arc;

use super::RedisStoreBuilder;

/// # TLS
impl RedisStoreBuilder {
    /// Sets the TLS configuration for connections with `rediss:` URLs, including those to sentinels.
    ///
    /// Use this for client certificates and custom roots. To rotate client certificates, let
    /// `client_auth_cert_resolver` return the current one, and disable session resumption, because resumed sessions
    /// keep the old one. URLs with `#insecure` ignore this configuration. Default: the root certificates of the system,
    /// without a client certificate. Needs the feature `redis-rustls`.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use rustls::client::{ResolvesClientCert, Resumption};
    /// use rustls::{ClientConfig, RootCertStore};
    /// use tower_quota::{ConfigError, RedisStore};
    ///
    /// /// `certificates` returns the current client certificate.
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
