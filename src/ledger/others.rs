use crate::{
    algorithm::{Counter, Form, Reader, State, Times, Writer},
    clock::Timestamp,
};

/// States of another tier, for example. Each drains by its own rules until it is empty.
#[derive(Clone, Debug)]
pub(super) struct Others {
    pub(super) at: Timestamp,
    pub(super) states: Vec<UnknownEntry>,
}

/// Its counter can advance and convert the state without the policy.
#[derive(Clone, Debug)]
pub(super) struct UnknownEntry {
    pub(super) id: u32,
    pub(super) counter: Counter,
    pub(super) state: State,
}

impl UnknownEntry {
    pub(super) fn taken(states: &mut Vec<Self>, id: u32, counter: &Counter) -> Self {
        let known = states.iter().position(|foreign| foreign.id == id);
        let known = known.map(|position| states.swap_remove(position));
        known.filter(|known| known.counter.is_like(counter)).unwrap_or(Self {
            id,
            counter: *counter,
            state: counter.unused(),
        })
    }
}

pub(super) struct Kept<'a> {
    pub(super) at: Timestamp,
    pub(super) id: u32,
    pub(super) counter: &'a Counter,
    pub(super) state: &'a State,
    pub(super) is_shadow: bool,
}

impl Others {
    pub(super) fn count_anything(&self, now: Timestamp) -> bool {
        let (last, now) = (self.at.as_micros(), now.as_micros());
        let mut states = self.states.iter();
        states.any(|foreign| foreign.counter.is_used(&foreign.state, last, now))
    }

    /// Never for logs, whose entries determine the time while a clock is behind.
    pub(super) fn have_expired(&self, now: Timestamp) -> bool {
        let (last, now) = (self.at.as_micros(), now.as_micros());
        let is_expired = |foreign: &UnknownEntry| {
            foreign.counter.form() == Form::Numbers && foreign.counter.empty_at(&foreign.state, last) <= now
        };
        self.states.iter().all(is_expired)
    }

    /// Shadow mode is not stored.
    pub(super) fn kept(&self) -> impl Iterator<Item = Kept<'_>> {
        self.states.iter().map(|foreign| Kept {
            at: self.at,
            id: foreign.id,
            counter: &foreign.counter,
            state: &foreign.state,
            is_shadow: false,
        })
    }

    pub(super) fn rebase(&mut self, last: Timestamp, now: Timestamp) {
        // States are advanced lazily, so they may be older than the last charge.
        let times = times(self.at, last);
        for UnknownEntry { counter, state, .. } in &mut self.states {
            counter.advance(state, times);
        }
        self.at = now;
    }

    pub(super) fn write(&self, birth: u32, bytes: &mut Writer) {
        bytes.write_all([self.at.as_micros(), birth.into(), self.states.len() as u64]);
        for UnknownEntry { id, counter, state } in &self.states {
            bytes.write((*id).into());
            counter.write(state, bytes);
        }
    }

    pub(super) fn read_from(bytes: &mut Reader<'_>) -> Option<(Self, u32)> {
        let at = Timestamp::from_micros(bytes.amount()?);
        let birth = u32::try_from(bytes.any()?).ok()?;
        let mut states = Vec::new();
        for _ in 0..bytes.any()? {
            let id = u32::try_from(bytes.any()?).ok()?;
            let (counter, state) = Counter::parse(bytes)?;
            states.push(UnknownEntry { id, counter, state });
        }
        Some((Self { at, states }, birth))
    }
}

#[inline]
pub(super) fn times(last: Timestamp, now: Timestamp) -> Times {
    let now = now.as_micros();
    Times {
        last: last.as_micros().min(now),
        now,
    }
}
