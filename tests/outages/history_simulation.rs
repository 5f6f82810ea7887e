//! Histories of a simulated limiter under faults. The checker accepts the histories of a correct limiter and finds the
//! mistakes of others.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use proptest::{prelude::*, test_runner::Config};

use super::{
    callers::{Caller, Kind},
    history::{self, Account, Answer, Bucket, Call, Event, Fate, History, Limit, Loss, Lost, Settlement, Slots},
};

/// A mistake of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A refund is made twice.
    DoubledRefund,
    /// A settlement is acknowledged and not made.
    MissingRefund,
    /// A release is acknowledged, and the slot stays held until its lease expires.
    StayingSlot,
    /// A slot is granted and not held.
    MissingSlot,
    /// A charge is lost, as if its key had been moved without it.
    LostCharge,
    /// A charge is made on two nodes, whose sums are merged.
    DoubledCharge,
    /// The state is lost, and nothing of the scenario explains it.
    Forgetting,
    /// A replica that was promoted lacks more than it may.
    LongTail,
    /// The numbers and the outcome belong to another caller.
    AnswerOfAnother,
    /// A request that was not sent is charged anyway.
    ChargedUnsent,
}

const MISTAKES: [Mistake; 10] = [
    Mistake::DoubledRefund,
    Mistake::MissingRefund,
    Mistake::StayingSlot,
    Mistake::MissingSlot,
    Mistake::LostCharge,
    Mistake::DoubledCharge,
    Mistake::Forgetting,
    Mistake::LongTail,
    Mistake::AnswerOfAnother,
    Mistake::ChargedUnsent,
];

const MILLI: u64 = 1_000;
const END: u64 = 5_000 * MILLI;
const QUOTA: u64 = 20;
const WINDOW: u64 = 4_000 * MILLI;
const COST: u64 = 2;
const SLOTS: u64 = 2;
const LEASE: u64 = 1_000 * MILLI;
const DEADLINE: u64 = 50 * MILLI;

/// A generator of numbers that a seed repeats (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// The state of one caller.
#[derive(Clone, Debug, Default)]
struct State {
    /// Differs after everything was lost.
    birth: u64,
    level: f64,
    at: u64,
    leases: BTreeMap<usize, u64>,
}

impl State {
    fn drain(&mut self, now: u64) {
        let drained = refill(now - self.at);
        (self.level, self.at) = ((self.level - drained).max(0.0), now);
        self.leases.retain(|_, until| *until > now);
    }
}

fn refill(micros: u64) -> f64 {
    QUOTA as f64 * micros as f64 / WINDOW as f64
}

type Callers = BTreeMap<usize, State>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Send(usize),
    Execute(usize),
    Reply(usize),
    /// The client stops waiting for the reply.
    Leave(usize),
    Settle(usize),
    ExecuteSettlement(usize),
    Acknowledge(usize, bool),
    Renew(usize),
    Lose,
    Forget,
}

/// A request, besides its event.
#[derive(Clone, Debug, Default)]
struct Request {
    caller: usize,
    birth: u64,
    /// The level up to which the bucket was filled, and when.
    mark: (f64, u64),
    /// The answer of the server, with the level or the slots before it.
    answer: Option<(Answer, u64)>,
    actual: u64,
    is_cancelled: bool,
    is_lost: bool,
}

struct Simulation {
    random: Random,
    mistake: Option<Mistake>,
    queue: BinaryHeap<Reverse<(u64, Action)>>,
    callers: Callers,
    /// After each change.
    past: Vec<(u64, Callers)>,
    requests: Vec<Request>,
    history: History,
    fault: (u64, u64),
    /// The moment of a loss, and that from which on a tail may be lost.
    loss: Option<(u64, Option<u64>)>,
    births: u64,
    /// Until then an instance rejects a caller by its cache.
    cached: BTreeMap<(usize, usize), u64>,
}

const CALLERS: usize = 4;

fn caller(number: usize) -> Caller {
    let kind = if is_slots(number) { Kind::Slots } else { Kind::Refunds };
    Caller::new(kind, number as u64)
}

fn is_slots(number: usize) -> bool {
    number >= CALLERS / 2
}

fn account(caller: Caller) -> Account {
    let (limit, cost) = match caller.kind {
        Kind::Slots => {
            let lease_time = Duration::from_micros(LEASE);
            let quota = SLOTS;
            (Limit::Slots(Slots { quota, lease_time }), 1)
        }
        _ => {
            let (quota, window) = (QUOTA, Duration::from_micros(WINDOW));
            (Limit::Bucket(Bucket { quota, window }), COST)
        }
    };
    Account {
        limits: vec![limit],
        cost,
        is_complete: true,
    }
}

