//! The progress of one look-up, and the requests that wait for it.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::rules::ResolvedTier;

/// The progress of a look-up, for the requests that wait.
#[derive(Clone, Debug)]
enum Progress {
    Answered(Option<ResolvedTier>),
    Pending,
    /// It has failed or takes too long: no request waits for it any more.
    Unanswered,
}

impl Progress {
    /// Returns `true` if the look-up was pending.
    fn give_up(&mut self) -> bool {
        let is_pending = matches!(self, Self::Pending);
        if is_pending {
            *self = Self::Unanswered;
        }
        is_pending
    }
}

/// A look-up as the waiting requests see it.
#[derive(Clone, Debug)]
pub(super) struct LookUp(Arc<watch::Sender<Progress>>);

impl LookUp {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Progress::Pending)))
    }

    /// Its result, or else what is `known` so far; `None` while it is worth waiting for.
    pub(super) fn outcome(&self, known: &Option<ResolvedTier>) -> Option<Option<ResolvedTier>> {
        match &*self.0.borrow() {
            Progress::Answered(tier) => Some(tier.clone()),
            Progress::Pending => None,
            Progress::Unanswered => Some(known.clone()),
        }
    }

    pub(super) fn publish(&self, answer: Option<Option<ResolvedTier>>) {
        self.0
            .send_replace(answer.map_or(Progress::Unanswered, Progress::Answered));
    }

    /// The answer if it comes in time, else what is known so far. The first request that misses its deadline calls
    /// `missed`, and lets the others go on that wait for this look-up, and those that come.
    pub(super) async fn wait(
        self,
        deadline: Duration,
        known: Option<ResolvedTier>,
        missed: impl FnOnce(),
    ) -> Option<ResolvedTier> {
        let mut progress = self.0.subscribe();
        let answered = progress.wait_for(|progress| !matches!(progress, Progress::Pending));
        match tokio::time::timeout(deadline, answered).await {
            Ok(Ok(progress)) => match &*progress {
                Progress::Answered(tier) => tier.clone(),
                Progress::Pending | Progress::Unanswered => known,
            },
            Ok(Err(_)) => known,
            Err(_) => {
                if self.0.send_if_modified(Progress::give_up) {
                    missed();
                }
                known
            }
        }
    }
}
