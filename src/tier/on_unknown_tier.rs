//! The treatment of requests while the tier of their user is not known.

use std::time::Duration;

use crate::{
    error::{ConfigError, ConfigErrorKind::Tier},
    rules::{NoTier, ResolvedTier},
};

/// Maximum length of a tier's name in bytes, so that a source cannot fill the memory.
pub(super) const LONGEST_NAME: usize = 256;

/// The treatment of requests while the tier of their user is unknown: for how long they wait for the look-up, and how they
/// go on without its answer. See [`on_unknown_tier`](crate::tier::TierLayerBuilder::on_unknown_tier).
///
/// A tier is unknown if the source has never answered about the user, or so long ago that the answer is not even
/// [stale](crate::tier::TierLayerBuilder::stale_for): after a start, after [`forget`](crate::tier::TierCache::forget), and
/// while the source fails. The answer that a user has no tier is an answer: such a user is of the first tier, whatever is
/// set here. So is a request without a user.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use tower_quota::tier::OnUnknownTier;
///
/// # run(async {
/// let slow = |on_unknown_tier| {
///     let layer = TierLayer::by_extension(|_user: u64| async {
///         tokio::time::sleep(Duration::from_millis(200)).await; // a slow database
///         Ok::<_, Infallible>(Some("premium"))
///     });
///     layer.on_unknown_tier(on_unknown_tier).build()
/// };
///
/// // The default: the request waits, and has the tier of its user.
/// let waits = slow(OnUnknownTier::wait(Duration::from_secs(1)))?;
/// assert_eq!(tier_of(&waits, 7).await.as_deref(), Some("premium"));
///
/// // It waits for less time than the source takes, and is of the first tier: it carries no name.
/// let in_vain = slow(OnUnknownTier::wait(Duration::from_millis(100)))?;
/// assert_eq!(tier_of(&in_vain, 7).await, None);
///
/// // It does not wait. The look-up goes on, and the next request has its answer.
/// let at_once = slow(OnUnknownTier::tier("trial"))?;
/// assert_eq!(tier_of(&at_once, 7).await.as_deref(), Some("trial"));
/// tokio::time::sleep(Duration::from_millis(250)).await;
/// assert_eq!(tier_of(&at_once, 7).await.as_deref(), Some("premium"));
/// # Ok(()) });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnUnknownTier {
    /// `None` for requests that go on at once.
    pub(super) wait: Option<Duration>,
    then: Then,
}

/// The way on of a request that waits no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Then {
    FirstTier,
    Tier(ResolvedTier),
    Uncounted,
}

impl OnUnknownTier {
    /// Waits for the look-up, from 1 ms to 60 s, then counts the request in the first tier, or as
    /// [`then_tier`](Self::then_tier) or [`then_admit_uncounted`](Self::then_admit_uncounted) says.
    ///
    /// All requests of a user wait for the same look-up. Once a look-up has been waited for in vain, no other request
    /// waits for it. The number of requests that wait is [bounded](crate::tier::TierLayerBuilder::max_waiting): the others
    /// go on at once, as those that have waited in vain.
    pub const fn wait(at_most: Duration) -> Self {
        Self {
            wait: Some(at_most),
            then: Then::FirstTier,
        }
    }

    /// Does not wait: counts the request in the tier of this name.
    ///
    /// You want it where a wait is worse than a rejection: a paying user who begins with many requests at once is counted
    /// in this tier until the look-up has ended, so give it room for such a burst. A name that the rules do not have is
    /// the first tier, as everywhere.
    pub fn tier(name: impl AsRef<str>) -> Self {
        Self {
            wait: None,
            then: Then::Tier(ResolvedTier::new(name)),
        }
    }

    /// Does not wait: lets the request pass uncounted and without `RateLimit` fields.
    ///
    /// **A client that can invent user ids passes every limit** by taking a new one for each request, and by slowing the
    /// source down with them. You want it only where users are authenticated before, and another limit holds for them, such as one
    /// by address. It concerns layers with [`Tiers::resolved`](crate::Tiers::resolved) only, and no request without a
    /// user.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::tier::OnUnknownTier;
    ///
    /// # run(async {
    /// let tiers = TierLayer::by_extension(|_user: u64| async { Err::<Option<String>, _>("connection refused") })
    ///     .on_unknown_tier(OnUnknownTier::pass_uncounted())
    ///     .build()?;
    /// let limits = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::extension::<u64>())
    ///     .tiers(Tiers::resolved().tier("free", [QuotaPolicy::per_minute("minute", 1)]))
    ///     .build()?;
    /// let service = tiers.layer(limits.layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, Infallible>(Response::new(String::new()))
    /// })));
    ///
    /// for _ in 0..5 {
    ///     let response = service.clone().oneshot(Request::builder().extension(7_u64).body(())?).await?;
    ///     assert_eq!(response.status(), 200);
    ///     assert!(!response.headers().contains_key("ratelimit"));
    /// }
    /// # Ok(()) });
    /// ```
    pub const fn pass_uncounted() -> Self {
        Self {
            wait: None,
            then: Then::Uncounted,
        }
    }

    /// The same wait, then the tier of this name.
    #[must_use]
    pub fn then_tier(self, name: impl AsRef<str>) -> Self {
        let then = Then::Tier(ResolvedTier::new(name));
        Self { then, ..self }
    }

    /// The same wait, then the request passes uncounted. See [`pass_uncounted`](Self::pass_uncounted) for the danger.
    #[must_use]
    pub fn then_admit_uncounted(self) -> Self {
        let then = Then::Uncounted;
        Self { then, ..self }
    }

    /// The tier of a request that goes on without the answer of the source.
    pub(super) fn go_on(&self) -> Result<ResolvedTier, NoTier> {
        match &self.then {
            Then::FirstTier => Err(NoTier::First),
            Then::Tier(tier) => Ok(tier.clone()),
            Then::Uncounted => Err(NoTier::Uncounted),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let setting = "tier layer: on_unknown_tier";
        if let Some(wait) = self.wait {
            let range = Duration::from_millis(1)..=Duration::from_secs(60);
            ConfigError::check_range(Tier, format_args!("{setting}: wait"), wait, range)?;
        }
        match &self.then {
            Then::Tier(tier) => {
                let name = format!("{setting}: bytes of the tier's name");
                ConfigError::check_range(Tier, name, tier.len(), 1..=LONGEST_NAME)
            }
            Then::FirstTier | Then::Uncounted => Ok(()),
        }
    }
}

/// A second, then the first tier.
impl Default for OnUnknownTier {
    fn default() -> Self {
        Self::wait(Duration::from_secs(1))
    }
}
