//! The next step of a call that a node has proved not to have carried out, and the bound on such steps.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::node::Node;
use crate::breaker::jittered;

/// The next step of a call.
pub(super) enum Redirection {
    /// The slot belongs to this node.
    Owner(Arc<Node>),
    /// The slot is being moved to this node, and the key is there already or nowhere.
    Asking(Arc<Node>),
    /// Only some of the call's keys are there: once the others have arrived, one node has all of them.
    Later,
}

/// Counts how often a call was sent elsewhere, and how often it has waited.
///
/// The caller's deadline bounds the call. This is the bound for calls without one, some two seconds, and the bound on
/// nodes that send a call to each other.
#[derive(Default)]
pub(super) struct Redirections {
    followed: u8,
    waited: u8,
}

impl Redirections {
    /// In a row. More than one is right when a slot is moved once more, or a move ends just now.
    const MOST_IN_A_ROW: u8 = 4;
    const MOST_WAITS: u8 = 32;

    /// A key takes less than a millisecond, and a slot of many keys much longer.
    const FIRST_PAUSE: Duration = Duration::from_millis(3);
    const LONGEST_PAUSE: Duration = Duration::from_millis(96);

    /// Waits before a call may be sent once more, or says that it has been sent often enough.
    #[allow(
        clippy::disallowed_methods,
        reason = "keys that are apart come shared_answer by waiting only"
    )]
    pub(super) async fn follow(&mut self, redirection: Option<Redirection>) -> Option<Redirection> {
        if matches!(redirection, Some(Redirection::Later)) {
            if self.waited == Self::MOST_WAITS {
                return None;
            }
            let pause = Self::FIRST_PAUSE * (1 << self.waited.min(5));
            sleep(jittered(pause.min(Self::LONGEST_PAUSE))).await;
            self.waited += 1;
            self.followed = 0;
            return redirection;
        }
        self.followed += 1;
        redirection.filter(|_| self.followed <= Self::MOST_IN_A_ROW)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_whose_keys_never_come_together_is_tried_some_two_seconds_with_longer_and_longer_pauses() {
        let (mut redirections, start) = (Redirections::default(), Instant::now());
        let (mut tries, mut early) = (0, 0);
        while redirections.follow(Some(Redirection::Later)).await.is_some() {
            tries += 1;
            early += usize::from(start.elapsed() <= Duration::from_millis(50));
        }
        assert_eq!(tries, 32);
        assert!((3..=10).contains(&early), "{early} within a usual deadline");
        let whole = start.elapsed();
        assert!((1..=3).contains(&whole.as_secs()), "{whole:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_leads_nowhere_is_the_answer() {
        assert!(Redirections::default().follow(None).await.is_none());
    }
}
