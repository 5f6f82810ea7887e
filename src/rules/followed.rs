//! Rules that come from outside of the process: checked without a layer, and put in force on one.

use std::{
    any::Any,
    sync::{Arc, Weak, atomic::Ordering},
};

use super::{Candidate, Policies, Rules, RulesHandle, Sets, switch::Holder};
use crate::{
    error::{ConfigError, ConfigErrorKind},
    partition::PartitionId,
};

/// Rules of a fleet for one layer.
pub(crate) struct FleetRules<'a> {
    pub(crate) rules: &'a Rules,
    /// The percentage, partitions by their digests, and the rules that are tried on both.
    pub(crate) roll_out: Option<(u8, &'a [PartitionId], &'a Rules)>,
    /// The kill switch of the fleet: if false, nothing is limited.
    pub(crate) is_on: bool,
}

impl RulesHandle {
    /// Gives the rules and the kill switch back to the fleet that the layer [follows](crate::fleet::RulesFollower), after
    /// this process has overridden them by [`replace`](Self::replace), [`roll_out`](Self::roll_out),
    /// [`disable`](Self::disable) or [`enable`](Self::enable).
    ///
    /// The switch is that of the fleet at once, and the rules are within two seconds. Where nothing is overridden, and for
    /// a layer that follows no fleet, it does nothing to the rules; a switch that is off is on again.
    pub fn clear_overrides(&self) {
        self.0.change(|active| {
            active.switch.release();
            if active.holder == Holder::Override {
                active.holder = Holder::Returned;
            }
        });
    }

    /// Turns the kill switch for the fleet.
    pub(crate) fn turn_by_fleet(&self, is_on: bool) {
        self.0.change(|active| {
            // One that follows no longer is the program's.
            if active.holder != Holder::Program {
                active.switch.turn_by_fleet(is_on);
            }
        });
    }

    /// The kill switch is that of the fleet again.
    pub(crate) fn return_switch(&self) {
        self.0.change(|active| active.switch.release());
    }

    /// From now on the rules are those of a fleet, unless this process overrides them.
    pub(crate) fn follow(&self) -> Result<(), ConfigError> {
        let mut is_free = true;
        self.0.change(|active| {
            is_free = active.holder == Holder::Program;
            if is_free {
                active.holder = Holder::Fleet;
                active.switch.follow();
            }
        });
        if is_free {
            return Ok(());
        }
        let message = "rules follower: the layer follows a fleet already";
        Err(ConfigError::new(ConfigErrorKind::Fleet, message))
    }

    /// That which the clones of the layer share, to tell layers apart.
    pub(crate) fn identity(&self) -> Weak<dyn Any + Send + Sync> {
        let shared: Arc<dyn Any + Send + Sync> = Arc::<Policies>::clone(&self.0);
        Arc::downgrade(&shared)
    }

    /// The rules stay as they are, and the program may change them again. The fleet's switch is released: no order could switch
    /// the limits on again.
    pub(crate) fn unfollow(&self) {
        self.0.change(|active| {
            active.holder = Holder::Program;
            active.switch.turn_by_fleet(true);
        });
    }

    /// Turns the kill switch and puts rules in force, both at one moment. Rules that are not valid are rejected, and the old
    /// ones stay, but the switch is turned all the same. While this process overrides the fleet, they are checked only.
    pub(crate) fn apply(&self, fleet: &FleetRules<'_>) -> Result<(), ConfigError> {
        let _changing = self.0.changing.lock();
        let sets = self.checked(fleet);
        self.0.has_data.store(true, Ordering::Relaxed);
        self.0.change(|active| {
            // One that follows no longer is the program's.
            if active.holder == Holder::Program {
                return;
            }
            active.switch.turn_by_fleet(fleet.is_on);
            let is_followed = matches!(active.holder, Holder::Fleet | Holder::Returned);
            if let (Ok((current, candidate)), true) = (&sets, is_followed) {
                active.current = Arc::clone(current);
                active.candidate.clone_from(candidate);
                active.holder = Holder::Fleet;
            }
        });
        sets.map(drop)
    }

    fn checked(&self, fleet: &FleetRules<'_>) -> Result<(Arc<Sets>, Option<Candidate>), ConfigError> {
        let current = self.sets(fleet.rules.clone())?;
        let candidate = fleet.roll_out.map(|(percent, partitions, rules)| {
            let sets = self.sets(rules.clone()).map_err(|error| error.within("roll_out"))?;
            Ok(Candidate::new(percent, partitions, sets))
        });
        Ok((current, candidate.transpose()?))
    }

    /// Returns `true` if this process overrides the fleet's rules or its switch.
    pub(crate) fn is_overridden(&self) -> bool {
        let active = self.0.active.load();
        active.holder == Holder::Override || active.switch.is_overridden()
    }

    /// Returns `true` if the fleet's rules are to be put in force again.
    pub(crate) fn is_returned(&self) -> bool {
        self.0.active.load().holder == Holder::Returned
    }
}
