use std::{fmt, sync::Arc};

use super::{CredentialStorage, MemoryCredentials, Settings, TokenClientLayer, TrustedIssuer, known::Known};
use crate::{BuildError, Profile, TokenChallenge};
use tower_quota::clock::Clock;

/// A builder for [`TokenClientLayer`]. At least one issuer is required.
///
/// ```
/// use tower_quota_anonymous::TokenClientLayer;
///
/// let error = TokenClientLayer::builder().build().unwrap_err();
/// assert_eq!(error.to_string(), "token client: at least one issuer is required");
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct TokenClientLayerBuilder {
    issuers: Vec<TrustedIssuer>,
    storage: Option<Arc<dyn CredentialStorage>>,
    clock: Clock,
}

impl TokenClientLayer {
    /// Returns a builder for a client.
    pub fn builder() -> TokenClientLayerBuilder {
        TokenClientLayerBuilder {
            issuers: Vec::new(),
            storage: None,
            clock: Clock::tokio(),
        }
    }
}

impl TokenClientLayerBuilder {
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

    /// Sets the clock for the age of challenges and directories. Default: [`Clock::tokio`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the layer. Fails with the first misconfiguration.
    pub fn build(self) -> Result<TokenClientLayer, BuildError> {
        let settings = self.checked();
        Ok(TokenClientLayer(Arc::new(
            settings.map_err(|message| BuildError::new("token client", message))?,
        )))
    }

    fn checked(self) -> Result<Settings, String> {
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
            known: Known::default(),
            clock: self.clock,
        })
    }
}

impl fmt::Debug for TokenClientLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenClientLayerBuilder")
            .field("issuers", &self.issuers)
            .finish_non_exhaustive()
    }
}
