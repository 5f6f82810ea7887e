use std::{fmt, sync::Arc};

use http::Method;

use super::{
    guard::Guard,
    usage::{Report, Usage},
};
use crate::{
    decision::{Costs, Decision, Measurement, Plan, Settlement},
    policy::{MAX_UNITS, QuotaUnit, UnitId},
    sync::mutex::Mutex,
    telemetry::OneMore,
};

/// Settled once, when the last clone of the `Arc` is dropped: the future, the response body, the request body and an
/// upgraded connection hold one each.
pub(crate) struct OpenCharge {
    guard: Arc<Guard>,
    state: Mutex<State>,
    slots: Option<OneMore>,
}

struct State {
    decision: Decision,
    actual: Costs,
    usage: Usage,
    /// In requests, until it is settled. Settled only once: a store caps late charges, so a second settlement would not
    /// know how much to refund.
    cost: Option<u64>,
    is_settled: bool,
    progress: Progress,
    has_reader: bool,
    /// False for `HEAD`.
    has_response_content: bool,
    /// Not set if the response was dropped early.
    has_ended: bool,
}

enum Progress {
    /// In a leaky-bucket queue. Cancelling the request now does not refund it.
    Queued,
    PassedOn,
    /// Only reported units remain charged.
    Unserved,
}

impl OpenCharge {
    /// Maximum difference between streamed and charged bytes, so that an endless stream is charged while it is sent.
    const INSTALMENT: u64 = 1 << 20;

    pub(crate) fn new(guard: Arc<Guard>, decision: Decision, request: &Method) -> Arc<Self> {
        let state = State {
            actual: decision.charged(),
            decision,
            usage: Usage::default(),
            cost: None,
            is_settled: false,
            progress: Progress::Queued,
            has_reader: false,
            has_response_content: *request != Method::HEAD,
            has_ended: false,
        };
        Arc::new(Self {
            slots: guard.slots_held(&state.decision),
            guard,
            state: Mutex::new(state),
        })
    }

    /// A clone cannot be settled.
    pub(super) fn decision(&self) -> Decision {
        self.state.lock().decision.clone()
    }

    pub(crate) fn passed_on(&self) {
        self.state.lock().progress = Progress::PassedOn;
    }

    /// True if no handler holds a permit, so that the response releases the slots.
    pub(crate) fn holds_slots_alone(self: &Arc<Self>) -> bool {
        self.slots.is_some() && Arc::strong_count(self) == 1
    }

    pub(crate) fn unserved(&self) {
        self.state.lock().progress = Progress::Unserved;
    }

    pub(crate) fn rejected(&self) {
        self.state.lock().usage.waive_estimates();
    }

    pub(crate) fn ended(&self) {
        self.state.lock().has_ended = true;
    }

    /// Applied when the response begins, or, if set later, when it ends.
    pub(super) fn cost(&self, requests: u64) {
        let mut state = self.state.lock();
        if !state.is_settled {
            state.cost = Some(requests);
        }
    }

    /// Transferred bytes and reported units remain charged.
    pub(super) fn waived(&self) {
        self.cost(0);
        self.rejected();
    }

    /// Called before the response is sent. Charges the announced length, but at most one instalment.
    pub(crate) fn announce(&self, requests: Option<u64>, length: Option<u64>) -> Costs {
        let mut state = self.state.lock();
        let charged = state.decision.charged();
        let mut costs = charged;
        let requests = requests.or(state.cost.take());
        state.is_settled |= requests.is_some();
        costs.requests = requests.unwrap_or(charged.requests);
        let length = length.filter(|_| state.has_response_content);
        costs.request_bytes = state.actual.request_bytes.max(charged.request_bytes);
        costs.response_bytes = length.map_or(charged.response_bytes, |length| length.min(Self::INSTALMENT));
        costs.units = state.usage.amounts(charged.units, state.has_ended);
        state.actual.requests = costs.requests;
        self.settle(&mut state, costs);
        costs
    }

