//! Notes of what was charged for a credential, in the store of the layer that has charged it.
//!
//! A note is written after the charge and never before it: two equal requests at once could otherwise both pass through the note
//! of a charge that the store then rejects.

use std::time::Duration;

use tower_quota::{
    Algorithm, CalendarPeriod, Decision, Limiter, Outcome, PartitionId, PartitionKey, Permit, Plan, PolicySet,
    QuotaPolicy, Scope,
};

/// The note of a caller's request: a log with one entry for the charge, and one for each repeat.
pub(super) struct Note {
    limiter: Limiter,
    policies: PolicySet,
    partition: PartitionId,
}

impl Note {
    const REPEATS: u64 = 3;

    /// More than all repeats together, so that the note ends one window after the charge, however late the repeats were. At
    /// one less, twice as much would be one more than the quota, from which the rejection cache expects a rejection: it would
    /// let one repeat pass at a time.
    const FIRST: u64 = Self::REPEATS + 2;

    /// A client may need longer to try again than the shortest windows last.
    const SHORTEST: Duration = Duration::from_secs(60);

    /// A month, whatever the time after which units come back: the store keeps a note for each charge.
    const LONGEST: Duration = Duration::from_secs(31 * 86_400);

    /// `None` where no time brings back what a request is charged.
    pub(super) fn new(limiter: Limiter, charged: &Plan, digest: &[u8; 32]) -> Option<Self> {
        let windows = charged.charges().filter_map(|charge| window(charge.policy().policy()));
        let window = windows.max()?.clamp(Self::SHORTEST, Self::LONGEST);
        let answers = QuotaPolicy::new("answers", Self::FIRST + Self::REPEATS, window);
        let answers = PolicySet::new([answers.with_algorithm(Algorithm::SlidingWindowLog)]);
        let request = PartitionKey::new("answered request", digest);
        let mut partitions: Vec<_> = charged.partitions().map(PartitionId::to_bytes).collect();
        // New rules may have the same policies in another order.
        partitions.sort_unstable();
        let of_caller = partitions.into_iter().fold(request, |key, partition| {
            key.and(PartitionKey::new("partition", partition))
        });
        Some(Self {
            limiter,
            policies: answers.expect("a window of a policy is valid for another one"),
            partition: Scope::new("tower-quota privacy-pass answered requests").partition(&of_caller),
        })
    }

    /// Notes a charge that was made, or counts a repeat if there is the note of an equal request: then the charge must be
    /// refunded. If the store fails, the charge stands, and the next request is charged, too.
    pub(super) async fn write(&self) -> Option<Permit> {
        let written = self.charge(Self::FIRST).await;
        let has_note = written.is_err_and(|decision| decision.outcome() == Outcome::Rejected);
        if has_note { self.repeat().await } else { None }
    }

    /// Counts a repeat of a request that was charged before. `None` if there is no note, or no repeat is left.
    pub(super) async fn find(&self) -> Option<Permit> {
        let noted = self.charge(0).await.ok()?;
        let remaining = noted.decision().allowances().next()?.remaining();
        match (1..=Self::REPEATS).contains(&remaining) {
            true => self.repeat().await,
            false => None,
        }
    }

    async fn repeat(&self) -> Option<Permit> {
        let repeat = self.charge(1).await.ok();
        repeat.filter(|repeat| repeat.decision().outcome() == Outcome::Allowed)
    }

    async fn charge(&self, units: u64) -> Result<Permit, Decision> {
        let plan = Plan::new(self.policies.clone(), self.partition, units);
        self.limiter.hold_plan(plan).await
    }
}

/// The time after which the units of a policy are back.
fn window(policy: &QuotaPolicy) -> Option<Duration> {
    let calendar = policy.calendar_window().map(|window| match window.period() {
        CalendarPeriod::Day => Duration::from_secs(86_400),
        CalendarPeriod::Week { .. } => Duration::from_secs(7 * 86_400),
        _ => Note::LONGEST,
    });
    policy.window().or(calendar)
}
