//! Requests that may be repeated: a caller whose response was lost is not charged for the same request again.
//!
//! A note in the layer's own store records what was charged. It is written after the charge and never before it: two equal
//! requests at once could otherwise both pass through the note of a charge that the store then rejects.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use tower_service::Service;

use super::{RateLimitBody, RateLimitLayer, ResponseFuture, admission::Limits, future::State};
use crate::{
    decision::{Decision, Outcome, Plan, Settlement},
    limiter::Guard,
    partition::{PartitionId, PartitionKey},
    policy::{Algorithm, PolicySet, QuotaPolicy},
};

pub(crate) enum Once<R> {
    First(Response<RateLimitBody<R>>),
    Repeated(Repeat),
}

#[must_use]
pub(crate) struct Repeat {
    guard: Arc<Guard>,
    decision: Decision,
}

struct Note {
    guard: Arc<Guard>,
    policies: PolicySet,
    partition: PartitionId,
}

impl RateLimitLayer {
    /// Calls the service as the layer does, unless a request with this digest was charged to the caller before.
    ///
    /// If the future is dropped between the charge and the note, a repeat is charged again.
    pub(crate) async fn call_once<S, R>(
        self,
        mut service: S,
        mut request: Parts,
        digest: [u8; 32],
    ) -> Result<Once<R>, S::Error>
    where
        S: Service<Request<()>, Response = Response<R>> + Clone,
        R: Body<Data = Bytes>,
    {
        let limits = self.0.local();
        limits.watch(&mut request);
        let (question, selection) = limits.question(&request);
        let decision = match question {
            Err(decision) => decision,
            Ok(plan) => {
                let note = limits.note(&plan, digest);
                if let Some(note) = &note
                    && let Some(repeat) = note.repeat().await
                {
                    return Ok(Once::Repeated(repeat));
                }
                let decision = limits.limiter.0.guard.decide(plan).made().await;
                if let Some(note) = note.filter(|_| decision.outcome() == Outcome::Allowed) {
                    note.write().await;
                }
                decision
            }
        };
        let admission = limits.judge(decision, selection, &mut request);
        let state = State::judged(admission, &mut service, Request::from_parts(request, ()));
        ResponseFuture { state, limits }.await.map(Once::First)
    }
}

impl Limits {
    /// `None` where no time brings back what a request is charged, or nothing may pass.
    fn note(&self, plan: &Plan, digest: [u8; 32]) -> Option<Note> {
        let policies = plan.charges().map(|charge| charge.policy().policy());
        let window = policies.filter_map(QuotaPolicy::usual_window).max()?;
        if plan.is_closed() || !plan.is_charged() {
            return None;
        }
        let window = window.clamp(Note::SHORTEST, Note::LONGEST);
        let answers = QuotaPolicy::new("answers", Note::FIRST + Note::REPEATS, window);
        let answers = PolicySet::new([answers.with_algorithm(Algorithm::SlidingWindowLog)]);
        let request = PartitionKey::own("answered request", &digest);
        let of_caller = plan.partitions().fold(request, |key, partition| {
            key.and(PartitionKey::new("partition", partition.to_bytes()))
        });
        Some(Note {
            guard: Arc::clone(&self.limiter.0.guard),
            policies: answers.expect("a window of a policy is valid for another one"),
            partition: self.limiter.0.keys.partition(&of_caller),
        })
    }
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

    async fn repeat(&self) -> Option<Repeat> {
        let noted = self.charge(0).await;
        let remaining = noted.allowances().next()?.remaining();
        if !(1..=Self::REPEATS).contains(&remaining) {
            return None;
        }
        let decision = self.charge(1).await;
        (decision.outcome() == Outcome::Allowed).then(|| Repeat {
            guard: Arc::clone(&self.guard),
            decision,
        })
    }

    /// A decision that fails is ignored: without its note, a repeat is charged like a first request. One that rejects has
    /// found the note of an equal request.
    async fn write(&self) {
        let _ = self.charge(Self::FIRST).await;
    }

    async fn charge(&self, units: u64) -> Decision {
        let plan = Plan::new(self.policies.clone(), self.partition, units);
        self.guard.decide(plan).made().await
    }
}

impl Repeat {
    /// Refunds the repeat, because it was not answered either.
    pub(crate) fn unserved(self) {
        self.guard
            .settle(&self.decision, Settlement::refund_all(&self.decision));
    }
}
