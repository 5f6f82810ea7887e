//! Users, their plans, and client addresses.

use std::{io, time::Duration};

use axum::extract::Request;
use tower_quota::{
    PartitionKey, ResolvedTier, ToPartitionKey,
    key::{self, ClientIp, ForwardingField, KeyExtractor},
};
use tower_quota_fleet::Contracts;

#[derive(Clone)]
pub(crate) struct User(pub(crate) String);

impl ToPartitionKey for User {
    fn to_partition_key(&self) -> PartitionKey {
        PartitionKey::new("user", &self.0)
    }
}

/// Replaces authentication and trusts any name. In production, verify a session or a token here, and reject the request
/// if the session or token is invalid.
pub(crate) async fn authenticate(mut request: Request) -> Request {
    let name = request.headers().get("x-user-id").and_then(|name| name.to_str().ok());
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        let user = User(name.to_owned());
        request.extensions_mut().insert(user);
    }
    request
}

/// Returns the client address for limits, blocks and wrong tokens, according to `TRUSTED_PROXIES` and
/// `FORWARDING_FIELD`.
///
/// An untrusted proxy counts as one client: ten wrong tokens through this proxy lock out all administrators behind the
/// proxy.
pub(crate) fn client_ip(variable: impl Fn(&str) -> Option<String>) -> Result<ClientIp, String> {
    let set = |name| variable(name).filter(|value| !value.trim().is_empty());
    let proxies = set("TRUSTED_PROXIES");
    let networks = proxies.iter().flat_map(|list| list.split(',')).map(str::trim);
    let name = set("FORWARDING_FIELD").unwrap_or_else(|| "X-Forwarded-For".to_owned());
    let field = match &*name.to_ascii_lowercase() {
        "x-forwarded-for" => ForwardingField::XForwardedFor,
        "forwarded" => ForwardingField::Forwarded,
        _ => ForwardingField::SingleAddress(name.into()),
    };
    let client_ip = key::client_ip().trusted_proxies(field, networks);
    let checked = client_ip.check();
    checked.map_err(|error| format!("TRUSTED_PROXIES or FORWARDING_FIELD: {error}"))?;
    Ok(client_ip)
}

/// Returns a user's plan and contract. If the contract is unavailable, its last known quotas apply.
pub(crate) async fn plan_of(user: User, contracts: Contracts) -> io::Result<Option<ResolvedTier>> {
    let (plan, contract) = tokio::join!(tier_of(user.clone()), contracts.quotas(&user));
    let plan = ResolvedTier::new(plan?.unwrap_or("free"));
    Ok(Some(plan.with_quotas_or_last(contract)))
}

/// Replaces a slow database. Users without a plan have the first tier.
#[allow(clippy::disallowed_methods, reason = "pretending to be slow")]
pub(crate) async fn tier_of(User(name): User) -> io::Result<Option<&'static str>> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(match name.split('-').next() {
        Some("premium") => Some("premium"),
        Some("admin") => Some("admin"),
        _ => None,
    })
}
