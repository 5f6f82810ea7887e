//! Calls shared by concurrent decisions, as described in `docs/tuning.md`. A call waits for at most
//! [`SHARING`](queue::SHARING) for further decisions. A decision that the measured rate would send too late is
//! rejected: otherwise, all decisions would eventually miss their deadlines.

mod queue;

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::{
    runtime::Handle,
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot::{self, error::RecvError},
    },
    time::Instant,
};

use self::queue::{Acquired, Bounds, Pace, QueuedPlan, work};
use super::{
    script::{self, Call},
    server::Server,
};
use crate::{
    clock::Clock,
    decision::{Mode, Plan},
    error::{StoreError, StoreErrorKind},
};

/// Further calls would increase the overload.
const QUEUE: usize = 65_536;

/// If one caller's state is the cause, separate calls fail only for this caller.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

pub(super) struct SharedCalls {
    bounds: Bounds,
    under_way: Arc<AtomicUsize>,
    queue: ArcSwapOption<Queue>,
}

#[derive(Clone)]
struct Queue {
    sender: mpsc::Sender<QueuedPlan>,
    pace: Arc<Pace>,
}

pub(super) struct RunningDecision {
    under_way: Arc<AtomicUsize>,
    is_busy: bool,
}

impl RunningDecision {
    pub(super) fn may_share(&self) -> bool {
        self.is_busy
    }
}

impl Drop for RunningDecision {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedCalls {
    pub(super) fn new(most: usize, connections: u32) -> Self {
        Self {
            bounds: Bounds::new(most, connections),
            under_way: Arc::default(),
            queue: ArcSwapOption::empty(),
        }
    }

    pub(super) fn begin(&self) -> RunningDecision {
        let others = self.under_way.fetch_add(1, Ordering::Relaxed);
        RunningDecision {
            under_way: Arc::clone(&self.under_way),
            is_busy: self.bounds.decisions > 1 && others >= self.bounds.calls,
        }
    }

    pub(super) fn queue(&self, server: &Arc<Server>, plan: Plan) -> Result<oneshot::Receiver<Acquired>, Plan> {
        // Each call that acquires slots needs its own lease.
        let is_simple = plan.mode() == Mode::Whole && !plan.takes_slots() && Call::has_room_for(&plan);
        if !is_simple || is_paused(server) {
            return Err(plan);
        }
        let (answer, answered) = oneshot::channel();
        match self.send(server, plan, answer) {
            None => Ok(answered),
            Some(unsent) => Err(unsent),
        }
    }

    fn send(&self, server: &Arc<Server>, plan: Plan, answer: oneshot::Sender<Acquired>) -> Option<Plan> {
        let mut waiting = QueuedPlan {
            plan,
            answer,
            since: Instant::now(),
            position: 0,
        };
        if let Some(queue) = &*self.queue.load() {
            waiting.position = queue.sender.max_capacity() - queue.sender.capacity();
            if queue.pace.is_too_slow_for(&waiting) {
                waiting.reject();
                return None;
            }
            waiting = match queue.sender.try_send(waiting) {
                Ok(()) => return None,
                Err(TrySendError::Full(waiting)) => {
                    waiting.reject();
                    return None;
                }
                Err(TrySendError::Closed(waiting)) => waiting,
            };
        }
        // If another thread starts a task at the same time, the replaced task ends after its queued work.
        let Ok(runtime) = Handle::try_current() else {
            return Some(waiting.plan);
        };
        waiting.position = 0;
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (server, pace) = (Arc::clone(server), Arc::<Pace>::default());
        let call = move |waiting| call(server, waiting);
        runtime.spawn(work(call, receiver, self.bounds, Arc::clone(&pace)));
        let sent = sender.try_send(waiting);
        self.queue.store(Some(Arc::new(Queue { sender, pace })));
        sent.err().map(|unsent| unsent.into_inner().plan)
    }
}

fn is_paused(server: &Server) -> bool {
    let until = server.paused_until.load(Ordering::Relaxed);
    until != 0 && Clock::system().now().as_micros() < until
}

pub(super) fn shared_answer(answered: Result<Acquired, RecvError>) -> Acquired {
    let cancelled = |_| StoreError::new(StoreErrorKind::Unavailable, "shared call cancelled");
    answered.map_err(cancelled)?
}

async fn call(server: Arc<Server>, waiting: Vec<QueuedPlan>) {
    let (plans, mut answers): (Vec<_>, Vec<_>) = waiting.into_iter().map(|it| (it.plan, it.answer)).unzip();
    let call = Call::acquire_each(&server, &plans);
    let sent = pin!(server.topology.send(&call));
    match unless_all_have_gone(sent, &mut answers).await {
        None => {}
        Some(Ok(reply)) => {
            for (answer, decision) in answers.into_iter().zip(script::decode_each(plans, &reply)) {
                let _ = answer.send(decision);
            }
        }
        Some(Err(error)) => {
            if error.kind() == StoreErrorKind::Failed && answers.len() > 1 {
                let until = Clock::system().now().saturating_add(PAUSE_AFTER_FAILURE);
                server.paused_until.store(until.as_micros(), Ordering::Relaxed);
            }
            for answer in answers {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

async fn unless_all_have_gone<T>(
    mut call: Pin<&mut impl Future<Output = T>>,
    answers: &mut [oneshot::Sender<Acquired>],
) -> Option<T> {
    let mut all_gone = pin!(async {
        for answer in answers {
            answer.closed().await;
        }
    });
    poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => all_gone.as_mut().poll(cx).map(|()| None),
    })
    .await
}
