//! Calls that decisions of the same moment share.
//!
//! Three bounds, and none of them is a setting, because each follows from what it is for:
//!
//! - **The wait for company.** A call leaves at once while few are in flight, or as soon as it is full. Otherwise it waits
//!   until one of them has returned, which on a near server takes less than a millisecond, or for [`PATIENCE`](queue::PATIENCE): the
//!   distance of the server is paid for once, by the call, and not once more by the wait.
//! - **The calls in flight.** They follow the distance of the server: one for each `PATIENCE` that a round trip takes at
//!   least. More would only queue up inside of the server.
//! - **The queue.** Decisions that come faster than the server makes them wait one behind the other, in the end each for
//!   longer than its deadline, and the server would work in vain. Those that cannot be answered in time any more are
//!   cut off (see [`RoundTrips`](round_trips::RoundTrips)); the others are.

mod queue;
mod round_trips;

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
    time::Instant,
};

use self::queue::{Bounds, QueuedPlan, work};
use super::{
    Server,
    script::{self, Call, Reply},
};
use crate::{
    clock::Clock,
    error::{StoreError, StoreErrorKind},
    exchange::{Measurement, Plan},
};

/// The maximum number of decisions that wait for a call. Beyond it the store is overloaded: more calls would cost
/// the server more, just then.
const QUEUE: usize = 65_536;

/// For so long decisions go alone after the server has rejected a shared call: should one caller's state be at fault, it
/// fails alone.
const APART: Duration = Duration::from_secs(1);

type Acquired = Result<Measurement, StoreError>;

/// Lets decisions that are under way at the same time share calls.
///
/// Few decisions go alone: sharing takes another task, and gains nothing while the server is idle.
pub(super) struct SharedCalls {
    bounds: Bounds,
    under_way: Arc<AtomicUsize>,
    apart_until: Arc<AtomicU64>,
    queue: ArcSwapOption<mpsc::Sender<QueuedPlan>>,
}

/// A decision that finds no place in the queue.
enum NotQueued {
    /// There are too many before it.
    Overloaded,
    /// There is no runtime for the task.
    NoTask(Plan),
}

/// Counts a decision that is under way.
pub(super) struct RunningDecision(Arc<AtomicUsize>);

impl Drop for RunningDecision {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The way in which a decision is made.
pub(super) enum Way {
    /// By a call of its own.
    Alone(Plan, RunningDecision),
    /// By one that others share.
    Together(oneshot::Receiver<Acquired>, RunningDecision),
    /// Not at all: more decisions wait than the server makes.
    Overloaded,
}

impl SharedCalls {
    /// Up to `most` decisions share a call.
    pub(super) fn new(most: usize, connections: u32) -> Self {
        Self {
            bounds: Bounds::new(most, connections),
            under_way: Arc::default(),
            apart_until: Arc::default(),
            queue: ArcSwapOption::empty(),
        }
    }

    pub(super) fn way(&self, server: &Arc<Server>, plan: Plan) -> Way {
        let others = self.under_way.fetch_add(1, Ordering::Relaxed);
        let under_way = RunningDecision(Arc::clone(&self.under_way));
        let is_busy = self.bounds.decisions > 1 && others >= self.bounds.calls;
        if !is_busy || !is_simple(&plan) || self.is_apart() {
            return Way::Alone(plan, under_way);
        }
        let (answer, answered) = oneshot::channel();
        let waiting = QueuedPlan {
            plan,
            answer,
            since: Instant::now(),
        };
        match self.send(server, waiting) {
            Ok(()) => Way::Together(answered, under_way),
            Err(NotQueued::NoTask(plan)) => Way::Alone(plan, under_way),
            Err(NotQueued::Overloaded) => Way::Overloaded,
        }
    }

    fn is_apart(&self) -> bool {
        let until = self.apart_until.load(Ordering::Relaxed);
        until != 0 && Clock::system().now().as_micros() < until
    }

    fn send(&self, server: &Arc<Server>, waiting: QueuedPlan) -> Result<(), NotQueued> {
        let waiting = match &*self.queue.load() {
            Some(queue) => match queue.try_send(waiting) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(_)) => return Err(NotQueued::Overloaded),
                Err(TrySendError::Closed(waiting)) => waiting,
            },
            None => waiting,
        };
        // There is no task, or it is about to end, or its runtime has ended. Should another thread do the same now, the
        // task that is forgotten ends when it has done its work.
        let Ok(runtime) = Handle::try_current() else {
            return Err(NotQueued::NoTask(waiting.plan));
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        let caller = Caller {
            server: Arc::clone(server),
            apart_until: Arc::clone(&self.apart_until),
        };
        runtime.spawn(work(move |waiting| caller.clone().call(waiting), receiver, self.bounds));
        let sent = sender.try_send(waiting).map_err(|_| NotQueued::Overloaded);
        self.queue.store(Some(Arc::new(sender)));
        sent
    }
}

/// Returns `true` if a plan can share a call: one partition, and no slots, which have a name of their own in each call.
fn is_simple(plan: &Plan) -> bool {
    plan.only_part().is_some() && !plan.takes_slots()
}

/// The answer of a call that others share.
pub(super) async fn together(answered: oneshot::Receiver<Acquired>) -> Acquired {
    let lost = |_| {
        Err(StoreError::new(
            StoreErrorKind::Unavailable,
            "the shared call was cancelled",
        ))
    };
    answered.await.unwrap_or_else(lost)
}

pub(super) fn overloaded() -> StoreError {
    StoreError::new(
        StoreErrorKind::Overloaded,
        "more decisions wait for the server than it makes",
    )
}

#[derive(Clone)]
struct Caller {
    server: Arc<Server>,
    apart_until: Arc<AtomicU64>,
}

impl Caller {
    /// Makes one call and answers all its decisions; ends as soon as all of them are cancelled.
    async fn call(self, waiting: Vec<QueuedPlan>) {
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
                if error.kind() == StoreErrorKind::Failed && answers.len() > 1 {
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
        server.topology.send(&call).await
    }
}

async fn unless_all_have_gone<T>(
    call: impl Future<Output = T>,
    answers: &mut [oneshot::Sender<Acquired>],
) -> Option<T> {
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
