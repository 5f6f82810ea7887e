use smallvec::SmallVec;

use super::{
    entries::{Entry, entries},
    others::{Kept, Others, UnknownEntry, times},
    settle::Settle,
};
use crate::{
    algorithm::{
        Bucket, BucketReading, Counter, EvictionPriority, Form, Lockout, MAX_CLOCK_STEP, Moment, PolicyReading, Reader,
        Reading, State, Writer,
    },
    clock::Timestamp,
    decision::{PartPlan, PartSettlement, Read, Reads},
    lease::Lease,
    policy::{MAX_PLAIN, Policy, PolicySet},
};

#[derive(Clone, Debug)]
pub(crate) struct PartitionState {
    at: Timestamp,
    birth: u32,
    /// `states` has one state per policy of the last charge, then one per lockout, then one per policy with initial
    /// units.
    policies: Option<PolicySet>,
    states: SmallVec<[State; 3]>,
    others: Option<Box<Others>>,
}

fn list(policies: &Option<PolicySet>) -> &[Policy] {
    policies.as_ref().map_or(&[], |policies| policies.list())
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) moment: Moment,
    pub(crate) fits: bool,
}

struct Change {
    id: u32,
    own: Bucket,
    by: Bucket,
    level: u64,
    reading: BucketReading,
}

type Changes = SmallVec<[(usize, Change); 1]>;

impl Change {
    fn is_kept(&self) -> bool {
        self.reading.other.is_some_and(|other| other.is_kept)
    }