fn at(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

impl Simulation {
    fn run(seed: u64, mistake: Option<Mistake>) -> History {
        let mut random = Random(seed);
        let from = random.within(1_000 * MILLI, 2_000 * MILLI);
        let fault = (from, from + random.within(300 * MILLI, 1_200 * MILLI));
        let moment = random.within(1_500 * MILLI, 3_000 * MILLI);
        let loss = match random.within(0, 3) {
            _ if mistake == Some(Mistake::LongTail) => Some((moment, Some(moment - 50 * MILLI))),
            0 => None,
            1 => Some((moment, None)),
            _ => Some((moment, Some(moment - random.within(0, 300 * MILLI)))),
        };
        let mut simulation = Self {
            random,
            mistake,
            queue: BinaryHeap::new(),
            callers: Callers::new(),
            past: Vec::new(),
            requests: Vec::new(),
            history: History::default(),
            fault,
            loss,
            births: 0,
            cached: BTreeMap::new(),
        };
        simulation.history.faults.push(at(fault.0)..at(fault.1));
        for sender in 0..6 {
            simulation.after(sender as u64 * MILLI, Action::Send(sender));
        }
        if let Some((moment, _)) = loss {
            simulation.after(moment, Action::Lose);
        }
        if mistake == Some(Mistake::Forgetting) {
            simulation.after(moment + 700 * MILLI, Action::Forget);
        }
        while let Some(Reverse((now, action))) = simulation.queue.pop() {
            if now < END {
                simulation.act(now, action);
            }
        }
        simulation.history
    }

    fn after(&mut self, moment: u64, action: Action) {
        self.queue.push(Reverse((moment, action)));
    }

    fn makes(&mut self, mistake: Mistake, percent: u64) -> bool {
        self.mistake == Some(mistake) && self.random.percent(percent)
    }

    fn is_faulty(&self, now: u64) -> bool {
        self.fault.0 <= now && now < self.fault.1
    }

    /// The time after which something reaches the other side.
    fn way(&mut self) -> u64 {
        self.random.within(100, 3 * MILLI)
    }

    /// The end of a call or a settlement that is lost, if the server has it: during the fault or when it ends.
    fn late(&mut self, now: u64) -> Option<u64> {
        let latest = if self.is_faulty(now) { self.fault.1 } else { now } + 100 * MILLI;
        match self.random.within(0, 3) {
            0 => None,
            1 => Some(now + self.way()),
            _ => Some(self.random.within(now, latest)),
        }
    }

    fn is_lost(&mut self, now: u64) -> bool {
        let percent = if self.is_faulty(now) { 50 } else { 2 };
        self.random.percent(percent)
    }

    fn state(&mut self, caller: usize, now: u64) -> &mut State {
        let birth = self.births;
        let state = self.callers.entry(caller).or_insert_with(|| State {
            birth,
            at: now,
            ..State::default()
        });
        state.drain(now);
        state
    }

    fn changed(&mut self, now: u64) {
        // Only the moments before a loss are of use.
        if self.loss.is_some_and(|(moment, _)| now <= moment) {
            self.past.push((now, self.callers.clone()));
        }
    }

    fn act(&mut self, now: u64, action: Action) {
        match action {
            Action::Send(sender) => self.send(now, sender),
            Action::Execute(request) => self.execute(now, request),
            Action::Reply(request) => self.reply(now, request),
            Action::Leave(request) => self.leave(now, request),
            Action::Settle(request) => self.settle(now, request),
            Action::ExecuteSettlement(request) => self.execute_settlement(now, request),
            Action::Acknowledge(request, is_acknowledged) => {
                let settlement = self.history.events[request].settlement.as_mut().unwrap();
                settlement.ended = Some((at(now), is_acknowledged));
            }
            Action::Renew(request) => self.renew(now, request),
            Action::Lose => self.lose(now),
            Action::Forget => {
                self.births += 1;
                self.callers.clear();
            }
        }
    }

    fn send(&mut self, now: u64, sender: usize) {
        let next = now + self.random.within(2 * MILLI, 30 * MILLI);
        self.after(next, Action::Send(sender));
        let (request, caller) = (self.requests.len(), self.random.within(0, CALLERS as u64) as usize);
        let event = self.begin(now, request, caller, sender % 3);
        let is_called = event.call.is_some();
        self.history.events.push(event);
        let is_cancelled = self.random.percent(5);
        let actual = match is_slots(caller) {
            true => 1,
            false => self.random.within(0, 4),
        };
        self.requests.push(Request {
            caller,
            actual,
            is_cancelled,
            ..Request::default()
        });
        if is_called {
            self.call(now, request);
        }
    }

    fn begin(&mut self, now: u64, request: usize, number: usize, instance: usize) -> Event {
        let mut event = Event {
            instance,
            caller: caller(number),
            asked: at(now),
            answered: at(now),
            fate: Fate::Cancelled,
            remaining: Vec::new(),
            violated: Vec::new(),
            call: None,
            settlement: None,
        };
        let is_cached = self.cached.get(&(instance, number)).is_some_and(|until| now < *until);
        let is_unsent = (self.is_faulty(now) && self.random.percent(20)) || self.makes(Mistake::ChargedUnsent, 10);
        if is_cached {
            (event.fate, event.violated) = (Fate::Rejected, vec![0]);
        } else if is_unsent {
            event.fate = Fate::Unasked;
            if self.makes(Mistake::ChargedUnsent, 100) {
                let state = self.state(number, now);
                state.level = (state.level + 1.0).min(QUOTA as f64);
                state.leases.insert(request, now + LEASE);
            }
        } else {
            let asked = at(now);
            event.call = Some(Call { asked, ended: None });
        }
        event
    }

    fn call(&mut self, now: u64, request: usize) {
        if self.is_lost(now) {
            self.requests[request].is_lost = true;
            self.after(now + DEADLINE, Action::Leave(request));
            if let Some(late) = self.late(now) {
                self.after(late, Action::Execute(request));
            }
        } else {
            let way = self.way();
            self.after(now + way, Action::Execute(request));
        }
    }

    fn execute(&mut self, now: u64, request: usize) {
        let number = self.requests[request].caller;
        let makes_no_slot = self.makes(Mistake::MissingSlot, 30);
        let loses = self.makes(Mistake::LostCharge, 20);
        let doubles = self.makes(Mistake::DoubledCharge, 20);
        let state = self.state(number, now);
        let (is_allowed, used, mark);
        if is_slots(number) {
            used = state.leases.len() as u64 as f64;
            is_allowed = state.leases.len() < SLOTS as usize;
            mark = 0.0;
            if is_allowed && !makes_no_slot {
                state.leases.insert(request, now + LEASE);
            }
        } else {
            used = state.level;
            is_allowed = used + COST as f64 <= QUOTA as f64;
            let charges = if loses { 0 } else { 1 + u64::from(doubles) };
            if is_allowed {
                state.level += (COST * charges) as f64;
            }
            mark = state.level;
        }
        let birth = state.birth;
        let own = self.requests[request].actual;
        let left = |quota: u64, own: u64| (quota as f64 - used - own as f64).max(0.0).floor() as u64;
        let (answer, remaining) = match (is_allowed, is_slots(number)) {
            (true, true) => (Answer::Allowed, left(SLOTS, 1)),
            (true, false) => (Answer::Allowed, left(QUOTA, own)),
            (false, true) => (Answer::Rejected, left(SLOTS, 0)),
            (false, false) => (Answer::Rejected, left(QUOTA, 0)),
        };
        self.changed(now);
        let state = &mut self.requests[request];
        (state.birth, state.mark, state.answer) = (birth, (mark, now), Some((answer, remaining)));
        if !state.is_lost {
            let way = self.way();
            self.after(now + way, Action::Reply(request));
        }
    }

    fn reply(&mut self, now: u64, request: usize) {
        let known = self.requests[request].clone();
        let (mut answer, mut remaining) = known.answer.unwrap();
        if self.makes(Mistake::AnswerOfAnother, 5) {
            let other = self.requests[..request].iter().rev().find(|other| {
                let is_alike = is_slots(other.caller) == is_slots(known.caller);
                is_alike && other.caller != known.caller && other.answer.is_some()
            });
            (answer, remaining) = other.map_or((answer, remaining), |other| other.answer.unwrap());
        }
        let event = &mut self.history.events[request];
        event.call.as_mut().unwrap().ended = Some((at(now), answer));
        let is_allowed = answer == Answer::Allowed;
        if known.is_cancelled {
            // Its charge stays, and its slot is released.
            if is_allowed && is_slots(known.caller) {
                self.settle(now, request);
            }
            return;
        }
        (event.answered, event.remaining) = (at(now), vec![remaining]);
        if !is_allowed {
            (event.fate, event.violated) = (Fate::Rejected, vec![0]);
            if !is_slots(known.caller) {
                let place = (event.instance, known.caller);
                let until = now + self.random.within(0, 20 * MILLI);
                self.cached.insert(place, until);
            }
            return;
        }
        event.fate = Fate::Allowed;
        if !is_slots(known.caller) {
            if known.actual != COST {
                self.settle(now, request);
            }
            return;
        }
        let held = match self.random.percent(10) {
            true => self.random.within(300 * MILLI, 1_500 * MILLI),
            false => self.random.within(MILLI, 60 * MILLI),
        };
        self.after(now + held, Action::Settle(request));
        self.after(now + LEASE / 3, Action::Renew(request));
    }

    fn leave(&mut self, now: u64, request: usize) {
        let event = &mut self.history.events[request];
        (event.answered, event.fate) = (at(now), Fate::Undecided);
        event.call.as_mut().unwrap().ended = Some((at(now), Answer::Lost));
    }

    fn settle(&mut self, now: u64, request: usize) {
        let actual = self.requests[request].actual;
        self.history.events[request].settlement = Some(Settlement {
            asked: at(now),
            ended: None,
            actual,
        });
        if self.is_lost(now) {
            self.after(now + DEADLINE, Action::Acknowledge(request, false));
            if let Some(late) = self.late(now) {
                self.after(late, Action::ExecuteSettlement(request));
            }
            return;
        }
        let (there, back) = (self.way(), self.way());
        self.after(now + there, Action::ExecuteSettlement(request));
        self.after(now + there + back, Action::Acknowledge(request, true));
    }

    fn execute_settlement(&mut self, now: u64, request: usize) {
        let known = self.requests[request].clone();
        let stays = self.makes(Mistake::StayingSlot, 30);
        let is_missing = self.makes(Mistake::MissingRefund, 30);
        let times = 1 + u64::from(self.makes(Mistake::DoubledRefund, 50));
        let state = self.state(known.caller, now);
        if is_slots(known.caller) {
            if !stays {
                state.leases.remove(&request);
            }
        } else if known.actual > COST {
            state.level += (known.actual - COST) as f64;
        } else if state.birth == known.birth && !is_missing {
            let left = (known.mark.0 - refill(now - known.mark.1)).max(0.0);
            let refund = ((COST - known.actual) as f64).min(left) * times as f64;
            state.level = (state.level - refund).max(0.0);
        }
        self.changed(now);
    }

    fn renew(&mut self, now: u64, request: usize) {
        if self.history.events[request].settlement.is_some() {
            return;
        }
        self.after(now + LEASE / 3, Action::Renew(request));
        if !self.is_faulty(now) && !self.makes(Mistake::MissingSlot, 100) {
            let caller = self.requests[request].caller;
            self.state(caller, now).leases.insert(request, now + LEASE);
            self.changed(now);
        }
    }

    fn lose(&mut self, now: u64) {
        let (_, since) = self.loss.unwrap();
        let lost = match since {
            None => {
                self.births += 1;
                self.callers.clear();
                Lost::Everything
            }
            Some(since) => {
                let may_lack = if self.mistake == Some(Mistake::LongTail) {
                    600 * MILLI
                } else {
                    0
                };
                let has = match may_lack {
                    0 => self.random.within(since, now + 1),
                    longer => since - longer,
                };
                let past = self.past.iter().rev().find(|(moment, _)| *moment <= has);
                self.callers = past.map(|(_, callers)| callers.clone()).unwrap_or_default();
                Lost::Since(at(since))
            }
        };
        self.history.losses.push(Loss {
            lost,
            between: at(now - 1)..at(now + 1),
            callers: None,
        });
    }
}

fn check(seed: u64, mistake: Option<Mistake>) -> Option<String> {
    history::mistake(&Simulation::run(seed, mistake), account)
}

proptest! {
    #![proptest_config(Config { cases: 50, failure_persistence: None, ..Config::default() })]

    #[test]
    fn every_history_of_a_correct_limiter_is_accepted(seed in any::<u64>()) {
        prop_assert_eq!(check(seed, None), None);
    }
}

#[test]
fn most_histories_of_a_limiter_with_a_mistake_are_found() {
    const SEEDS: u64 = 12;
    for mistake in MISTAKES {
        let found = (0..SEEDS).filter(|seed| check(*seed, Some(mistake)).is_some()).count();
        assert!(found as u64 > SEEDS / 2, "{mistake:?}: {found} of {SEEDS}");
    }
}
