//! Units that are taken in advance: an instance charges many at once, spends them by itself, and gives back the rest.
//!
//! A request goes the first of these ways that it can:
//!
//! 1. It is decided by the block that its partition has. Nobody is asked, and nobody waits.
//! 2. It waits for a block that is being taken, if there are units in it that nobody else waits for.
//! 3. It takes a block, if it is worth while: while a partition keeps asking, blocks double; and none is larger than a
//!    share of what the store has left.
//! 4. It is charged by itself, as without all this. So requests are never queued behind each other for single units.
//!
//! A block is taken by a task of its own: the requests that wait for it may miss their deadlines, and the units are not
//! lost. Another task gives back what was not spent in time; it runs while there are blocks.

mod block;
mod holding;

use std::{
    fmt,
    future::Future,
    hash::BuildHasher,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use foldhash::fast::RandomState;
use tokio::{runtime::Handle, task::AbortHandle, time::Instant};

use self::{
    block::Block,
    holding::{Holding, Step, Verdict, Verdicts},
};
use super::{Asked, Deciding, Guard, Place, Settling, Waiting};
use crate::{
    bounded_map::BoundedMap,
    clock::{Clock, Timestamp},
    error::{StoreError, StoreErrorKind},
    exchange::{Allowance, Decision, Outcome, Plan},
    partition::PartitionId,
    policy::BlockTerms,
};

/// All units that an instance holds. They are given back when it is dropped.
pub(super) struct Prefetch(Arc<Holdings>);

struct Holdings {
    shards: [Mutex<BoundedMap<Holding>>; Self::SHARDS],
    hasher: RandomState,
    settling: Settling,
    clock: Clock,
    next_id: AtomicU64,
    /// Partitions that are being reset.
    resets: Mutex<Vec<PartitionId>>,
    /// The task that gives back.
    task: Mutex<Option<AbortHandle>>,
}

/// Decides a plan whose units may be taken in advance.
pub(super) fn decide(guard: &Arc<Guard>, plan: Plan, terms: BlockTerms) -> Deciding {
    if let Some(decision) = guard.prefetch.0.spend(&plan) {
        return Deciding::Decided(decision);
    }
    if guard.places.are_taken() {
        return guard.without_store(Some(plan), &guard.places.overloaded());
    }
    // Nobody could give back what is not spent.
    if Handle::try_current().is_err() {
        return guard.ask(plan, guard.deadline);
    }
    let decision = decide_by_store(Arc::clone(guard), plan, terms);
    let mut decision = Waiting::new(guard, guard.log.waiting(decision));
    // A store in this process answers at once.
    match Pin::new(&mut decision).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => Deciding::Decided(decision),
        Poll::Pending => Deciding::Waiting(decision),
    }
}

async fn decide_by_store(guard: Arc<Guard>, plan: Plan, terms: BlockTerms) -> Decision {
    let deadline = Instant::now() + guard.deadline;
    let holdings = &guard.prefetch.0;
    let verdict = match holdings.step(&plan, terms) {
        Step::Alone => return alone(&guard, plan, deadline).await,
        Step::Decided(decision) => return *decision,
        Step::Take(take, verdict) => {
            take.begin(&guard);
            verdict
        }
        Step::Wait(verdict) => verdict,
    };
    let place = Place::take(&guard);
    let verdict = guard.within(deadline, verdict).await;
    drop(place);
    match verdict {
        Some(Ok(Verdict::Decided(decision))) => decision,
        Some(Ok(Verdict::Failed(error))) => guard.without_store(Some(plan), &error).decided().await,
        // The runtime of the task that took the block has ended.
        Some(Ok(Verdict::Alone) | Err(_)) => alone(&guard, plan, deadline).await,
        None => guard.without_store(Some(plan), &too_late()).decided().await,
    }
}

/// Has the store decide one request. Before it is rejected, a rest that was too small for it goes back, if both together
/// may be enough.
async fn alone(guard: &Arc<Guard>, plan: Plan, deadline: Instant) -> Decision {
    let holdings = &guard.prefetch.0;
    let decision = ask(guard, plan.clone(), deadline).await;
    if decision.outcome() != Outcome::Rejected || decision.is_by_fallback() {
        return decision;
    }
    if let Some(decision) = holdings.spend(&plan) {
        return decision;
    }
    let Some(mut rest) = holdings.take_rest(&plan, &decision) else {
        return decision;
    };
    match guard.within(deadline, rest.give_back()).await {
        Some(Ok(())) => {
            guard.denials.forget(plan.partition(), &guard.clock);
            ask(guard, plan, deadline).await
        }
        Some(Err(_)) | None => decision,
    }
}

