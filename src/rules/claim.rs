use std::{fmt, mem, sync::Arc};

use super::{
    checked::{AppliedRules, Rollout},
    data::Rules,
    handle::RulesHandle,
    policies::Policies,
    select::Active,
};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    partition::PartitionId,
};

/// The exclusive right of a source outside the program to set the rules of a limiter.
///
/// [`RulesHandle::claim`] returns it. Use a claim to follow rules in etcd, a ConfigMap or a file. The program can still
/// override the source through its [`RulesHandle`], until [`clear_overrides`](RulesHandle::clear_overrides).
///
/// Dropping the claim releases it. The rules remain in effect. Limits disabled by the source are enabled, because the
/// source could no longer enable them; limits disabled by the program stay disabled.
///
/// # Examples
///
/// ```
/// use tower_quota::{Limiter, MemoryStore, QuotaPolicy, Rules, updates::RulesUpdate};
///
/// let of = |quota| Rules::new().policy(QuotaPolicy::per_minute("minute", quota));
/// let limiter = Limiter::builder(MemoryStore::new()).scope("api").rules(of(60)).build()?;
/// let claim = limiter.rules().claim()?;
/// assert!(limiter.rules().claim().is_err());
///
/// claim.apply(RulesUpdate::new(of(30)))?;
/// limiter.rules().replace(of(5))?; // the program overrides the source
/// claim.apply(RulesUpdate::new(of(40)))?;
/// assert_eq!(limiter.rules().current(), of(5));
/// assert!(claim.is_overridden());
/// limiter.rules().clear_overrides();
/// assert_eq!(limiter.rules().current(), of(40));
///
/// claim.set_enabled(false);
/// limiter.rules().enable();
/// assert!(limiter.rules().is_enabled());
/// limiter.rules().clear_overrides();
/// assert!(!limiter.rules().is_enabled());
///
/// drop(claim);
/// assert!(limiter.rules().is_enabled());
/// assert!(limiter.rules().claim().is_ok());
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[must_use = "dropping a claim releases it"]
pub struct RulesClaim(Arc<Policies>);

/// Rules, a rollout and the switch, applied in one step by a [`RulesClaim`].
///
/// ```
/// use tower_quota::{Limiter, MemoryStore, QuotaPolicy, Rules, updates::RulesUpdate};
///
/// let of = |quota| Rules::new().policy(QuotaPolicy::per_minute("minute", quota));
/// let limiter = Limiter::builder(MemoryStore::new()).scope("api").rules(of(60)).build()?;
/// let claim = limiter.rules().claim()?;
///
/// claim.apply(RulesUpdate::new(of(60)).with_rollout(10, [], of(30)).enabled(false))?;
/// assert_eq!(limiter.rules().rollout(), Some((10, of(30))));
/// assert!(!limiter.rules().is_enabled());
/// # Ok::<_, tower_quota::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an update does nothing until a claim applies it"]
pub struct RulesUpdate {
    rules: Rules,
    rollout: Option<(u8, Vec<PartitionId>, Rules)>,
    enabled: bool,
}

impl RulesUpdate {
    /// Creates an update to `rules` for all callers, with the limits enabled.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            rollout: None,
            enabled: true,
        }
    }

    /// Adds a rollout of `rules` to `percent` percent of the callers (0 to 100).
    ///
    /// The rules also apply to `partitions` of the main key, for example those of your own accounts. Callers are
    /// selected as by [`RulesHandle::roll_out`]. An update without a rollout ends the previous one.
    pub fn with_rollout(
        mut self,
        percent: u8,
        partitions: impl IntoIterator<Item = PartitionId>,
        rules: Rules,
    ) -> Self {
        self.rollout = Some((percent, partitions.into_iter().collect(), rules));
        self
    }

    /// Sets the kill switch. Default: `true`. With `false`, all requests pass uncounted, as after
    /// [`RulesHandle::disable`].
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }
}

impl Active {
    pub(super) fn replace(&mut self, rules: AppliedRules) {
        self.has_data = true;
        let before = mem::replace(&mut self.rules, rules);
        if self.is_claimed {
            self.overridden.get_or_insert(before);
        }
    }

