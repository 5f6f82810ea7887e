//! The progress of one look-up, and the requests that wait for it.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::rules::ResolvedTier;

/// The answer of a source about a user: the tier, or `None` if the user has none.
pub(super) type Answer = Option<ResolvedTier>;
/// The same, or the reason why there is no answer.
pub(super) type SourceAnswer = Result<Answer, String>;
/// Asks the resolver about one user, at each call.
pub(super) type Ask = Box<dyn Fn() -> Pin<Box<dyn Future<Output = SourceAnswer> + Send>> + Send>;

/// The progress of a look-up, for the requests that wait.
#[derive(Clone, Debug)]
enum Progress {
    Answered(Answer),
    Failed,
    /// With the longest time for which a request has waited in vain: none waits for as long again.
    Pending {
        missed: Duration,
    },
}

/// The result of waiting for a look-up.
#[derive(Clone, Debug)]
pub(super) enum Waited {
    Answered(Answer),
    Failed,
    TimedOut,
}

impl Progress {
    /// The result for a request that would wait for so long; `None` while it is worth waiting.
    fn result(&self, limit: Duration) -> Option<Waited> {
        match self {
            Self::Answered(answer) => Some(Waited::Answered(answer.clone())),
            Self::Failed => Some(Waited::Failed),
            Self::Pending { missed } => (*missed >= limit).then_some(Waited::TimedOut),
        }
    }

    /// A request has waited for so long. Returns `true` if none has waited in vain before.
    fn miss(&mut self, limit: Duration) -> bool {
        match self {
            Self::Pending { missed } if *missed < limit => {
                *missed = limit;
                true
            }
            _ => false,
        }
    }
}

/// A look-up as the waiting requests see it.
#[derive(Clone, Debug)]
pub(super) struct LookUp(Arc<watch::Sender<Progress>>);

impl LookUp {
    pub(super) fn new() -> Self {
        let missed = Duration::ZERO;
        Self(Arc::new(watch::Sender::new(Progress::Pending { missed })))
    }

    /// Its result, if a request need not, or should not, wait for so long.
    pub(super) fn result(&self, limit: Duration) -> Option<Waited> {
        self.0.borrow().result(limit)
    }

    /// Its end: the answer, or `None` if it has failed.
    pub(super) fn publish(&self, answer: Option<Answer>) {
        self.0.send_replace(answer.map_or(Progress::Failed, Progress::Answered));
    }

    /// Waits for its end. The first request that has waited in vain for so long calls `missed`, and lets the others go on
    /// that wait as long, and those that come.
    pub(super) async fn wait(self, limit: Duration, missed: impl FnOnce()) -> Waited {
        let mut progress = self.0.subscribe();
        let ended = progress.wait_for(|progress| progress.result(limit).is_some());
        match tokio::time::timeout(limit, ended).await {
            Ok(Ok(progress)) => progress.result(limit).unwrap_or(Waited::Failed),
            Ok(Err(_)) => Waited::Failed,
            Err(_) => {
                if self.0.send_if_modified(|progress| progress.miss(limit)) {
                    missed();
                }
                Waited::TimedOut
            }
        }
    }
}
