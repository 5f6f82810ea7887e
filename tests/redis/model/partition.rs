//! All policies of one caller.

use std::{collections::HashMap, time::Duration};

use super::{
    Charge, Counter, Late, State, Verdict,
    lockout::Lockout,
    numbers::{Actual, Request, is_slots, window},
    token_bucket::TokenBucket,
};
use tower_quota::{Algorithm, QuotaPolicy, QuotaUnit, calendar::CalendarPeriod};

/// The way in which a store keeps states that do not fit into a few numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kept {
    /// With the other states: a partition expires or is evicted as a whole. Slots are held until they are released.
    Together,
    /// Under separate keys, which only plans that name them touch. Leases expire after `lease_time` microseconds.
    Apart { lease_time: i128 },
}

/// All that is known of one caller.
#[derive(Clone, Debug)]
pub struct Partition {
    kept: Kept,
    states: HashMap<String, State>,
    /// The set of policies that was charged last, unless something else was written since.
    set: usize,
    /// True once a store in memory has a partition, which may be empty by now.
    is_there: bool,
    requests: u64,
    /// When the numbers that are kept together were written, if any of them was used then.
    written: Option<i128>,
    /// The number of those numbers' life: nothing comes back that was charged in another one.
    life: u64,
}

/// The facts about a decision that its settlement needs.
#[derive(Clone, Debug)]
pub struct Receipt {
    set: usize,
    policies: Vec<QuotaPolicy>,
    request: Request,
    charges: Vec<Charge>,
    life: u64,
    /// True for each policy that was charged. A shadow does not charge what it would have rejected.
    is_taken: Vec<bool>,
}

fn is_leaky(policy: &QuotaPolicy) -> bool {
    let algorithm = policy.algorithm();
    algorithm == Algorithm::LeakyBucketMeter || matches!(algorithm, Algorithm::LeakyBucketQueue { .. })
}

const NO_SET: usize = usize::MAX;

/// If the clock steps back by at most this many microseconds, time stops until the clock has caught up.
const PATIENCE: i128 = 5_000_000;

/// Policies share used units if this is equal.
fn identity(policy: &QuotaPolicy) -> String {
    match policy.quota() {
        0 => format!("{} closed {:?}", policy.name(), policy.unit()),
        _ => open_identity(policy),
    }
}

/// The same for a policy that is not closed.
fn open_identity(policy: &QuotaPolicy) -> String {
    let kind = match (policy.window(), policy.algorithm()) {
        (None, _) if is_slots(policy) => "slots".to_owned(),
        (None, _) => calendar(policy),
        (_, Algorithm::TokenBucket | Algorithm::StrictTokenBucket) => "bucket".to_owned(),
        (_, Algorithm::LeakyBucketMeter | Algorithm::LeakyBucketQueue { .. }) => "leaky".to_owned(),
        (Some(window), algorithm) => format!("{algorithm:?} {window:?}"),
    };
    format!("{} {kind} {:?}", policy.name(), policy.unit())
}

/// Months that begin on different days have one count.
fn calendar(policy: &QuotaPolicy) -> String {
    let window = policy.calendar_window().unwrap();
    match window.period() {
        CalendarPeriod::Month { .. } => format!("month {}", window.time_zone()),
        period => format!("{period:?} {}", window.time_zone()),
    }
}

/// The time for which a policy lockouts. One with quota 0 rejects everything already, and has no lockout while it does.
fn lockout_time(policy: &QuotaPolicy) -> Option<Duration> {
    policy.lockout().filter(|_| policy.quota() > 0)
}

/// A policy is used up.
fn begin(lockout: &mut Lockout, policy: &QuotaPolicy, now: i128) {
    if let Some(time) = lockout_time(policy) {
        lockout.begin(now, time.as_micros() as i128);
    }
}

/// The policies that a charge has used up.
fn begin_used_up(lockouts: &mut [Lockout], policies: &[QuotaPolicy], after: &[State], costs: &[i128], now: i128) {
    for (((lockout, policy), state), cost) in lockouts.iter_mut().zip(policies).zip(after).zip(costs) {
        if *cost > 0 && state.get().left(now) == 0 {
            begin(lockout, policy, now);
        }
    }
}

/// The name of a policy's lockout.
fn blocking(policy: &QuotaPolicy) -> String {
    format!("lockout {} {:?}", policy.name(), policy.unit())
}

