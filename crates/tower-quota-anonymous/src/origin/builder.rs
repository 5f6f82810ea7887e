//! Settings of an origin, checked as a whole.

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

/// Settings of an [`OriginLayer`]. Origins, keys and the policy are needed; all else has a default.
///
/// ```
/// use std::time::Duration;
/// use tower_quota_anonymous::{IssuerKey, OriginLayer, OriginLayerBuilder, Profile};
///
/// let key = IssuerKey::generate(Profile::P256)?;
/// let builder = || OriginLayer::builder("issuer.example", &[7; 32]).origin("api.example").key(key.clone());
/// let error = |builder: OriginLayerBuilder| builder.build().unwrap_err().to_string();
///
/// let minute = Duration::from_secs(60);
/// let error_of = |limit, window| error(builder().policy("anonymous", limit, window));
/// assert_eq!(error_of(0, minute), r#"tokens "anonymous": limit 0 is outside 1..=65536"#);
/// let window = Duration::from_millis(1_500);
/// assert_eq!(error_of(10, window), r#"tokens "anonymous": window 1.5s is no whole number of seconds in 1s..=2678400s"#);
/// assert_eq!(error(builder()), "tokens: there is no policy");
///
/// let builder = || builder().policy("anonymous", 10, minute);
/// assert_eq!(
///     error(builder().grace(minute)),
///     r#"tokens "anonymous": grace 60s and twice the skew 5s are longer than the window 60s"#
/// );
/// assert_eq!(
///     error(builder().key(key.clone())),
///     format!(r#"tokens "anonymous": the ids of two keys of ARC (P-256) end with {:02x}"#, key.key_id().truncated())
/// );
/// # Ok::<_, tower_quota_anonymous::CredentialError>(())
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
    challenges_rejected: bool,
    clock: Clock,
}

impl OriginLayer {
    /// Settings of an origin that accepts tokens of this issuer: a host, with a port where it is not the usual one.
    ///
    /// Contexts of challenges are made with the secret, so that no client can compute those of the future. All instances of
    /// the origin need the same one.
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
            challenges_rejected: true,
            clock: Clock::system(),
        }
    }
}

impl OriginLayerBuilder {
    const LIMITS: RangeInclusive<u32> = 1..=65_536;
    const TAGS: RangeInclusive<usize> = 1..=1 << 28;

    /// A name of this origin: its host as clients write it, with a port where it is not the usual one. Needed; one call for
    /// each name.
    ///
    /// A client answers a challenge only if the host of its request is among them.
    pub fn origin(mut self, name: impl Into<String>) -> Self {
        self.origins.push(name.into());
        self
    }

    /// A key of the issuer that has no end; one call for each. Of a profile, challenges show the first one.
    pub fn key(mut self, key: IssuerKey) -> Self {
        self.keys.insert(key, ..);
        self
    }

    /// Keys of the issuer, each with its time. These or a [`key`](Self::key) are needed.
    ///
    /// Tokens of all keys are accepted at all times. In each window, challenges show one key of each profile: of those whose
    /// time is not over, the one whose time had begun last when the window began. So keys change where a window does, on all
    /// instances with the same set, also while they [run](OriginLayer::replace_keys).
    ///
    /// A key that ends must overlap with the next one for longer than a window: clients fetch credentials of the key that a
    /// challenge shows. The ids of two keys of one profile must not end with the same byte, since a request for a credential
    /// names no more of them.
    pub fn keys(mut self, keys: KeySet) -> Self {
        self.keys.append(keys);
        self
    }

    /// Sets the tokens of each credential in each window: from 1 to 65 536, in whole seconds up to 31 days. Required.
    ///
    /// Windows begin at multiples of their length since 1970, on all instances alike, and like any fixed window they let
    /// twice as many pass around a border. Origins with the same secret, issuer, names, window and name of the policy
    /// count together. Do not give such origins different limits: the largest would be the one that counts.
    pub fn policy(mut self, name: impl Into<String>, limit: u32, window: Duration) -> Self {
        self.policy = Some((name.into(), limit, window));
        self
    }

