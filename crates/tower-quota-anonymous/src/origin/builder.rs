use std::{fmt, ops::RangeInclusive, sync::Arc, time::Duration};

use arc_swap::ArcSwap;

use super::{
    Origin, OriginLayer, forgeries::Forgeries, known::KnownGroups, spending::Spending, tags::Tags, windows::Windows,
};
use crate::{
    BuildError, IssuerKey, KeySet, Profile, TokenChallenge,
    settings::{check, check_seconds},
    telemetry::TokenTelemetry,
    workers::Workers,
};
use tower_quota::{
    FailureMode, Limiter, PolicySet, QuotaPolicy, Store,
    clock::Clock,
    fields::{
        LayerFields,
        draft11::{PolicyItem, RateLimitPolicy},
    },
    key::{self, ClientIp, KeyExtractor},
};

/// A builder for [`OriginLayer`]. Origins, keys and a policy are required.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::{FailureMode, QuotaPolicy};
/// use tower_quota_anonymous::{IssuerKey, OriginLayer, Profile};
///
/// // Load the key and the secret from a secret store.
/// let (key, secret) = (IssuerKey::generate(Profile::P256)?, [7; 32]);
/// let hour = Duration::from_secs(3_600);
/// let builder = OriginLayer::builder("issuer.example", &secret)
///     .origin("api.example")
///     .origin("www.example:8443")
///     .key(key)
///     .policy("anonymous", 100, hour)
///     .optional()
///     .failure_mode(FailureMode::Closed)
///     .grace(Duration::from_secs(30))
///     .credential_lifetime(24 * hour)
///     .failed_proofs(QuotaPolicy::per_minute("failed proofs", 30));
/// assert!(builder.build().is_ok());
/// # use tower_quota_anonymous::OriginLayerBuilder;
/// #
/// # let key = IssuerKey::generate(Profile::P256)?;
/// # let builder = || OriginLayer::builder("issuer.example", &[7; 32]).origin("api.example").key(key.clone());
/// # let error = |builder: OriginLayerBuilder| builder.build().unwrap_err().to_string();
/// #
/// # let minute = Duration::from_secs(60);
/// # let error_of = |limit, window| error(builder().policy("anonymous", limit, window));
/// # assert_eq!(error_of(0, minute), r#"tokens "anonymous": limit 0 is outside 1..=65536"#);
/// # let window = Duration::from_millis(1_500);
/// # let whole = r#"tokens "anonymous": window 1.5s is not a whole number of seconds in 1s..=2678400s"#;
/// # assert_eq!(error_of(10, window), whole);
/// # assert_eq!(error(builder()), "tokens: a policy is required");
/// #
/// # let builder = || builder().policy("anonymous", 10, minute);
/// # assert_eq!(
/// #     error(builder().grace(minute)),
/// #     r#"tokens "anonymous": grace 60s plus twice the skew 5s exceeds the window 60s"#
/// # );
/// # assert_eq!(
/// #     error(builder().key(key.clone())),
/// #     format!(r#"tokens "anonymous": the IDs of two keys of ARC (P-256) end with {:02x}"#, key.key_id().truncated())
/// # );
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
pub struct OriginLayerBuilder {
    issuer: String,
    secret: [u8; 32],
    origins: Vec<String>,
    keys: KeySet,
    policy: Option<(String, u32, Duration)>,
    is_optional: bool,
    store: Option<Arc<dyn Store>>,
    failure_mode: FailureMode,
    deadline: Option<Duration>,
    max_tags: usize,
    grace: Option<Duration>,
    skew: Option<Duration>,
    credential_lifetime: Option<Duration>,
    verifier_threads: Option<usize>,
    max_queued: Option<usize>,
    failed_proofs: Option<QuotaPolicy>,
    address: ClientIp,
    reserves_places: bool,
    skips_cors_preflight: bool,
    clock: Clock,
}

impl OriginLayer {
    /// Returns a builder for an origin that accepts tokens of `issuer`: a host, with a port unless it is the default
    /// port.
    ///
    /// All instances need the same `secret`, from which the contexts of challenges are derived.
    pub fn builder(issuer: impl Into<String>, secret: &[u8; 32]) -> OriginLayerBuilder {
        OriginLayerBuilder {
            issuer: issuer.into(),
            secret: *secret,
            origins: Vec::new(),
            keys: KeySet::new(),
            policy: None,
            is_optional: false,
            store: None,
            failure_mode: FailureMode::default(),
            deadline: None,
            max_tags: 1 << 20,
            grace: None,
            skew: None,
            credential_lifetime: None,
            verifier_threads: None,
            max_queued: None,
            failed_proofs: None,
            address: key::client_ip(),
            reserves_places: true,
            skips_cors_preflight: false,
            clock: Clock::system(),
        }
    }
}

impl OriginLayerBuilder {
    const LIMITS: RangeInclusive<u32> = 1..=65_536;
    const TAGS: RangeInclusive<usize> = 1..=1 << 28;

