//! Replaces rules while a layer runs.

use std::sync::{Arc, atomic::Ordering};

use super::{applied::AppliedRules, candidate::Candidate, data::Rules, policies::Policies, sets::Sets};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    partition::PartitionId,
};

/// Replaces the rules of a limiter and its layers at run time: see [`Limiter::rules`](crate::Limiter::rules).
///
/// New rules apply to all its services and callers at once, from the next request on; a request under way goes on with the
/// rules that it began with. Nothing that was counted is lost: a policy keeps its used units by its name, unit and
/// algorithm when its numbers change, also while some instances have the old rules and others the new ones. Only where
/// units are counted in windows, by [`FixedWindow`](crate::Algorithm::FixedWindow) and the sliding ones, is another length
/// of the window another policy, which begins with a full quota; a [`RulesDiff`](crate::RulesDiff) names those. Rules that
/// are not valid are rejected, and the old ones stay.
///
/// It changes the rules of this process only: give every instance the same ones, or have all follow one document (the
/// package `tower-quota-fleet`). A source of your own [claims](Self::claim) the rules, and this handle then overrides the source.
///
/// ```
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_quota::{MemoryStore, QuotaPolicy, RateLimitLayer, Rules, key};
///
/// # tokio_test::block_on(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("api")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::per_hour("hour", 2))
///     .build()?;
/// let rules = layer.limiter().rules();
/// let service = layer.layer(service_fn(|_| async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) }));
/// let request = || Request::get("/").header("x-user-id", "alice").body(()).unwrap();
///
/// service.clone().oneshot(request()).await?;
/// rules.replace(Rules::new().policy(QuotaPolicy::per_hour("hour", 10)))?;
/// let response = service.oneshot(request()).await?;
/// assert_eq!(response.headers()["ratelimit"], r#""hour";r=8;t=2880"#);
///
/// let error = rules.replace(Rules::new()).unwrap_err();
/// assert_eq!(error.to_string(), "policies: their number 0 is outside 1..=16");
/// assert_eq!(rules.current(), Rules::new().policy(QuotaPolicy::per_hour("hour", 10)));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct RulesHandle(pub(crate) Arc<Policies>);

impl RulesHandle {
    /// Returns the name of the limiter's [scope](crate::LimiterBuilder::scope).
    pub fn scope(&self) -> &str {
        &self.0.scope
    }

    /// The rules that hold for all callers, apart from those that are being tried.
    pub fn current(&self) -> Rules {
        self.0.active.load().rules.current.rules.clone()
    }

    /// Puts new rules in the place of the old ones, for all callers. Rules that were being tried are dropped.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::Rules;
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .build()?;
    ///
    /// layer.limiter().rules().replace(Rules::new().policy(QuotaPolicy::per_hour("hour", 20)))?;
    /// assert_eq!(send(&layer, Request::get("/")).await.headers()["ratelimit-policy"], r#""hour";q=20;w=3600"#);
    ///
    /// let tiers = Rules::new().tier("free", [QuotaPolicy::per_hour("hour", 5)]);
    /// let error = layer.limiter().rules().replace(tiers).unwrap_err();
    /// assert_eq!(error.to_string(), "tiers: nothing says of which tier a request is; set `Tiers::from_fn`");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// If the rules are not valid, as [`build`](crate::RateLimitLayerBuilder::build) says; or if they have tiers and the
    /// layer was built without [`Tiers`](crate::Tiers), so that nothing says of which tier a request is.
    pub fn replace(&self, rules: Rules) -> Result<(), ConfigError> {
        let _changing = self.0.changing.lock();
        let rules = AppliedRules {
            current: self.sets(rules)?,
            candidate: None,
        };
        self.0.has_data.store(true, Ordering::Relaxed);
        self.0.change(|active| active.replace(rules.clone()));
        Ok(())
    }

    /// Tries new rules on so many percent of the callers, from 0 to 100; the others keep the old ones.
    ///
    /// The caller's digest decides, so that the share is the same on every instance and after a
    /// restart, and a smaller share is a part of a larger one. With 0 percent no caller is in it; rules that were
    /// tried before are dropped. [`replace`](Self::replace) ends it.
    ///
    /// A caller is whom the layer's main key names. All requests without that key have the same rules.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::Rules;
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .build()?;
    /// let new = || Rules::new().policy(QuotaPolicy::per_hour("hour", 5));
    /// layer.limiter().rules().roll_out(10, new())?;
    ///
    /// let mut with_new_rules = 0;
    /// for user in 0..1_000 {
    ///     let response = send(&layer, Request::get("/").header("x-user-id", user)).await;
    ///     with_new_rules += u32::from(response.headers()["ratelimit-policy"] == r#""hour";q=5;w=3600"#);
    /// }
    /// assert!((50..150).contains(&with_new_rules));
    ///
    /// let error = layer.limiter().rules().roll_out(101, new()).unwrap_err();
    /// assert_eq!(error.to_string(), "rules: 101 percent of the callers is outside 0..=100");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// As those of [`replace`](Self::replace), or if `percent` is above 100.
    pub fn roll_out(&self, percent: u8, rules: Rules) -> Result<(), ConfigError> {
        let _changing = self.0.changing.lock();
        let candidate = Some(self.candidate(percent, &[], rules)?);
        self.0.has_data.store(true, Ordering::Relaxed);
        self.0.change(|active| {
            active.replace(AppliedRules {
                current: Arc::clone(&active.rules.current),
                candidate: candidate.clone(),
            });
        });
        Ok(())
    }

