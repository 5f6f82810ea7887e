//! The state of a partition: the states of its policies, all written at the same moment.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    algorithm::{Counter, Form, Moment, Reader, STANDSTILL, State, Times, Worth, Writer},
    clock::Timestamp,
    exchange::{PartPlan, PartSettlement, Read, Reads},
    lease::Lease,
    policy::{Policy, PolicySet},
};

/// The states of a partition's policies at one moment.
#[derive(Clone, Debug)]
pub(crate) struct PartitionState {
    at: Timestamp,
    /// Of what is counted with a few numbers; see [`Moment::birth`].
    birth: u32,
    /// The policies of the last charge, and the state of each of them.
    policies: Arc<[Policy]>,
    states: SmallVec<[State; 3]>,
    /// The states of policies that the last charge did not have.
    others: Option<Box<Others>>,
}

/// Policies that only other plans name: of another tier, or of an older or newer configuration. Their time goes on by
/// their own rules, and they are kept until they are empty.
#[derive(Clone, Debug)]
struct Others {
    at: Timestamp,
    states: Vec<Foreign>,
}

/// A state that explains itself: whoever has it can bring it forward and convert it, also without the policy.
#[derive(Clone, Debug)]
struct Foreign {
    id: u32,
    counter: Counter,
    state: State,
}

/// The findings of a plan.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) moment: Moment,
    pub(crate) read: Reads,
    pub(crate) fits: bool,
}

/// The numbers of a log that begins with a call follow this one, and no other log of the partition has them.
fn first_entry(call: u32) -> u64 {
    u64::from(call) << 32
}

impl Others {
    /// Returns `true` if anything but logs and slots is still used.
    fn count_anything(&self, now: Timestamp) -> bool {
        let (last, now) = (self.at.as_micros(), now.as_micros());
        let mut states = self.states.iter();
        states.any(|foreign| foreign.counter.is_used(&foreign.state, last, now))
    }
}

impl PartitionState {
    /// A partition never seen, for a plan like this one.
    pub(crate) fn new(now: Timestamp, policies: &PolicySet) -> Self {
        Self {
            at: now,
            birth: 0,
            states: policies.iter().map(|policy| policy.counter().unused()).collect(),
            policies: Arc::clone(policies.list()),
            others: None,
        }
    }

    /// Returns `true` if the last charge had these policies.
    #[inline]
    fn is_about(&self, policies: &PolicySet) -> bool {
        Arc::ptr_eq(&self.policies, policies.list())
    }

    /// Charges the plan if all of it fits; a lease then holds its slots. What begins with this charge takes the call's
    /// number. Returns what had been used before, and whether the plan fits.
    pub(crate) fn acquire(&mut self, clock: Timestamp, plan: PartPlan<'_>, lease: Option<Lease>, call: u32) -> Found {
        let now = self.time(clock, plan.policies());
        if self.is_about(plan.policies()) {
            return self.acquire_again(now, clock, plan, lease, call);
        }
        let mut candidate = self.with_policies(now, plan.policies());
        let found = candidate.acquire_again(now, clock, plan, lease, call);
        if found.fits && plan.is_charged() {
            *self = candidate;
        }
        found
    }

    /// The same without charging anything.
    pub(crate) fn read(&mut self, clock: Timestamp, plan: PartPlan<'_>, call: u32) -> Found {
        let now = self.time(clock, plan.policies());
        if self.is_about(plan.policies()) {
            self.read_again(now, clock, plan, call)
        } else {
            self.with_policies(now, plan.policies())
                .read_again(now, clock, plan, call)
        }
    }

    /// All that is not empty, as it was written.
    pub(crate) fn write(&self, bytes: &mut Writer) {
        let states = self.advanced(self.at);
        for number in [self.at.as_micros(), self.birth.into(), states.len() as u64] {
            bytes.write(number);
        }
        for Foreign { id, counter, state } in &states {
            bytes.write((*id).into());
            counter.write(state, bytes);
        }
    }

    /// Parses bytes that were written; `None` if they cannot have been.
    pub(crate) fn read_from(bytes: &mut Reader<'_>) -> Option<Self> {
        let at = Timestamp::from_micros(bytes.amount()?);
        let birth = u32::try_from(bytes.any()?).ok()?;
        let mut states = Vec::new();
        for _ in 0..bytes.any()? {
            let id = u32::try_from(bytes.any()?).ok()?;
            let (counter, state) = Counter::parse(bytes)?;
            states.push(Foreign { id, counter, state });
        }
        Some(Self {
            at,
            birth,
            policies: Arc::default(),
            states: SmallVec::new(),
            others: Some(Box::new(Others { at, states })),
        })
    }

