use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use envoy_types::pb::{
    envoy::config::core::v3::HeaderValue,
    envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
        rate_limit_service_server::RateLimitService,
    },
    google::protobuf,
};
use futures_util::future::{OptionFuture, join, join_all};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};
use tower_quota::{Allowance, Decision, FailureMode, Outcome, PartitionId, QuotaPolicy, ResponseFields};

use super::{
    domain::{Domain, Work, unit},
    timeout::timeout,
};

/// The maximum deadline of a limiter.
const LONGEST: Duration = Duration::from_secs(60);

pub(crate) struct RateLimits {
    pub(crate) domains: BTreeMap<String, Domain>,
    pub(crate) mode: FailureMode,
    /// The deadline of reports and refunds. Checks use the deadline of the limiter and its failure mode.
    pub(crate) deadline: Duration,
}

type Answer = Result<Response<RateLimitResponse>, Status>;

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(&self, request: Request<RateLimitRequest>) -> Answer {
        let deadline = request.extensions().get().copied().unwrap_or_else(Instant::now);
        let domain = self.domains.get(&request.get_ref().domain);
        let domain = domain.ok_or_else(|| Status::not_found("the domain has no rules"))?;
        let Work {
            partitions,
            plan,
            changes,
        } = domain.work(request.get_ref())?;
        let mut is_admitted = plan.is_none() || self.mode != FailureMode::Closed;
        let held: OptionFuture<_> = plan.map(|plan| domain.limiter.hold_plan(plan)).into();
        // All changes begin, whether or not one fails, and a change in progress is made even if the call ends.
        let changed = join_all(changes.iter().map(|(caller, change)| change.apply(caller)));
        let changed = timeout_at(deadline.min(Instant::now() + self.deadline), changed);
        let (held, changed) = join(timeout_at(deadline, held), changed).await;
        let decision = held.ok().flatten();
        // Dropping the permit does not refund the charge.
        let decision = decision.map(|held| held.map_or_else(|rejected| rejected, |permit| permit.decision().clone()));
        if let Some(decision) = &decision {
            is_admitted = decision.outcome().is_admitted();
        }
        let is_changed = changed.is_ok_and(|changed| changed.iter().all(Result::is_ok));
        if is_admitted && !is_changed {
            return Err(Status::unavailable("the store has not confirmed a report or a refund"));
        }
        let decision = decision.as_ref();
        let status = |partition: &_| status(*partition, decision, is_admitted);
        Ok(Response::new(RateLimitResponse {
            overall_code: code(is_admitted),
            statuses: partitions.iter().map(status).collect(),
            response_headers_to_add: decision.map(headers).unwrap_or_default(),
            ..RateLimitResponse::default()
        }))
    }
}

/// Sets the deadline of a call: three quarters of the client's timeout, because the rest is for the network.
///
/// The deadline starts with the headers, like the timer of tonic, and not after the message has been read.
pub(crate) fn set_deadline(mut request: Request<()>) -> Result<Request<()>, Status> {
    let time = timeout(request.metadata().as_ref()).unwrap_or(Duration::MAX);
    let deadline = Instant::now() + (time / 4 * 3).min(LONGEST);
    request.extensions_mut().insert(deadline);
    Ok(request)
}

fn code(is_admitted: bool) -> i32 {
    if is_admitted { Code::Ok } else { Code::OverLimit }.into()
}

fn status(partition: Option<PartitionId>, decision: Option<&Decision>, is_admitted: bool) -> DescriptorStatus {
    let is_own = |allowance: &Allowance<'_>| Some(allowance.partition()) == partition;
    let is_over = match decision.filter(|decision| decision.outcome() == Outcome::Rejected) {
        Some(rejected) => rejected.violated().any(|allowance| is_own(&allowance)),
        None => partition.is_some() && !is_admitted,
    };
    let tightest = decision.and_then(|decision| tightest(decision.allowances().filter(is_own)));
    let remaining = tightest.map_or(0, |allowance| allowance.remaining());
    let reset = tightest.and_then(|allowance| allowance.effective_window());
    DescriptorStatus {
        code: code(!is_over),
        current_limit: tightest.map(|allowance| limit(allowance.policy())),
        limit_remaining: remaining.try_into().unwrap_or(u32::MAX),
        duration_until_reset: reset.map(|reset| protobuf::Duration {
            seconds: reset.as_secs().cast_signed(),
            nanos: reset.subsec_nanos().cast_signed(),
        }),
        ..DescriptorStatus::default()
    }
}

/// Returns the violated policy with the longest wait. If no policy is violated, returns the policy with the fewest
/// remaining units.
fn tightest<'a>(allowances: impl Iterator<Item = Allowance<'a>>) -> Option<Allowance<'a>> {
    let visible = allowances.filter(|allowance| !allowance.policy().is_hidden());
    visible.min_by_key(|allowance| {
        let wait = allowance
            .is_violated()
            .then(|| allowance.retry_after().unwrap_or(Duration::MAX));
        (Reverse(wait), allowance.remaining())
    })
}

fn limit(policy: &QuotaPolicy) -> RateLimit {
    RateLimit {
        name: policy.name().to_owned(),
        requests_per_unit: policy.quota().try_into().unwrap_or(u32::MAX),
        unit: unit(policy).unwrap_or(Unit::Unknown).into(),
    }
}

/// Returns the fields of the tightest policy only, because policies of several descriptors can have the same name.
fn headers(decision: &Decision) -> Vec<HeaderValue> {
    let fields = ResponseFields::draft11().tightest_only().to_headers(decision);
    let headers = fields.iter().map(|(name, value)| HeaderValue {
        key: name.to_string(),
        value: value.to_str().unwrap_or_default().to_owned(),
        raw_value: Vec::new(),
    });
    headers.collect()
}
