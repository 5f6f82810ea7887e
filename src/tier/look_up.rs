use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::rules::ResolvedTier;

pub(super) type Answer = Option<ResolvedTier>;
pub(super) type SourceAnswer = Result<Answer, String>;
pub(super) type Ask = Box<dyn Fn() -> Pin<Box<dyn Future<Output = SourceAnswer> + Send>> + Send>;

#[derive(Clone, Debug)]
enum Progress {
    Answered(Answer),
    Failed,
    /// Requests that would wait for at most `missed`, the longest wait that has timed out, do not wait.
    Pending {
        missed: Duration,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Waited {
    Answered(Answer),
    Failed,
    TimedOut,
}

impl Progress {
    fn result(&self, limit: Duration) -> Option<Waited> {
        match self {
            Self::Answered(answer) => Some(Waited::Answered(answer.clone())),
            Self::Failed => Some(Waited::Failed),
            Self::Pending { missed } => (*missed >= limit).then_some(Waited::TimedOut),
        }
    }

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

#[derive(Clone, Debug)]
pub(super) struct LookUp(Arc<watch::Sender<Progress>>);

impl LookUp {
    pub(super) fn new() -> Self {
        let missed = Duration::ZERO;
        Self(Arc::new(watch::Sender::new(Progress::Pending { missed })))
    }

    pub(super) fn result(&self, limit: Duration) -> Option<Waited> {
        self.0.borrow().result(limit)
    }

    pub(super) fn publish(&self, answer: Option<Answer>) {
        self.0.send_replace(answer.map_or(Progress::Failed, Progress::Answered));
    }

    /// The first request that times out after `limit` calls `missed`. All others with the same or a shorter limit then
    /// continue without the result, even later ones.
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