    /// The policies are those of the last charge, which is nearly always so.
    fn acquire_again(
        &mut self,
        now: Timestamp,
        clock: Timestamp,
        plan: PartPlan<'_>,
        lease: Option<Lease>,
        call: u32,
    ) -> Found {
        let found = self.read_again(now, clock, plan, call);
        if found.fits && plan.is_charged() {
            for ((charge, read), state) in plan.charges().zip(&found.read).zip(&mut self.states) {
                let weight = if read.fits { charge.weight() } else { 0 };
                let counter = charge.policy().counter();
                counter.charge(state, now.as_micros(), read.reading, weight, lease);
            }
            (self.at, self.birth) = (now, found.moment.birth);
        }
        found
    }

    #[inline]
    fn read_again(&self, now: Timestamp, clock: Timestamp, plan: PartPlan<'_>, call: u32) -> Found {
        let times = self.times(now);
        let (mut read, mut all_fit, mut is_used) = (Reads::new(), true, false);
        for (charge, state) in plan.charges().zip(&self.states) {
            let (counter, weight) = (charge.policy().counter(), charge.weight());
            let reading = counter.read(state, times, weight, first_entry(call));
            let fits = counter.admits(reading, times.now, weight);
            all_fit &= fits || charge.is_shadow();
            is_used |= counter.is_counted(reading);
            read.push(Read { reading, fits });
        }
        Found {
            moment: Moment {
                now,
                // At most as long as it may stand still.
                ahead: now.micros_since(clock) as u32,
                birth: self.birth_at(now, is_used, call),
            },
            read,
            fits: all_fit,
        }
    }

    /// The birth of what is there now, which is this call if nothing of it is used any more.
    #[inline]
    fn birth_at(&self, now: Timestamp, is_used: bool, call: u32) -> u32 {
        let is_used = is_used || self.others.as_ref().is_some_and(|others| others.count_anything(now));
        if is_used { self.birth } else { call }
    }

    /// Changes charges that were made before.
    pub(crate) fn settle(&mut self, clock: Timestamp, settlement: PartSettlement<'_>, call: u32) {
        let policies = settlement.part.policies();
        let now = self.time(clock, policies);
        if !self.is_about(policies) {
            *self = self.with_policies(now, policies);
        }
        let times = self.times(now);
        let mut is_used = false;
        for (adjustment, state) in settlement.adjustments().zip(&mut self.states) {
            let (counter, delta) = (adjustment.policy.counter(), adjustment.delta);
            is_used |= counter.is_used(state, times.last, times.now);
            match delta {
                0 => counter.advance(state, times),
                1.. => counter.charge_late(state, times, delta.unsigned_abs(), first_entry(call)),
                _ => counter.refund(state, times, self.birth, delta.unsigned_abs(), adjustment.receipt),
            }
        }
        self.birth = self.birth_at(now, is_used, call);
        self.at = now;
    }

    /// Forgets everything but the slots that are held and logs that these policies do not name. Those are kept because
    /// Redis cannot find them: each is a key of its own there, whose name is made from its policy.
    pub(crate) fn reset(&mut self, policies: &PolicySet) {
        let is_kept = |id: u32, counter: &Counter| match counter.form() {
            Form::Log => policies.iter().all(|policy| policy.id() != id),
            Form::Numbers => false,
            Form::Slots => true,
        };
        for (policy, state) in self.policies.iter().zip(&mut self.states) {
            if !is_kept(policy.id(), policy.counter()) {
                *state = policy.counter().unused();
            }
        }
        if let Some(others) = &mut self.others {
            others.states.retain(|foreign| is_kept(foreign.id, &foreign.counter));
        }
    }

    /// The same partition seen by other policies, brought forward to now.
    fn with_policies(&self, now: Timestamp, policies: &PolicySet) -> Self {
        let mut foreign = self.advanced(now);
        let state_of = |policy: &Policy| {
            let own = foreign.iter().position(|foreign| foreign.id == policy.id());
            own.map_or_else(
                || policy.counter().unused(),
                |own| {
                    let own = foreign.swap_remove(own);
                    policy.counter().convert(&own.state, &own.counter)
                },
            )
        };
        let states = policies.iter().map(state_of).collect();
        Self {
            at: now,
            birth: self.birth,
            policies: Arc::clone(policies.list()),
            states,
            others: (!foreign.is_empty()).then(|| {
                Box::new(Others {
                    at: now,
                    states: foreign,
                })
            }),
        }
    }