fn is_token(policy: &QuotaPolicy) -> bool {
    let algorithm = policy.algorithm();
    matches!(algorithm, Algorithm::TokenBucket | Algorithm::StrictTokenBucket)
}

/// The name of the time for which a caller is known to a policy.
fn knowing(policy: &QuotaPolicy) -> String {
    format!("newcomer {} {:?}", policy.name(), policy.unit())
}

/// Returns `true` if new callers have less than a full bucket.
fn has_newcomers(policy: &QuotaPolicy) -> bool {
    policy.quota() > 0
        && policy
            .initial_units()
            .is_some_and(|units| units < policy.burst_capacity())
}

/// The time for which a caller is known to these policies: an hour longer than any wait.
fn known_time(policies: &[QuotaPolicy]) -> i128 {
    let longest = |policy: &QuotaPolicy| {
        let units = match (policy.window(), policy.calendar_window()) {
            _ if policy.quota() == 0 => 0,
            (None, None) => 0,
            (None, Some(calendar)) => match calendar.period() {
                CalendarPeriod::Day => 2 * 86_400_000_000,
                CalendarPeriod::Week { .. } => 2 * 7 * 86_400_000_000,
                _ => 2 * 31 * 86_400_000_000,
            },
            (Some(_), _) if is_token(policy) || is_leaky(policy) => TokenBucket::longest_wait(policy),
            (Some(_), _) => 2 * window(policy),
        };
        units.max(lockout_time(policy).map_or(0, |time| time.as_micros() as i128))
    };
    policies.iter().map(longest).max().unwrap() + 3_600_000_000
}

/// A store in memory does not recognize sets of such policies, and compares them each time.
fn number_of(set: usize, policies: &[QuotaPolicy]) -> usize {
    if policies.iter().any(has_newcomers) {
        NO_SET
    } else {
        set
    }
}

/// Leases end by the clock.
fn moment(policy: &QuotaPolicy, (clock, now): (i128, i128)) -> i128 {
    if is_slots(policy) { clock } else { now }
}

/// Which of the policies admit their costs.
fn each_fits<'a>(
    times: (i128, i128),
    policies: &[QuotaPolicy],
    known: impl Iterator<Item = (&'a State, &'a Lockout)>,
    costs: &[i128],
) -> Vec<bool> {
    let each = policies.iter().zip(known).zip(costs);
    let fits = each.map(|((policy, (state, lockout)), cost)| {
        state.get().fits(moment(policy, times), *cost) && lockout.rest(times.1) == 0
    });
    fits.collect()
}

impl Partition {
    pub fn new(kept: Kept) -> Self {
        Self {
            kept,
            states: HashMap::new(),
            set: NO_SET,
            is_there: false,
            requests: 0,
            written: None,
            life: 0,
        }
    }

    /// Decides; what can be settled afterwards comes with the verdict.
    pub fn acquire(
        &mut self,
        clock: i128,
        (set, policies): (usize, &[QuotaPolicy]),
        request: Request,
    ) -> (Verdict, Option<Receipt>) {
        let is_charged = request.is_charged_to(policies);
        let (now, set) = (self.look(clock, policies), number_of(set, policies));
        let moment = |policy: &QuotaPolicy| moment(policy, (clock, now));
        let life = self.life_at(now);
        let costs: Vec<i128> = policies.iter().map(|policy| request.cost_for(policy)).collect();
        let before: Vec<State> = policies.iter().map(|policy| self.state(now, set, policy)).collect();
        let lockouts: Vec<Lockout> = policies.iter().map(|policy| self.lockout(now, policy)).collect();
        let each_fits = each_fits((clock, now), policies, before.iter().zip(&lockouts), &costs);
        let fits = (policies.iter().zip(&each_fits)).all(|(policy, fits)| *fits || policy.is_shadow());
        let (mut after, mut lockouts_after) = (before.clone(), lockouts.clone());
        let fitting: Vec<bool> = each_fits.iter().map(|own_fits| fits && *own_fits).collect();
        let shown = match is_charged {
            true => self.shown_decided(now, set, policies, &fitting),
            false => self.shown(now, set, policies),
        };
        if is_charged && !fits {
            let newcomers = self.newcomers(now, set, policies);
            self.bring_forward(now, set, policies);
            self.begin(now, known_time(policies), &newcomers, life);
        } else if is_charged {
            self.requests += 1;
            let taken = policies.iter().zip(after.iter_mut().zip(&costs)).zip(&each_fits);
            for ((policy, (state, cost)), _) in taken.filter(|((_, (_, cost)), fits)| **fits && **cost > 0) {
                state.get_mut().take(moment(policy), *cost, self.requests);
            }
            begin_used_up(&mut lockouts_after, policies, &after, &costs, now);
            self.write_charged(now, (set, policies), &after, &each_fits, &lockouts_after);
            self.life = life;
        }
        let charged = shown.iter().zip(&after).zip(&fitting);
        let shown_after = charged.map(|((shown, after), fits)| if is_charged && *fits { after } else { shown });
        let told = shown.iter().zip(&lockouts).zip(shown_after.zip(&lockouts_after));
        let told = policies.iter().zip(&costs).zip(told);
        let told = told.map(|((policy, cost), (old, new))| (policy, moment(policy), *cost, old, new));
        let verdict = Verdict::expected(clock, told);
        let receipt = fits.then(|| Receipt {
            set,
            policies: policies.to_vec(),
            request,
            charges: Charge::all(now, after, self.requests),
            life,
            is_taken: each_fits,
        });
        (verdict, receipt)
    }

