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
    sync::{mpsc, oneshot},
    task::{JoinSet, unconstrained},
    time::{Instant, timeout_at},
};

use super::{
    engine::{Engine, Job},
    keyspace::Key,
    net::{Lane, store_error},
    order::{BlockedRelease, Settled, SettlementReply, UnsentSettlement},
    script::{Call, Reply, note_readings},
    server::Server,
};
use crate::{
    clock::Clock,
    decision::{PartSettlement, Plan, Settlement},
    error::{StoreError, StoreErrorKind},
    partition::PartitionId,
    store::StoreFuture,
    sync::deadline,
};

/// Further settlements are dropped.
const QUEUE: usize = 8_192;

const BATCH: usize = 256;

const RENEWED_TOGETHER: usize = 512;

/// Renewals wait for these calls, requests do not.
const DEADLINE: Duration = Duration::from_secs(5);

impl Engine {
    pub(super) fn settle(&self, settlement: Settlement) -> StoreFuture<()> {
        if let Some(lease) = settlement.released() {
            self.server.leases.release(lease);
        }
        let mut all: SmallVec<[oneshot::Receiver<SettlementReply>; 1]> = SmallVec::new();
        for part in settlement.parts().filter(|part| !part.is_empty()) {
            for call in Call::settle(&self.server, part) {
                let (done, settled) = oneshot::channel();
                let unsent = UnsentSettlement {
                    call,
                    releases: part.releases(),
                    done,
                    _settling: self.server.settling.subscribe(),
                };
                self.add(part.part.partition(), unsent);
                all.push(settled);
            }
        }
        if all.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        StoreFuture::boxed(async move {
            let (mut result, mut replies) = (Ok(()), SmallVec::<[Reply; 1]>::new());
            for settled in all {
                let lost = |_| Err(unsettled("settlement lost"));
                match settled.await.unwrap_or_else(lost) {
                    Ok(reply) => replies.push(reply),
                    Err(error) => result = result.and(Err(error)),
                }
            }
            result?;
            let parts = settlement.parts().filter(|part| !part.is_empty());
            // Only refunds of logs need more than one call per part.
            let mut late = parts.filter(PartSettlement::needs_readings).zip(&replies);
            late.try_for_each(|(part, reply)| note_readings(part, reply))
        })
    }

    pub(super) async fn flush(&self, timeout: Duration) -> Settled {
        let settling = &self.server.settling;
        if settling.receiver_count() > 0 {
            // The task may have ended with its runtime.
            self.start();
        }
        let is_over = deadline::ends_within(timeout, settling.closed()).await;
        let (kind, left, lost) = match is_over {
            true => match settling.send_replace(0) {
                0 => return Ok(()),
                lost => (StoreErrorKind::Unavailable, 0, lost),
            },
            // The next flush must not hide the loss.
            false => (StoreErrorKind::TimedOut, settling.receiver_count(), *settling.borrow()),
        };
        let message = format!("settlements in progress: {left}, lost since the last flush: {lost}");
        Err(StoreError::new(kind, message))
    }

    fn add(&self, partition: PartitionId, unsent: UnsentSettlement) {
        let key = unsent.call.key().clone();
        self.server.order.add(partition, unsent);
        if let Err(error) = self.try_send(Job::Settle { partition, key }) {
            self.server.cancel_next(partition, error);
        }
    }

    pub(super) async fn send_before(&self, plan: &Plan, key: &Key) {
        for part in plan.parts() {
            for _ in 0..self.server.order.unsent(part.partition()) {
                self.server.write_next(part.partition(), key).await;
            }
        }
    }

    pub(super) fn send(&self, job: Job) {
        let _ = self.server.settled(self.try_send(job));
    }

    fn try_send(&self, job: Job) -> Settled {
        match self.start() {
            Some(jobs) if jobs.try_send(job).is_ok() => Ok(()),
            Some(_) => Err(unsettled("settlement dropped: too many settlements queued")),
            None => Err(unsettled("settlement dropped: the Tokio runtime has shut down")),
        }
    }

    pub(super) fn start(&self) -> Option<mpsc::Sender<Job>> {
        let mut jobs = self.jobs.lock();
        if jobs.as_ref().is_none_or(mpsc::Sender::is_closed) {
            let (sender, receiver) = mpsc::channel(QUEUE);
            let task = work(Arc::clone(&self.server), receiver);
            Handle::try_current().ok()?.spawn(task);
            // Settlements left by the previous task.
            for (partition, key) in self.server.order.all_unsent() {
                let _ = sender.try_send(Job::Settle { partition, key });
            }
            *jobs = Some(sender);
        }
        jobs.clone()
    }
}

