//! One part of the users, under one lock.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;

use super::look_up::{Answer, LookUp};
use crate::{clock::Timestamp, partition::PartitionId, sync::bounded_map::BoundedMap};

/// The times to live of answers and of failures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) time_to_live: Duration,
    pub(super) stale_for: Duration,
    pub(super) failure_pause: Duration,
}

/// The age of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// Good as it is.
    Fresh,
    /// Still good, but not for long.
    Ageing,
    /// To be used only if no newer one can be had.
    Stale,
    /// Not to be used at all, or there is none.
    Unknown,
}

impl Known {
    /// Returns `true` if the source of the individual quotas has failed, and is to be asked again.
    fn lacks_quotas(&self) -> bool {
        let tier = self.answer.as_ref();
        tier.is_some_and(|tier| tier.quotas_problem().is_some())
    }

    /// The answer, without individual quotas that are too old.
    fn answer(&self, now: Timestamp, times: &Times) -> Answer {
        let answer = self.answer.clone();
        match self.lacks_quotas() && !times.keep(self.quotas_since, now) {
            true => answer.map(|tier| tier.with_quotas_of(None)),
            false => answer,
        }
    }
}

impl Times {
    /// Returns `true` if what was known at a moment is of use, if only as a stale answer.
    fn keep(&self, since: Timestamp, now: Timestamp) -> bool {
        Duration::from_micros(now.micros_since(since)) < self.time_to_live + self.stale_for
    }

    fn age(&self, known: &Known, now: Timestamp) -> Age {
        let age = Duration::from_micros(now.micros_since(known.since));
        match age {
            age if age < self.time_to_live / 4 * 3 && !known.lacks_quotas() => Age::Fresh,
            age if age < self.time_to_live => Age::Ageing,
            _ if self.keep(known.since, now) => Age::Stale,
            _ => Age::Unknown,
        }
    }

    /// The pause doubles with each failure in a row, up to eight times.
    fn pause(&self, failures: u8) -> Duration {
        self.failure_pause * (1 << failures.saturating_sub(1).min(3))
    }
}

/// An answer of the source.
struct Known {
    answer: Answer,
    /// The moment at which the source was asked: its answer may have changed since.
    since: Timestamp,
    /// The same for the individual quotas, which may be older.
    quotas_since: Timestamp,
}

#[derive(Default)]
struct User {
    known: Option<Known>,
    /// Failed look-ups in a row.
    failures: u8,
    retry_at: Timestamp,
    used_at: Timestamp,
}

impl User {
    fn fail(&mut self, now: Timestamp, times: &Times) {
        self.failures = self.failures.saturating_add(1);
        self.pause(now, times);
    }

    fn pause(&mut self, now: Timestamp, times: &Times) {
        self.retry_at = now.saturating_add(times.pause(self.failures.max(1)));
    }

    fn age(&self, now: Timestamp, times: &Times) -> Age {
        self.known.as_ref().map_or(Age::Unknown, |known| times.age(known, now))
    }

    fn is_useless(&self, now: Timestamp, times: &Times) -> bool {
        self.age(now, times) == Age::Unknown && self.retry_at <= now
    }
}

/// A look-up in progress.
struct Running {
    look_up: LookUp,
    /// The user was forgotten since it has begun.
    is_outdated: bool,
}

/// The cached state of a request's user.
pub(super) struct Seen {
    /// `None` where it is of no use any more, or there is none.
    pub(super) known: Option<Answer>,
    pub(super) age: Age,
    /// True unless a recent failure forbids to ask the source.
    pub(super) may_ask: bool,
}

pub(super) struct Shard {
    users: BoundedMap<User>,
    /// Apart from the users, so that an evicted one is still not looked up twice at a time.
    running: HashMap<PartitionId, Running, RandomState>,
}

impl Shard {
    pub(super) fn new(cap: usize) -> Self {
        Self {
            users: BoundedMap::new(cap, || {}),
            running: HashMap::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.users.len()
    }

    pub(super) fn see(&mut self, user: PartitionId, now: Timestamp, times: &Times) -> Seen {
        let Some(user) = self.users.visit(user) else {
            return Seen {
                known: None,
                age: Age::Unknown,
                may_ask: true,
            };
        };
        user.used_at = now;
        let age = user.age(now, times);
        let known = user.known.as_ref().filter(|_| age != Age::Unknown);
        Seen {
            known: known.map(|known| known.answer(now, times)),
            age,
            may_ask: user.retry_at <= now,
        }
    }

    pub(super) fn running(&self, user: PartitionId) -> Option<&LookUp> {
        self.running.get(&user).map(|running| &running.look_up)
    }

    pub(super) fn begin(&mut self, user: PartitionId, look_up: LookUp) {
        let running = Running {
            look_up,
            is_outdated: false,
        };
        self.running.insert(user, running);
    }

    /// Returns `true` if the look-up has to be repeated because the user was forgotten meanwhile. Clears that mark.
    pub(super) fn take_outdated(&mut self, user: PartitionId) -> bool {
        let running = self.running.get_mut(&user);
        running.is_some_and(|running| std::mem::take(&mut running.is_outdated))
    }

    pub(super) fn end(&mut self, user: PartitionId) {
        self.running.remove(&user);
    }

    /// Keeps an answer, and returns it with the last individual quotas of the user if their source did not answer.
    pub(super) fn learn(
        &mut self,
        user: PartitionId,
        mut answer: Answer,
        since: Timestamp,
        now: Timestamp,
        times: &Times,
    ) -> Answer {
        let user = self.user(user, now, times);
        let mut quotas_since = since;
        if let Some(tier) = answer.as_mut().filter(|tier| tier.quotas_problem().is_some())
            && let Some(last) = user.known.take().filter(|last| times.keep(last.quotas_since, now))
        {
            quotas_since = last.quotas_since;
            *tier = tier.clone().with_quotas_of(last.answer.as_ref());
        }
        let known = Known {
            answer: answer.clone(),
            since,
            quotas_since,
        };
        match known.lacks_quotas() {
            true => user.fail(now, times),
            false => (user.failures, user.retry_at) = (0, Timestamp::default()),
        }
        user.known = Some(known);
        answer
    }

    pub(super) fn fail(&mut self, user: PartitionId, now: Timestamp, times: &Times) {
        self.user(user, now, times).fail(now, times);
    }

    /// The user's requests do not wait again at once. The pause grows with failures of the source only.
    pub(super) fn pause(&mut self, user: PartitionId, now: Timestamp, times: &Times) {
        self.user(user, now, times).pause(now, times);
    }

    pub(super) fn forget(&mut self, user: PartitionId) {
        self.users.remove(user);
        if let Some(running) = self.running.get_mut(&user) {
            running.is_outdated = true;
        }
    }

    pub(super) fn forget_all(&mut self) {
        self.users.clear();
        for running in self.running.values_mut() {
            running.is_outdated = true;
        }
    }

    /// The user. For a new one, the map evicts users who have called only once, then those who have not called for the
    /// longest time.
    fn user(&mut self, user: PartitionId, now: Timestamp, times: &Times) -> &mut User {
        let is_useless = |user: &User| user.is_useless(now, times);
        let new = || User {
            used_at: now,
            ..User::default()
        };
        self.users
            .get_or_insert_with(user, is_useless, |user, has_returned| (has_returned, user.used_at), new)
    }
}