async fn ask(guard: &Arc<Guard>, plan: Plan, deadline: Instant) -> Decision {
    let deadline = deadline.saturating_duration_since(Instant::now());
    if deadline.is_zero() {
        return guard.without_store(Some(plan), &too_late()).decided().await;
    }
    let cost = plan.costs().requests;
    let (partition, policies) = (plan.partition(), plan.only_part().map(|part| part.policies().clone()));
    let decision = guard.ask(plan, deadline).decided().await;
    if let Some(policies) = policies.filter(|_| !decision.is_by_fallback()) {
        let mut shard = guard.prefetch.0.shard(partition);
        let holding = shard.get_mut(partition).filter(|holding| holding.is_about(&policies));
        if let Some(holding) = holding {
            holding.charged_apart(cost, &decision);
        }
    }
    decision
}

/// Whether a request that was rejected may pass once so many units are given back. Where the rejection is remembered, nothing is
/// known to be left: that was looked at when the store gave it.
fn may_suffice(units: u64, rejection: &Decision) -> bool {
    let may_be_enough = |allowance: Allowance<'_>| allowance.remaining().saturating_add(units) >= allowance.cost();
    rejection.violated().all(may_be_enough)
}

fn too_late() -> StoreError {
    StoreError::new(StoreErrorKind::TimedOut, "no units were there within the deadline")
}

impl Prefetch {
    pub(super) fn new(settling: Settling, clock: Clock) -> Self {
        Self(Arc::new(Holdings {
            shards: std::array::from_fn(|_| Mutex::new(BoundedMap::new(Holdings::SHARD_CAP, || {}))),
            hasher: RandomState::default(),
            settling,
            clock,
            next_id: AtomicU64::new(0),
            resets: Mutex::default(),
            task: Mutex::default(),
        }))
    }

    /// Nothing that is held of a partition is spent or given back any more, and nothing is taken in advance until it is
    /// reset: nobody would know whether that has forgotten it.
    pub(super) fn reset(&self, partition: PartitionId) -> Resetting {
        lock(&self.0.resets).push(partition);
        let resetting = Resetting {
            partition,
            holdings: Arc::clone(&self.0),
        };
        if let Some(holding) = self.0.shard(partition).get_mut(partition) {
            holding.forget();
        }
        resetting
    }
}

/// A partition that is being reset, until this is dropped.
#[must_use = "the reset is over when this is dropped"]
pub(super) struct Resetting {
    partition: PartitionId,
    holdings: Arc<Holdings>,
}

impl Drop for Resetting {
    fn drop(&mut self) {
        let mut resets = lock(&self.holdings.resets);
        if let Some(own) = resets.iter().position(|partition| *partition == self.partition) {
            resets.swap_remove(own);
        }
    }
}

impl fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prefetch(..)")
    }
}

impl Holdings {
    const SHARDS: usize = 16;
    /// Partitions that asked just now, of each shard.
    const SHARD_CAP: usize = 1_024;
    /// How often is looked for what was not spent in time.
    const TICK: Duration = Duration::from_millis(50);

