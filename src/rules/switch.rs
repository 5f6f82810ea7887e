/// The program's position overrides that of the claim.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Switch {
    is_off_by_claim: bool,
    own: Option<bool>,
}

impl Switch {
    pub(super) fn is_on(self) -> bool {
        self.own.unwrap_or(!self.is_off_by_claim)
    }

    pub(super) fn turn(&mut self, is_on: bool) {
        self.own = Some(is_on);
    }

    /// A program's "on" from before does not override the claim.
    pub(super) fn claim(&mut self) {
        self.own = self.own.filter(|own| !own);
    }

    pub(super) fn turn_by_claim(&mut self, is_on: bool) {
        self.is_off_by_claim = !is_on;
    }

    pub(super) fn is_overridden(self) -> bool {
        self.own.is_some_and(|own| own == self.is_off_by_claim)
    }

    pub(super) fn release(&mut self) {
        self.own = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(turns: &[(&str, bool)]) -> Switch {
        let mut switch = Switch::default();
        for (by, is_on) in turns {
            match *by {
                "claim" => switch.turn_by_claim(*is_on),
                "begin" => switch.claim(),
                _ => switch.turn(*is_on),
            }
        }
        switch
    }

    #[test]
    fn the_own_switch_overrides_that_of_a_claim() {
        let (own, claim, begin) = ("own", "claim", "begin");
        for (turns, is_on, is_overridden) in [
            (&[][..], true, false),
            (&[(own, false)], false, true),
            (&[(own, false), (own, true)], true, false),
            (&[(claim, false)], false, false),
            (&[(claim, false), (claim, true)], true, false),
            (&[(claim, false), (own, true)], true, true),
            // Overrides stay until they are released, even if the claim agrees in the meantime.
            (&[(own, true), (claim, false)], true, true),
            (&[(own, true), (claim, true), (claim, false)], true, true),
            (&[(own, false), (own, true), (claim, false)], true, true),
            (&[(claim, false), (own, true), (claim, true)], true, false),
            (
                &[(claim, false), (own, true), (claim, true), (claim, false)],
                true,
                true,
            ),
            (&[(own, false), (claim, false)], false, false),
            (&[(own, false), (claim, false), (claim, true)], false, true),
            (&[(own, false), (claim, false), (own, true)], true, true),
            (&[(claim, false), (own, true), (own, false), (claim, true)], false, true),
            // An "on" without a claim does not override a later claim.
            (
                &[(own, false), (own, true), (begin, true), (claim, false)],
                false,
                false,
            ),
            (&[(own, false), (begin, true), (claim, true)], false, true),
        ] {
            let switch = turned(turns);
            assert_eq!(
                (switch.is_on(), switch.is_overridden()),
                (is_on, is_overridden),
                "{turns:?}"
            );
            let mut released = switch;
            released.release();
            let last = turns.iter().rev().find(|(by, _)| *by == claim);
            assert_eq!(released.is_on(), last.is_none_or(|(_, is_on)| *is_on), "{turns:?}");
        }
    }
}
