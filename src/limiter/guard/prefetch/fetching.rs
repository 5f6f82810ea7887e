//! A batch that is under way, and the requests that wait for it.

use tokio::sync::oneshot::{self, Receiver, Sender};

use super::batch::Batch;
use crate::{
    clock::Timestamp,
    decision::{Decision, Outcome, Plan},
    error::StoreError,
};

/// A batch that is being fetched, and the requests that wait for it.
pub(super) struct Fetching {
    pub(super) order: Order,
    /// Units that no request waits for.
    spare: u64,
    waiters: Vec<(Plan, Sender<Verdict>)>,
    /// Units that were charged apart from it meanwhile, perhaps after it.
    pub(super) charged_apart: u64,
    /// True if the partition was reset meanwhile.
    pub(super) is_void: bool,
    /// True if it has missed its deadline. No request can join.
    is_late: bool,
    /// True if there was a refund meanwhile: a rejection then says nothing about the requests that have joined since.
    pub(super) is_stale: bool,
}

/// The answer to a request that has waited for a batch. `Ok(None)`: the batch was not for it, and it asks for itself.
pub(super) type Verdict = Result<Option<Decision>, StoreError>;

/// The answers to requests that have waited. They are sent where no lock is held.
pub(super) type Verdicts = Vec<(Sender<Verdict>, Verdict)>;

/// A batch that is to be fetched.
#[derive(Clone, Copy)]
pub(super) struct Order {
    pub(super) id: u64,
    pub(super) units: u64,
    /// The time before the call.
    pub(super) at: Timestamp,
}

impl Fetching {
    pub(super) fn new(order: Order) -> Self {
        Self {
            order,
            spare: order.units,
            waiters: Vec::new(),
            charged_apart: 0,
            is_void: false,
            is_late: false,
            is_stale: false,
        }
    }

    /// Reserves units, if there are enough.
    pub(super) fn join(&mut self, plan: &Plan) -> Option<Receiver<Verdict>> {
        if self.is_void || self.is_late {
            return None;
        }
        self.spare = self.spare.checked_sub(plan.costs().requests)?;
        let (sender, verdict) = oneshot::channel();
        self.waiters.push((plan.clone(), sender));
        Some(verdict)
    }

    /// The batch is there. Returns the units that were spent of it.
    pub(super) fn serve(self, batch: &mut Batch, verdicts: &mut Verdicts) -> u64 {
        batch.charged_apart = self.charged_apart;
        if self.is_void {
            batch.forget();
        }
        let before = batch.rest();
        for (plan, verdict) in self.waiters {
            // A request that has missed its deadline was not counted: it leaves its units to others. One that was cancelled
            // still listens.
            if !verdict.is_closed() {
                verdicts.push((verdict, Ok(batch.spend(&plan))));
            }
        }
        before - batch.rest()
    }

    /// Less is left than was asked for, perhaps enough for a single request.
    pub(super) fn reject(self, decision: &Decision, is_alone: bool, verdicts: &mut Verdicts) {
        for (plan, verdict) in self.waiters {
            let own = decision.of_another(plan, 0, 0).filter(|_| !is_alone);
            verdicts.push((verdict, Ok(own.filter(|own| own.outcome() == Outcome::Rejected))));
        }
    }

    /// The deadline has passed. What arrives later is for other requests.
    pub(super) fn give_up(&mut self, error: &StoreError, verdicts: &mut Verdicts) {
        self.is_late = true;
        let waiters = self.waiters.drain(..);
        verdicts.extend(waiters.map(|(_, verdict)| (verdict, Err(error.clone()))));
    }

    /// The store gave no decision.
    pub(super) fn fail(mut self, error: &StoreError, verdicts: &mut Verdicts) {
        self.give_up(error, verdicts);
    }
}