impl Server {
    /// Sets `is_written` once the oldest unsent settlement is written. After an error, it is still unsent.
    async fn send_next(self: Arc<Self>, partition: PartitionId, key: Key, is_written: Arc<AtomicBool>) -> Settled {
        let connection = self.topology.route(&key, Lane::Ordered).await?;
        let mut not_renewing = None;
        let (unsent, unacknowledged, write_lock) = loop {
            match self.order.next(partition, not_renewing.is_some()) {
                Ok(Some(next)) => break next,
                Ok(None) => return Ok(()),
                Err(BlockedRelease) => {}
            }
            // A renewal in progress would acquire the released slots again.
            not_renewing = Some(self.renewing.lock().await);
        };
        let mut sending = pin!(unconstrained(
            self.within_deadline(async { connection.send(&unsent.call).await })
        ));
        let written = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop((write_lock, not_renewing));
        is_written.store(true, Ordering::Relaxed);
        let reply = match written {
            Poll::Ready(reply) => reply,
            Poll::Pending => sending.await,
        };
        drop(unacknowledged);
        // The receiver is usually dropped, because requests do not wait.
        let _ = unsent.done.send(self.settled(reply));
        Ok(())
    }

    async fn write_next(self: &Arc<Self>, partition: PartitionId, key: &Key) {
        let is_written = Arc::new(AtomicBool::new(false));
        let sending = Arc::clone(self).send_next(partition, key.clone(), Arc::clone(&is_written));
        let mut sending = Box::pin(sending);
        let is_over = poll_fn(|cx| match sending.as_mut().poll(cx) {
            Poll::Pending if is_written.load(Ordering::Relaxed) => Poll::Ready(false),
            // Without a connection, the decision fails, too.
            sent => sent.map(|_| true),
        });
        if !is_over.await {
            drop(tokio::spawn(sending));
        }
    }

    async fn carry_out(self: Arc<Self>, job: Job) {
        match job {
            Job::Abandon(lease, keys, mut connection, _settling) => {
                for key in keys {
                    let call = Call::release(key, lease);
                    let behind = async {
                        let sent = call.send(&mut connection).await;
                        sent.map(drop).map_err(|unanswered| store_error(unanswered.into()))
                    };
                    let mut released = self.within_deadline(behind).await;
                    if released.is_err() {
                        released = self.send(&call).await;
                    }
                    let _ = self.settled(released);
                }
            }
            Job::Settle { partition, key } => {
                let sending = Arc::clone(&self).send_next(partition, key, Arc::default());
                if let Err(error) = sending.await {
                    self.cancel_next(partition, error);
                }
            }
        }
    }

    fn cancel_next(&self, partition: PartitionId, error: StoreError) {
        if let Some(unsent) = self.order.cancel_next(partition) {
            let _ = unsent.done.send(self.settled(Err(error)));
        }
    }

    /// Without those with a pending release.
    async fn renew(self: &Arc<Self>) {
        let _renewing = self.renewing.lock().await;
        let mut calls = JoinSet::new();
        for (key, leases) in self.leases.by_key() {
            for leases in leases.chunks(RENEWED_TOGETHER) {
                let (server, call) = (Arc::clone(self), Call::renew(self, key.clone(), leases));
                calls.spawn(async move { server.report(server.send(&call).await) });
                if calls.len() >= BATCH {
                    calls.join_next().await;
                }
            }
        }
        // `join_all` would panic if the runtime ends and cancels the calls.
        while calls.join_next().await.is_some() {}
    }

    async fn send(&self, call: &Call) -> Settled {
        self.within_deadline(async { self.topology.send(call).await.map(drop) })
            .await
    }

    async fn within_deadline<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let settled = deadline::within(Instant::now() + DEADLINE, call, || self.topology.silence()).await;
        settled.unwrap_or_else(|late| Err(late.error("no reply to a settlement")))
    }

    fn settled<T>(&self, settled: Result<T, StoreError>) -> Result<T, StoreError> {
        if settled.is_err() {
            self.settling.send_modify(|lost| *lost += 1);
        }
        self.report(settled)
    }

    fn report<T>(&self, settled: Result<T, StoreError>) -> Result<T, StoreError> {
        settled.inspect_err(|error| self.unsettled.record(Clock::system().now(), error))
    }
}

fn unsettled(reason: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, reason)
}

/// Jobs run concurrently, because one server may hang. Renewals delay them, so that no slot is released meanwhile.
async fn work(server: Arc<Server>, mut jobs: mpsc::Receiver<Job>) {
    let period = server.lease_time / 3;
    let mut renewal = Instant::now() + period;
    let (mut batch, mut calls) = (Vec::new(), JoinSet::new());
    loop {
        if Instant::now() >= renewal {
            server.renew().await;
            renewal = Instant::now() + period;
        }
        while calls.try_join_next().is_some() {}
        if calls.len() >= BATCH {
            calls.join_next().await;
            continue;
        }
        if let Ok(taken) = timeout_at(renewal, jobs.recv_many(&mut batch, BATCH - calls.len())).await {
            if taken == 0 {
                break;
            }
            for job in batch.drain(..) {
                calls.spawn(Arc::clone(&server).carry_out(job));
            }
        }
    }
    while calls.join_next().await.is_some() {}
}
