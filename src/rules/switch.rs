//! The kill switch of a layer.

/// The switch of the fleet, and that of this process, which overrides it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Switch {
    is_off_by_fleet: bool,
    own: Option<bool>,
}

impl Switch {
    /// Returns `true` if requests are limited.
    pub(super) fn is_on(self) -> bool {
        self.own.unwrap_or(!self.is_off_by_fleet)
    }

    /// Turned by this process. It stays as it is until it is [released](Self::release), whatever the fleet says meanwhile.
    pub(super) fn turn(&mut self, is_on: bool) {
        self.own = Some(is_on);
    }
}

#[cfg_attr(
    not(all(feature = "redis", feature = "serde")),
    allow(dead_code, reason = "only a fleet turns it from outside")
)]
impl Switch {
    /// A fleet begins to be followed. An own "on" of before was against no fleet, and is over.
    pub(super) fn follow(&mut self) {
        self.own = self.own.filter(|own| !own);
    }

    /// Turned by the fleet.
    pub(super) fn turn_by_fleet(&mut self, is_on: bool) {
        self.is_off_by_fleet = !is_on;
    }

    /// Returns `true` if this process overrides the fleet: its own switch says what the fleet's does not.
    pub(super) fn is_overridden(self) -> bool {
        self.own.is_some_and(|own| own == self.is_off_by_fleet)
    }

    /// The fleet's holds again.
    pub(super) fn release(&mut self) {
        self.own = None;
    }
}

/// The one whose rules are in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "redis", feature = "serde")),
    allow(dead_code, reason = "without a fleet it is the program")
)]
pub(super) enum Holder {
    /// The program: no fleet is followed.
    #[default]
    Program,
    Fleet,
    /// The program, against the fleet.
    Override,
    /// The program until the fleet's rules are put in force again.
    Returned,
}

impl Holder {
    /// After the program has replaced the rules.
    pub(super) fn overriding(self) -> Self {
        match self {
            Self::Program => Self::Program,
            Self::Fleet | Self::Override | Self::Returned => Self::Override,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(turns: &[(&str, bool)]) -> Switch {
        let mut switch = Switch::default();
        for (by, is_on) in turns {
            match *by {
                "fleet" => switch.turn_by_fleet(*is_on),
                "follow" => switch.follow(),
                _ => switch.turn(*is_on),
            }
        }
        switch
    }

    #[test]
    fn the_own_switch_overrides_that_of_the_fleet() {
        let (own, fleet, follow) = ("own", "fleet", "follow");
        for (turns, is_on, is_overridden) in [
            (&[][..], true, false),
            (&[(own, false)], false, true),
            (&[(own, false), (own, true)], true, false),
            (&[(fleet, false)], false, false),
            (&[(fleet, false), (fleet, true)], true, false),
            (&[(fleet, false), (own, true)], true, true),
            // Both positions stay until they are released, also where the fleet agrees meanwhile.
            (&[(own, true), (fleet, false)], true, true),
            (&[(own, true), (fleet, true), (fleet, false)], true, true),
            (&[(own, false), (own, true), (fleet, false)], true, true),
            (&[(fleet, false), (own, true), (fleet, true)], true, false),
            (
                &[(fleet, false), (own, true), (fleet, true), (fleet, false)],
                true,
                true,
            ),
            (&[(own, false), (fleet, false)], false, false),
            (&[(own, false), (fleet, false), (fleet, true)], false, true),
            (&[(own, false), (fleet, false), (own, true)], true, true),
            (&[(fleet, false), (own, true), (own, false), (fleet, true)], false, true),
            // An "on" without a fleet is no override of one that is followed later.
            (
                &[(own, false), (own, true), (follow, true), (fleet, false)],
                false,
                false,
            ),
            (&[(own, false), (follow, true), (fleet, true)], false, true),
        ] {
            let switch = turned(turns);
            assert_eq!(
                (switch.is_on(), switch.is_overridden()),
                (is_on, is_overridden),
                "{turns:?}"
            );
            let mut released = switch;
            released.release();
            let last = turns.iter().rev().find(|(by, _)| *by == fleet);
            assert_eq!(released.is_on(), last.is_none_or(|(_, is_on)| *is_on), "{turns:?}");
        }
    }
}