    /// Adds a name of this origin: its host, with a port unless it is the default port. Required.
    pub fn origin(mut self, name: impl Into<String>) -> Self {
        self.origins.push(name.into());
        self
    }

    /// Adds a key of the issuer that does not expire. Challenges show the first key of each profile.
    pub fn key(mut self, key: IssuerKey) -> Self {
        self.keys.insert(key, ..);
        self
    }

    /// Adds keys of the issuer with their periods. This or a [`key`](Self::key) is required.
    ///
    /// All keys' tokens are accepted, and each window shows [one key per profile](KeySet). The periods of a key and the
    /// next one must overlap for longer than a window.
    pub fn keys(mut self, keys: KeySet) -> Self {
        self.keys.append(keys);
        self
    }

    /// Sets the tokens per credential and window. Required.
    ///
    /// `limit` ranges from 1 to 65,536, and `window` up to 31 days in whole seconds. Windows begin at multiples of
    /// their length since the Unix epoch; twice the limit can pass around a boundary. Origins with the same secret,
    /// issuer, names, window and policy name share counts, and must have the same limit.
    pub fn policy(mut self, name: impl Into<String>, limit: u32, window: Duration) -> Self {
        self.policy = Some((name.into(), limit, window));
        self
    }

    /// Lets requests without a token pass, to limits by user or address. Default: a token is required.
    ///
    /// Invalid tokens are still rejected.
    pub fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Sets the shared store of spent tags.
    ///
    /// A [`MemoryStore`](tower_quota::MemoryStore), or a Redis that evicts keys, lets evicted tags be spent again.
    /// Default: one per process, so that N instances accept each token N times.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets how tokens are treated if the store makes no decision.
    ///
    /// `Open` accepts a token at most once per process. `Closed` rejects with 503. Default: [`FailureMode::Open`].
    pub fn failure_mode(mut self, mode: FailureMode) -> Self {
        self.failure_mode = mode;
        self
    }

    /// Sets the deadline of store calls, from 1 ms to 60 s. Default: 50 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets how many spent tags this process keeps.
    ///
    /// Without a store, the tags of two windows must fit: at the limit, tokens are rejected with 503. With a store, the
    /// oldest tags that are also in the store are evicted first. Range: 1 to 268,435,456. Default: 1,048,576, about 60
    /// MB.
    pub fn max_tags(mut self, tags: usize) -> Self {
        self.max_tags = tags;
        self
    }

    /// Sets how long a window's tokens are accepted after its end. Adds no tokens.
    ///
    /// With twice the [clock skew](Self::clock_skew), at most the window. Default: a quarter of the window, at most 60
    /// s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Sets the maximum difference between the clocks of two instances.
    ///
    /// The next window's challenges are accepted this long before it begins. Instances read the system clock only at
    /// startup. Default: an eighth of the window, at most 5 s.
    pub fn clock_skew(mut self, skew: Duration) -> Self {
        self.skew = Some(skew);
        self
    }

    /// Sets the lifetime of credentials, a multiple of the window. Requires [`Profile::P256`].
    ///
    /// Default: until the key changes.
    pub fn credential_lifetime(mut self, lifetime: Duration) -> Self {
        self.credential_lifetime = Some(lifetime);
        self
    }

    /// Sets how many proofs are verified in parallel, each on a blocking thread of Tokio.
    ///
    /// Range: 1 to 1,024. Default: the number of cores minus one, at least 1. See [sizing](crate::guide#sizing).
    pub fn verifier_threads(mut self, threads: usize) -> Self {
        self.verifier_threads = Some(threads);
        self
    }

    /// Sets the number of queued proofs. Further proofs are rejected with 503, uncharged.
    ///
    /// Addresses take turns; IPv6 addresses are grouped by /64, and by /48 while the verifier is [half
    /// full](Self::failed_proofs). In a full queue, a new proof replaces the last one of the address with the most
    /// queued proofs, if its own address has fewer. Range: 0 to 65,536. Default: 64 per thread.
    pub fn max_queued(mut self, proofs: usize) -> Self {
        self.max_queued = Some(proofs);
        self
    }

    /// Limits failing proofs per address, or per /48 for IPv6. Valid proofs are refunded.
    ///
    /// Applies only while at least half of the threads and queue positions are in use. Default: 60 per minute, plus a
    /// burst of as many proofs as can be verified or queued.
    pub fn failed_proofs(mut self, policy: QuotaPolicy) -> Self {
        self.failed_proofs = Some(policy);
        self
    }

    /// Sets the address for [`max_queued`](Self::max_queued) and [`failed_proofs`](Self::failed_proofs).
    ///
    /// Requests without an address share one turn, and their failing proofs are not limited. Default:
    /// [`key::client_ip`], which trusts no forwarding field.
    pub fn address(mut self, address: ClientIp) -> Self {
        self.address = address;
        self
    }

