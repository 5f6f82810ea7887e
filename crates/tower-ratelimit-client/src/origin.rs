//! The shared state and the queue of all requests to one origin.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use http::{HeaderMap, StatusCode, request::Parts};
use tokio::{
    sync::{Notify, Semaphore},
    time::{sleep_until, timeout_at},
};

use super::{
    Caps, Profile, Strategy, Throttled, ThrottledKind,
    advice::{Advice, Exchange},
    pacing::{Acquire, Pacing, SendPermit, Wait},
    profile::Profiles,
};

/// Tests can pause this clock.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Ignores poisoning: only code outside this crate can panic under these locks, so the value is valid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Origin {
    state: Mutex<OriginState>,
    /// Only the first request in the queue checks the state again.
    line: Semaphore,
    /// Notified when the first waiting request may be able to proceed.
    changed: Notify,
    profile: Arc<Profile>,
}

pub(super) struct OriginState {
    pub(super) pacing: Pacing,
    pub(super) waiting: usize,
}

impl OriginState {
    pub(super) fn is_busy(&self) -> bool {
        self.waiting > 0 || self.pacing.in_flight() > 0
    }
}

pub(super) struct ClientConfig {
    pub(super) wall_clock: Box<WallClock>,
    pub(super) caps: Caps,
    pub(super) queue_timeout: Duration,
    pub(super) max_waiting: usize,
    pub(super) waiting: AtomicUsize,
    pub(super) strategy: Strategy,
    pub(super) jitter_percent: u8,
    pub(super) max_origins: usize,
    pub(super) partition_of: Option<Box<PartitionOf>>,
    pub(super) profiles: Profiles,
}

type PartitionOf = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

type WallClock = dyn Fn() -> SystemTime + Send + Sync;

pub(super) type Waiting = Pin<Box<dyn Future<Output = Result<Ticket, Throttled>> + Send>>;

pub(super) enum Entry {
    Go(Ticket),
    Wait(Waiting),
    Throttled(Throttled),
}

impl Origin {
    pub(super) fn new(pacing: Pacing, profile: Arc<Profile>) -> Self {
        Self {
            state: Mutex::new(OriginState { pacing, waiting: 0 }),
            line: Semaphore::new(1),
            changed: Notify::new(),
            profile,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, OriginState> {
        lock(&self.state)
    }

    /// Admits a request, or queues it until `deadline`. Requests do not overtake each other.
    pub(super) fn enter(self: &Arc<Self>, config: &Arc<ClientConfig>, deadline: Instant) -> Entry {
        let now = now();
        let mut state = self.lock();
        if state.waiting == 0
            && let Acquire::Ready(dispatch) = state.pacing.try_acquire(now)
        {
            return Entry::Go(self.ticket(config, dispatch));
        }
        let obstacle = state.pacing.obstacle(now);
        if let Some(wait) = obstacle.filter(|wait| is_hopeless(*wait, now, deadline)) {
            return Entry::Throttled(Throttled::new(ThrottledKind::TooLong, now, Some(wait.until())));
        }
        match Place::take(self, config, &mut state) {
            Some(place) => Entry::Wait(Box::pin(place.wait(deadline))),
            None => Entry::Throttled(Throttled::new(
                ThrottledKind::TooMany,
                now,
                obstacle.map(|wait| wait.until()),
            )),
        }
    }

    /// Until then, the request counts as waiting, but delays no other.
    pub(super) fn enter_later(
        self: &Arc<Self>,
        config: &Arc<ClientConfig>,
        deadline: Instant,
        delay: Duration,
    ) -> Entry {
        let start = now();
        let Some(permit) = WaiterPermit::acquire(config) else {
            return Entry::Throttled(Throttled::new(ThrottledKind::TooMany, start, Some(start + delay)));
        };
        let origin = Arc::clone(self);
        Entry::Wait(Box::pin(async move {
            sleep_until((start + delay).into()).await;
            let config = Arc::clone(&permit.0);
            drop(permit);
            match origin.enter(&config, deadline) {
                Entry::Go(ticket) => Ok(ticket),
                Entry::Wait(turn) => turn.await,
                Entry::Throttled(error) => Err(error),
            }
        }))
    }

    pub(super) fn may_return(&self, config: &ClientConfig, deadline: Instant, delay: Duration) -> bool {
        let now = now();
        let pacing = &self.lock().pacing;
        let is_hopeless = |wait| is_hopeless(wait, now, deadline);
        let is_in_time = now + delay <= deadline && !pacing.obstacle(now).is_some_and(is_hopeless);
        !pacing.only_observes() && is_in_time && !config.is_full()
    }

    pub(super) fn backoff(&self, failures: u32) -> Duration {
        self.lock().pacing.backoff(failures)
    }

    fn ticket(self: &Arc<Self>, config: &Arc<ClientConfig>, dispatch: SendPermit) -> Ticket {
        Ticket {
            origin: Arc::clone(self),
            config: Arc::clone(config),
            dispatch: Some(dispatch),
            sent: None,
        }
    }
}

fn is_hopeless(wait: Wait, now: Instant, deadline: Instant) -> bool {
    now >= deadline || (wait.is_certain() && wait.until() > deadline)
}

impl ClientConfig {
    pub(super) fn pacing(&self, partition: Option<Vec<u8>>) -> Pacing {
        let pacing = Pacing::new(self.strategy, self.caps).with_jitter(self.jitter_percent);
        match partition {
            Some(key) => pacing.with_partition_key(key),
            None => pacing,
        }
    }

    fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.max_waiting
    }
}

struct WaiterPermit(Arc<ClientConfig>);

impl WaiterPermit {
    fn acquire(config: &Arc<ClientConfig>) -> Option<Self> {
        let next = |waiting| (waiting < config.max_waiting).then_some(waiting + 1);
        let waiting = &config.waiting;
        waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        Some(Self(Arc::clone(config)))
    }
}

impl Drop for WaiterPermit {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Dropping a `Place` removes the request from the queue.
struct Place {
    origin: Arc<Origin>,
    permit: WaiterPermit,
}

impl Place {
    fn take(origin: &Arc<Origin>, config: &Arc<ClientConfig>, state: &mut OriginState) -> Option<Self> {
        let permit = WaiterPermit::acquire(config)?;
        state.waiting += 1;
        Some(Self {
            origin: Arc::clone(origin),
            permit,
        })
    }