    /// A shadow that would have rejected leaves the numbers of others as they are, unless it brings the bucket forward.
    fn write_charged(
        &mut self,
        now: i128,
        (set, policies): (usize, &[QuotaPolicy]),
        after: &[State],
        each_fits: &[bool],
        lockouts: &[Lockout],
    ) {
        let mut is_kept = false;
        let written = policies
            .iter()
            .zip(after)
            .zip(each_fits)
            .map(|((policy, after), fits)| {
                if *fits {
                    return after.clone();
                }
                let known = self.states.get(&identity(policy));
                let forwarded = known.and_then(|known| known.get().forwarded(now, policy));
                let is_other = known.is_some_and(|known| known.is_other(now, policy));
                let written = match forwarded {
                    Some(forwarded) => forwarded,
                    None if is_other => self.stored(now, set, policy),
                    None => self.state(now, set, policy),
                };
                is_kept |= written.is_other(now, policy);
                written
            });
        let written: Vec<State> = written.collect();
        let set = if is_kept { self.set_after(set) } else { set };
        self.know(now, known_time(policies), policies);
        self.write(now, set, policies, &written, lockouts);
    }

    /// The verdict that a request would get, without a charge.
    pub fn forecast(&mut self, clock: i128, (set, policies): (usize, &[QuotaPolicy]), request: Request) -> Verdict {
        let (now, set) = (self.look(clock, policies), number_of(set, policies));
        let states = self.shown(now, set, policies);
        let lockouts: Vec<Lockout> = policies.iter().map(|policy| self.lockout(now, policy)).collect();
        let told = policies
            .iter()
            .zip(states.iter().zip(&lockouts))
            .map(|(policy, known)| {
                let moment = if is_slots(policy) { clock } else { now };
                (policy, moment, request.cost_for(policy), known, known)
            });
        Verdict::expected(clock, told).of_forecast(policies)
    }

    /// The largest number of units that passes now, up to the cost of the request.
    pub fn most(&mut self, clock: i128, (set, policies): (usize, &[QuotaPolicy]), request: Request) -> u64 {
        let (now, set) = (self.look(clock, policies), number_of(set, policies));
        let enforced = policies.iter().filter(|policy| !policy.is_shadow());
        let states: Vec<(&QuotaPolicy, State)> =
            enforced.map(|policy| (policy, self.state(now, set, policy))).collect();
        let passes = |cost| {
            let request = Request { cost, ..request };
            states.iter().all(|(policy, state)| {
                if self.lockout(now, policy).rest(now) > 0 {
                    return false;
                }
                let moment = if is_slots(policy) { clock } else { now };
                state.get().fits(moment, request.cost_for(policy))
            })
        };
        if passes(request.cost) {
            return request.cost;
        }
        let (mut most, mut too_many) = (0, request.cost);
        while too_many - most > 1 {
            let middle = most + (too_many - most) / 2;
            if passes(middle) {
                most = middle;
            } else {
                too_many = middle;
            }
        }
        most
    }

