use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::node::Node;
use crate::breaker::jittered;

pub(super) enum Redirection {
    Owner(Arc<Node>),
    Asking(Arc<Node>),
    /// Only some of the call's keys have moved.
    Later,
}

/// Bounded, because a call may have no deadline, and nodes may redirect to each other.
#[derive(Default)]
pub(super) struct Redirections {
    followed: u8,
    waited: u8,
}

impl Redirections {
    /// More than one is legitimate if a slot is moved again, or a migration ends in between.
    const MOST_IN_A_ROW: u8 = 4;
    const MOST_WAITS: u8 = 32;

    /// A key moves in less than a millisecond.
    const FIRST_PAUSE: Duration = Duration::from_millis(3);
    const LONGEST_PAUSE: Duration = Duration::from_millis(96);

    #[allow(
        clippy::disallowed_methods,
        reason = "while a slot moves, its keys are on two nodes, so only waiting helps"
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
