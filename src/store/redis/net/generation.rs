use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{Notify, futures::Notified};

use crate::sync::mutex::Mutex;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) address: (String, u16),
    /// Increases with each failover. 0 if unknown.
    pub(crate) epoch: u64,
}

/// After a failover, no connection to the old primary may be used: all connections end together.
#[derive(Clone, Default)]
pub(crate) struct Generations(Arc<State>);

#[derive(Default)]
struct State {
    current: AtomicU64,
    primary: Mutex<Option<Named>>,
    switched: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    First,
    Switch,
}

pub(crate) struct Generation {
    all: Generations,
    number: u64,
}

impl Generations {
    pub(crate) fn current(&self) -> Generation {
        Generation {
            all: self.clone(),
            number: self.0.current.load(Ordering::Relaxed),
        }
    }

    pub(super) fn switched(&self) -> Notified<'_> {
        self.0.switched.notified()
    }

    /// Also ends attempts to connect, which may lead to the old primary.
    pub(super) fn end_before(&self, named: &Named, heard: Heard) -> bool {
        let state = &*self.0;
        let mut primary = state.primary.lock();
        let is_newer = match &*primary {
            Some(known) if known.address == named.address => false,
            // Without epochs, the last announcement counts.
            Some(known) => known.epoch < named.epoch || (named.epoch == 0 && heard == Heard::Switch),
            None => heard == Heard::Switch,
        };
        if is_newer {
            *primary = None;
            state.follow(state.current.load(Ordering::Relaxed));
            state.switched.notify_waiters();
        }
        is_newer
    }
}

impl Generation {
    pub(crate) fn is_over(&self) -> bool {
        self.all.0.is_over(self.number)
    }

    pub(crate) fn end(&self) {
        let mut primary = self.all.0.primary.lock();
        if !self.is_over() {
            *primary = None;
            self.all.0.follow(self.number);
        }
    }

    /// `None` if the current primary is at least as new: an attempt that hung may succeed before the old primary is
    /// demoted.
    pub(crate) fn admit(self, named: Named) -> Option<Self> {
        let number = self.all.0.admit(self.number, named)?;
        Some(Self { number, ..self })
    }
}

impl State {
    fn is_over(&self, number: u64) -> bool {
        self.current.load(Ordering::Relaxed) != number
    }

    fn admit(&self, number: u64, named: Named) -> Option<u64> {
        let mut primary = self.primary.lock();
        if self.is_over(number) {
            return Some(number);
        }
        match &mut *primary {
            Some(known) if known.address == named.address => known.epoch = known.epoch.max(named.epoch),
            Some(known) if known.epoch >= named.epoch => return None,
            Some(known) => {
                *known = named;
                return Some(self.follow(number));
            }
            None => *primary = Some(named),
        }
        Some(number)
    }

    fn follow(&self, number: u64) -> u64 {
        self.current.store(number + 1, Ordering::Relaxed);
        number + 1
    }
}

#[cfg(test)]
pub(super) fn named(host: &str, epoch: u64) -> Named {
    Named {
        address: (host.to_owned(), 6_379),
        epoch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_succeeds_late_on_the_old_primary_is_not_admitted() {
        let all = Generations::default();
        let late = all.current();
        let first = all.current().admit(named("new", 2)).unwrap();
        assert!(late.admit(named("old", 1)).is_none());
        assert!(all.current().admit(named("old", 2)).is_none());
        assert!(!first.is_over());
        assert!(!all.current().admit(named("new", 2)).unwrap().is_over());
    }

    #[test]
    fn connections_to_the_old_primary_end_once_a_sentinel_knows_of_a_newer_one() {
        let all = Generations::default();
        let old = all.current().admit(named("old", 1)).unwrap();
        let under_way = all.current();
        let new = all.current().admit(named("new", 2)).unwrap();
        assert!(old.is_over() && !new.is_over());
        // The connection's generation has ended.
        assert!(under_way.admit(named("old", 1)).unwrap().is_over());
        // The old generation has already ended, and the new one continues.
        old.end();
        assert!(!new.is_over());
    }

    #[test]
    fn a_primary_that_a_sentinel_names_ends_connections_to_an_older_one() {
        use Heard::{First, Switch};

        let all = Generations::default();
        let unknown = all.current();
        assert!(!all.end_before(&named("old", 1), First));
        assert!(!unknown.is_over());
        assert!(all.end_before(&named("old", 1), Switch));
        assert!(unknown.is_over(), "the attempt may lead elsewhere");

        let old = all.current().admit(named("old", 1)).unwrap();
        for (other, heard) in [("old", First), ("old", Switch), ("other", First), ("other", Switch)] {
            assert!(!all.end_before(&named(other, 1), heard), "{other} {heard:?}");
        }
        assert!(!all.end_before(&named("new", 0), First));
        assert!(!old.is_over());
        assert!(all.end_before(&named("new", 2), First));
        assert!(old.is_over());
        let old = all.current().admit(named("old", 3)).unwrap();
        assert!(all.end_before(&named("new", 0), Switch), "without epochs");
        assert!(old.is_over());
    }

    #[test]
    fn a_generation_that_has_ended_says_nothing_about_the_next_primary() {
        let all = Generations::default();
        let old = all.current().admit(named("old", 7)).unwrap();
        old.end();
        assert!(!all.current().admit(named("new", 0)).unwrap().is_over());
    }

    #[test]
    fn the_newest_epoch_of_a_primary_counts() {
        let all = Generations::default();
        let first = all.current().admit(named("new", 1)).unwrap();
        assert!(!all.current().admit(named("new", 3)).unwrap().is_over());
        assert!(all.current().admit(named("old", 2)).is_none());
        assert!(!first.is_over());
    }
}
