//! A [`RateLimitLayer`] as a policy.

use std::{
    convert::Infallible,
    future::Future,
    mem,
    panic::resume_unwind,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::CONTENT_LENGTH};
use http_body_util::{BodyExt, Collected, Full};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    IssuanceDecision, IssuanceDecisionFuture, IssuancePolicy, IssuanceRequest,
    note::Note,
    policy::{Grant, Verdict},
    response::problem_for_now,
};
use crate::{mutex::Mutex, telemetry::in_current_span};
use tower_quota::{ActualCost, Decision, Limiter, Outcome, RateLimitBody, RateLimitLayer, WeakPermit, WithPermit};

impl IssuancePolicy for RateLimitLayer {
    fn decide(&self, request: IssuanceRequest) -> IssuanceDecisionFuture {
        let deciding = decide(self.clone(), request);
        Box::pin(async {
            // In a task, so that a client that disconnects after the charge can repeat its request.
            let decision = tokio::spawn(in_current_span(deciding)).await;
            decision.unwrap_or_else(|error| resume_unwind(error.into_panic()))
        })
    }
}

async fn decide(layer: RateLimitLayer, request: IssuanceRequest) -> IssuanceDecision {
    let granting = Granting {
        limiter: layer.limiter().clone(),
        digest: request.digest(),
        grant: Arc::default(),
    };
    let mut parts = request.into_parts();
    // The permit belongs to a limit outside the issuer, which counts repeats, too.
    parts.extensions.remove::<WeakPermit>();
    parts.extensions.insert(WithPermit);
    // `Granting` is always ready.
    let Ok(response) = layer
        .layer(granting.clone())
        .call(Request::from_parts(parts, String::new()))
        .await;
    let decision = response.extensions().get::<Decision>();
    let outcome = decision.map(Decision::outcome);
    let rejected = decision.filter(|decision| is_exhausted(decision));
    if let Some(note) = rejected.and_then(|decision| granting.note(decision))
        && let Some(repeat) = note.find().await
    {
        return IssuanceDecision(Verdict::Issue(Grant::again(repeat)));
    }
    match outcome {
        None | Some(Outcome::Allowed | Outcome::Unlimited) => granting.granted(response),
        Some(outcome) if !outcome.is_admitted() => rejected_by(response).await,
        _ => {
            let detail = "The issuer cannot decide at this time.";
            let wait = Duration::from_secs(1);
            IssuanceDecision::respond_with(problem_for_now(StatusCode::SERVICE_UNAVAILABLE, detail, wait))
        }
    }
}

/// Temporary rejections allow repeats.
fn is_exhausted(decision: &Decision) -> bool {
    let is_closed = || decision.violated().any(|by| by.policy().quota() == 0);
    decision.outcome() == Outcome::Rejected && !is_closed()
}

/// Cannot fail, because the body is complete.
async fn rejected_by(response: Response<RateLimitBody<Full<Bytes>>>) -> IssuanceDecision {
    let (mut parts, body) = response.into_parts();
    let content = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    parts.headers.remove(CONTENT_LENGTH);
    IssuanceDecision::respond_with(Response::from_parts(parts, content))
}

#[derive(Clone)]
struct Granting {
    limiter: Limiter,
    digest: [u8; 32],
    grant: Arc<Mutex<Grant>>,
}

impl Granting {
    fn note(&self, decision: &Decision) -> Option<Note> {
        Note::new(self.limiter.clone(), decision.plan()?, &self.digest)
    }

    async fn grant(&self, permit: Option<WeakPermit>) -> Response<Full<Bytes>> {
        let mut response = Response::default();
        // A request without a permit is not counted.
        let Some(permit) = permit.as_ref().and_then(WeakPermit::upgrade) else {
            return response;
        };
        let repeat = match self.note(permit.decision()) {
            Some(note) => note.write().await,
            None => None,
        };
        let mut grant = self.grant.lock();
        match repeat {
            Some(repeat) => {
                permit.refund();
                // Prevents a cost computed from the response from replacing the refund.
                response.extensions_mut().insert(ActualCost(0));
                *grant = Grant::again(repeat);
            }
            None => grant.held = Some(permit),
        }
        response
    }

    /// Granted if counted or explicitly exempted.
    fn granted(&self, response: Response<RateLimitBody<Full<Bytes>>>) -> IssuanceDecision {
        let mut grant = mem::take(&mut *self.grant.lock());
        if grant.repeat.is_none() {
            grant.headers = response.into_parts().0.headers;
        }
        IssuanceDecision(Verdict::Issue(grant))
    }
}

impl Service<Request<String>> for Granting {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<String>) -> Self::Future {
        let (granting, permit) = (self.clone(), request.extensions_mut().remove());
        Box::pin(async move { Ok(granting.grant(permit).await) })
    }
}
