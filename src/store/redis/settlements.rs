//! The task of a store that settles charges and renews leases, after the decision.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot, watch},
    task::{JoinSet, unconstrained},
    time::{Instant, timeout_at},
};

use super::{
    Server,
    keyspace::{Key, Keys},
    net::{Lane, SharedConnection, store_error},
    order::{Order, Settled, UnsentSettlement},
    script::Call,
};
use crate::{
    clock::Clock,
    error::{StoreError, StoreErrorKind},
    exchange::{Plan, Settlement},
    last_turn,
    lease::LeaseId,
    mutex::Mutex,
    partition::PartitionId,
    store::StoreFuture,
    telemetry::UnsettledTelemetry,
};

/// The number of settlements that may wait; further ones are dropped.
const QUEUE: usize = 8_192;

/// The number of calls that run at the same time.
const BATCH: usize = 256;

/// The number of leases that one call renews.
const RENEWED_TOGETHER: usize = 512;

/// The time that a call may take. No request waits for it, but the calls behind it do.
const DEADLINE: Duration = Duration::from_secs(5);

/// Something to do that no request waits for.
pub(super) enum Job {
    /// Releases slots that may have been taken, by the name of their lease. It is sent on the connection of the call that
    /// was to take them, so that it arrives behind that call.
    Abandon {
        lease: LeaseId,
        keys: Keys,
        connection: SharedConnection,
    },
    /// Sends the next settlement of a partition, which has this key, unless a decision has sent it meanwhile.
    Settle { partition: PartitionId, key: Key },
}

/// The way to the task.
#[derive(Default)]
pub(super) struct Settlements {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    outbox: Arc<Outbox>,
}

/// The state that the task shares with settlements and decisions.
#[derive(Default)]
struct Outbox {
    order: Arc<Order>,
    /// True while leases are renewed.
    renewing: watch::Sender<bool>,
    log: UnsettledTelemetry,
}

impl Settlements {
    /// Takes effect before any decision about its partitions that is asked for later.
    pub(super) fn settle(&self, server: &Arc<Server>, settlement: &Settlement) -> StoreFuture<()> {
        let mut all: SmallVec<[oneshot::Receiver<Settled>; 1]> = SmallVec::new();
        for part in settlement.parts().filter(|part| !part.is_empty()) {
            let (done, settled) = oneshot::channel();
            let unsent = UnsentSettlement {
                call: Call::settle(&server.keyspace, part, server.now()),
                releases: part.releases(),
                done,
            };
            self.add(server, part.part.partition(), unsent);
            all.push(settled);
        }
        if all.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        StoreFuture::boxed(async move {
            let mut result = Ok(());
            for settled in all {
                let lost = |_| Err(unsettled("the settlement was lost"));
                result = result.and(settled.await.unwrap_or_else(lost));
            }
            result
        })
    }

    fn add(&self, server: &Arc<Server>, partition: PartitionId, unsent: UnsentSettlement) {
        let order = &self.outbox.order;
        let key = unsent.call.key().clone();
        order.add(partition, unsent);
        if let Err(error) = self.try_send(server, Job::Settle { partition, key })
            && let Some(unsent) = order.cancel_next(partition)
        {
            let _ = unsent.done.send(report(Err(error), &self.outbox.log));
        }
    }

    /// Returns `true` if a decision about the plan has to come behind a settlement.
    #[inline]
    pub(super) fn are_before(&self, plan: &Plan) -> bool {
        self.outbox.order.is_before(plan)
    }

    /// Sends what is unsent of the plan's partitions, which are on the server that has the key. A call that is sent on its
    /// [ordered](Lane::Ordered) connection afterwards comes behind them.
    pub(super) async fn send_before(&self, server: &Arc<Server>, plan: &Plan, key: &Key) {
        for part in plan.parts() {
            let partition = part.partition();
            let (unsent, releases) = self.outbox.order.unsent(partition);
            if releases {
                // A renewal that is on its way would take the slots once more. One that begins later leaves them alone.
                let _ = self
                    .outbox
                    .renewing
                    .subscribe()
                    .wait_for(|is_renewing| !is_renewing)
                    .await;
            }
            for _ in 0..unsent {
                self.outbox.write_next(server, partition, key).await;
            }
        }
    }

    /// Hands a job to the task, without waiting; a job that finds no place is dropped.
    pub(super) fn send(&self, server: &Arc<Server>, job: Job) {
        let _ = report(self.try_send(server, job), &self.outbox.log);
    }

    fn try_send(&self, server: &Arc<Server>, job: Job) -> Settled {
        match self.start(server) {
            Some(jobs) if jobs.try_send(job).is_ok() => Ok(()),
            Some(_) => Err(unsettled("too many settlements are waiting")),
            None => Err(unsettled("there is no runtime any more")),
        }
    }

    /// Starts the task if it does not run: it may have ended with the runtime that it was started in.
    pub(super) fn start(&self, server: &Arc<Server>) -> Option<mpsc::Sender<Job>> {
        let mut jobs = self.jobs.lock();
        if jobs.as_ref().is_none_or(mpsc::Sender::is_closed) {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let task = work(Arc::clone(server), receiver, Arc::clone(&self.outbox));
            Handle::try_current().ok()?.spawn(task);
            // The jobs that the task before this one has left.
            for (partition, key) in self.outbox.order.all_unsent() {
                let _ = sender.try_send(Job::Settle { partition, key });
            }
            *jobs = Some(sender);
        }
        jobs.clone()
    }
}

