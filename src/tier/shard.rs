use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;

use super::look_up::{Answer, LookUp};
use crate::{clock::Timestamp, partition::PartitionId, sync::bounded_map::BoundedMap};

#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) time_to_live: Duration,
    pub(super) stale_for: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    Fresh,
    /// Used, and looked up again without waiting.
    Ageing,
    /// Used if no newer answer is available.
    Stale,
    /// Missing, or too old to be used.
    Unknown,
}

impl Known {
    fn lacks_quotas(&self) -> bool {
        let tier = self.answer.as_ref();
        tier.is_some_and(|tier| tier.quotas_problem().is_some())
    }

    fn answer(&self, now: Timestamp, times: &Times) -> Answer {
        let answer = self.answer.clone();
        match self.lacks_quotas() && !times.keep(self.quotas_since, now) {
            true => answer.map(|tier| tier.with_quotas_of(None)),
            false => answer,
        }
    }
}

impl Times {
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
}

const FAILURE_PAUSE: Duration = Duration::from_secs(1);

struct Known {
    answer: Answer,
    /// The answer may have changed since the start of the lookup.
    since: Timestamp,
    /// Individual quotas can be older than the tier.
    quotas_since: Timestamp,
}

#[derive(Default)]
struct User {
    known: Option<Known>,
    failures: u8,
    retry_at: Timestamp,
    used_at: Timestamp,
}

impl User {
    fn fail(&mut self, now: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.pause(now);
    }

    fn pause(&mut self, now: Timestamp) {
        let doublings = self.failures.saturating_sub(1).min(3);
        self.retry_at = now.saturating_add(FAILURE_PAUSE * (1 << doublings));
    }

    fn age(&self, now: Timestamp, times: &Times) -> Age {
        self.known.as_ref().map_or(Age::Unknown, |known| times.age(known, now))
    }

    fn is_useless(&self, now: Timestamp, times: &Times) -> bool {
        self.age(now, times) == Age::Unknown && self.retry_at <= now
    }
}

struct Running {
    look_up: LookUp,
    is_outdated: bool,
}

pub(super) struct Seen {
    pub(super) known: Option<Answer>,
    pub(super) age: Age,
    pub(super) may_ask: bool,
}

pub(super) struct Shard {
    users: BoundedMap<User>,
    /// Separate, so that even an evicted user has only one lookup at a time.
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

    pub(super) fn take_outdated(&mut self, user: PartitionId) -> bool {
        let running = self.running.get_mut(&user);
        running.is_some_and(|running| std::mem::take(&mut running.is_outdated))
    }

    pub(super) fn end(&mut self, user: PartitionId) {
        self.running.remove(&user);
    }

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
            true => user.fail(now),
            false => (user.failures, user.retry_at) = (0, Timestamp::default()),
        }
        user.known = Some(known);
        answer
    }

    pub(super) fn fail(&mut self, user: PartitionId, now: Timestamp, times: &Times) {
        self.user(user, now, times).fail(now);
    }

    pub(super) fn pause(&mut self, user: PartitionId, now: Timestamp, times: &Times) {
        self.user(user, now, times).pause(now);
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