    pub(super) fn used(&self, unit: UnitId, report: Report) -> bool {
        let mut state = self.state.lock();
        let mut charged = state.decision.charged();
        let Some(place) = charged.units.place(unit) else {
            return false;
        };
        state.usage.take(place, report);
        let used = state.usage.amounts(charged.units, false);
        let (before, now) = (charged.units.amounts()[place], used.amounts()[place]);
        let is_final = matches!(report, Report::Final(_));
        if (is_final && now != before) || now > before.saturating_mul(2) {
            charged.units.set(unit, now);
            self.settle(&mut state, charged);
        }
        true
    }

    pub(crate) fn count_request_bytes(&self) {
        let mut state = self.state.lock();
        state.has_reader = true;
        state.actual.request_bytes = 0;
    }

    pub(crate) fn request_bytes(&self, bytes: usize) {
        self.transferred(bytes, |costs| &mut costs.request_bytes);
    }

    pub(crate) fn response_bytes(&self, bytes: usize) {
        self.transferred(bytes, |costs| &mut costs.response_bytes);
    }

    /// In instalments.
    fn transferred(&self, bytes: usize, of: impl Fn(&mut Costs) -> &mut u64) {
        let mut state = self.state.lock();
        let transferred = of(&mut state.actual);
        *transferred = transferred.saturating_add(bytes as u64);
        let (transferred, mut charged) = (*transferred, state.decision.charged());
        if transferred > of(&mut charged).saturating_add(Self::INSTALMENT) {
            // Announced bytes that have not arrived yet remain charged.
            charged.request_bytes = charged.request_bytes.max(state.actual.request_bytes);
            charged.response_bytes = charged.response_bytes.max(state.actual.response_bytes);
            self.settle(&mut state, charged);
        }
    }

    fn report(&self, state: &State) {
        let plan = state.decision.admitted().map(Measurement::plan);
        let expected = plan.map_or(Costs::NOTHING, Plan::costs);
        let mut told = [false; MAX_UNITS];
        for policy in plan.into_iter().flat_map(Plan::policies) {
            if let QuotaUnit::Custom(unit) = policy.policy().unit()
                && let Some(place) = expected.units.place(unit.id())
                && !std::mem::replace(&mut told[place], true)
            {
                let [expected, used] = [expected, state.actual].map(|costs| costs.units.amounts()[place]);
                self.guard.used(unit.as_str(), expected, used);
            }
        }
    }

    fn settle(&self, state: &mut State, costs: Costs) {
        let settlement = Settlement::change(&state.decision, costs);
        self.guard.settle(&state.decision, settlement);
        state.decision.set_charged(costs);
    }
}

impl Drop for OpenCharge {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let settlement = match state.progress {
            // Without a reader, it is unknown how many bytes arrived. A body that was not read counts as not sent.
            Progress::Queued if !state.has_reader => Settlement::cancelled(&state.decision),
            Progress::Queued => Settlement::finish(&state.decision, state.actual),
            Progress::PassedOn => {
                // A late charge may have been capped, and the applied amount is unknown, so nothing is refunded.
                // Otherwise, a client could read most of a large response, disconnect, and be charged nothing.
                let charged = state.decision.charged().response_bytes;
                state.actual.response_bytes = state.actual.response_bytes.max(charged);
                state.actual.requests = state.cost.unwrap_or(state.actual.requests);
                state.actual.units = state.usage.amounts(state.decision.charged().units, state.has_ended);
                Settlement::finish(&state.decision, state.actual)
            }
            Progress::Unserved => {
                state.actual = Costs {
                    units: state.usage.reported(state.decision.charged().units),
                    ..Costs::NOTHING
                };
                Settlement::unserved(&state.decision, state.actual)
            }
        };
        self.guard.settle(&state.decision, settlement);
        self.report(&state);
    }
}

impl fmt::Debug for OpenCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenCharge")
    }
}