    /// Disables reserved places. By default, up to half of a queue full of forged tokens, and of its turns, are
    /// reserved for addresses whose tokens were accepted recently.
    ///
    /// Recently means in the current or previous period (one window, but 1 to 60 minutes), until three proofs in a row
    /// fail. At most 65,536 addresses are kept, as hashes. A client behind the same address can detect in a flood that
    /// a token was accepted recently.
    pub fn without_reserved_places(mut self) -> Self {
        self.reserves_places = false;
        self
    }

    /// Lets CORS preflight requests pass without a token. Default: a token is required.
    pub fn skip_cors_preflight(mut self) -> Self {
        self.skips_cors_preflight = true;
        self
    }

    /// Sets the clock for windows. Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the layer. Fails with the first misconfiguration.
    pub fn build(mut self) -> Result<OriginLayer, BuildError> {
        let (policy, limit, window) = self
            .policy
            .take()
            .ok_or_else(|| BuildError::new("tokens", "a policy is required"))?;
        let error = |message: String| BuildError::new(&format!("tokens {policy:?}"), message);
        let windows = self.windows(&policy, limit, window).map_err(error)?;
        PolicySet::new([QuotaPolicy::new(policy.clone(), limit.into(), window)])?;
        self.address.check()?;
        let workers = Workers::configured("verifier_threads", self.verifier_threads, self.max_queued).map_err(error)?;
        let lifetime = Windows::tag_lifetime(window);
        let shared = self.store.map(|store| {
            let limiter = Limiter::builder(store).failure_mode(self.failure_mode);
            match self.deadline {
                Some(deadline) => limiter.deadline(deadline),
                None => limiter,
            }
        });
        let tags = Tags::new(self.max_tags, lifetime);
        let spending = Spending::new(tags, shared, &self.clock, lifetime)?;
        let failed_proofs = self.failed_proofs.unwrap_or_else(|| {
            let usual = QuotaPolicy::per_minute("failed proofs", 60);
            usual.with_burst_capacity(60 + workers.capacity() as u64)
        });
        Ok(OriginLayer(Arc::new(Origin {
            policy_field: policy_field(&policy, limit, window).map_err(error)?,
            policy: policy.into(),
            issuer: self.issuer.into(),
            limit,
            keys: ArcSwap::from_pointee(self.keys),
            windows,
            workers,
            forgeries: Forgeries::new(failed_proofs, &self.clock)?,
            address: self.address,
            known: self.reserves_places.then(|| KnownGroups::new(window)),
            spending,
            is_optional: self.is_optional,
            skips_cors_preflight: self.skips_cors_preflight,
            clock: self.clock,
            log: TokenTelemetry::default(),
        })))
    }

    fn windows(&self, policy: &str, limit: u32, window: Duration) -> Result<Windows, String> {
        check("limit", limit, &Self::LIMITS)?;
        check_seconds("window", window)?;
        self.keys.check(("window", window))?;
        check("max_tags", self.max_tags, &Self::TAGS)?;
        let grace = self.grace.unwrap_or((window / 4).min(Duration::from_secs(60)));
        let skew = self.skew.unwrap_or((window / 8).min(Duration::from_secs(5)));
        if grace.saturating_add(skew.saturating_mul(2)) > window {
            return Err(format!(
                "grace {grace:?} plus twice the skew {skew:?} exceeds the window {window:?}"
            ));
        }
        let lifetime = self.credential_lifetime;
        let is_multiple =
            |lifetime: Duration| lifetime >= window && lifetime.as_nanos().is_multiple_of(window.as_nanos());
        if let Some(lifetime) = lifetime.filter(|lifetime| !is_multiple(*lifetime)) {
            return Err(format!(
                "credential lifetime {lifetime:?} is not a multiple of the window {window:?}"
            ));
        }
        let credential_windows = lifetime.map(|lifetime| lifetime.as_secs() / window.as_secs());
        let times = (grace, skew);
        let template = self.template()?;
        Ok(Windows::new(
            template,
            &self.secret,
            policy,
            window,
            credential_windows,
            times,
        ))
    }

    /// Without contexts or a profile.
    fn template(&self) -> Result<TokenChallenge, String> {
        if self.origins.is_empty() {
            return Err("at least one origin is required".to_owned());
        }
        let challenge = TokenChallenge::new(Profile::P256, &self.issuer);
        let challenge =
            challenge.map_err(|_| format!("issuer {:?} is not a host with an optional port", self.issuer))?;
        let challenge = challenge.with_origins(&self.origins);
        challenge.map_err(|_| {
            format!(
                "one of the origins {:?} is not a host with an optional port",
                self.origins
            )
        })
    }
}

/// Only the client knows the remaining tokens.
fn policy_field(name: &str, limit: u32, window: Duration) -> Result<LayerFields, String> {
    let item = PolicyItem::new(name, limit.into()).and_then(|item| item.with_window(window));
    let field = item.and_then(|item| RateLimitPolicy::new([item]));
    let field = field.map_err(|cause| cause.to_string())?;
    Ok(LayerFields::new().with_rate_limit_policy(&field))
}

impl fmt::Debug for OriginLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginLayerBuilder")
            .field("issuer", &self.issuer)
            .field("origins", &self.origins)
            .field("keys", &self.keys)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}
