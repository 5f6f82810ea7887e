use smallvec::SmallVec;

use super::{
    answer::{Answer, Found, is_cached},
    exhaustion::Exhaustion,
};
use crate::{clock::Timestamp, decision::PartPlan};

#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    /// One per policy set: sets differ if a caller has individual quotas or reduced capacity.
    answers: SmallVec<[Answer; 1]>,
    /// Kept for longer than answers, because the state may be lost before the caller's next request.
    exhaustion: Option<Exhaustion>,
}

impl Record {
    pub(super) const MAX_ANSWERS: usize = 4;

    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.exhaustion.is_none()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    #[inline]
    pub(super) fn judge(&self, part: PartPlan<'_>, now: Timestamp, found: &mut Found) {
        found.is_known = true;
        let mut answers = self.answers.iter();
        match answers.find(|answer| answer.is_about(part.policies()) && !answer.is_expired(now)) {
            Some(answer) => answer.judge(part, now, found),
            None => {
                found.is_open |= part.policies().iter().any(is_cached);
                found.rejections.extend(part.charges().map(|_| None));
            }
        }
    }

    pub(super) fn asks(&mut self, part: PartPlan<'_>, now: Timestamp, only_asks: bool) {
        let mut answers = self.answers.iter_mut();
        if let Some(answer) = answers.find(|answer| answer.is_about(part.policies()) && !answer.is_expired(now)) {
            answer.asks(part, now, only_asks);
        }
    }

    pub(super) fn unsent(&mut self) {
        self.answers.iter_mut().for_each(Answer::unsent);
    }

    /// After a late charge, the store needs the state of the last charge for even longer.
    pub(super) fn settled(&mut self, is_refund: bool) {
        self.answers.clear();
        self.exhaustion.take_if(|_| is_refund);
    }

    /// The answer replaces older ones about the same policies; with `rejects`, it is cached. Returns `true` if the
    /// store has lost the state of the partition.
    pub(super) fn learn(&mut self, answer: Answer, is_charged: bool, rejects: bool, now: Timestamp) -> bool {
        let asked_at = answer.asked_at();
        let is_lost = self.exhaustion.as_ref().is_some_and(|own| own.is_lost(&answer));
        if self.exhaustion.as_ref().is_none_or(|own| !own.is_newer(asked_at, now)) {
            let is_continued = |own: &Exhaustion| answer.rejects() && own.agrees_with(answer.policies());
            let continued = self.exhaustion.take().filter(|own| !is_lost && is_continued(own));
            let exhaustion = is_charged.then(|| Exhaustion::of(&answer, now)).flatten();
            self.exhaustion = exhaustion.or(continued);
        }
        self.answers.retain(|known| {
            !known.is_expired(now) && (known.asked_at() > asked_at || !known.is_about(answer.policies()))
        });
        let is_kept = rejects && answer.is_lasting(is_charged);
        if is_kept && !self.answers.iter().any(|known| known.is_about(answer.policies())) {
            if self.answers.len() == Self::MAX_ANSWERS {
                self.answers.remove(0);
            }
            self.answers.push(answer);
        }
        is_lost
    }

    pub(super) fn asked_at(&self) -> Option<Timestamp> {
        self.answers.iter().map(Answer::asked_at).max()
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.answers.iter().all(|answer| answer.is_expired(now))
    }

    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.is_expired(now) && self.exhaustion.as_ref().is_none_or(|own| own.is_over(now))
    }
}
