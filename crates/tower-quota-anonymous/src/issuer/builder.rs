//! Settings of an issuer, checked as a whole.

use std::{fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use http::Uri;

use super::{IssuancePolicy, Issuer, Issuing};
use crate::{BuildError, Directory, KeySet, settings::check_seconds, telemetry::IssuerTelemetry, workers::Workers};
use tower_quota::clock::Clock;

/// Settings of an [`Issuer`]. Keys are needed; all else has a default.
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
/// // Clients that have a directory of an hour ago would find no key in it that works.
/// let noon = Timestamp::from_micros(1_800_000_000_000_000);
/// let mut keys = KeySet::new();
/// keys.insert(keys.generate(Profile::P256)?, ..noon);
/// keys.insert(keys.generate(Profile::P256)?, noon..);
/// let old = keys.iter().next().unwrap().key_id();
/// assert_eq!(error(keys), format!("issuer: key {old} and the next one overlap for no longer than cache_lifetime 3600s"));
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
    /// An issuer that gives credentials to those to whom this policy does. There is none without such a policy, since it is
    /// what limits a client in the end.
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
    /// The keys, each with its times. Needed; at most 64, and of those of one profile no two may have ids that end with the
    /// same byte.
    pub fn keys(mut self, keys: KeySet) -> Self {
        self.keys = keys;
        self
    }

    /// Sets the address for requests in the directory: a path, or a URL of which this issuer sees the path.
    /// Default: `/arc/request`.
    pub fn request_uri(mut self, uri: impl Into<String>) -> Self {
        self.request_uri = uri.into();
        self
    }

    /// For how long caches may keep the directory, in whole seconds, from 1 s to 31 days. Default: one hour.
    ///
    /// A key that ends has to overlap with the next one for longer than that.
    pub fn cache_lifetime(mut self, lifetime: Duration) -> Self {
        self.cache_lifetime = lifetime;
        self
    }

    /// Sets the number of credentials that are made at once, each on a blocking thread of tokio, from 1 to 1 024. Default:
    /// one less than there are cores, and at least 1.
    ///
    /// A credential takes milliseconds of a core: see [sizing](crate::guide).
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets the number of granted requests that wait for a thread, from 0 to 65 536. Default: 64 for each thread.
    ///
    /// Others get 503 and `Retry-After`. They were charged, and can be [sent again](super::IssuancePolicy#repeats) without
    /// another charge.
    pub fn max_queued(mut self, requests: usize) -> Self {
        self.max_queued = Some(requests);
        self
    }

    /// The clock by which keys begin and end. Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The issuer, if the settings are valid.
    ///
    /// # Errors
    ///
    /// The first mistake found. The message names the setting, the value and the bound.
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

/// The path of a URL, which must not be that of the directory.
fn path(request_uri: &str) -> Result<String, String> {
    let uri: Option<Uri> = request_uri.parse().ok();
    let path = uri.filter(|uri| uri.path().starts_with('/') && uri.query().is_none());
    let path = path
        .map(|uri| uri.path().to_owned())
        .filter(|path| path != Directory::PATH);
    path.ok_or_else(|| format!("request_uri {request_uri:?} is no path or URL that can be used"))
}

impl fmt::Debug for IssuerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerBuilder")
            .field("request_uri", &self.request_uri)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}
