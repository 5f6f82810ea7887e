//! One look-up: a task of its own, and the requests that wait for it.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, watch};

use super::cache::Shared;
use crate::{clock::Timestamp, partition::PartitionId, rules::ResolvedTier};

/// The answer of a resolver: the tier, or the reason why it is not known.
pub(super) type SourceAnswer = Result<Option<ResolvedTier>, String>;
/// Asks the resolver about one user, each time anew.
pub(super) type Ask = Box<dyn Fn() -> Pin<Box<dyn Future<Output = SourceAnswer> + Send>> + Send>;

/// The progress of a look-up, for the requests that wait.
#[derive(Clone, Debug)]
enum Progress {
    Answered(Option<ResolvedTier>),
    Pending,
    /// It has failed or takes too long: nobody should wait for it any more.
    Unanswered,
}

/// A look-up as those see it who wait for it.
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

    /// The answer if it comes in time, else what is known so far.
    pub(super) async fn wait(
        self,
        deadline: Duration,
        known: Option<ResolvedTier>,
        cache: Arc<Shared>,
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
                self.miss_deadline(&cache);
                known
            }
        }
    }

    /// Lets the other requests go on that wait for this look-up, and those that come.
    fn miss_deadline(&self, cache: &Shared) {
        let is_first = self.0.send_if_modified(|progress| {
            let is_pending = matches!(progress, Progress::Pending);
            if is_pending {
                *progress = Progress::Unanswered;
            }
            is_pending
        });
        if is_first {
            cache.log_missed_deadline();
        }
    }
}

/// The right to look up one user, until it is dropped.
pub(super) struct OngoingLookUp {
    pub(super) cache: Arc<Shared>,
    pub(super) user: PartitionId,
    pub(super) look_up: LookUp,
    /// The look-up's place among those that may run at the same time; `None` when it is over.
    pub(super) place: Option<OwnedSemaphorePermit>,
}

impl OngoingLookUp {
    /// Asks until there is an answer that nobody has declared outdated while it was on its way.
    pub(super) async fn run(mut self, ask: Ask) {
        loop {
            let began = self.cache.now();
            // The resolver's future is gone before the look-up ends, and so before anybody else asks about the user.
            let answer = self.cache.within_limit(ask()).await;
            if self.end(began, answer) {
                return;
            }
        }
    }

    fn end(&mut self, began: Timestamp, answer: SourceAnswer) -> bool {
        let cache = Arc::clone(&self.cache);
        cache.end(self, began, answer)
    }
}

impl Drop for OngoingLookUp {
    /// Reached with a place only if the resolver has panicked or the runtime is shut down.
    fn drop(&mut self) {
        if self.place.is_some() {
            let cache = Arc::clone(&self.cache);
            cache.abandon(self);
        }
    }
}