    /// Lets requests without a token pass. Default: they are answered with a challenge.
    ///
    /// You want it in front of limits by user or address, which then reject those that have no token. Requests with a token
    /// that is not valid are rejected all the same.
    pub fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Sets the shared store of spent tags. Default: each process has its own, so that N instances accept each
    /// token N times.
    ///
    /// A [`MemoryStore`](tower_quota::MemoryStore) is not what you want here: at its cap it evicts partitions, and an evicted tag
    /// can be spent again. In Redis set `maxmemory-policy noeviction`, for the same reason.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets the treatment of tokens when the store gives no answer. Default: [`FailureMode::Open`].
    ///
    /// Open never means blind: each process knows up to [`max_tags`](Self::max_tags) tags that it has seen, and accepts
    /// none of them again. So a token passes once in each process at most. Closed answers with 503.
    pub fn failure_mode(mut self, mode: FailureMode) -> Self {
        self.failure_mode = mode;
        self
    }

    /// Sets the time limit for the answer of the store, from 1 ms to 60 s. Default: 50 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the spent tags that this process keeps, from 1 to 268 435 456. Default: 1 048 576, about 60 MB when full.
    ///
    /// Without a store, that is all there is: two windows of tokens have to fit, and at the cap tokens are answered with
    /// 503 and an event. With one, it is what keeps tokens from being accepted twice while the store is unavailable, and
    /// the oldest tags that the store knows make room for others.
    pub fn max_tags(mut self, tags: usize) -> Self {
        self.max_tags = tags;
        self
    }

    /// For how long tokens of the last window are accepted after its end. Default: a quarter of the window, 60 s at most.
    ///
    /// It moves tokens in time and adds none. Together with twice the [skew](Self::clock_skew) it must not be longer than
    /// the window.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Sets the maximum difference between the clocks of two instances. Default: an eighth of the window, 5 s at most.
    ///
    /// Challenges of the next window are accepted so long before it begins. The clock of an instance is read when it
    /// starts, and does not follow later corrections by leaps.
    pub fn clock_skew(mut self, skew: Duration) -> Self {
        self.skew = Some(skew);
        self
    }

    /// After how long clients need a new credential: a multiple of the window. Default: when the key changes.
    ///
    /// Challenges then name the epoch in which credentials are valid, which begins and ends with a window. Only
    /// [`Profile::P256`] has that.
    pub fn credential_lifetime(mut self, lifetime: Duration) -> Self {
        self.credential_lifetime = Some(lifetime);
        self
    }

    /// Sets the number of proofs that are verified at once, each on a blocking thread of tokio, from 1 to 1 024.
    /// Default: one less than there are cores, and at least 1.
    ///
    /// A proof takes milliseconds of a core: see [sizing](crate::guide).
    pub fn verifier_threads(mut self, threads: usize) -> Self {
        self.verifier_threads = Some(threads);
        self
    }

    /// Sets the number of proofs that wait for their turn, from 0 to 65 536. Default: 64 for each thread.
    ///
    /// Addresses take turns, IPv6 addresses by /64, and by /48 while the verifier is
    /// [half full](Self::failed_proofs). When the queue is full, the last proof of the longest line makes room for an
    /// address that has fewer. Proofs without a place are answered with 503 and `Retry-After`, and are not charged.
    pub fn max_queued(mut self, proofs: usize) -> Self {
        self.max_queued = Some(proofs);
        self
    }

    /// Limits the failing proofs of each address, IPv6 addresses by /48. Default: 60 a minute, and at once as many more
    /// as are verified or wait at a time.
    ///
    /// The limit applies while the verifier is half full, that is, while at least half of the proofs are there that may
    /// be verified or wait at a time. So a client that forges tokens behind a shared address takes nothing from others
    /// behind it while there is time for all. A proof is charged when its turn comes, and the charge is refunded when
    /// it is right.
    pub fn failed_proofs(mut self, policy: QuotaPolicy) -> Self {
        self.failed_proofs = Some(policy);
        self
    }

