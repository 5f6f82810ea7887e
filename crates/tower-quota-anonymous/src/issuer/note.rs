//! Notes of credential charges, in the store of the layer that charged.
//!
//! Written after the charge. Otherwise, two equal concurrent requests could both be granted through the note of a
//! charge that the store then rejects.

use std::time::Duration;

use tower_quota::{
    Algorithm, Decision, Limiter, Outcome, PartitionId, PartitionKey, Permit, Plan, PolicySet, QuotaPolicy, Scope,
    calendar::CalendarPeriod,
};

/// A log with one entry for the charge, and one for each repeat.
pub(super) struct Note {
    limiter: Limiter,
    policies: PolicySet,
    partition: PartitionId,
}

impl Note {
    const REPEATS: u64 = 3;

    /// More than all repeats together. One unit less would let two charges exceed the quota by one, and the rejection
    /// cache would admit only one repeat at a time.
    const FIRST: u64 = Self::REPEATS + 2;

    /// Clients may need longer for a retry than the shortest windows.
    const SHORTEST: Duration = Duration::from_secs(60);

    /// Regardless of the refill time, because the store keeps one note per charge.
    const LONGEST: Duration = Duration::from_secs(31 * 86_400);

    /// `None` if the charge is never restored.
    pub(super) fn new(limiter: Limiter, charged: &Plan, digest: &[u8; 32]) -> Option<Self> {
        let windows = charged.charges().filter_map(|charge| window(charge.policy()));
        let window = windows.max()?.clamp(Self::SHORTEST, Self::LONGEST);
        let answers = QuotaPolicy::new("answers", Self::FIRST + Self::REPEATS, window);
        let answers = PolicySet::new([answers.with_algorithm(Algorithm::SlidingWindowLog)]);
        let request = PartitionKey::new("answered request", digest);
        let mut partitions: Vec<_> = charged.partitions().map(PartitionId::to_bytes).collect();
        // New rules may contain the same policies in another order.
        partitions.sort_unstable();
        let of_caller = partitions.into_iter().fold(request, |key, partition| {
            key.and(PartitionKey::new("partition", partition))
        });
        Some(Self {
            limiter,
            policies: answers.expect("a window of a policy is valid for another policy"),
            partition: Scope::new("tower-quota privacy-pass answered requests").partition(&of_caller),
        })
    }

    /// Records a charge, or counts a repeat of a recorded request, whose charge must be refunded. If the store fails,
    /// nothing is refunded, and the next request is charged, too.
    pub(super) async fn write(&self) -> Option<Permit> {
        let written = self.charge(Self::FIRST).await;
        let has_note = written.is_err_and(|decision| decision.outcome() == Outcome::Rejected);
        if has_note { self.repeat().await } else { None }
    }

    /// Counts a repeat. `None` if there is no note, or no repeats remain.
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

/// Until units are restored.
fn window(policy: &QuotaPolicy) -> Option<Duration> {
    let calendar = policy.calendar_window().map(|window| match window.period() {
        CalendarPeriod::Day => Duration::from_secs(86_400),
        CalendarPeriod::Week { .. } => Duration::from_secs(7 * 86_400),
        _ => Note::LONGEST,
    });
    policy.window().or(calendar)
}