    fn replace_by_claim(&mut self, rules: AppliedRules) {
        self.has_data = true;
        *self.overridden.as_mut().unwrap_or(&mut self.rules) = rules;
    }
}

impl RulesHandle {
    /// Claims the rules and the switch for a source outside the program, until the [`RulesClaim`] is dropped.
    ///
    /// The current rules apply until the first update. Limits that the program has disabled remain disabled.
    ///
    /// # Errors
    ///
    /// Returns [`ConfigErrorKind::Claim`] if another source has claimed the rules of this limiter.
    pub fn claim(&self) -> Result<RulesClaim, ConfigError> {
        let _changing = self.0.begin_change();
        if self.0.active.load().is_claimed {
            let message = format!("scope {:?}: rules are already claimed by another source", self.scope());
            return Err(ConfigError::new(ConfigErrorKind::Claim, message));
        }
        self.0.change(|active| {
            active.is_claimed = true;
            active.switch.claim();
        });
        Ok(RulesClaim(Arc::clone(&self.0)))
    }

    /// Clears all overrides of the [claim](Self::claim): its rules and its switch take effect immediately.
    ///
    /// [`replace`](Self::replace), [`roll_out`](Self::roll_out), [`disable`](Self::disable) and
    /// [`enable`](Self::enable) override a claim. If the source has not applied any rules, those from before the
    /// override take effect. Without a claim, the rules do not change, and disabled limits are enabled.
    pub fn clear_overrides(&self) {
        let _changing = self.0.begin_change();
        self.0.change(|active| {
            active.switch.release();
            if let Some(rules) = active.overridden.take() {
                active.rules = rules;
            }
        });
    }
}

impl RulesClaim {
    /// Applies the rules, the rollout and the switch of an update in one step, for the next requests.
    ///
    /// While the program overrides the source, the rules are only validated, and take effect when
    /// [`clear_overrides`](RulesHandle::clear_overrides) is called.
    ///
    /// # Errors
    ///
    /// Returns the error of [`RulesHandle::replace`] for invalid rules, with the prefix `roll_out: ` if they belong to
    /// the rollout, or [`ConfigErrorKind::Policies`] if the percentage is above 100. Nothing changes then, not even the
    /// switch: [`set_enabled`](Self::set_enabled) works even with invalid rules.
    pub fn apply(&self, update: RulesUpdate) -> Result<(), ConfigError> {
        let _changing = self.0.begin_change();
        let current = self.0.check(update.rules)?;
        let rollout = update.rollout.map(|(percent, partitions, rules)| {
            let rollout = Rollout::new(percent, partitions, || self.0.check(rules));
            rollout.map_err(|error| error.within("roll_out"))
        });
        let rollout = rollout.transpose()?;
        let rules = AppliedRules { current, rollout };
        self.0.change(|active| {
            active.switch.turn_by_claim(update.enabled);
            active.replace_by_claim(rules.clone());
        });
        Ok(())
    }

    /// Sets only the switch. [`RulesHandle::disable`] and [`RulesHandle::enable`] override it.
    pub fn set_enabled(&self, enabled: bool) {
        self.0.change(|active| active.switch.turn_by_claim(enabled));
    }

    /// Returns whether the program overrides the rules or the switch of the source. Setting the switch to the same
    /// position as the source is not an override.
    pub fn is_overridden(&self) -> bool {
        let active = self.0.active.load();
        active.overridden.is_some() || active.switch.is_overridden()
    }
}

impl Drop for RulesClaim {
    fn drop(&mut self) {
        let _changing = self.0.begin_change();
        self.0.change(|active| {
            active.is_claimed = false;
            active.overridden = None;
            active.switch.turn_by_claim(true);
        });
    }
}

impl fmt::Debug for RulesClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesClaim")
            .field("scope", &self.0.scope)
            .field("is_overridden", &self.is_overridden())
            .finish_non_exhaustive()
    }
}
