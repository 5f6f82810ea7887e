//! The open charge of a request that was passed on: its slots, its bytes, its own units, its place in a queue.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use http::Method;
use smallvec::SmallVec;

use super::usage::{Report, Usage};
use crate::{
    decision::{Costs, Decision, Measurement, Plan, Settlement},
    guard::Guard,
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
    progress: Progress,
    /// True if a [`Reader`](super::content::Reader) counts the bytes of the request.
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

    pub(super) fn new(guard: Arc<Guard>, decision: Decision, request: &Method) -> Arc<Self> {
        let state = State {
            actual: decision.charged(),
            decision,
            usage: Usage::default(),
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

    /// The inner service is called.
    pub(super) fn passed_on(&self) {
        self.state.lock().progress = Progress::PassedOn;
    }

    /// Returns `true` if it holds slots that end with the response, because no program has taken them.
    pub(super) fn holds_slots_alone(self: &Arc<Self>) -> bool {
        self.slots.is_some() && Arc::strong_count(self) == 1
    }

    /// The inner service failed before it was called, or the work was not done.
    pub(super) fn unserved(&self) {
        self.state.lock().progress = Progress::Unserved;
    }

    /// An inner layer has rejected the request.
    pub(super) fn rejected(&self) {
        self.state.lock().usage.waive_estimates();
    }

    /// The response has ended.
    pub(super) fn ended(&self) {
        self.state.lock().has_ended = true;
    }

    /// The response begins. Its costs and the length that it announces are charged before it is sent; for a long one, the
    /// first instalment.
    pub(super) fn announce(&self, costs: &mut Costs, length: Option<u64>) {
        let mut state = self.state.lock();
        let charged = state.decision.charged();
        let length = length.filter(|_| state.has_response_content);
        costs.request_bytes = state.actual.request_bytes.max(charged.request_bytes);
        costs.response_bytes = length.map_or(charged.response_bytes, |length| length.min(Self::INSTALMENT));
        costs.units = state.usage.amounts(charged.units, state.has_ended);
        state.actual.requests = costs.requests;
        self.settle(&mut state, *costs);
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
    pub(super) fn count_request_bytes(&self) {
        let mut state = self.state.lock();
        state.has_reader = true;
        state.actual.request_bytes = 0;
    }

    pub(super) fn request_bytes(&self, bytes: usize) {
        self.transferred(bytes, |costs| &mut costs.request_bytes);
    }

    pub(super) fn response_bytes(&self, bytes: usize) {
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

/// The charges of the layers around each other, for the inner service. They end without regard to it.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenCharges(SmallVec<[Weak<OpenCharge>; 1]>);

impl OpenCharges {
    /// A request that goes round in circles does not collect the charges of rounds that are over.
    pub(super) fn new(charge: &Arc<OpenCharge>, outer: Option<Self>) -> Self {
        let outer = outer.into_iter().flat_map(|outer| outer.0);
        let open = outer.filter(|outer| outer.strong_count() > 0);
        Self(open.chain([Arc::downgrade(charge)]).collect())
    }

    /// Those that are still open.
    pub(super) fn iter(&self) -> impl Iterator<Item = Arc<OpenCharge>> {
        self.0.iter().filter_map(Weak::upgrade)
    }
}

impl fmt::Debug for OpenCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenCharge")
    }
}

/// The slot that a request holds where a policy limits [concurrent requests](crate::QuotaPolicy::concurrent).
///
/// The layer puts it into the extensions of the request; of several layers around each other that limit concurrent
/// requests, it has the slots of all. A slot becomes free when the response body has ended or was
/// dropped, and, where a [`RequestContentLayer`](crate::RequestContentLayer) counts it, the request body too. After an
/// upgrade (status 101, or `CONNECT`) the body ends at once, while the connection goes on: take the slot with
/// [`hold`](Self::hold) and keep it for as long as the upgraded connection is used.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use std::{convert::Infallible, sync::Arc};
/// use http::{Request, Response};
/// use tower_quota::SlotHandle;
/// # use tokio::sync::Notify;
///
/// async fn upgrade(request: Request<()>, closed: Arc<Notify>) -> Result<Response<String>, Infallible> {
///     let slot = request.extensions().get::<SlotHandle>().and_then(SlotHandle::hold);
///     tokio::spawn(async move {
///         closed.notified().await; // … the upgraded connection …
///         drop(slot);
///     });
///     Ok(Response::builder().status(101).body(String::new()).unwrap())
/// }
///
/// # run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("tunnels")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::concurrent("at once", 1))
///     .build()?;
/// # let closed = Arc::new(Notify::new());
/// # let for_service = Arc::clone(&closed);
/// # let service = layer.layer(service_fn(move |request| upgrade(request, Arc::clone(&for_service))));
/// # let open = || service.clone().oneshot(Request::get("/").header("x-user-id", "alice").body(()).unwrap());
/// assert_eq!(open().await?.status(), 101);
/// assert_eq!(open().await?.status(), 429);
/// closed.notify_one();
/// # tokio::task::yield_now().await;
/// assert_eq!(open().await?.status(), 101);
/// # Ok(()) });
/// ```
#[derive(Clone, Debug)]
pub struct SlotHandle(OpenCharges);

impl SlotHandle {
    /// `outer` is what the layers around this one have left in the request.
    pub(super) fn new(charge: &Arc<OpenCharge>, outer: Option<Self>) -> Self {
        Self(OpenCharges::new(charge, outer.map(|outer| outer.0)))
    }

    /// Holds the slot for as long as the returned value lives; `None` if the request is over already.
    ///
    /// ```
    /// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
    /// # use std::sync::Mutex;
    /// # run(async {
    /// # let layer = RateLimitLayer::builder(MemoryStore::new())
    /// #     .scope("api")
    /// #     .key(key::header("x-user-id"))
    /// #     .policy(QuotaPolicy::concurrent("at once", 1))
    /// #     .build()?;
    /// static HANDLE: Mutex<Option<SlotHandle>> = Mutex::new(None);
    /// let service = layer.layer(service_fn(async |request: Request<()>| {
    ///     let handle = request.extensions().get::<SlotHandle>().cloned();
    ///     assert!(handle.as_ref().is_some_and(|handle| handle.hold().is_some()));
    ///     *HANDLE.lock().unwrap() = handle;
    ///     Ok::<_, http::Error>(Response::new(String::new()))
    /// }));
    /// drop(service.oneshot(Request::new(())).await?);
    ///
    /// // Too late: the response is over, and another request may have the slot.
    /// assert!(HANDLE.lock().unwrap().as_ref().unwrap().hold().is_none());
    /// # Ok(()) });
    /// ```
    pub fn hold(&self) -> Option<HeldSlot> {
        let held: SmallVec<_> = self.0.iter().collect();
        (!held.is_empty()).then_some(HeldSlot(held))
    }
}

/// A slot that stays taken until this is dropped. See [`SlotHandle`].
///
/// It holds only the slot, so it may lie in anything that lives as long as the work: a connection, a task, a job in a queue.
///
/// ```
/// # mod set_up { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/set_up.rs")); } use set_up::*;
/// use std::sync::Mutex;
/// use tower_quota::{HeldSlot, SlotHandle};
///
/// /// A job that goes on after the response that says so.
/// struct Job(#[allow(dead_code)] Option<HeldSlot>);
///
/// # run(async {
/// let layer = RateLimitLayer::builder(MemoryStore::new())
///     .scope("jobs")
///     .key(key::header("x-user-id"))
///     .policy(QuotaPolicy::concurrent("jobs", 1))
///     .build()?;
/// static JOBS: Mutex<Vec<Job>> = Mutex::new(Vec::new());
/// let service = layer.layer(service_fn(async |request: Request<()>| {
///     JOBS.lock().unwrap().push(Job(request.extensions().get().and_then(SlotHandle::hold)));
///     Ok::<_, std::convert::Infallible>(Response::builder().status(202).body(String::new()).unwrap())
/// }));
/// let begin = || service.clone().oneshot(Request::post("/").header("x-user-id", "alice").body(()).unwrap());
///
/// assert_eq!(begin().await?.status(), 202);
/// assert_eq!(begin().await?.status(), 429);
/// JOBS.lock().unwrap().clear();
/// assert_eq!(begin().await?.status(), 202);
/// # Ok(()) });
/// ```
#[derive(Debug)]
#[must_use = "the slot becomes free when this is dropped"]
pub struct HeldSlot(#[allow(dead_code, reason = "it is held, not read")] SmallVec<[Arc<OpenCharge>; 1]>);
