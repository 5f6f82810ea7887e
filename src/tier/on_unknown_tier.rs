use std::time::Duration;

use crate::{
    error::{ConfigError, ConfigErrorKind::Tier},
    rules::{NoTier, ResolvedTier},
};

/// Bounds the memory that the names of a source can occupy.
pub(super) const LONGEST_NAME: usize = 256;

/// The handling of requests whose tier is unknown: how long they wait for the lookup, and what happens afterwards.
///
/// A tier is unknown after a start or [`forget`](crate::tier::TierCache::forget), until the first lookup succeeds, and
/// if the last result is too old to be used even as a [stale](crate::tier::TierLayerBuilder::stale_for) tier. A user
/// without a tier counts in the first tier, as do requests without a user.
///
/// ```
/// use std::time::Duration;
/// use tower_quota::tier::OnUnknownTier;
///
/// // The default: wait for the lookup, then count in the first tier.
/// let patient = OnUnknownTier::wait(Duration::from_secs(1));
/// assert_eq!(patient, OnUnknownTier::default());
///
/// // Wait for a shorter time, then count in the tier `trial`.
/// let impatient = OnUnknownTier::wait(Duration::from_millis(100)).then_tier("trial");
///
/// // Count in the tier `trial` without waiting.
/// let immediate = OnUnknownTier::tier("trial");
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// # for (on_unknown_tier, tier) in [(patient, "premium"), (impatient, "trial"), (immediate, "trial")] {
/// #     let tiers = tower_quota::tier::TierLayer::by_extension(|_user: u64| async {
/// #         tokio::time::sleep(Duration::from_millis(200)).await; // a slow database
/// #         Ok::<_, std::convert::Infallible>(Some("premium"))
/// #     });
/// #     let tiers = tiers.on_unknown_tier(on_unknown_tier).build()?;
/// #     assert_eq!(set_up::tier_of(&tiers, 7).await.as_deref(), Some(tier));
/// #     // The lookup continues, and later requests use its result.
/// #     tokio::time::sleep(Duration::from_millis(250)).await;
/// #     assert_eq!(set_up::tier_of(&tiers, 7).await.as_deref(), Some("premium"));
/// # }
/// # Ok(()) });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnUnknownTier {
    pub(super) wait: Option<Duration>,
    then: Then,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Then {
    FirstTier,
    Tier(ResolvedTier),
    Uncounted,
}

impl OnUnknownTier {
    /// Waits up to `at_most` for the lookup, from 1 ms to 60 s, then counts the request in the first tier.
    ///
    /// After one request times out waiting, no other request waits for the same lookup. At most 4,096 requests of all
    /// users wait; further ones use an expired tier, if there is one, or are handled as after the wait.
    pub const fn wait(at_most: Duration) -> Self {
        Self {
            wait: Some(at_most),
            then: Then::FirstTier,
        }
    }

    /// Counts requests with an unknown tier in the tier `name`, without waiting.
    ///
    /// Use this if rejecting is better than delaying. A paying user who starts with many concurrent requests counts in
    /// this tier until the lookup ends, so its limits should allow such a burst. If the rules have no tier of this
    /// name, the first tier applies.
    pub fn tier(name: impl AsRef<str>) -> Self {
        Self {
            wait: None,
            then: Then::Tier(ResolvedTier::new(name)),
        }
    }

    /// Admits requests with an unknown tier uncounted, without waiting and without `RateLimit` fields.
    ///
    /// **A client that can invent user IDs bypasses every limit** by sending a new ID with each request, which also
    /// slows down the source. Use this only if users are authenticated first and another limit applies to them, such as
    /// a limit by address. Only layers with [`Tiers::resolved`](crate::Tiers::resolved) are affected, and only requests
    /// with a user.
    pub const fn pass_uncounted() -> Self {
        Self {
            wait: None,
            then: Then::Uncounted,
        }
    }

    /// Sets the tier after the wait to `name`.
    #[must_use]
    pub fn then_tier(self, name: impl AsRef<str>) -> Self {
        let then = Then::Tier(ResolvedTier::new(name));
        Self { then, ..self }
    }

    /// Admits requests uncounted after the wait. See [`pass_uncounted`](Self::pass_uncounted) for the risk.
    #[must_use]
    pub fn then_admit_uncounted(self) -> Self {
        let then = Then::Uncounted;
        Self { then, ..self }
    }

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
                let name = format!("{setting}: tier name length");
                ConfigError::check_range(Tier, name, tier.len(), 1..=LONGEST_NAME)
            }
            Then::FirstTier | Then::Uncounted => Ok(()),
        }
    }
}

/// Waits for one second.
impl Default for OnUnknownTier {
    fn default() -> Self {
        Self::wait(Duration::from_secs(1))
    }
}
