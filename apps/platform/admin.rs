//! The admin routes and the metrics. If the instance follows a fleet, the routes that change rules are in `fleet`.

use std::{fmt::Display, time::Duration};

use axum::{
    Router,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use metrics_exporter_prometheus::PrometheusHandle;
use subtle::ConstantTimeEq;
use tower_quota::{
    ConfigError, Limiter, LimiterError, MemoryStore, QuotaPolicy, RateLimitLayer, RulesHandle, WeakPermit,
    key::ClientIp, tier::TierCache,
};

use tower_quota_fleet::Contracts;

use super::{
    blocks::{self, Blocks},
    callers,
    fleet::{self, Fleet},
    numbers::Numbers,
    page,
    rejected::Rejected,
    rules::{Mistake, Origin, RuleBook, off_runtime},
    state,
};

#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) token: Option<String>,
    pub(crate) rules: RulesOf,
    pub(crate) client_ip: ClientIp,
    pub(crate) handle: RulesHandle,
    pub(crate) limits: Limiter,
    pub(crate) tiers: TierCache,
    pub(crate) contracts: Contracts,
    pub(crate) blocks: Blocks,
    pub(crate) rejected: Rejected,
    pub(crate) numbers: Numbers,
}

/// The owner of rules, switch and blocks.
#[derive(Clone)]
pub(crate) enum RulesOf {
    /// All instances follow a rule set in Redis.
    Fleet(Fleet),
    /// Rules, switch and blocks belong to this process.
    Instance(RuleBook),
}

pub(crate) type Failure = (StatusCode, String);

/// The metrics also require the token, because labels contain the names of hidden policies.
pub(crate) fn router<S>(admin: Admin, prometheus: PrometheusHandle) -> Result<Router<S>, ConfigError> {
    let changes = match admin.rules.clone() {
        RulesOf::Fleet(fleet) => fleet::router(fleet),
        RulesOf::Instance(book) => of_instance(book),
    };
    let routes = changes
        .route("/state", get(state::state))
        .route("/history", get(state::history))
        .route("/caller", get(callers::look_up).delete(callers::reset))
        .route("/caller/give-back", post(callers::give_back))
        .route("/caller/top-up", post(callers::top_up))
        .fallback(|| async { StatusCode::NOT_FOUND });
    let router = Router::new()
        .nest("/admin", routes)
        .route("/metrics", get(async move || prometheus.render()))
        .layer(middleware::from_fn_with_state(admin.clone(), authorize))
        .layer(wrong_tokens(admin.client_ip.clone())?)
        .layer(middleware::map_response(page::protect))
        .with_state(admin);
    Ok(router)
}

/// The routes that change only this instance.
fn of_instance(book: RuleBook) -> Router<Admin> {
    Router::new()
        .route("/rules", get(rules).post(replace_rules))
        .route("/roll-out", get(tried_rules).post(roll_out_to_all).delete(end_roll_out))
        .route("/roll-out/{percent}", put(roll_out))
        .route("/switch/{position}", post(switch))
        .with_state(book)
        .route("/block", post(blocks::block).delete(blocks::unblock))
}

const GUESSES: &str = "guesses";

/// Allows ten wrong tokens per hour and address. Every token is charged before `authorize` compares it, so that
/// concurrent guesses are counted, too.
///
/// After ten wrong tokens, requests from the address are rejected even with the right token, because accepting the
/// token would confirm a guess. Other addresses are not affected. Other clients of the same proxy are not affected if
/// `TRUSTED_PROXIES` contains the proxy. Each instance counts in memory, because administrators are needed most when
/// Redis is down.
fn wrong_tokens(client_ip: ClientIp) -> Result<RateLimitLayer, ConfigError> {
    RateLimitLayer::builder(MemoryStore::new())
        .scope("platform-admin")
        .key(client_ip)
        .policy(QuotaPolicy::per_hour("wrong-tokens", 10).with_unit(GUESSES).hidden())
        .unit_cost(GUESSES, |_| 1)
        .build()
}

/// Returns 404 for all routes to clients without the token.
///
/// In production, use a long random token (`openssl rand -hex 32`), TLS, and a network for administrators.
async fn authorize(State(admin): State<Admin>, guess: WeakPermit, request: Request, next: Next) -> Response {
    if !admin.trusts(&request) {
        return StatusCode::NOT_FOUND.into_response();
    }
    // Refunded before the route runs, because many requests of an administrator can wait concurrently while Redis is
    // slow.
    if let Some(guess) = guess.upgrade() {
        guess.finish(GUESSES, 0);
    }
    next.run(request).await
}

