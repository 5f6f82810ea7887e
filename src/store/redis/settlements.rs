//! What is done after the decision: one task per store settles charges and renews leases.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    Server,
    connection::{SharedConnection, store_error},
    keyspace::Keys,
    script::Call,
};
use crate::{
    clock::Clock,
    error::{StoreError, StoreErrorKind},
    last_turn,
    lease::LeaseId,
    settlement::Settlement,
    store::StoreFuture,
    telemetry::UnsettledLog,
};

/// How many settlements may wait; more are given up.
const QUEUE: usize = 8_192;

/// How many calls are under way at the same time.
const BATCH: usize = 64;

/// How many leases are renewed by one call.
const RENEWED_TOGETHER: usize = 512;

/// How long a call may take. Nobody waits for it, but those behind it do.
const DEADLINE: Duration = Duration::from_secs(1);

type Settled = Result<(), StoreError>;

/// Something to do that no request waits for.
pub(super) enum Job {
    /// Releases slots by the name of a lease: nobody knows whether they were taken. On the connection of the call that was
    /// to take them, so that it arrives behind that.
    Abandon {
        lease: LeaseId,
        keys: Keys,
        connection: SharedConnection,
    },
    Settle {
        settlement: Settlement,
        done: oneshot::Sender<Settled>,
    },
}

/// The way to the task.
#[derive(Default)]
pub(super) struct Settlements {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    log: Arc<UnsettledLog>,
}

impl Settlements {
    pub(super) fn settle(&self, server: &Arc<Server>, settlement: Settlement) -> StoreFuture<()> {
        if settlement.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let (done, settled) = oneshot::channel();
        self.send(server, Job::Settle { settlement, done });
        StoreFuture::boxed(async move {
            let given_up = |_| Err(unsettled("the settlement was given up"));
            settled.await.unwrap_or_else(given_up)
        })
    }

    /// Hands a job to the task, without waiting; a job that finds no place is given up.
    pub(super) fn send(&self, server: &Arc<Server>, job: Job) {
        let reason = match self.start(server) {
            Some(jobs) if jobs.try_send(job).is_ok() => return,
            Some(_) => "too many settlements are waiting",
            None => "there is no runtime any more",
        };
        self.log.record(Clock::system().now(), &unsettled(reason));
    }

    /// Sees to it that the task runs: it may have ended with the runtime that it was started in.
    pub(super) fn start(&self, server: &Arc<Server>) -> Option<mpsc::Sender<Job>> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.as_ref().is_none_or(mpsc::Sender::is_closed) {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let task = work(Arc::clone(server), receiver, Arc::clone(&self.log));
            Handle::try_current().ok()?.spawn(task);
            *jobs = Some(sender);
        }
        jobs.clone()
    }
}

fn unsettled(reason: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, reason)
}

/// Ends when the store is gone and all is done.
///
/// A job does not wait for those before it: one of them may be about a server that hangs. Only a renewal is waited for,
/// so that nothing is released behind its back.
async fn work(server: Arc<Server>, mut jobs: mpsc::Receiver<Job>, log: Arc<UnsettledLog>) {
    let period = server.lease_time / 3;
    let mut renewal = Instant::now() + period;
    let (mut batch, mut calls) = (Vec::new(), JoinSet::new());
    loop {
        if Instant::now() >= renewal {
            renew(&server, &log).await;
            renewal = Instant::now() + period;
        }
        while calls.try_join_next().is_some() {}
        if calls.len() >= BATCH {
            calls.join_next().await;
            continue;
        }
        match timeout_at(renewal, jobs.recv_many(&mut batch, BATCH - calls.len())).await {
            Ok(0) => break,
            Ok(_) => {
                for job in batch.drain(..) {
                    calls.spawn(carry_out(Arc::clone(&server), job, Arc::clone(&log)));
                }
            }
            Err(_) => {}
        }
    }
    calls.join_all().await;
}

async fn carry_out(server: Arc<Server>, job: Job, log: Arc<UnsettledLog>) {
    match job {
        Job::Abandon {
            lease,
            keys,
            mut connection,
        } => {
            for key in keys {
                let call = Call::release(key, lease);
                let behind = async {
                    let sent = call.send(&mut connection).await;
                    sent.map(drop).map_err(|unanswered| store_error(unanswered.into()))
                };
                let mut released = within_deadline(&server, behind).await;
                if released.is_err() {
                    released = within_deadline(&server, send(&server, &call)).await;
                }
                let _ = report(released, &log);
            }
        }
        Job::Settle { settlement, done } => {
            let mut settled = Ok(());
            for part in settlement.parts().filter(|part| !part.is_empty()) {
                let call = Call::settle(&server.keyspace, part, server.now());
                settled = settled.and(within_deadline(&server, send(&server, &call)).await);
            }
            // Most often nobody waits for it.
            let _ = done.send(report(settled, &log));
        }
    }
}

/// Renews all leases, also those that the server has lost. One that is released meanwhile is taken from the server
/// afterwards, since that is the same task's next job; one that is being released was not held any more at the start.
async fn renew(server: &Arc<Server>, log: &Arc<UnsettledLog>) {
    let mut calls = JoinSet::new();
    for (key, leases) in server.leases.by_key() {
        for leases in leases.chunks(RENEWED_TOGETHER) {
            let call = Call::renew(key.clone(), leases, server.lease_time, server.now());
            let (server, log) = (Arc::clone(server), Arc::clone(log));
            calls.spawn(async move {
                let renewed = within_deadline(&server, send(&server, &call)).await;
                let _ = report(renewed, &log);
            });
            if calls.len() >= BATCH {
                calls.join_next().await;
            }
        }
    }
    calls.join_all().await;
}

async fn send(server: &Server, call: &Call) -> Settled {
    let connection = server.connections.get(call).await?;
    connection.send(call).await.map(drop)
}

async fn within_deadline(server: &Server, call: impl Future<Output = Settled>) -> Settled {
    let too_late = || Err(StoreError::new(StoreErrorKind::TimedOut, "no answer to a settlement"));
    let settled = last_turn::within(Instant::now() + DEADLINE, call, || Some(server.connections.catch_up())).await;
    settled.unwrap_or_else(too_late)
}

fn report(settled: Settled, log: &UnsettledLog) -> Settled {
    settled.inspect_err(|error| log.record(Clock::system().now(), error))
}
