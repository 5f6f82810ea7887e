use std::{fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use http::Uri;

use super::{IssuancePolicy, Issuer, Issuing};
use crate::{BuildError, Directory, KeySet, settings::check_seconds, telemetry::IssuerTelemetry, workers::Workers};
use tower_quota::clock::Clock;

/// A builder for [`Issuer`]. Keys are required.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::clock::Timestamp;
/// use tower_quota_anonymous::{Issuer, IssuanceDecision, IssuanceRequest, KeySet, Profile};
///
/// let builder = || Issuer::builder(async |_: IssuanceRequest| IssuanceDecision::reject());
/// let error = |keys| builder().keys(keys).build().unwrap_err().to_string();
/// assert_eq!(error(KeySet::new()), "issuer: number of keys 0 is outside 1..=64");
///
/// // A client with a directory that is an hour old would find no valid key.
/// let noon = Timestamp::from_micros(1_800_000_000_000_000);
/// let mut keys = KeySet::new();
/// keys.insert(keys.generate(Profile::P256)?, ..noon);
/// keys.insert(keys.generate(Profile::P256)?, noon..);
/// let old = keys.iter().next().unwrap().key_id();
/// let overlap = format!("issuer: key {old} and the next key must overlap for longer than cache_lifetime 3600s");
/// assert_eq!(error(keys), overlap);
/// # Ok::<_, tower_quota_anonymous::CredentialError>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct IssuerBuilder {
    policy: Box<dyn IssuancePolicy>,
    keys: KeySet,
    request_uri: String,
    cache_lifetime: Duration,
    threads: Option<usize>,
    max_queued: Option<usize>,
    clock: Clock,
}

impl Issuer {
    /// Returns a builder for an issuer. `policy` decides who gets credentials.
    pub fn builder(policy: impl IssuancePolicy) -> IssuerBuilder {
        IssuerBuilder {
            policy: Box::new(policy),
            keys: KeySet::new(),
            request_uri: "/arc/request".to_owned(),
            cache_lifetime: Duration::from_secs(3_600),
            threads: None,
            max_queued: None,
            clock: Clock::system(),
        }
    }
}

impl IssuerBuilder {
    /// Sets the keys and their periods: at most 64 keys. Required.
    pub fn keys(mut self, keys: KeySet) -> Self {
        self.keys = keys;
        self
    }

    /// Sets the address for credential requests: a path, or a URL whose path this issuer serves. Default:
    /// `/arc/request`.
    pub fn request_uri(mut self, uri: impl Into<String>) -> Self {
        self.request_uri = uri.into();
        self
    }

    /// Sets how long caches may keep the directory, in whole seconds.
    ///
    /// The periods of a key and the next one must overlap for longer. Range: 1 s to 31 days. Default: one hour.
    pub fn cache_lifetime(mut self, lifetime: Duration) -> Self {
        self.cache_lifetime = lifetime;
        self
    }

    /// Sets how many credentials are issued in parallel, each on a blocking thread of Tokio.
    ///
    /// Range: 1 to 1,024. Default: the number of cores minus one, at least 1. See [sizing](crate::guide#sizing).
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets how many granted requests wait for a thread.
    ///
    /// Further requests get [503](super::Issuer#responses). Range: 0 to 65,536. Default: 64 per thread.
    pub fn max_queued(mut self, requests: usize) -> Self {
        self.max_queued = Some(requests);
        self
    }

    /// Sets the clock for the periods of keys. Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the issuer. Fails with the first misconfiguration.
    pub fn build(self) -> Result<Issuer, BuildError> {
        let issuing = self.checked();
        Ok(Issuer(Arc::new(
            issuing.map_err(|message| BuildError::new("issuer", message))?,
        )))
    }

    fn checked(self) -> Result<Issuing, String> {
        check_seconds("cache_lifetime", self.cache_lifetime)?;
        let workers = Workers::configured("threads", self.threads, self.max_queued)?;
        self.keys.check(("cache_lifetime", self.cache_lifetime))?;
        Ok(Issuing {
            request_path: path(&self.request_uri)?,
            policy: self.policy,
            keys: ArcSwap::from_pointee(self.keys),
            request_uri: self.request_uri,
            cache_lifetime: self.cache_lifetime,
            workers,
            clock: self.clock,
            log: IssuerTelemetry::default(),
        })
    }
}

/// Fails for the path of the directory.
fn path(request_uri: &str) -> Result<String, String> {
    let uri: Option<Uri> = request_uri.parse().ok();
    let path = uri.filter(|uri| uri.path().starts_with('/') && uri.query().is_none());
    let path = path
        .map(|uri| uri.path().to_owned())
        .filter(|path| path != Directory::PATH);
    path.ok_or_else(|| format!("request_uri {request_uri:?} is not a valid path or URL"))
}

impl fmt::Debug for IssuerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerBuilder")
            .field("request_uri", &self.request_uri)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}