    /// Refunds units of a charge of which at most the time is known.
    pub fn give_back(
        &mut self,
        clock: i128,
        (set, policies): (usize, &[QuotaPolicy]),
        request: Request,
        charged_at: Option<i128>,
    ) {
        let units: Vec<i128> = policies.iter().map(|policy| request.returned_to(policy)).collect();
        if units.iter().all(|units| *units == 0) {
            return;
        }
        let (now, set) = (self.look(clock, policies), number_of(set, policies));
        // A log may have entries of a moment to come, after its clock was set back.
        let (charged_at, latest) = (charged_at.unwrap_or(now), charged_at.unwrap_or(i128::MAX));
        let life = self.life_at(now);
        let returned = policies.iter().zip(units).map(|(policy, units)| {
            let mut state = self.stored(now, set, policy);
            let before = state.clone();
            let is_new = self.is_new(now, set, policy);
            if units > 0 && !is_new && (policy.window().is_none() || now - charged_at < window(policy)) {
                state.give_back_any(now, units, policy, charged_at, latest);
            }
            let lockout = self.settled(now, policy, before, &state);
            (state, lockout)
        });
        let (states, lockouts): (Vec<State>, Vec<Lockout>) = returned.unzip();
        self.know(now, known_time(policies), policies);
        self.write(now, self.set_after(set), policies, &states, &lockouts);
        self.life = life;
    }

    /// Settles a decision, now that its actual cost is known.
    pub fn settle(&mut self, clock: i128, receipt: &Receipt, actual: Actual) {
        let taken = receipt.policies.iter().zip(&receipt.is_taken);
        let delta = |(policy, taken): (&QuotaPolicy, &bool)| if *taken { receipt.delta(policy, actual) } else { 0 };
        let deltas: Vec<i128> = taken.map(delta).collect();
        if deltas.iter().all(|delta| *delta == 0) {
            return;
        }
        self.apply(clock, receipt, deltas);
    }

    fn apply(&mut self, clock: i128, receipt: &Receipt, deltas: Vec<i128>) {
        let now = self.look(clock, &receipt.policies);
        let set = number_of(receipt.set, &receipt.policies);
        let life = self.life_at(now);
        let settled = receipt.policies.iter().zip(&receipt.charges).zip(deltas);
        let (states, lockouts): (Vec<State>, Vec<Lockout>) = settled
            .map(|((policy, charge), delta)| {
                let mut state = self.stored(now, set, policy);
                let before = state.clone();
                let is_new = self.is_new(now, set, policy);
                // Slots can be released at any time, and calendar policies check the window themselves.
                let is_due = policy.window().is_none() || now - charge.at < window(policy);
                let is_alive = !state.is_number() || receipt.life == life;
                if delta > 0 {
                    let late = Late {
                        units: delta,
                        policy,
                        charged_at: charge.at,
                        clock,
                    };
                    state.get_mut().take_late(now, &late);
                } else if delta < 0 && is_due && is_alive && !is_new {
                    state.give_back(now, -delta, charge);
                }
                let lockout = self.settled(now, policy, before, &state);
                (state, lockout)
            })
            .unzip();
        self.know(now, known_time(&receipt.policies), &receipt.policies);
        self.write(now, self.set_after(set), &receipt.policies, &states, &lockouts);
        self.life = life;
    }

    /// Forgets everything but the slots that are held, and logs that these policies do not name.
    pub fn reset(&mut self, policies: &[QuotaPolicy]) {
        let named: Vec<String> = policies.iter().map(open_identity).collect();
        self.states.retain(|identity, state| match state {
            State::Concurrency(_) => true,
            State::SlidingLog(_) => !named.contains(identity),
            _ => false,
        });
        self.written = None;
    }

    /// The current time of these policies. If the clock has stepped back a little, time stops until the clock has
    /// caught up. After a larger step, entries with later times are moved to the current time, even if nothing passes.
    fn look(&mut self, clock: i128, policies: &[QuotaPolicy]) -> i128 {
        let named: Vec<String> = policies.iter().map(identity).collect();
        let logs = self.states.iter().filter_map(|(identity, state)| match state {
            State::SlidingLog(log) if named.contains(identity) => log.newest(),
            _ => None,
        });
        let ahead = logs.chain(self.written);
        let now = ahead.filter(|at| *at - clock <= PATIENCE).fold(clock, i128::max);
        for (identity, state) in &mut self.states {
            if state.is_number() || named.contains(identity) {
                state.get_mut().step_back(now);
            }
        }
        self.written = self.written.map(|at| at.min(now));
        now
    }

    /// The life of the numbers that are stored together. A new life begins when all of them are unused.
    fn life_at(&self, now: i128) -> u64 {
        let is_used = |state: &State| state.is_number() && state.get().is_counted(now);
        if self.states.values().any(is_used) {
            self.life
        } else {
            self.life + 1
        }
    }