    fn rejected(&self) -> UnknownEntry {
        let (counter, level) = match self.is_kept() {
            true => {
                let by = Bucket {
                    keeps_rate: true,
                    ..self.by
                };
                (by, self.level)
            }
            false => (self.own, self.reading.used),
        };
        UnknownEntry {
            id: self.id,
            counter: Counter::Bucket(counter),
            state: State::Bucket(level),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Step {
    Read,
    /// Equals `Reject` if the plan does not fit.
    Charge(Option<Lease>),
    /// Converts the buckets whose numbers have changed, unless they keep their rates.
    Reject,
}

fn first_entry(call: u32) -> u64 {
    u64::from(call) << 32
}

impl PartitionState {
    pub(crate) fn new(now: Timestamp, policies: &PolicySet) -> Self {
        Self {
            at: now,
            birth: 0,
            states: entries(policies.list()).map(|entry| entry.counter.unused()).collect(),
            policies: Some(policies.clone()),
            others: None,
        }
    }

    pub(crate) fn of_levels(at: Timestamp, birth: u32, policies: &PolicySet, levels: [u64; MAX_PLAIN]) -> Self {
        let states = policies.iter().zip(levels);
        let states = states.filter_map(|(policy, level)| Some(policy.counter().plain()?.state(level)));
        Self {
            at,
            birth,
            states: states.collect(),
            policies: Some(policies.clone()),
            others: None,
        }
    }

    /// `None` if there is anything but a few levels.
    pub(crate) fn levels(&self) -> Option<(Timestamp, u32, &PolicySet, [u64; MAX_PLAIN])> {
        let policies = self.policies.as_ref()?;
        let mut levels = [0; MAX_PLAIN];
        let count = self.states.len();
        if self.others.is_some() || count != policies.iter().len() || count > MAX_PLAIN {
            return None;
        }
        for (level, state) in levels.iter_mut().zip(&self.states) {
            *level = state.level()?;
        }
        Some((self.at, self.birth, policies, levels))
    }

    #[inline]
    fn is_about(&self, policies: &PolicySet) -> bool {
        self.policies.as_ref().is_some_and(|own| own.is_same(policies))
    }

    /// Appends the usage before the charge to `reads` in place, because moving the readings is slow.
    pub(crate) fn acquire(
        &mut self,
        clock: Timestamp,
        plan: PartPlan<'_>,
        step: Step,
        call: u32,
        reads: &mut Reads,
    ) -> Found {
        let now = self.time(clock, plan.policies());
        let before = reads.len();
        if self.is_about(plan.policies()) && !plan.policies().traits().has_newcomers {
            let found = self.read(now, clock, plan, call, reads);
            self.charge(found, &reads[before..], plan, step);
            return found;
        }
        let mut candidate = self.with_policies(now, plan.policies());
        let newcomers = candidate.begin(plan.policies(), call);
        let found = candidate.read(now, clock, plan, call, reads);
        let changed = self.changed(now, plan.policies());
        for (number, change) in &changed {
            let read = &mut reads[before + number];
            read.reading.counted = Reading::Bucket(change.reading);
            if !matches!(step, Step::Read) {
                read.reading.counted.decided(plan.is_charged(), found.fits && read.fits);
            }
        }
        if candidate.charge(found, &reads[before..], plan, step) {
            *self = candidate;
            // Violated shadow policies keep their rates, as after a rejection.
            let violated = changed.iter().filter(|(number, _)| !reads[before + number].fits);
            let kept = violated.filter(|(_, change)| change.is_kept());
            self.keep(now, kept.map(|(_, change)| change.rejected()).collect());
        } else if !matches!(step, Step::Read) && plan.is_charged() {
            self.bring_forward(now, &changed);
            if !newcomers.is_empty() {
                // A rejected caller is no longer new, so that its bucket refills.
                self.keep(now, newcomers);
                self.birth = candidate.birth;
            }
        }
        found
    }

    pub(crate) fn write(&self, bytes: &mut Writer) {
        let states = Others {
            at: self.at,
            states: self.advanced(self.at),
        };
        states.write(self.birth, bytes);
    }

    pub(crate) fn read_from(bytes: &mut Reader<'_>) -> Option<Self> {
        let (others, birth) = Others::read_from(bytes)?;
        Some(Self {
            at: others.at,
            birth,
            policies: None,
            states: SmallVec::new(),
            others: Some(Box::new(others)),
        })
    }

    /// The states must belong to the plan's policies.
    #[inline]
    fn charge(&mut self, found: Found, reads: &[Read], plan: PartPlan<'_>, step: Step) -> bool {
        let (Step::Charge(lease), true) = (step, found.fits && plan.is_charged()) else {
            return false;
        };
        let now = found.moment.now;
        let times = times(self.at, now);
        for ((charge, read), state) in plan.charges().zip(reads).zip(&mut self.states) {
            let counter = charge.checked().counter();
            if read.fits {
                counter.charge(state, now.as_micros(), &read.reading.counted, charge.cost(), lease);
            } else {
                counter.advance(state, times);
            }
        }
        if plan.policies().traits().has_lockouts {
            let charged = plan.charges().zip(reads);
            let charged = charged.filter(|(charge, _)| charge.checked().lockout().is_some());
            for ((charge, read), lockout) in charged.zip(&mut self.states[plan.charges().len()..]) {
                let limit = charge.checked().limit();
                let after = limit.charged(read.reading, now.as_micros(), charge.weight());
                *lockout = Lockout::state(after.locked);
            }
        }
        if plan.policies().traits().has_newcomers {
            let newcomers = plan.policies().iter().filter_map(Policy::newcomer);
            let first = self.states.len() - newcomers.clone().count();
            for (newcomer, known) in newcomers.zip(&mut self.states[first..]) {
                *known = newcomer.known();
            }
        }
        (self.at, self.birth) = (now, found.moment.birth);
        if self.others.as_ref().is_some_and(|others| others.have_expired(now)) {
            self.others = None;
        }
        true
    }

    /// Sets the first levels of new callers, and the birth. Returns the states to keep if the plan is rejected.
    fn begin(&mut self, policies: &PolicySet, call: u32) -> Vec<UnknownEntry> {
        let mut begun = Vec::new();
        if !policies.traits().has_newcomers {
            return begun;
        }
        if !self.counts_anything() {
            self.birth = call;
        }
        let newcomers = policies.iter().enumerate();
        let newcomers = newcomers.filter_map(|(number, policy)| Some((number, policy, policy.newcomer()?)));
        let first = self.states.len() - newcomers.clone().count();
        for (place, (number, policy, newcomer)) in newcomers.enumerate() {
            if !newcomer.is_new(
                &self.states[number],
                &self.states[first + place],
                times(self.at, self.at),
            ) {
                continue;
            }
            let level = State::Bucket(newcomer.level);
            self.states[number] = level.clone();
            let of = |id, counter: &Counter, state| UnknownEntry {
                id,
                counter: *counter,
                state,
            };
            begun.push(of(policy.id(), policy.counter(), level));
            begun.push(of(policy.newcomer_id(), newcomer.counter(), newcomer.known()));
        }
        begun
    }

    #[inline]
    fn read(&self, now: Timestamp, clock: Timestamp, plan: PartPlan<'_>, call: u32, reads: &mut Reads) -> Found {
        let times = times(self.at, now);
        let (mut all_fit, mut is_used) = (true, false);
        let mut lockouts = self.states.iter().skip(plan.charges().len());
        for (charge, state) in plan.charges().zip(&self.states) {
            let limit = charge.checked().limit();
            let measured = limit.measure(state, times, charge.cost(), plan.is_charged(), first_entry(call));
            let state_of_lockout = limit
                .lockout
                .as_ref()
                .and_then(|lockout| Some((lockout, lockouts.next()?)));
            let locked = state_of_lockout.map_or(0, |(lockout, state)| lockout.left(state, times));
            let fits = locked == 0 && measured.fits;
            all_fit &= fits || charge.is_shadow();
            is_used |= measured.is_counted || locked > 0;
            let counted = measured.reading;
            let reading = PolicyReading { counted, locked };
            reads.push(Read { reading, fits });
        }
        let moment = Moment {
            now,
            // Bounded by `MAX_CLOCK_STEP`.
            ahead: now.micros_since(clock) as u32,
            birth: match plan.policies().traits().has_newcomers {
                // Set by `begin`.
                true => self.birth,
                false => self.birth_at(now, is_used, call),
            },
        };
        Found { moment, fits: all_fit }
    }

    #[inline]
    fn birth_at(&self, now: Timestamp, is_used: bool, call: u32) -> u32 {
        let is_used = is_used || self.others.as_ref().is_some_and(|others| others.count_anything(now));
        if is_used { self.birth } else { call }
    }

    pub(crate) fn settle(&mut self, clock: Timestamp, settlement: PartSettlement<'_>, call: u32) {
        let policies = settlement.part.policies();
        let now = self.time(clock, policies);
        if settlement.needs_readings() {
            let mut own = self.with_policies(now, policies);
            own.begin(policies, call);
            let policies = policies.iter().zip(&own.states);
            let readings = policies.map(|(policy, state)| {
                let counter = policy.counter();
                counter.read(state, times(now, now), 0, first_entry(call))
            });
            settlement.note_readings(now.as_micros(), readings);
        }
        let settle = Settle {
            times: times(self.at, now),
            clock: clock.as_micros(),
            birth: self.birth,
            first: first_entry(call),
        };
        if !self.is_about(policies) || policies.traits().has_newcomers {
            return self.settle_apart(now, settlement, &settle, call);
        }
        let (states, lockouts) = self.states.split_at_mut(policies.iter().len());
        let (mut is_used, mut lockouts) = (false, lockouts.iter_mut());
        for (adjustment, state) in settlement.adjustments().zip(states) {
            let lockout = adjustment.policy.lockout().and_then(|_| lockouts.next());
            is_used |= settle.change(&adjustment, adjustment.policy.counter(), state, lockout);
        }
        self.birth = self.birth_at(now, is_used, call);
        self.at = now;
    }

    /// Each state keeps its numbers: a smaller quota must not hide the usage of a larger one.
    fn settle_apart(&mut self, now: Timestamp, settlement: PartSettlement<'_>, settle: &Settle, call: u32) {
        let mut states = self.advanced(now);
        let is_used = states.iter().any(|foreign| foreign.counter.form() == Form::Numbers);
        let settle = Settle {
            times: times(now, now),
            ..*settle
        };
        for mut adjustment in settlement.adjustments() {
            let policy = adjustment.policy;
            let lockout = policy
                .lockout()
                .map(|lockout| UnknownEntry::taken(&mut states, policy.lockout_id(), lockout.counter()));
            let mut own = UnknownEntry::taken(&mut states, policy.id(), policy.counter());
            own.counter = own.counter.in_windows_of(policy.counter());
            let mut lockout = lockout;
            if let Some(newcomer) = policy.newcomer() {
                let mut known = UnknownEntry::taken(&mut states, policy.newcomer_id(), newcomer.counter());
                if newcomer.is_new(&own.state, &known.state, settle.times) {
                    // The charge was made in another lifetime.
                    adjustment.delta = adjustment.delta.max(0);
                    own.state = State::Bucket(newcomer.level);
                }
                known.state = newcomer.known();
                states.push(known);
            }
            settle.change(
                &adjustment,
                &own.counter,
                &mut own.state,
                lockout.as_mut().map(|lockout| &mut lockout.state),
            );
            states.push(own);
            states.extend(lockout);
        }
        self.scatter(now, states);
        if !is_used {
            self.birth = call;
        }
    }

    /// The wait of a rejected caller is correct only at the rates of its policies.
    fn bring_forward(&mut self, now: Timestamp, changed: &Changes) {
        if changed
            .iter()
            .any(|(_, change)| !(change.by.keeps_rate && change.is_kept()))
        {
            self.keep(now, changed.iter().map(|(_, change)| change.rejected()).collect());
        }
    }

    fn keep(&mut self, now: Timestamp, kept: Vec<UnknownEntry>) {
        if kept.is_empty() {
            return;
        }
        let mut states = self.advanced(now);
        states.retain(|foreign| kept.iter().all(|kept| kept.id != foreign.id));
        states.extend(kept);
        self.scatter(now, states);
    }

    fn scatter(&mut self, now: Timestamp, states: Vec<UnknownEntry>) {
        *self = Self {
            at: now,
            birth: self.birth,
            policies: None,
            states: SmallVec::new(),
            others: (!states.is_empty()).then(|| Box::new(Others { at: now, states })),
        };
    }

    fn changed(&self, now: Timestamp, policies: &PolicySet) -> Changes {
        let change = |(number, policy): (usize, &Policy)| {
            let Counter::Bucket(own) = *policy.counter() else {
                return None;
            };
            let kept = self.kept().find(|kept| kept.id == policy.id())?;
            let (Counter::Bucket(by), State::Bucket(written)) = (*kept.counter, kept.state) else {
                return None;
            };
            let level = by.drained(*written, now.micros_since(kept.at));
            let change = Change {
                id: policy.id(),
                own,
                by,
                level,
                reading: own.reading_of(level, &by),
            };
            change.reading.other.is_some().then_some((number, change))
        };
        policies.iter().enumerate().filter_map(change).collect()
    }

    /// Keeps held slots, and the logs of other policies, which a Redis store cannot find: their keys are derived from
    /// the policies.
    pub(crate) fn reset(&mut self, policies: &PolicySet) {
        let is_kept = |id: u32, counter: &Counter| match counter.form() {
            Form::Log => policies.iter().all(|policy| policy.log_id() != Some(id)),
            Form::Numbers => false,
            Form::Slots => true,
        };
        for (entry, state) in entries(list(&self.policies)).zip(&mut self.states) {
            if !is_kept(entry.id, entry.counter) {
                *state = entry.counter.unused();
            }
        }
        if let Some(others) = &mut self.others {
            others.states.retain(|foreign| is_kept(foreign.id, &foreign.counter));
        }
    }

    fn with_policies(&self, now: Timestamp, policies: &PolicySet) -> Self {
        let mut foreign = self.advanced(now);
        let state_of = |entry: Entry<'_>| {
            let Some(own) = foreign.iter().position(|foreign| foreign.id == entry.id) else {
                return entry.counter.unused();
            };
            let own = foreign.swap_remove(own);
            entry.counter.convert(&own.state, &own.counter)
        };
        let states = entries(policies.list()).map(state_of).collect();
        let others = Others {
            at: now,
            states: foreign,
        };
        Self {
            at: now,
            birth: self.birth,
            policies: Some(policies.clone()),
            states,
            others: (!others.states.is_empty()).then(|| Box::new(others)),
        }
    }

    fn kept(&self) -> impl Iterator<Item = Kept<'_>> {
        let own = entries(list(&self.policies))
            .zip(&self.states)
            .map(|(entry, state)| Kept {
                at: self.at,
                id: entry.id,
                counter: entry.counter,
                state,
                is_shadow: entry.is_shadow,
            });
        own.chain(self.others.iter().flat_map(|others| others.kept()))
    }

    fn advanced(&self, now: Timestamp) -> Vec<UnknownEntry> {
        let advanced = self.kept().map(|kept| {
            let mut state = kept.state.clone();
            kept.counter.advance(&mut state, times(kept.at, now));
            let (id, counter) = (kept.id, *kept.counter);
            UnknownEntry { id, counter, state }
        });
        let now = now.as_micros();
        advanced
            .filter(|foreign| foreign.counter.empty_at(&foreign.state, now) > now)
            .collect()
    }

    /// Frozen while the clock is at most a few seconds behind the last write. States from further in the future are
    /// treated as written now. Ignores logs of other policies, which in Redis have separate keys.
    #[inline]
    fn time(&mut self, clock: Timestamp, policies: &PolicySet) -> Timestamp {
        if clock >= self.at && !policies.traits().has_logs {
            return clock;
        }
        self.time_behind(clock, policies)
    }

    fn time_behind(&mut self, clock: Timestamp, policies: &PolicySet) -> Timestamp {
        let counted = self.counts_anything().then_some(self.at.as_micros());
        let is_named = |id: u32| policies.iter().any(|policy| policy.id() == id);
        let own = list(&self.policies).iter().zip(&mut self.states);
        let own = own.map(|(policy, state)| (policy.id(), policy.counter(), state));
        let others = self.others.iter_mut().flat_map(|others| &mut others.states);
        let others = others.map(|foreign| (foreign.id, &foreign.counter, &mut foreign.state));
        let named = own.chain(others).filter(|(id, ..)| is_named(*id));
        let logs: SmallVec<[(&Counter, &mut State); 4]> = named.map(|(_, counter, state)| (counter, state)).collect();
        let entries = logs.iter().filter_map(|(counter, state)| counter.newest_entry(state));
        let (from, to) = (clock.as_micros(), clock.as_micros().saturating_add(MAX_CLOCK_STEP));
        let ahead = entries.chain(counted).filter(|moment| (from..=to).contains(moment));
        let now = Timestamp::from_micros(ahead.max().unwrap_or(from));
        for (counter, state) in logs {
            counter.rebase(state, now.as_micros());
        }
        if now < self.at {
            if let Some(others) = &mut self.others {
                others.rebase(self.at, now);
            }
            self.at = now;
        }
        now
    }

    fn counts_anything(&self) -> bool {
        let (at, mut states) = (self.at.as_micros(), self.kept());
        states.any(|kept| kept.counter.is_used(kept.state, kept.at.as_micros(), at))
    }

    pub(crate) fn is_empty(&self, now: Timestamp) -> bool {
        if self.others.is_some() || self.states.len() > list(&self.policies).len() {
            return self.empty_at() <= now;
        }
        // Fast path: each new partition calls this for several others.
        let (last, now) = (self.at.as_micros(), now.as_micros());
        let mut own = list(&self.policies).iter().zip(&self.states);
        own.all(|(policy, state)| policy.counter().empty_at(state, last) <= now)
    }

    pub(crate) fn empty_at(&self) -> Timestamp {
        let states = self.kept();
        let empty_at = states.map(|kept| kept.counter.empty_at(kept.state, kept.at.as_micros()));
        Timestamp::from_micros(empty_at.max().unwrap_or(0))
    }

    /// That of the policy with the largest used share.
    pub(crate) fn eviction_priority(&self, now: Timestamp, is_returning: bool) -> Option<EvictionPriority> {
        let worths = self.kept().filter_map(|kept| {
            let worth = kept.counter.eviction_priority(kept.state, times(kept.at, now))?;
            Some(if kept.is_shadow { worth.of_shadow() } else { worth })
        });
        let worth = worths.max()?;
        Some(if is_returning { worth } else { worth.of_one_request() })
    }
}