    /// Returns the rules that are being [tried](Self::roll_out), and on how many percent of the callers; `None` if none are.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::Rules;
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .build()?;
    /// let (rules, new) = (layer.limiter().rules(), Rules::new().policy(QuotaPolicy::per_hour("hour", 5)));
    ///
    /// rules.roll_out(10, new.clone())?;
    /// assert_eq!(rules.rollout(), Some((10, new.clone())));
    /// // They are good: they hold for all callers.
    /// rules.replace(new)?;
    /// assert_eq!(rules.rollout(), None);
    /// # Ok(()) });
    /// ```
    pub fn rollout(&self) -> Option<(u8, Rules)> {
        let active = self.0.active.load();
        let candidate = active.rules.candidate.as_ref()?;
        Some((candidate.percent, candidate.sets.rules.clone()))
    }

    /// Lets all requests pass uncounted, without the store, the hooks of the application, and fields, until
    /// [`enable`](Self::enable): for an emergency. Only what an [access list](crate::AccessList) blocks is rejected all
    /// the same.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 1))
    ///     .build()?;
    /// let rules = layer.limiter().rules();
    ///
    /// rules.disable();
    /// assert!(!rules.is_enabled());
    /// for _ in 0..100 {
    ///     let response = send(&layer, Request::get("/")).await;
    ///     assert!(response.status().is_success() && response.headers().is_empty());
    /// }
    /// // They have used nothing.
    /// rules.enable();
    /// for status in [200, 429] {
    ///     assert_eq!(send(&layer, Request::get("/")).await.status(), status);
    /// }
    /// # Ok(()) });
    /// ```
    pub fn disable(&self) {
        self.0.change(|active| active.switch.turn(false));
    }

    /// Ends what [`disable`](Self::disable) began. If a source has [claimed](Self::claim) the rules, limits stay enabled
    /// whatever the source sets now or later, until [`clear_overrides`](Self::clear_overrides). A switch that was enabled
    /// before the claim overrides nothing.
    pub fn enable(&self) {
        self.0.change(|active| active.switch.turn(true));
    }

    /// Returns `true` while requests are limited: `false` between [`disable`](Self::disable) and
    /// [`enable`](Self::enable).
    pub fn is_enabled(&self) -> bool {
        self.0.active.load().is_on()
    }

    /// Checks rules as [`replace`](Self::replace) does, and changes nothing.
    ///
    /// You want it before rules are published for a fleet: an instance whose layer rejects them shows the reason before
    /// others have them. It does not say whether other layers can carry them out.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// use tower_quota::Rules;
    ///
    /// # run(async {
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .scope("api")
    ///     .key(key::header("x-user-id"))
    ///     .policy(QuotaPolicy::per_hour("hour", 10))
    ///     .build()?;
    /// let by_planet = Rules::new().policy(QuotaPolicy::per_hour("hour", 20).keyed_by("planet"));
    /// let error = layer.limiter().rules().check(&by_planet).unwrap_err();
    /// assert_eq!(error.to_string(), "policy \"hour\": there is no key named \"planet\"");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    ///
    /// As those of [`replace`](Self::replace).
    pub fn check(&self, rules: &Rules) -> Result<(), ConfigError> {
        self.sets(rules.clone()).map(drop)
    }

    pub(super) fn candidate(
        &self,
        percent: u8,
        partitions: &[PartitionId],
        rules: Rules,
    ) -> Result<Candidate, ConfigError> {
        if percent > 100 {
            let message = format!("rules: {percent} percent of the callers is outside 0..=100");
            return Err(ConfigError::new(ConfigErrorKind::Policies, message));
        }
        Ok(Candidate::new(percent, partitions, self.sets(rules)?))
    }

    pub(super) fn sets(&self, rules: Rules) -> Result<Arc<Sets>, ConfigError> {
        Sets::new(rules, &self.0.active.load().config).map(Arc::new)
    }
}