    /// The state of a policy as it is now, in the policy's numbers.
    fn state(&self, now: i128, set: usize, policy: &QuotaPolicy) -> State {
        let mut state = self.passed(now, set, policy);
        state.get_mut().adopt(policy);
        self.begun(now, set, policy).unwrap_or(state)
    }

    /// The bucket of a caller that is new to the policy: it is full, and nothing of it is known any more.
    fn begun(&self, now: i128, set: usize, policy: &QuotaPolicy) -> Option<State> {
        let is_known = self
            .states
            .get(&knowing(policy))
            .is_some_and(|known| known.get().is_counted(now));
        let is_full = || !self.passed(now, set, policy).get().is_counted(now);
        let bucket = TokenBucket::of_newcomer(policy, now).filter(|_| has_newcomers(policy) && !is_known && is_full());
        bucket.map(State::TokenBucket)
    }

    fn is_new(&self, now: i128, set: usize, policy: &QuotaPolicy) -> bool {
        self.begun(now, set, policy).is_some()
    }

    fn newcomers(&self, now: i128, set: usize, policies: &[QuotaPolicy]) -> Vec<(QuotaPolicy, State)> {
        let begun = |policy: &QuotaPolicy| Some((policy.clone(), self.begun(now, set, policy)?));
        policies.iter().filter_map(begun).collect()
    }

    /// The bucket of a rejected newcomer begins to refill.
    fn begin(&mut self, now: i128, known_time: i128, newcomers: &[(QuotaPolicy, State)], life: u64) {
        let (policies, states): (Vec<QuotaPolicy>, Vec<State>) = newcomers.iter().cloned().unzip();
        if !policies.is_empty() {
            let lockouts: Vec<Lockout> = policies.iter().map(|policy| self.lockout(now, policy)).collect();
            self.know(now, known_time, &policies);
            self.write(now, NO_SET, &policies, &states, &lockouts);
            self.life = life;
        }
    }

    /// The caller is known to these policies from now on.
    fn know(&mut self, now: i128, known_time: i128, policies: &[QuotaPolicy]) {
        for policy in policies.iter().filter(|policy| has_newcomers(policy)) {
            let known = Lockout::until(now + known_time, now);
            self.states.insert(knowing(policy), State::Lockout(known));
        }
    }

    /// The state of a policy as it is now, in the numbers with which it was written.
    fn stored(&self, now: i128, set: usize, policy: &QuotaPolicy) -> State {
        let mut state = self.passed(now, set, policy);
        state.get_mut().adopt_windows(policy);
        if !state.get().is_counted(now) {
            state.get_mut().adopt(policy);
        }
        self.begun(now, set, policy).unwrap_or(state)
    }

    fn passed(&self, now: i128, set: usize, policy: &QuotaPolicy) -> State {
        let lease_time = match self.kept {
            Kept::Together => None,
            Kept::Apart { lease_time } => Some(lease_time),
        };
        match self.states.get(&identity(policy)) {
            Some(state) if !self.is_dropped(now, set, state) => {
                let mut state = state.clone();
                state.get_mut().pass_to(now);
                state
            }
            _ => State::new(policy, now, lease_time),
        }
    }

    /// The states that decisions show if nothing is written.
    fn shown(&self, now: i128, set: usize, policies: &[QuotaPolicy]) -> Vec<State> {
        let shown = |policy: &QuotaPolicy| match self.states.get(&identity(policy)) {
            Some(state) if !self.is_dropped(now, set, state) && !self.is_new(now, set, policy) => {
                state.shown(now, policy)
            }
            _ => self.state(now, set, policy),
        };
        policies.iter().map(shown).collect()
    }

    /// The states that decisions show about what was charged or rejected.
    fn shown_decided(&self, now: i128, set: usize, policies: &[QuotaPolicy], fitting: &[bool]) -> Vec<State> {
        let shown = self.shown(now, set, policies);
        let decided = policies.iter().zip(shown).zip(fitting).map(|((policy, shown), fits)| {
            let known = self.states.get(&identity(policy));
            let forwarded = known.and_then(|known| known.get().forwarded(now, policy));
            match forwarded {
                _ if *fits => self.state(now, set, policy),
                Some(forwarded) if !forwarded.is_other(now, policy) => forwarded,
                _ => shown,
            }
        });
        decided.collect()
    }