impl Admin {
    /// The comparison time reveals only the length of the token.
    fn trusts(&self, request: &Request) -> bool {
        let told = request.headers().get(header::AUTHORIZATION);
        self.token.as_ref().zip(told).is_some_and(|(token, told)| {
            let bearer = format!("Bearer {token}");
            bearer.as_bytes().ct_eq(told.as_bytes()).into()
        })
    }
}

async fn rules(State(book): State<RuleBook>) -> impl IntoResponse {
    json(book.json())
}

/// Returns the rules in rollout, or 204 without a rollout, which can end at any time.
async fn tried_rules(State(book): State<RuleBook>) -> Response {
    match book.tried() {
        Some(tried) => json(tried).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

pub(crate) fn json(text: String) -> ([(HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, "application/json")], text)
}

/// The new rules apply until the file changes or this process ends.
async fn replace_rules(State(book): State<RuleBook>, fields: HeaderMap, json: String) -> Result<StatusCode, Failure> {
    let seen = seen(&fields)?;
    let replaced = off_runtime(move || book.replace(json, Origin::Administrator, seen));
    replaced.await.map_err(unchanged)?;
    tracing::warn!("new rules from an administrator");
    Ok(StatusCode::NO_CONTENT)
}

/// Applies the rules in the body to `percent` percent of the callers. Without a body, changes the percentage of the
/// current rollout.
async fn roll_out(
    State(book): State<RuleBook>,
    Path(percent): Path<u8>,
    fields: HeaderMap,
    json: String,
) -> Result<StatusCode, Failure> {
    let json = Some(json).filter(|json| !json.is_empty());
    let seen = seen(&fields)?;
    let tried = off_runtime(move || book.roll_out(percent, json, seen));
    tried.await.map_err(unchanged)?;
    tracing::warn!("an administrator tries rules on {percent} percent of the callers");
    Ok(StatusCode::NO_CONTENT)
}

async fn roll_out_to_all(State(book): State<RuleBook>, fields: HeaderMap) -> Result<StatusCode, Failure> {
    let seen = seen(&fields)?;
    let ended = off_runtime(move || book.end_roll_out(true, seen));
    ended.await.map_err(unchanged)?;
    tracing::warn!("the rules that were tried hold for all callers");
    Ok(StatusCode::NO_CONTENT)
}

async fn end_roll_out(State(book): State<RuleBook>, fields: HeaderMap) -> Result<StatusCode, Failure> {
    let seen = seen(&fields)?;
    let ended = off_runtime(move || book.end_roll_out(false, seen));
    ended.await.map_err(unchanged)?;
    tracing::warn!("an administrator has ended the trial of new rules");
    Ok(StatusCode::NO_CONTENT)
}

/// Parses the version in `if-match: "3"`, which detects concurrent changes by two administrators.
fn seen(fields: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(field) = fields.get(header::IF_MATCH) else {
        return Ok(None);
    };
    let number = field.to_str().ok().and_then(|text| text.trim_matches('"').parse().ok());
    number.map(Some).ok_or_else(|| unchanged(Mistake::Outdated))
}

fn unchanged(mistake: Mistake) -> Failure {
    let status = match mistake {
        Mistake::Outdated => StatusCode::PRECONDITION_FAILED,
        Mistake::NotTried => StatusCode::CONFLICT,
        Mistake::Rules(_) => StatusCode::UNPROCESSABLE_ENTITY,
    };
    (status, format!("{mistake}\n"))
}

async fn switch(State(book): State<RuleBook>, Path(position): Path<String>) -> StatusCode {
    match &*position {
        "on" => book.handle().enable(),
        "off" => book.handle().disable(),
        _ => return StatusCode::NOT_FOUND,
    }
    tracing::warn!("an administrator has switched the limits {position}");
    StatusCode::NO_CONTENT
}

/// Awaits the store with a deadline, which admin calls would otherwise lack.
pub(crate) async fn answer<T>(answer: impl Future<Output = Result<T, LimiterError>>) -> Result<T, Failure> {
    let answer = tokio::time::timeout(Duration::from_secs(5), answer).await;
    answer.map_err(unavailable)?.map_err(|error| match error {
        LimiterError::Store(error) => unavailable(error),
        mistake => unprocessable(mistake),
    })
}

pub(crate) fn unprocessable(error: impl Display) -> Failure {
    (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n"))
}

pub(crate) fn unavailable(error: impl Display) -> Failure {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))
}
