//! Rules as data: what a file or a service of rules says, and how it takes effect.

use std::sync::Arc;

use super::{Active, Candidate, Policies, Sets};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    quota::QuotaPolicy,
};

/// The policies of a layer: the same for all callers, or by tier.
///
/// You want them where rules come from outside of the program, or change [while it runs](RulesHandle). A layer that has
/// its policies from [`policy`](crate::RateLimitLayerBuilder::policy) and [`Tiers`](crate::Tiers) needs none.
///
/// With the feature `serde` they can be read from any format, see [`QuotaPolicy`]:
///
/// ```
/// # #[cfg(feature = "serde")] {
/// use tower_quota::{QuotaPolicy, Rules};
///
/// let rules: Rules = serde_json::from_str(
///     r#"{"tiers": [
///         {"name": "free", "policies": [{"name": "minute", "quota": 60, "window_seconds": 60}]},
///         {"name": "admin", "unlimited": true}
///     ]}"#,
/// )?;
/// assert_eq!(rules, Rules::new().tier("free", [QuotaPolicy::per_minute("minute", 60)]).unlimited("admin"));
/// # }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub(super) policies: Vec<QuotaPolicy>,
    /// In place of policies for all; a tier without policies is not limited.
    pub(super) tiers: Vec<(String, Option<Vec<QuotaPolicy>>)>,
}

impl Rules {
    /// No rules. Nothing can be built of them until they have policies.
    pub const fn new() -> Self {
        Self {
            policies: Vec::new(),
            tiers: Vec::new(),
        }
    }

    /// The policies for all callers.
    pub fn policies(&self) -> &[QuotaPolicy] {
        &self.policies
    }

    /// The tiers in their order, with their policies; `None` for those that are not limited.
    pub fn tiers(&self) -> impl Iterator<Item = (&str, Option<&[QuotaPolicy]>)> {
        self.tiers.iter().map(|(name, policies)| (&**name, policies.as_deref()))
    }

    /// Adds a policy for all callers.
    #[must_use]
    pub fn policy(mut self, policy: QuotaPolicy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Adds a tier with its policies, as [`Tiers::tier`](crate::Tiers::tier) does.
    #[must_use]
    pub fn tier(mut self, name: impl Into<String>, policies: impl IntoIterator<Item = QuotaPolicy>) -> Self {
        self.tiers.push((name.into(), Some(policies.into_iter().collect())));
        self
    }

    /// Adds a tier that is not limited at all.
    #[must_use]
    pub fn unlimited(mut self, name: impl Into<String>) -> Self {
        self.tiers.push((name.into(), None));
        self
    }
}

/// Replaces the rules of a layer while it runs: see [`RateLimitLayer::rules`](crate::RateLimitLayer::rules).
///
/// New rules hold for all services of the layer at once, from the next request on; a request under way goes on with the
/// rules that it began with. Nothing that was counted is lost: a policy keeps its used units by its name, unit and
/// algorithm when its numbers change, also while some instances have the old rules and others the new ones. Rules that
/// are not sound are refused, and the old ones stay.
///
/// It changes the rules of this process only: give every instance the same ones.
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
/// let rules = layer.rules();
/// let service = layer.layer(service_fn(|_| async { Ok::<_, std::convert::Infallible>(Response::new(String::new())) }));
/// let request = || Request::get("/").header("x-user-id", "alice").body(()).unwrap();
///
/// service.clone().oneshot(request()).await?;
/// rules.replace(Rules::new().policy(QuotaPolicy::per_hour("hour", 10)))?;
/// let response = service.oneshot(request()).await?;
/// assert_eq!(response.headers()["ratelimit"], r#""hour";r=8;t=2880"#);
///
/// let error = rules.replace(Rules::new().policy(QuotaPolicy::per_hour("hour", 0))).unwrap_err();
/// assert_eq!(error.to_string(), r#"policy "hour": quota 0 is outside 1..=999999999999999"#);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct RulesHandle(Arc<Policies>);

impl RulesHandle {
    pub(crate) fn new(policies: Arc<Policies>) -> Self {
        Self(policies)
    }

    /// The rules that hold for all callers, apart from those that are being tried.
    pub fn current(&self) -> Rules {
        self.0.active.load().current.rules.clone()
    }

    /// Puts new rules in the place of the old ones, for all callers. Rules that were being tried are dropped.
    ///
    /// # Errors
    ///
    /// If the rules are not sound, as [`build`](crate::RateLimitLayerBuilder::build) says; or if they have tiers and the
    /// layer was built without [`Tiers`](crate::Tiers), so that nothing says of which tier a request is.
    pub fn replace(&self, rules: Rules) -> Result<(), ConfigError> {
        let sets = self.check(rules)?;
        self.change(|active| Active {
            current: Arc::clone(&sets),
            candidate: None,
            ..active.clone()
        });
        Ok(())
    }

    /// Tries new rules on so many percent of the callers, from 0 to 100; the others keep the old ones.
    ///
    /// Who is among them follows from the caller's digest, so that it is the same on every instance and after a restart,
    /// and those of a smaller share are among those of a larger one. [`replace`](Self::replace) ends it.
    ///
    /// # Errors
    ///
    /// As those of [`replace`](Self::replace), or if `percent` is above 100.
    pub fn try_on(&self, percent: u8, rules: Rules) -> Result<(), ConfigError> {
        if percent > 100 {
            let message = format!("rules: {percent} percent of the callers is outside 0..=100");
            return Err(ConfigError::new(ConfigErrorKind::Policies, message));
        }
        let sets = self.check(rules)?;
        self.change(|active| Active {
            candidate: Some(Candidate {
                percent,
                sets: Arc::clone(&sets),
            }),
            ..active.clone()
        });
        Ok(())
    }

    /// Lets all requests pass uncounted, without asking the store and without fields, until
    /// [`switch_on`](Self::switch_on): for an emergency. Only what an [access list](crate::AccessList) blocks is refused all
    /// the same.
    pub fn switch_off(&self) {
        self.switch(false);
    }

    /// Ends what [`switch_off`](Self::switch_off) began.
    pub fn switch_on(&self) {
        self.switch(true);
    }

    /// Whether requests are limited.
    pub fn is_on(&self) -> bool {
        self.0.active.load().is_on
    }

    fn switch(&self, is_on: bool) {
        self.change(|active| Active {
            is_on,
            ..active.clone()
        });
    }

    fn check(&self, rules: Rules) -> Result<Arc<Sets>, ConfigError> {
        Sets::new(rules, self.0.select.is_some(), &self.0.keys, &self.0.fields).map(Arc::new)
    }

    /// Two changes at once both happen.
    fn change(&self, change: impl Fn(&Active) -> Active) {
        self.0.active.rcu(|active| change(active));
    }
}