    /// Gives the buckets of rejected policies the rates of these policies.
    fn bring_forward(&mut self, now: i128, set: usize, policies: &[QuotaPolicy]) {
        let named = policies.iter().filter_map(|policy| {
            let forwarded = self.states.get(&identity(policy))?.get().forwarded(now, policy);
            Some((policy.clone(), forwarded?))
        });
        let (policies, states): (Vec<QuotaPolicy>, Vec<State>) = named.unzip();
        if !policies.is_empty() && (set != self.set || set == NO_SET) {
            let lockouts: Vec<Lockout> = policies.iter().map(|policy| self.lockout(now, policy)).collect();
            self.write(now, NO_SET, &policies, &states, &lockouts);
        }
    }

    /// The set of the last charge once something of `set` was settled.
    fn set_after(&self, set: usize) -> usize {
        let is_first = match self.kept {
            Kept::Together => !self.is_there,
            Kept::Apart { .. } => self.states.is_empty() && self.set == NO_SET,
        };
        if is_first || set == self.set { set } else { NO_SET }
    }

    /// The lockout of a policy after a charge was changed, by the units that its own numbers show before and after.
    fn settled(&self, now: i128, policy: &QuotaPolicy, mut before: State, after: &State) -> Lockout {
        let (mut lockout, mut after) = (self.lockout(now, policy), after.clone());
        for state in [&mut before, &mut after] {
            state.get_mut().adopt(policy);
        }
        let (used_before, used) = (before.get().used(now), after.get().used(now));
        let is_used_up = after.get().left(now) == 0;
        if used > used_before && is_used_up {
            begin(&mut lockout, policy, now);
        } else if used < used_before && !is_used_up {
            lockout.lift();
        }
        lockout
    }

    /// The lockout of a policy; one that has none does not look at what others have begun.
    fn lockout(&self, now: i128, policy: &QuotaPolicy) -> Lockout {
        let mut lockout = match self.states.get(&blocking(policy)) {
            Some(State::Lockout(lockout)) if lockout_time(policy).is_some() => lockout.clone(),
            _ => Lockout::default(),
        };
        lockout.pass_to(now);
        lockout
    }

    /// A log that is over is dropped by other policies than those before, if it lies with them.
    fn is_dropped(&self, now: i128, set: usize, state: &State) -> bool {
        let is_over = matches!(state, State::SlidingLog(log) if log.is_over(now));
        is_over && self.kept == Kept::Together && (set != self.set || set == NO_SET)
    }

    fn write(&mut self, now: i128, set: usize, policies: &[QuotaPolicy], states: &[State], lockouts: &[Lockout]) {
        let mut kept = std::mem::take(&mut self.states);
        kept.retain(|_, state| !self.is_dropped(now, set, state));
        for state in kept.values_mut() {
            state.get_mut().pass_to(now);
        }
        kept.extend(policies.iter().map(identity).zip(states.iter().cloned()));
        let lockouts = policies
            .iter()
            .zip(lockouts)
            .filter(|(policy, _)| lockout_time(policy).is_some());
        kept.extend(lockouts.map(|(policy, lockout)| (blocking(policy), State::Lockout(lockout.clone()))));
        let is_used = |state: &State| state.is_number() && state.get().is_counted(now);
        self.written = kept.values().any(is_used).then_some(now);
        // A store in memory keeps no new partition that is like one never seen, so no set is its first one.
        if self.kept == Kept::Together && !self.is_there && kept.values().all(|state| !state.get().is_counted(now)) {
            return;
        }
        self.is_there = true;
        self.states = kept;
        self.set = set;
    }
}

impl Receipt {
    /// The units to charge late, or to refund if negative.
    fn delta(&self, policy: &QuotaPolicy, actual: Actual) -> i128 {
        let charged = self.request.cost_for(policy);
        let actual = match (policy.unit(), actual) {
            // A request releases its slot in whichever way it ends.
            (QuotaUnit::ConcurrentRequests, _) | (_, Actual::Unused) => return -charged,
            (QuotaUnit::Requests, Actual::Cost(cost)) => i128::from(cost),
            (QuotaUnit::Requests, Actual::Tokens(_)) => 1,
            (QuotaUnit::Custom(_), Actual::Tokens(tokens)) => i128::from(tokens),
            (_, Actual::Cost(_) | Actual::Tokens(_)) => return 0,
        };
        // A request that has left a leaky bucket has used its place.
        if is_leaky(policy) {
            (actual - charged).max(0)
        } else {
            actual - charged
        }
    }
}
