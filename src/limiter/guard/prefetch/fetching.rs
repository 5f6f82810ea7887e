use tokio::sync::oneshot::{self, Receiver, Sender};

use super::batch::Batch;
use crate::{
    clock::Timestamp,
    decision::{Decision, Outcome, Plan},
    error::StoreError,
};

pub(super) struct Fetching {
    pub(super) order: Order,
    /// Units that no waiting request has reserved.
    spare: u64,
    waiters: Vec<(Plan, Sender<Verdict>)>,
    /// Units charged individually since the call started, perhaps after the batch was charged.
    pub(super) charged_apart: u64,
    pub(super) is_void: bool,
    /// The deadline has passed, so no request can join.
    is_late: bool,
    /// There was a settlement since the call started: a rejection does not apply to requests that joined later.
    pub(super) is_stale: bool,
}

/// `Ok(None)`: the batch did not cover the request, so it must be charged individually.
pub(super) type Verdict = Result<Option<Decision>, StoreError>;

/// Sent while no lock is held.
pub(super) type Verdicts = Vec<(Sender<Verdict>, Verdict)>;

#[derive(Clone, Copy)]
pub(super) struct Order {
    pub(super) id: u64,
    pub(super) units: u64,
    /// The local time before the call.
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

    pub(super) fn join(&mut self, plan: &Plan) -> Option<Receiver<Verdict>> {
        if self.is_void || self.is_late {
            return None;
        }
        self.spare = self.spare.checked_sub(plan.costs().requests)?;
        let (sender, verdict) = oneshot::channel();
        self.waiters.push((plan.clone(), sender));
        Some(verdict)
    }

    pub(super) fn serve(self, batch: &mut Batch, verdicts: &mut Verdicts) -> u64 {
        batch.charged_apart = self.charged_apart;
        if self.is_void {
            batch.forget();
        }
        let before = batch.rest();
        for (plan, verdict) in self.waiters {
            // Requests that have missed their deadline were not counted, but cancelled ones still wait.
            if !verdict.is_closed() {
                verdicts.push((verdict, Ok(batch.spend(&plan))));
            }
        }
        before - batch.rest()
    }

    /// The remaining units may be enough for a single request.
    pub(super) fn reject(self, decision: &Decision, is_alone: bool, verdicts: &mut Verdicts) {
        for (plan, verdict) in self.waiters {
            let own = decision.of_another(plan, 0, 0).filter(|_| !is_alone);
            verdicts.push((verdict, Ok(own.filter(|own| own.outcome() == Outcome::Rejected))));
        }
    }

    /// A batch that arrives later serves other requests.
    pub(super) fn give_up(&mut self, error: &StoreError, verdicts: &mut Verdicts) {
        self.is_late = true;
        let waiters = self.waiters.drain(..);
        verdicts.extend(waiters.map(|(_, verdict)| (verdict, Err(error.clone()))));
    }

    pub(super) fn fail(mut self, error: &StoreError, verdicts: &mut Verdicts) {
        self.give_up(error, verdicts);
    }
}
