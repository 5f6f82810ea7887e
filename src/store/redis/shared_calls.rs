//! Decisions that are asked for at the same moment, made by one call of the script.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::{
    runtime::Handle,
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    task::JoinSet,
    time::timeout,
};

use super::{
    Server,
    script::{self, Call, Reply},
};
use crate::{
    clock::Clock,
    decision::Decision,
    error::{StoreError, StoreErrorKind},
    plan::Plan,
};

/// How many decisions may wait for a call; others go alone.
const QUEUE: usize = 8_192;

/// How many calls are under way for each connection before further decisions wait for the next one. Without a wait there
/// would be nothing to share, and with one call only the server would wait for us.
const CALLS_PER_CONNECTION: usize = 2;

/// The task ends after so long without anything to do.
const IDLE: Duration = Duration::from_secs(1);

/// For so long decisions go alone after the server has rejected a shared call: should one caller's state be at fault, it
/// fails alone.
const APART: Duration = Duration::from_secs(1);

type Answer = Result<Decision, StoreError>;

/// Lets decisions that are under way at the same time share calls.
///
/// Few decisions go alone: sharing takes another task, and gains nothing while the server is idle.
pub(super) struct SharedCalls {
    most: usize,
    calls: usize,
    under_way: Arc<AtomicUsize>,
    apart_until: Arc<AtomicU64>,
    queue: ArcSwapOption<mpsc::Sender<Waiting>>,
}

/// A decision that waits for a call.
struct Waiting {
    plan: Plan,
    answer: oneshot::Sender<Answer>,
}

/// Counts a decision that is under way.
pub(super) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a decision is made.
pub(super) enum Way {
    /// By a call of its own.
    Alone(Plan, UnderWay),
    /// By one that others share.
    Together(oneshot::Receiver<Answer>, UnderWay),
}

impl SharedCalls {
    /// Up to `most` decisions share a call.
    pub(super) fn new(most: usize, connections: u32) -> Self {
        Self {
            most,
            calls: CALLS_PER_CONNECTION * connections as usize,
            under_way: Arc::default(),
            apart_until: Arc::default(),
            queue: ArcSwapOption::empty(),
        }
    }

    pub(super) fn way(&self, server: &Arc<Server>, plan: Plan) -> Way {
        let others = self.under_way.fetch_add(1, Ordering::Relaxed);
        let under_way = UnderWay(Arc::clone(&self.under_way));
        let is_busy = self.most > 1 && others >= self.calls;
        if !is_busy || !is_simple(&plan) || self.is_apart() {
            return Way::Alone(plan, under_way);
        }
        let (answer, answered) = oneshot::channel();
        match self.send(server, Waiting { plan, answer }) {
            Ok(()) => Way::Together(answered, under_way),
            Err(unsent) => Way::Alone(unsent.plan, under_way),
        }
    }

    fn is_apart(&self) -> bool {
        let until = self.apart_until.load(Ordering::Relaxed);
        until != 0 && Clock::system().now().as_micros() < until
    }

    fn send(&self, server: &Arc<Server>, waiting: Waiting) -> Result<(), Waiting> {
        let unsent = match &*self.queue.load() {
            Some(queue) => match queue.try_send(waiting) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(unsent)) => return Err(unsent),
                Err(TrySendError::Closed(unsent)) => unsent,
            },
            None => waiting,
        };
        // There is no task, or it is about to end, or its runtime has ended. Should another thread do the same now, the
        // task that is forgotten ends when it has done its work.
        let Ok(runtime) = Handle::try_current() else {
            return Err(unsent);
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        let caller = Caller {
            server: Arc::clone(server),
            apart_until: Arc::clone(&self.apart_until),
        };
        runtime.spawn(work(caller, receiver, self.calls, self.most));
        let sent = sender.try_send(unsent).map_err(TrySendError::into_inner);
        self.queue.store(Some(Arc::new(sender)));
        sent
    }
}

/// Whether a plan can share a call: one partition, and no slots, which have a name of their own in each call.
fn is_simple(plan: &Plan) -> bool {
    plan.only_part().is_some() && !plan.takes_slots()
}

/// The answer of a call that others share.
pub(super) async fn together(answered: oneshot::Receiver<Answer>) -> Answer {
    let lost = |_| {
        Err(StoreError::new(
            StoreErrorKind::Unavailable,
            "the shared call was given up",
        ))
    };
    answered.await.unwrap_or_else(lost)
}

/// Ends when the store is gone or nothing has come for a while, and all is decided.
async fn work(caller: Caller, mut queue: mpsc::Receiver<Waiting>, most_calls: usize, most: usize) {
    let mut calls = JoinSet::new();
    let mut waiting = Vec::with_capacity(most);
    loop {
        while calls.len() >= most_calls {
            calls.join_next().await;
        }
        while calls.try_join_next().is_some() {}
        match timeout(IDLE, queue.recv_many(&mut waiting, most)).await {
            Ok(0) => break,
            Ok(_) => {}
            // What has come in the last moment is still taken.
            Err(_) => queue.close(),
        }
        // Who has gone meanwhile is not charged.
        waiting.retain(|waiting| !waiting.answer.is_closed());
        if !waiting.is_empty() {
            let shared = std::mem::replace(&mut waiting, Vec::with_capacity(most));
            calls.spawn(caller.clone().call(shared));
        }
    }
    calls.join_all().await;
}

#[derive(Clone)]
struct Caller {
    server: Arc<Server>,
    apart_until: Arc<AtomicU64>,
}

impl Caller {
    /// Makes one call and gives everybody the answer; ends as soon as nobody waits for it any more.
    async fn call(self, waiting: Vec<Waiting>) {
        let (plans, mut answers): (Vec<_>, Vec<_>) = waiting.into_iter().map(|it| (it.plan, it.answer)).unzip();
        let Some(result) = unless_all_have_gone(self.decide(&plans), &mut answers).await else {
            return;
        };
        match result {
            Ok(reply) => {
                for (answer, decision) in answers.into_iter().zip(script::decode_each(plans, &reply)) {
                    let _ = answer.send(decision);
                }
            }
            Err(error) => {
                if error.kind() == StoreErrorKind::Rejected && answers.len() > 1 {
                    let until = Clock::system().now().saturating_add(APART);
                    self.apart_until.store(until.as_micros(), Ordering::Relaxed);
                }
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }

    async fn decide(&self, plans: &[Plan]) -> Result<Reply, StoreError> {
        let server = &*self.server;
        let call = Call::acquire_each(&server.keyspace, plans, server.now());
        server.connections.get(&call).await?.send(&call).await
    }
}

async fn unless_all_have_gone<T>(call: impl Future<Output = T>, answers: &mut [oneshot::Sender<Answer>]) -> Option<T> {
    let mut all_gone = pin!(async {
        for answer in answers {
            answer.closed().await;
        }
    });
    let mut call = pin!(call);
    poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => all_gone.as_mut().poll(cx).map(|()| None),
    })
    .await
}