    /// All states that are not empty yet, as they are now.
    fn advanced(&self, now: Timestamp) -> Vec<Foreign> {
        let own = self.policies.iter().zip(&self.states).map(|(policy, state)| {
            let (id, counter, state) = (policy.id(), *policy.counter(), state.clone());
            (self.at, Foreign { id, counter, state })
        });
        let others = self.others.iter().flat_map(|others| {
            let of = |foreign: &Foreign| (others.at, foreign.clone());
            others.states.iter().map(of)
        });
        let mut advanced: Vec<Foreign> = Vec::new();
        for (at, mut foreign) in own.chain(others) {
            foreign.counter.advance(&mut foreign.state, times(at, now));
            if foreign.counter.empty_at(&foreign.state, now.as_micros()) > now.as_micros() {
                advanced.push(foreign);
            }
        }
        advanced
    }

    /// The time of the partition: that of the clock, but it stands still while the clock is behind what was written by a few
    /// seconds at most. What was written by a clock that stood later than that belongs to now: it is neither given back nor
    /// kept for longer.
    ///
    /// Only what these policies are about counts, as in Redis, where each log is a key of its own.
    #[inline]
    fn time(&mut self, clock: Timestamp, policies: &PolicySet) -> Timestamp {
        if clock >= self.at && !policies.has_logs() {
            return clock;
        }
        self.time_behind(clock, policies)
    }

    fn time_behind(&mut self, clock: Timestamp, policies: &PolicySet) -> Timestamp {
        let counted = self.counts_anything().then_some(self.at.as_micros());
        let is_named = |id: u32| policies.iter().any(|policy| policy.id() == id);
        let own = self.policies.iter().zip(&mut self.states);
        let own = own.map(|(policy, state)| (policy.id(), policy.counter(), state));
        let others = self.others.iter_mut().flat_map(|others| &mut others.states);
        let others = others.map(|foreign| (foreign.id, &foreign.counter, &mut foreign.state));
        let named = own.chain(others).filter(|(id, ..)| is_named(*id));
        let logs: SmallVec<[(&Counter, &mut State); 4]> = named.map(|(_, counter, state)| (counter, state)).collect();
        let entries = logs.iter().filter_map(|(counter, state)| counter.newest_entry(state));
        let (from, to) = (clock.as_micros(), clock.as_micros().saturating_add(STANDSTILL));
        let ahead = entries.chain(counted).filter(|moment| (from..=to).contains(moment));
        let now = Timestamp::from_micros(ahead.max().unwrap_or(from));
        for (counter, state) in logs {
            counter.rebase(state, now.as_micros());
        }
        if now < self.at {
            self.rebase(now);
        }
        now
    }

    /// Returns `true` if anything but logs and slots was used when it was written.
    fn counts_anything(&self) -> bool {
        let at = self.at.as_micros();
        let mut own = self.policies.iter().zip(&self.states);
        let others = self.others.as_ref();
        own.any(|(policy, state)| policy.counter().is_used(state, at, at))
            || others.is_some_and(|others| others.count_anything(self.at))
    }

    /// Moves all numeric states to now.
    fn rebase(&mut self, now: Timestamp) {
        if let Some(others) = &mut self.others {
            // They have gone on until the last charge, too, although no write has noted it.
            let times = times(others.at, self.at);
            for Foreign { counter, state, .. } in &mut others.states {
                counter.advance(state, times);
            }
            others.at = now;
        }
        self.at = now;
    }

    /// The moment from which this state equals that of a partition never seen.
    pub(crate) fn empty_at(&self) -> Timestamp {
        let own = self
            .policies
            .iter()
            .zip(&self.states)
            .map(|(policy, state)| policy.counter().empty_at(state, self.at.as_micros()));
        let others = self.others.iter().flat_map(|others| {
            let at = others.at.as_micros();
            let empty_at = move |foreign: &Foreign| foreign.counter.empty_at(&foreign.state, at);
            others.states.iter().map(empty_at)
        });
        Timestamp::from_micros(own.chain(others).max().unwrap_or(0))
    }

    /// The worth that is lost with it: that of the policy of which the largest share is used. `None` if it has
    /// expired.
    pub(crate) fn worth(&self, now: Timestamp, is_returning: bool) -> Option<Worth> {
        let own = self.policies.iter().zip(&self.states).filter_map(|(policy, state)| {
            let worth = policy.counter().worth(state, self.times(now))?;
            Some(if policy.policy().is_shadow() {
                worth.of_shadow()
            } else {
                worth
            })
        });
        let others = self.others.iter().flat_map(|others| {
            let times = times(others.at, now);
            let worth = move |foreign: &Foreign| foreign.counter.worth(&foreign.state, times);
            others.states.iter().filter_map(worth)
        });
        let worth = own.chain(others).max();
        if is_returning {
            worth
        } else {
            worth.map(Worth::of_one_request)
        }
    }

    #[inline]
    fn times(&self, now: Timestamp) -> Times {
        times(self.at, now)
    }
}

#[inline]
fn times(last: Timestamp, now: Timestamp) -> Times {
    let now = now.as_micros();
    Times {
        last: last.as_micros().min(now),
        now,
    }
}
