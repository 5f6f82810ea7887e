use std::{fmt, ops::RangeInclusive, sync::Arc};

use super::{CredentialStorage, MemoryCredentials, Settings, TokenClientLayer, TrustedIssuer, known::Known};
use crate::{BuildError, Profile, TokenChallenge, settings::check};
use tower_quota::clock::Clock;

/// A builder for [`TokenClientLayer`]. At least one issuer is required.
///
/// ```
/// use tower_quota_anonymous::{TokenClientLayer, TokenClientLayerBuilder};
///
/// let error = |builder: TokenClientLayerBuilder| builder.build().unwrap_err().to_string();
/// assert_eq!(error(TokenClientLayer::builder()), "token client: at least one issuer is required");
/// let builder = TokenClientLayer::builder().max_rate_limit(0);
/// assert_eq!(error(builder), "token client: max_rate_limit 0 is outside 1..=16777216");
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct TokenClientLayerBuilder {
    issuers: Vec<TrustedIssuer>,
    storage: Option<Arc<dyn CredentialStorage>>,
    max_rate_limit: u32,
    max_origins: usize,
    clock: Clock,
}

impl TokenClientLayer {
    /// Returns a builder for a client.
    pub fn builder() -> TokenClientLayerBuilder {
        TokenClientLayerBuilder {
            issuers: Vec::new(),
            storage: None,
            max_rate_limit: 65_536,
            max_origins: 1_024,
            clock: Clock::tokio(),
        }
    }
}

impl TokenClientLayerBuilder {
    const RATE_LIMITS: RangeInclusive<u32> = 1..=1 << 24;
    const ORIGINS: RangeInclusive<usize> = 1..=1_000_000;

    /// Adds an issuer. Challenges of other issuers are not answered.
    pub fn issuer(mut self, issuer: TrustedIssuer) -> Self {
        self.issuers.push(issuer);
        self
    }

    /// Sets the storage of credentials and used nonces. Default: [`MemoryCredentials`].
    pub fn storage(mut self, storage: impl CredentialStorage) -> Self {
        self.storage = Some(Arc::new(storage));
        self
    }

    /// Sets the largest accepted limit, which bounds the memory for used nonces.
    ///
    /// Challenges with a larger limit are not answered. Range: 1 to 16,777,216. Default: 65,536.
    pub fn max_rate_limit(mut self, limit: u32) -> Self {
        self.max_rate_limit = limit;
        self
    }

    /// Sets the number of origins whose last challenge is cached, from 1 to 1,000,000. Default: 1,024.
    pub fn max_origins(mut self, origins: usize) -> Self {
        self.max_origins = origins;
        self
    }

    /// Sets the clock for the age of challenges and directories. Default: [`Clock::tokio`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Validates the settings and builds the layer. Fails with the first misconfiguration.
    pub fn build(self) -> Result<TokenClientLayer, BuildError> {
        let settings = self.checked();
        Ok(TokenClientLayer(Arc::new(
            settings.map_err(|message| BuildError::new("token client", message))?,
        )))
    }

    fn checked(self) -> Result<Settings, String> {
        check("max_rate_limit", self.max_rate_limit, &Self::RATE_LIMITS)?;
        check("max_origins", self.max_origins, &Self::ORIGINS)?;
        if self.issuers.is_empty() {
            return Err("at least one issuer is required".to_owned());
        }
        for (index, issuer) in self.issuers.iter().enumerate() {
            let name = &issuer.name;
            if TokenChallenge::new(Profile::P256, name).is_err() || issuer.url("/").is_err() {
                return Err(format!("issuer {name:?} is not a host with an optional port"));
            }
            let is_same = |other: &TrustedIssuer| other.name.eq_ignore_ascii_case(name);
            if self.issuers[..index].iter().any(is_same) {
                return Err(format!("duplicate issuer {name:?}"));
            }
            issuer.check_origins()?;
            if let Some(Err(cause)) = issuer.configured_url() {
                return Err(format!("request URL of issuer {name:?}: {cause}"));
            }
        }
        Ok(Settings {
            issuers: self.issuers.into_iter().map(Arc::new).collect(),
            storage: self.storage.unwrap_or_else(|| Arc::new(MemoryCredentials::default())),
            max_rate_limit: self.max_rate_limit,
            known: Known::new(self.max_origins),
            clock: self.clock,
        })
    }
}

impl fmt::Debug for TokenClientLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenClientLayerBuilder")
            .field("issuers", &self.issuers)
            .field("max_rate_limit", &self.max_rate_limit)
            .finish_non_exhaustive()
    }
}