    async fn wait(self, deadline: Instant) -> Result<Ticket, Throttled> {
        let (origin, config) = (&self.origin, &self.permit.0);
        let first = timeout_at(deadline.into(), origin.line.acquire()).await;
        loop {
            let now = now();
            let too_long = |until| Err(Throttled::new(ThrottledKind::TooLong, now, until));
            if first.is_err() {
                let obstacle = origin.lock().pacing.obstacle(now);
                return too_long(obstacle.map(|wait| wait.until()));
            }
            let turn = origin.lock().pacing.try_acquire(now);
            let wait = match turn {
                Acquire::Ready(dispatch) => return Ok(origin.ticket(config, dispatch)),
                Acquire::Wait(wait) => wait,
            };
            if is_hopeless(wait, now, deadline) {
                return too_long(Some(wait.until()));
            }
            // The next `try_acquire` distinguishes both outcomes. `Notify` stores a notification sent before this wait.
            let _ = timeout_at(wait.until().min(deadline).into(), origin.changed.notified()).await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.origin.lock().waiting -= 1;
    }
}

/// Dropping it records a loss, or cancels a request that was not sent.
pub(super) struct Ticket {
    origin: Arc<Origin>,
    config: Arc<ClientConfig>,
    dispatch: Option<SendPermit>,
    sent: Option<Instant>,
}

impl Ticket {
    pub(super) fn send(&mut self) {
        self.sent = Some(now());
    }

    pub(super) fn is_outdated(&self) -> bool {
        self.origin.lock().pacing.is_blocked(now())
    }

    pub(super) fn answer(mut self, status: StatusCode, headers: &HeaderMap) -> Advice {
        let now = now();
        let exchange = Exchange {
            received: (self.config.wall_clock)(),
            elapsed: self.sent.map_or(Duration::ZERO, |sent| now - sent),
        };
        let profile = &self.origin.profile;
        let advice = Advice::read_as(profile, status, headers, exchange, &self.config.caps);
        if let Some(dispatch) = self.dispatch.take() {
            self.origin.lock().pacing.record_response(dispatch, &advice, now);
        }
        advice
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(dispatch) = self.dispatch.take() {
            let pacing = &mut self.origin.lock().pacing;
            match self.sent {
                Some(_) => pacing.record_loss(dispatch),
                None => pacing.cancel(dispatch),
            }
        }
        self.origin.changed.notify_one();
    }
}
