use std::sync::Arc;

use super::{
    checked::{AppliedRules, Rollout},
    data::Rules,
    policies::Policies,
};
use crate::error::ConfigError;

/// Replaces the rules of a limiter and its layers at run time: see [`Limiter::rules`](crate::Limiter::rules).
///
/// New rules apply to all services and callers from the next request on; requests in progress keep theirs. If rules are
/// invalid, the old ones remain in effect.
///
/// Only the rules of this process change. Set the same rules on every instance, or let all follow one document with the
/// package `tower-quota-fleet`. A custom source can [claim](Self::claim) the rules.
///
/// ```
/// use tower_quota::{Limiter, MemoryStore, Outcome, QuotaPolicy, Rules};
///
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); }
/// # set_up::run(async {
/// let per_hour = |quota| Rules::new().policy(QuotaPolicy::per_hour("hour", quota));
/// let limiter = Limiter::builder(MemoryStore::new()).scope("api").rules(per_hour(10)).build()?;
/// let rules = limiter.rules();
/// limiter.check("alice").await;
///
/// // Try new rules with 10 percent of the callers, then apply them to all callers.
/// rules.roll_out(10, per_hour(5))?;
/// assert_eq!(rules.rollout(), Some((10, per_hour(5))));
/// rules.replace(per_hour(5))?;
/// assert_eq!((rules.rollout(), rules.current()), (None, per_hour(5)));
///
/// // The unit that alice has used still counts.
/// let decision = limiter.check("alice").await;
/// assert!(decision.allowances().map(|hour| hour.remaining()).eq([3]));
///
/// // Invalid rules change nothing.
/// let error = rules.replace(Rules::new()).unwrap_err();
/// assert_eq!(error.to_string(), "policies: at least one is required; add `policy` or `tiers`");
/// # assert_eq!(rules.current(), per_hour(5));
/// # let by_planet = Rules::new().policy(QuotaPolicy::per_hour("hour", 20).keyed_by("planet"));
/// # assert_eq!(rules.check(&by_planet).unwrap_err().to_string(), r#"policy "hour": unknown key "planet""#);
///
/// // The kill switch.
/// rules.disable();
/// assert_eq!(limiter.check("alice").await.outcome(), Outcome::Unlimited);
/// rules.enable();
/// # let decision = limiter.check("alice").await;
/// # assert!(decision.allowances().map(|hour| hour.remaining()).eq([2]));
/// # Ok(()) });
/// ```
///
/// A new quota resets no counts: see [which counts continue](crate::updates::RulesDiff#which-counts-continue).
#[derive(Clone, Debug)]
pub struct RulesHandle(pub(crate) Arc<Policies>);

impl RulesHandle {
    /// Returns the name of the limiter's [scope](crate::LimiterBuilder::scope).
    pub fn scope(&self) -> &str {
        &self.0.scope
    }

    /// Returns the rules for all callers, ignoring a [rollout](Self::roll_out).
    pub fn current(&self) -> Rules {
        self.0.active.load().rules.current.rules.clone()
    }

    /// Replaces the rules for all callers. Ends a [rollout](Self::roll_out).
    ///
    /// # Errors
    ///
    /// Returns an error if the rules are not valid, as for [`build`](crate::RateLimitLayerBuilder::build), or if they
    /// have tiers but a layer was built without [`Tiers`](crate::Tiers), so that the tier of its requests is unknown.
    pub fn replace(&self, rules: Rules) -> Result<(), ConfigError> {
        let _changing = self.0.begin_change();
        let rules = AppliedRules {
            current: self.0.check(rules)?,
            rollout: None,
        };
        self.0.change(|active| active.replace(rules.clone()));
        Ok(())
    }

    /// Applies `rules` to `percent` percent of callers (0 to 100). The others keep the current rules.
    ///
    /// Callers are selected by the digest of their main key, so every instance selects the same callers, even after a
    /// restart, and a larger percentage keeps those of a smaller one. All requests without that key get the current
    /// rules. A previous rollout is replaced, and [`replace`](Self::replace) ends the rollout.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`replace`](Self::replace), and an error if `percent` is above 100.
    pub fn roll_out(&self, percent: u8, rules: Rules) -> Result<(), ConfigError> {
        let _changing = self.0.begin_change();
        let rollout = Rollout::new(percent, Vec::new(), || self.0.check(rules))?;
        self.0.change(|active| {
            active.replace(AppliedRules {
                current: Arc::clone(&active.rules.current),
                rollout: Some(rollout.clone()),
            });
        });
        Ok(())
    }

    /// Returns the rules of the current [rollout](Self::roll_out) and its percentage, or `None` without a rollout.
    pub fn rollout(&self) -> Option<(u8, Rules)> {
        let active = self.0.active.load();
        let rollout = active.rules.rollout.as_ref()?;
        Some((rollout.percent, rollout.rules.rules.clone()))
    }

    /// Disables the limits until [`enable`](Self::enable), for emergencies.
    ///
    /// All requests pass uncounted, without calls to the store or to hooks, and without fields. An [access
    /// list](crate::AccessList) still blocks.
    pub fn disable(&self) {
        self.0.change(|active| active.switch.turn(false));
    }

    /// Enables the limits after [`disable`](Self::disable).
    ///
    /// This also overrides a [claim](Self::claim) that was made before: limits remain enabled until
    /// [`clear_overrides`](Self::clear_overrides), even if the source disables them.
    pub fn enable(&self) {
        self.0.change(|active| active.switch.turn(true));
    }

    /// Returns whether the limits are enabled.
    pub fn is_enabled(&self) -> bool {
        self.0.active.load().is_on()
    }

    /// Validates rules like [`replace`](Self::replace), without applying them.
    ///
    /// Use this before publishing rules for a fleet, to find out whether a layer of this limiter would reject them.
    pub fn check(&self, rules: &Rules) -> Result<(), ConfigError> {
        self.0.check(rules.clone()).map(drop)
    }
}
