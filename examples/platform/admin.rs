//! What administrators see and change. Rules, switch and blocks are those of this process: tell each instance.

use std::{fmt::Display, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::{HeaderName, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tower_quota::{
    Access, AccessList, ActualCost, AdminError, AdminHandle, ConfigError, Decision, MemoryStore, QuotaPolicy,
    RateLimitLayer, ToPartitionKey, key, tier::TierCache,
};

use super::{
    rules::RuleBook,
    users::{self, User},
};

#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) token: Option<String>,
    pub(crate) rules: RuleBook,
    pub(crate) limits: AdminHandle,
    pub(crate) tiers: TierCache,
    pub(crate) access: AccessList,
}

type Failure = (StatusCode, String);

pub(crate) fn router<S>(admin: Admin) -> Result<Router<S>, ConfigError> {
    let router = Router::new()
        .route("/rules", get(rules).post(replace_rules))
        .route("/switch/{position}", post(switch))
        .route("/users/{id}", get(user).delete(reset_user))
        .route("/users/{id}/grant", post(grant))
        .route("/block", post(block).delete(unblock))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(middleware::from_fn_with_state(admin.clone(), authorize))
        .layer(wrong_tokens()?)
        .with_state(admin);
    Ok(router)
}

/// Ten wrong tokens an hour from one address; the right one costs nothing.
///
/// After ten, this address is rejected whichever token it sends: if the right one passed, guesses could go on. Other
/// addresses are not concerned. Each instance counts for itself, in memory: administrators are needed most when Redis is
/// down.
fn wrong_tokens() -> Result<RateLimitLayer, ConfigError> {
    RateLimitLayer::builder(MemoryStore::new())
        .scope("platform-admin")
        .key(key::client_ip())
        .policy(QuotaPolicy::per_hour("wrong-tokens", 10).hidden())
        .build()
}

/// A client without the token is not told which routes there are.
///
/// The routes also need a long random token (`openssl rand -hex 32`), TLS, and a network that only
/// administrators reach.
async fn authorize(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    if !admin.trusts(&request) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let mut response = next.run(request).await;
    response.extensions_mut().insert(ActualCost(0));
    response
}

impl Admin {
    /// In a time that says nothing about the token but its length.
    fn trusts(&self, request: &Request) -> bool {
        let token = self.token.as_ref().filter(|token| !token.is_empty());
        let told = request.headers().get(header::AUTHORIZATION);
        token.zip(told).is_some_and(|(token, told)| {
            let bearer = format!("Bearer {token}");
            bearer.as_bytes().ct_eq(told.as_bytes()).into()
        })
    }
}

async fn rules(State(admin): State<Admin>) -> ([(HeaderName, &'static str); 1], String) {
    ([(header::CONTENT_TYPE, "application/json")], admin.rules.json())
}

/// They hold until the file changes, or this process ends.
async fn replace_rules(State(admin): State<Admin>, json: String) -> Result<StatusCode, Failure> {
    admin.rules.replace(json).map_err(unprocessable)?;
    tracing::info!("new rules from an administrator");
    Ok(StatusCode::NO_CONTENT)
}

async fn switch(State(admin): State<Admin>, Path(position): Path<String>) -> StatusCode {
    match &*position {
        "on" => admin.rules.handle().switch_on(),
        "off" => admin.rules.handle().switch_off(),
        _ => return StatusCode::NOT_FOUND,
    }
    tracing::warn!("an administrator has switched the limits {position}");
    StatusCode::NO_CONTENT
}

/// What a user has left, without a charge.
async fn user(State(admin): State<Admin>, Path(id): Path<String>) -> Result<Json<Value>, Failure> {
    let user = User(id);
    let tier = users::tier_of(user.clone()).await.map_err(unavailable)?;
    let decision = answer(admin.limits.peek(&user, tier)).await?;
    let policies = decision.iter().flat_map(Decision::allowances).map(|allowance| {
        json!({
            "name": allowance.policy().name(),
            "quota": allowance.policy().quota(),
            "remaining": allowance.remaining(),
            "reset_seconds": allowance.effective_window().map(|reset| reset.as_secs_f64().ceil() as u64),
        })
    });
    Ok(Json(
        json!({"tier": tier.unwrap_or("free"), "policies": policies.collect::<Vec<_>>()}),
    ))
}

/// Gives a user a full quota, and has their tier looked up anew: they may have just paid.
async fn reset_user(State(admin): State<Admin>, Path(id): Path<String>) -> Result<StatusCode, Failure> {
    let user = User(id);
    admin.tiers.forget(&user);
    answer(admin.limits.reset(&user)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `{"units": 500, "seconds": 3600}`
#[derive(Deserialize)]
struct Grant {
    units: u64,
    seconds: u64,
}

/// Gives a user more for some time.
async fn grant(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    Json(Grant { units, seconds }): Json<Grant>,
) -> Result<StatusCode, Failure> {
    let time = Duration::from_secs(seconds);
    admin.limits.grant(&User(id), units, time).map_err(unprocessable)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Nothing else keeps a deadline here.
async fn answer<T>(answer: impl Future<Output = Result<T, AdminError>>) -> Result<T, Failure> {
    let answer = tokio::time::timeout(Duration::from_secs(5), answer).await;
    answer.map_err(unavailable)?.map_err(|error| match error {
        AdminError::Store(error) => unavailable(error),
        mistake => unprocessable(mistake),
    })
}

/// `{"user": "mallory"}` or `{"network": "203.0.113.0/24"}`.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Client {
    Network(String),
    User(String),
}

async fn block(State(admin): State<Admin>, Json(client): Json<Client>) -> Result<StatusCode, Failure> {
    let blocked = admin.access.update(|rules| match client {
        Client::Network(network) => rules.set_network(network, Access::Block),
        Client::User(id) => rules.set_key(User(id).to_partition_key(), Access::Block),
    });
    blocked.map_err(unprocessable)?;
    tracing::info!("an administrator has blocked a client");
    Ok(StatusCode::NO_CONTENT)
}

async fn unblock(State(admin): State<Admin>, Json(client): Json<Client>) -> Result<StatusCode, Failure> {
    let was_blocked = admin.access.update(|rules| match client {
        Client::Network(network) => rules.remove_network(network),
        Client::User(id) => Ok(rules.remove_key(&User(id).to_partition_key())),
    });
    match was_blocked.map_err(unprocessable)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Ok(StatusCode::NOT_FOUND),
    }
}

fn unprocessable(error: impl Display) -> Failure {
    (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n"))
}

fn unavailable(error: impl Display) -> Failure {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))
}
