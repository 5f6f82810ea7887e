use smallvec::SmallVec;

use super::{
    exhaustion::Exhaustion,
    record::{Finding, Record, is_cached, is_expired},
};
use crate::{
    clock::Timestamp,
    decision::Charge,
    policy::{MAX_POLICIES, Policy, PolicySet},
};

/// A rejection reports the longest wait of all policies. If it is unknown whether one of them has room, the charge is
/// sent to the store, even if another one is known to reject it.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    /// At most one per policy.
    rejecting: SmallVec<[Record; 1]>,
    rooms: Vec<Room>,
    /// Kept for longer than rejections, because the state may be lost before the caller's next request.
    exhaustion: Option<Exhaustion>,
}

/// Other instances may have used the policy.
#[derive(Clone, Copy, Debug)]
struct Room {
    policy: u32,
    weight: u64,
    asked_at: Timestamp,
}

impl Room {
    fn of(finding: &Finding<'_>) -> Option<Self> {
        finding.has_room().then_some(Self {
            policy: finding.policy().id(),
            weight: finding.weight,
            asked_at: finding.asked_at,
        })
    }
}

impl Records {
    pub(super) fn of(rejecting: impl Iterator<Item = Record>) -> Self {
        Self {
            rejecting: rejecting.collect(),
            ..Self::default()
        }
    }

    pub(super) fn with_rooms(self, findings: &[Finding<'_>]) -> Self {
        let rooms = findings.iter().filter_map(Room::of).collect();
        Self { rooms, ..self }
    }

    pub(super) fn with_exhaustion(self, exhaustion: Option<Exhaustion>) -> Self {
        Self { exhaustion, ..self }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rejecting.is_empty() && self.rooms.is_empty() && self.exhaustion.is_none()
    }

    pub(super) fn are_lost(&self, findings: &[Finding<'_>]) -> bool {
        self.exhaustion.as_ref().is_some_and(|own| own.is_lost(findings))
    }

    pub(super) fn reject(&self) -> bool {
        !self.rejecting.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.rejecting.len()
    }

    #[inline]
    pub(super) fn rejecting(&self, policies: &PolicySet, index: usize, now: Timestamp) -> Option<&Record> {
        let record = self.rejecting.iter().find(|record| record.is_about(policies, index));
        record.filter(|record| !record.is_expired(now))
    }

    pub(super) fn rejecting_mut(&mut self, policies: &PolicySet, index: usize) -> Option<&mut Record> {
        self.rejecting
            .iter_mut()
            .find(|record| record.is_about(policies, index))
    }

    /// After a late charge, the store needs the state of the last charge for even longer.
    pub(super) fn settled(&mut self, is_refund: bool) {
        *self = Self::default().with_exhaustion(self.exhaustion.take().filter(|_| !is_refund));
    }

    pub(super) fn unsent(&mut self) {
        self.rejecting.iter_mut().for_each(Record::unsent);
    }

    /// `true` if the policy has no record.
    #[inline]
    pub(super) fn may_reject(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        let has_room = |room: &Room| {
            room.policy == charge.policy().id() && charge.weight() <= room.weight && !is_expired(room.asked_at, now)
        };
        is_cached(charge.policy()) && !self.rooms.iter().any(has_room)
    }

    pub(super) fn replace(&mut self, findings: &[Finding<'_>], new: Self, asked_at: Timestamp, now: Timestamp) {
        let rejects = new.reject();
        self.exhaustion.take_if(|own| {
            let is_continued = rejects && findings.iter().all(|finding| own.agrees_with(finding.policies));
            !own.is_newer(asked_at, now) && (!is_continued || own.is_lost(findings))
        });
        if self.exhaustion.as_ref().is_none_or(|own| !own.is_newer(asked_at, now)) {
            self.exhaustion = new.exhaustion.or(self.exhaustion.take());
        }
        self.rejecting.retain(|record| {
            let mut findings = findings.iter();
            let is_answered = findings.any(|finding| record.is_about(finding.policies, finding.index));
            !record.is_expired(now) && (record.asked_at() > asked_at || !is_answered)
        });
        self.rooms.retain(|room| {
            let mut findings = findings.iter();
            let is_answered = findings.any(|finding| finding.policy().id() == room.policy);
            !is_expired(room.asked_at, now) && (room.asked_at > asked_at || !is_answered)
        });
        for record in new.rejecting {
            if !self.knows(record.policy()) && self.rejecting.len() < MAX_POLICIES {
                self.rejecting.push(record);
            }
        }
        for room in new.rooms {
            let is_known = |id| id == room.policy;
            let mut known = self.rejecting.iter().map(|record| record.policy().id());
            let is_rejecting = known.any(is_known);
            if !is_rejecting
                && !self.rooms.iter().any(|other| is_known(other.policy))
                && self.rooms.len() < MAX_POLICIES
            {
                self.rooms.push(room);
            }
        }
    }

    fn knows(&self, policy: &Policy) -> bool {
        self.rejecting.iter().any(|known| known.policy() == policy)
            || self.rooms.iter().any(|room| room.policy == policy.id())
    }

    fn asked(&self) -> impl Iterator<Item = Timestamp> {
        let rejecting = self.rejecting.iter().map(Record::asked_at);
        rejecting.chain(self.rooms.iter().map(|room| room.asked_at))
    }

    pub(super) fn asked_at(&self) -> Option<Timestamp> {
        self.asked().max()
    }

    pub(super) fn are_expired(&self, now: Timestamp) -> bool {
        self.asked().all(|asked_at| is_expired(asked_at, now))
    }

    pub(super) fn are_over(&self, now: Timestamp) -> bool {
        self.are_expired(now) && self.exhaustion.as_ref().is_none_or(|own| own.is_over(now))
    }
}