    fn shard(&self, partition: PartitionId) -> MutexGuard<'_, BoundedMap<Holding>> {
        let hash = self.hasher.hash_one(partition);
        lock(&self.shards[(hash >> 32) as usize % Self::SHARDS])
    }

    /// Decides a plan by units that are there.
    fn spend(&self, plan: &Plan) -> Option<Decision> {
        let part = plan.only_part()?;
        let mut shard = self.shard(part.partition());
        let holding = shard.visit(part.partition())?;
        holding
            .is_about(part.policies())
            .then(|| holding.spend(plan, self.clock.now()))?
    }

    fn step(self: &Arc<Self>, plan: &Plan, terms: BlockTerms) -> Step<Take> {
        let Some(part) = plan.only_part() else {
            return Step::Alone;
        };
        let (partition, id) = (part.partition(), self.next_id.fetch_add(1, Ordering::Relaxed));
        // Declared before the lock, and so dropped after it.
        let (_over, _older);
        let mut shard = self.shard(partition);
        let now = self.clock.now();
        let holding = shard.get_or_insert_with(
            partition,
            |holding| holding.is_useless(now, terms),
            Holding::worth,
            || Holding::new(part.policies().clone()),
        );
        _older = (!holding.is_about(part.policies()))
            .then(|| std::mem::replace(holding, Holding::new(part.policies().clone())));
        _over = holding.take_over(now);
        if lock(&self.resets).contains(&partition) {
            return Step::Alone;
        }
        holding.step(plan, terms, now, id).map_take(|units| Take {
            id,
            plan: plan.costing(units),
            terms,
            began: now,
            holdings: Arc::clone(self),
            has_landed: false,
        })
    }

    /// What is left of a block, is too little for a request, and may be enough with what the store had left when it rejected
    /// that.
    fn take_rest(&self, plan: &Plan, rejection: &Decision) -> Option<Box<Block>> {
        let part = plan.only_part()?;
        let mut shard = self.shard(part.partition());
        let holding = shard.get_mut(part.partition())?;
        if !holding.is_about(part.policies()) {
            return None;
        }
        holding.block.take_if(|block| may_suffice(block.rest(), rejection))
    }

    /// Sees to it that somebody gives back what is not spent in time.
    fn watch(self: &Arc<Self>) {
        let mut task = lock(&self.task);
        // It may have ended with the runtime that it was started in.
        if task.as_ref().is_none_or(AbortHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            *task = Some(runtime.spawn(give_back(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Gives back what was not spent in time. Returns whether anything is held that will have to be.
    fn sweep(&self) -> bool {
        let now = self.clock.now();
        let mut is_any_left = false;
        for shard in &self.shards {
            let mut shard = lock(shard);
            let over: Vec<_> = shard
                .values_mut()
                .filter_map(|holding| holding.take_over(now))
                .collect();
            is_any_left |= shard.values_mut().any(|holding| holding.block.is_some());
            drop(shard);
            drop(over);
        }
        is_any_left
    }

    /// Whether the task has nothing more to do; it is not there any more then.
    fn is_done(&self) -> bool {
        if self.sweep() {
            return false;
        }
        let mut task = lock(&self.task);
        // Whoever has landed a block before this lock was taken has found the task there.
        let is_done = !self.sweep();
        if is_done {
            *task = None;
        }
        is_done
    }
}

#[allow(clippy::disallowed_methods, reason = "it waits until units have to go back")]
async fn give_back(holdings: Weak<Holdings>) {
    loop {
        tokio::time::sleep(Holdings::TICK).await;
        if holdings.upgrade().is_none_or(|holdings| holdings.is_done()) {
            return;
        }
    }
}

/// Nothing that is done under these locks leaves anything half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block that is to be taken. If it is dropped before, nobody waits for it any more.
struct Take {
    id: u64,
    plan: Plan,
    terms: BlockTerms,
    began: Timestamp,
    holdings: Arc<Holdings>,
    has_landed: bool,
}

impl Take {
    /// Asks the store. Unless it answers at once, a task waits for it, whatever becomes of the request.
    fn begin(self, guard: &Arc<Guard>) {
        match guard.begin(self.plan.clone(), guard.deadline) {
            Asked::Answered(result) => self.land(result),
            Asked::UnderWay(call) => {
                let guard = Arc::clone(guard);
                drop(tokio::spawn(async move {
                    self.land(guard.finish(call, guard.deadline).await);
                }));
            }
        }
    }

    fn land(mut self, result: Result<Decision, StoreError>) {
        self.has_landed = true;
        let mut verdicts = Verdicts::new();
        match result {
            Ok(decision) => self.decided(&decision, &mut verdicts),
            Err(error) => {
                let taking = self.end(&mut self.holdings.shard(self.plan.partition()));
                if let Some(taking) = taking {
                    taking.fail(&error, &mut verdicts);
                }
            }
        }
        for (sender, verdict) in verdicts {
            // A request that has missed its deadline does not listen.
            let _ = sender.send(verdict);
        }
    }

    fn decided(&self, decision: &Decision, verdicts: &mut Verdicts) {
        let settling = self.holdings.settling.clone();
        // Whatever becomes of it, what is not spent is given back, and where no lock is held.
        let block = Block::new(self.plan.clone(), decision.clone(), self.terms, self.began, settling).map(Box::new);
        let partition = self.plan.partition();
        let (_dropped, is_held);
        let mut shard = self.holdings.shard(partition);
        match (self.end(&mut shard), shard.get_mut(partition)) {
            (Some(mut taking), Some(holding)) => {
                taking.is_stale = self.holdings.settling.may_have_given_back(partition, self.began);
                _dropped = holding.landed(taking, decision, block, self.holdings.clock.now(), verdicts);
                is_held = holding.block.is_some();
            }
            _ => (_dropped, is_held) = (block, false),
        }
        drop(shard);
        if is_held {
            self.holdings.watch();
        }
    }

    /// Nobody can join any more. There is nothing if the partition was thrown out meanwhile, or has other policies.
    fn end(&self, shard: &mut BoundedMap<Holding>) -> Option<holding::Taking> {
        let holding = shard.get_mut(self.plan.partition())?;
        holding.taking.take_if(|taking| taking.id == self.id)
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        if !self.has_landed {
            // Those who wait learn it from their channels.
            let taking = self.end(&mut self.holdings.shard(self.plan.partition()));
            drop(taking);
        }
    }
}
