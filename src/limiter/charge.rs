//! The open charge of a request that was passed on: its slots, its bytes, its own units, its place in a queue.

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
    telemetry::HeldSlots,
};

/// An allowed request that is not over. Each part of it has a clone of the `Arc`: the future, the response body, the request
/// body, an upgraded connection. When the last of them is dropped, the request is over, and its charge is settled once.
pub(crate) struct OpenCharge {
    guard: Arc<Guard>,
    state: Mutex<State>,
    slots: Option<HeldSlots>,
}

struct State {
    decision: Decision,
    /// The costs of the request so far, as opposed to those that are charged.
    actual: Costs,
    /// The real amounts in units of the program's own, as far as they were said.
    usage: Usage,
    /// The actual cost in requests, until it is settled. A charge of requests changes once: a store takes only a part of a charge
    /// above its bound, so that a second change would not know how much there is to give back.
    cost: Option<u64>,
    is_settled: bool,
    progress: Progress,
    /// True if a `RequestContentLayer` counts the bytes of the request.
    has_reader: bool,
    /// True if the content of the response is sent, and not its head alone.
    has_response_content: bool,
    /// True once the response has ended, and was not dropped before.
    has_ended: bool,
}

/// The progress of the request.
enum Progress {
    /// It waits for its turn. If it is cancelled now, it stays charged: it was asked for.
    Queued,
    /// The inner service was called.
    PassedOn,
    /// The inner service failed before it was called, or the work was not done. Reported units alone stay charged.
    Unserved,
}

impl OpenCharge {
    /// Maximum number of bytes that are streamed before they are charged, or charged before they are streamed: a stream that
    /// never ends is charged all the same, and a cancelled one for little more than was read.
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

    /// A clone of the decision, which cannot be settled.
    pub(super) fn decision(&self) -> Decision {
        self.state.lock().decision.clone()
    }

    /// The inner service is called.
    pub(crate) fn passed_on(&self) {
        self.state.lock().progress = Progress::PassedOn;
    }

    /// Returns `true` if it holds slots that end with the response, because no program has taken them.
    pub(crate) fn holds_slots_alone(self: &Arc<Self>) -> bool {
        self.slots.is_some() && Arc::strong_count(self) == 1
    }

    /// The inner service failed before it was called, or the work was not done.
    pub(crate) fn unserved(&self) {
        self.state.lock().progress = Progress::Unserved;
    }

    /// An inner layer has rejected the request.
    pub(crate) fn rejected(&self) {
        self.state.lock().usage.waive_estimates();
    }

    /// The response has ended.
    pub(crate) fn ended(&self) {
        self.state.lock().has_ended = true;
    }

    /// The cost in policies that count requests is known. It is settled when the response begins, or else at the end.
    pub(super) fn cost(&self, requests: u64) {
        let mut state = self.state.lock();
        if !state.is_settled {
            state.cost = Some(requests);
        }
    }

    /// The request was passed on, and the handler takes no charge for it: what was transferred or reported stays charged.
    pub(super) fn waived(&self) {
        self.cost(0);
        self.rejected();
    }

    /// The response begins. Its costs and the length that it announces are charged before it is sent; for a long one, the
    /// first instalment. Returns all that is charged by then.
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

    /// The handler says what was used of a unit. Returns `true` if that has an effect.
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

    /// From now on the request's bytes are counted as they come, in place of the announced ones.
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

    /// Charges bytes that were transferred beyond those that are charged, an instalment at a time.
    fn transferred(&self, bytes: usize, of: impl Fn(&mut Costs) -> &mut u64) {
        let mut state = self.state.lock();
        let transferred = of(&mut state.actual);
        *transferred = transferred.saturating_add(bytes as u64);
        let (transferred, mut charged) = (*transferred, state.decision.charged());
        if transferred > of(&mut charged).saturating_add(Self::INSTALMENT) {
            // Bytes that were announced and have not come yet stay charged.
            charged.request_bytes = charged.request_bytes.max(state.actual.request_bytes);
            charged.response_bytes = charged.response_bytes.max(state.actual.response_bytes);
            self.settle(&mut state, charged);
        }
    }

    /// Counts the units of the program's own, for operators.
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
            // Without a reader it is not known what was sent, and a body that was not read counts as not sent.
            Progress::Queued if !state.has_reader => Settlement::cancelled(&state.decision),
            Progress::Queued => Settlement::finish(&state.decision, state.actual),
            Progress::PassedOn => {
                // A late charge may have met the bound of the debt. It is not known how much of it was taken, so none of it is
                // given back: otherwise a client that reads most of a large response and disconnects would owe nothing.
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