    /// Sets the source of a request's address, for [`max_queued`](Self::max_queued) and
    /// [`failed_proofs`](Self::failed_proofs). Default: [`key::client_ip`], which believes no forwarding field.
    ///
    /// Requests without an address share one line of the queue, their failing proofs are not limited, and one event
    /// says so.
    pub fn address(mut self, address: ClientIp) -> Self {
        self.address = address;
        self
    }

    /// Reserves no places for addresses whose tokens were accepted before. Default: up to half of the queue, and of the
    /// turns, is theirs when forged tokens from many addresses fill it.
    ///
    /// An address is one of them if a token from it was accepted in this period or the last one, where a period is a
    /// window, at least a minute and at most an hour; three failed proofs in a row end that. This process keeps at most
    /// 65 536 of them in memory, as hashes under a key that it draws for each period, without times, tokens or numbers
    /// of tokens, and neither logs nor exports them. Even so, a client that sends forged tokens from the same address
    /// during a flood can learn that a token from it was accepted recently: they are verified, and others are not.
    pub fn without_reserved_places(mut self) -> Self {
        self.reserves_places = false;
        self
    }

    /// Lets CORS preflight requests pass without a token: browsers cannot send any with them. Default: they need one.
    pub fn skip_cors_preflight(mut self) -> Self {
        self.skips_cors_preflight = true;
        self
    }

    /// Leaves rejections of inner limits as they are. Default, where tokens are [optional](Self::optional): a 429 of a
    /// [`RateLimitLayer`](tower_quota::RateLimitLayer) carries the challenge, too, so that a client behind a shared address can go
    /// on with a token.
    pub fn without_challenge_on_rejections(mut self) -> Self {
        self.challenges_rejected = false;
        self
    }

    /// The clock that windows follow. Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The layer, if the settings are valid.
    ///
    /// # Errors
    ///
    /// The first mistake found. The message names the policy, the value and the bound.
    pub fn build(mut self) -> Result<OriginLayer, BuildError> {
        let (policy, limit, window) = self
            .policy
            .take()
            .ok_or_else(|| BuildError::new("tokens", "there is no policy"))?;
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
            challenges_rejected: self.is_optional && self.challenges_rejected,
            clock: self.clock,
            log: TokenTelemetry::default(),
        })))
    }

    /// The windows of this policy, if they and the keys fit together.
    fn windows(&self, policy: &str, limit: u32, window: Duration) -> Result<Windows, String> {
        check("limit", limit, &Self::LIMITS)?;
        check_seconds("window", window)?;
        self.keys.check(("window", window))?;
        check("max_tags", self.max_tags, &Self::TAGS)?;
        let grace = self.grace.unwrap_or((window / 4).min(Duration::from_secs(60)));
        let skew = self.skew.unwrap_or((window / 8).min(Duration::from_secs(5)));
        if grace.saturating_add(skew.saturating_mul(2)) > window {
            return Err(format!(
                "grace {grace:?} and twice the skew {skew:?} are longer than the window {window:?}"
            ));
        }
        let lifetime = self.credential_lifetime;
        let is_multiple =
            |lifetime: Duration| lifetime >= window && lifetime.as_nanos().is_multiple_of(window.as_nanos());
        if let Some(lifetime) = lifetime.filter(|lifetime| !is_multiple(*lifetime)) {
            return Err(format!(
                "credential lifetime {lifetime:?} is no multiple of the window {window:?}"
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

    /// The challenge without contexts. Its profile is that of the token that it is for.
    fn template(&self) -> Result<TokenChallenge, String> {
        if self.origins.is_empty() {
            return Err("there is no name of the origin".to_owned());
        }
        let challenge = TokenChallenge::new(Profile::P256, &self.issuer);
        let challenge = challenge.map_err(|_| format!("issuer {:?} is no host with a port", self.issuer))?;
        let challenge = challenge.with_origins(&self.origins);
        challenge.map_err(|_| format!("one of the origins {:?} is no host with a port", self.origins))
    }
}

/// The limit and the window. What is left is known to the client alone, so there is no `RateLimit`.
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