impl Outbox {
    /// Sends the oldest settlement of the partition that is unsent, if there is one, and says when it is written. An error
    /// says that there is no connection, and that it is still unsent.
    async fn send_next(
        self: Arc<Self>,
        server: Arc<Server>,
        partition: PartitionId,
        key: Key,
        is_written: Arc<AtomicBool>,
    ) -> Settled {
        let connection = server.topology.route(&key, Lane::Ordered).await?;
        let Some((unsent, unacknowledged, write_lock)) = self.order.next(partition) else {
            return Ok(());
        };
        // A connection takes what it is to write with the first poll.
        let mut sending = pin!(unconstrained(within_deadline(&server, async {
            connection.send(&unsent.call).await.map(drop)
        })));
        let written = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop(write_lock);
        is_written.store(true, Ordering::Relaxed);
        let settled = match written {
            Poll::Ready(settled) => settled,
            Poll::Pending => sending.await,
        };
        drop(unacknowledged);
        // Most often no request waits for it.
        let _ = unsent.done.send(report(settled, &self.log));
        Ok(())
    }

    /// The same for a decision, which waits until it is written only.
    async fn write_next(self: &Arc<Self>, server: &Arc<Server>, partition: PartitionId, key: &Key) {
        let is_written = Arc::new(AtomicBool::new(false));
        let (outbox, server, key) = (Arc::clone(self), Arc::clone(server), key.clone());
        let mut sending = Box::pin(outbox.send_next(server, partition, key, Arc::clone(&is_written)));
        let is_over = poll_fn(|cx| match sending.as_mut().poll(cx) {
            Poll::Pending if is_written.load(Ordering::Relaxed) => Poll::Ready(false),
            // Where there is no connection, the decision is about to find that out, too.
            sent => sent.map(|_| true),
        });
        if !is_over.await {
            drop(tokio::spawn(sending));
        }
    }

    /// The same for the task.
    async fn carry_out(self: Arc<Self>, server: Arc<Server>, partition: PartitionId, key: Key) {
        let sending = Arc::clone(&self).send_next(server, partition, key, Arc::default());
        if let Err(error) = sending.await
            && let Some(unsent) = self.order.cancel_next(partition)
        {
            let _ = unsent.done.send(report(Err(error), &self.log));
        }
    }

    /// Renews all leases, also those that the server has lost. One that is released meanwhile is taken from the server
    /// afterwards; one that is being released was not held any more at the start.
    async fn renew(self: &Arc<Self>, server: &Arc<Server>) {
        self.renewing.send_replace(true);
        let _over = Renewing(self);
        renew(server, self).await;
    }
}

/// Leases are being renewed, until this is dropped.
struct Renewing<'a>(&'a Outbox);

impl Drop for Renewing<'_> {
    fn drop(&mut self) {
        self.0.renewing.send_replace(false);
    }
}

fn unsettled(reason: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, reason)
}

/// Ends when the store is gone and all is done.
///
/// A job does not wait for those before it: one of them may be about a server that hangs. Only a renewal is waited for,
/// so that nothing is released behind its back.
async fn work(server: Arc<Server>, mut jobs: mpsc::Receiver<Job>, outbox: Arc<Outbox>) {
    let period = server.lease_time / 3;
    let mut renewal = Instant::now() + period;
    let (mut batch, mut calls) = (Vec::new(), JoinSet::new());
    loop {
        if Instant::now() >= renewal {
            outbox.renew(&server).await;
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
                    calls.spawn(carry_out(Arc::clone(&server), job, Arc::clone(&outbox)));
                }
            }
            Err(_) => {}
        }
    }
    calls.join_all().await;
}

async fn carry_out(server: Arc<Server>, job: Job, outbox: Arc<Outbox>) {
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
                let _ = report(released, &outbox.log);
            }
        }
        Job::Settle { partition, key } => outbox.carry_out(server, partition, key).await,
    }
}

async fn renew(server: &Arc<Server>, outbox: &Arc<Outbox>) {
    let mut calls = JoinSet::new();
    for (key, leases) in server.leases.by_key() {
        for leases in leases.chunks(RENEWED_TOGETHER) {
            let call = Call::renew(key.clone(), leases, server.lease_time, server.now());
            let (server, outbox) = (Arc::clone(server), Arc::clone(outbox));
            calls.spawn(async move {
                let renewed = within_deadline(&server, send(&server, &call)).await;
                let _ = report(renewed, &outbox.log);
            });
            if calls.len() >= BATCH {
                calls.join_next().await;
            }
        }
    }
    calls.join_all().await;
}

async fn send(server: &Server, call: &Call) -> Settled {
    server.topology.send(call).await.map(drop)
}

async fn within_deadline(server: &Server, call: impl Future<Output = Settled>) -> Settled {
    let too_late = || Err(StoreError::new(StoreErrorKind::TimedOut, "no answer to a settlement"));
    let settled = last_turn::within(Instant::now() + DEADLINE, call, || Some(server.topology.catch_up())).await;
    settled.unwrap_or_else(too_late)
}

fn report(settled: Settled, log: &UnsettledTelemetry) -> Settled {
    settled.inspect_err(|error| log.record(Clock::system().now(), error))
}
