//! Admin routes for a single caller.

use std::{net::IpAddr, time::Duration};

use axum::{
    Json,
    extract::{Query, State},
    http::StatusCode,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower_quota::{
    CallerQuotas, ChargeTime, Decision, PartitionKey, Refund, RefundOutcome, ToPartitionKey, clock::Clock,
    key::ClientIp,
};
use tower_quota_fleet::{FleetErrorKind, TopUp};

use super::{
    admin::{Admin, Failure, answer, unavailable, unprocessable},
    users::{self, User},
};

/// The query `?user=alice`, or `?address=203.0.113.7` for anonymous requests of this address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "Asked")]
pub(crate) enum Caller {
    Address(IpAddr),
    User(String),
}

#[derive(Deserialize)]
struct Asked {
    address: Option<IpAddr>,
    user: Option<String>,
}

impl TryFrom<Asked> for Caller {
    type Error = &'static str;

    fn try_from(asked: Asked) -> Result<Self, Self::Error> {
        match (asked.address, asked.user) {
            (Some(address), None) => Ok(Self::Address(address)),
            (None, Some(name)) if !name.is_empty() => Ok(Self::User(name)),
            _ => Err("either `user` or `address` is needed"),
        }
    }
}

impl Caller {
    /// The partition key in the layer.
    fn key(&self, client_ip: &ClientIp) -> PartitionKey {
        match self {
            Self::Address(address) => client_ip.key_of(*address),
            Self::User(name) => User(name.clone()).to_partition_key(),
        }
    }

    /// Anonymous callers have no plan.
    async fn tier(&self) -> Result<Option<&'static str>, Failure> {
        match self {
            Self::Address(_) => Ok(None),
            Self::User(name) => users::tier_of(User(name.clone())).await.map_err(unavailable),
        }
    }

    /// Identifies the caller by all its keys in the layer.
    fn of(&self, admin: &Admin) -> tower_quota::Caller {
        let key = self.key(&admin.client_ip);
        let caller = admin.limits.caller(&key);
        match self {
            Self::Address(_) => caller.keyed_by("address", &key),
            Self::User(_) => caller,
        }
    }
}

/// Returns the individual quotas of a user. Anonymous callers have none.
async fn quotas(caller: &Caller, admin: &Admin) -> Result<CallerQuotas, Failure> {
    match caller {
        Caller::Address(_) => Ok(CallerQuotas::new()),
        Caller::User(name) => {
            let quotas = admin.contracts.quotas(&User(name.clone())).await;
            Ok(quotas.map_err(unavailable)?.unwrap_or_default())
        }
    }
}

/// Returns the remaining units of a caller without charging it.
pub(crate) async fn look_up(State(admin): State<Admin>, Query(caller): Query<Caller>) -> Result<Json<Value>, Failure> {
    let (tier, key) = (caller.tier().await?, caller.key(&admin.client_ip));
    let quotas = quotas(&caller, &admin).await?;
    let decision = answer(caller.of(&admin).tier(tier).quotas(quotas).peek()).await?;
    let address = match &caller {
        Caller::Address(address) => Some(*address),
        Caller::User(_) => None,
    };
    let blocks = &admin.blocks;
    let (here, by_fleet) = (
        blocks.is_blocked(address, &key),
        blocks.is_blocked_by_fleet(address, &key),
    );
    Ok(Json(json!({
        "caller": caller,
        "tier": tier.unwrap_or("free"),
        "policies": policies(decision.as_ref()),
        "is_blocked": here || by_fleet,
        "is_blocked_here": here,
    })))
}

fn policies(decision: Option<&Decision>) -> Vec<Value> {
    let allowances = decision.into_iter().flat_map(Decision::allowances);
    let shown = allowances.map(|allowance| {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64().ceil() as u64);
        let policy = allowance.policy();
        json!({
            "name": policy.name(),
            "quota": policy.quota(),
            "capacity": policy.burst_capacity(),
            "window_seconds": seconds(policy.window()),
            "key": policy.key_name(),
            "is_shadow": policy.is_shadow(),
            "remaining": allowance.remaining(),
            "reset_seconds": seconds(allowance.effective_window()),
            "full_after_seconds": seconds(allowance.full_after()),
        })
    });
    shown.collect()
}

/// Resets a caller's quota and invalidates its cached tier, because the user may just have upgraded.
pub(crate) async fn reset(State(admin): State<Admin>, Query(caller): Query<Caller>) -> Result<StatusCode, Failure> {
    if let Caller::User(name) = &caller {
        admin.tiers.forget(&User(name.clone()));
    }
    answer(caller.of(&admin).reset()).await?;
    tracing::info!("an administrator has given a caller the whole quota back");
    Ok(StatusCode::NO_CONTENT)
}

/// `{"id": "order 12", "policy": "day", "units": 500, "seconds": 3600}`
#[derive(Deserialize)]
pub(crate) struct MoreUnits {
    id: String,
    policy: String,
    units: u64,
    seconds: u64,
}

/// Temporarily increases a user's quota of a policy, on all instances, and once per ID.
pub(crate) async fn top_up(
    State(admin): State<Admin>,
    Query(caller): Query<Caller>,
    Json(more): Json<MoreUnits>,
) -> Result<Json<Value>, Failure> {
    let Caller::User(name) = caller else {
        return Err(unprocessable("only users have contracts"));
    };
    let end = Clock::system().now().as_micros() / 1_000_000;
    let top_up = TopUp::new(more.id, more.policy, more.units, end.saturating_add(more.seconds));
    let given = admin.contracts.top_up(&User(name), &top_up).await;
    let given = given.map_err(|error| match error.kind() {
        FleetErrorKind::Unavailable => unavailable(error),
        _ => unprocessable(error),
    })?;
    tracing::info!("an administrator has topped up a user: {given}");
    Ok(Json(json!({ "given": given })))
}

/// `{"units": 5, "id": "ticket 4711"}`. Repeated requests with the same ID are ignored.
#[derive(Deserialize)]
pub(crate) struct GiveBack {
    units: u64,
    id: String,
}

/// Refunds units in all current windows of a caller.
pub(crate) async fn give_back(
    State(admin): State<Admin>,
    Query(caller): Query<Caller>,
    Json(GiveBack { units, id }): Json<GiveBack>,
) -> Result<Json<Value>, Failure> {
    let refund = Refund::new(units, ChargeTime::Now).with_id(id);
    let of_tier = caller.of(&admin).tier(caller.tier().await?);
    let given_back = match answer(of_tier.refund(&refund)).await? {
        RefundOutcome::Refunded => "done",
        RefundOutcome::Duplicate => "repeated",
        _ => "not_counted",
    };
    tracing::info!("an administrator has given {units} units back to a caller: {given_back}");
    Ok(Json(json!({ "given_back": given_back })))
}
