//! The state of this instance: what the operators' page shows, and asks for once a second.

use std::{env, process};

use axum::{Json, extract::State};
use serde_json::{Value, json};
use tower_quota::{CircuitState, clock::Clock};

use super::admin::Admin;

pub(crate) async fn state(State(admin): State<Admin>) -> Json<Value> {
    let host = env::var("HOSTNAME").unwrap_or_else(|_| "this host".to_owned());
    Json(json!({
        "instance": format!("{host}, process {}", process::id()),
        "is_on": admin.rules.handle().is_on(),
        "rules": admin.rules.to_json(),
        "circuit": circuit(admin.limits.circuit()),
        "numbers": admin.numbers.now(),
        "rejected": admin.rejected.most(),
        "blocks": admin.blocks.to_json(),
    }))
}

/// The numbers of the last five minutes.
pub(crate) async fn history(State(admin): State<Admin>) -> Json<Value> {
    Json(admin.numbers.kept())
}

/// `null` for a Redis Cluster, whose nodes have circuits of their own.
fn circuit(state: Option<CircuitState>) -> Value {
    match state {
        None => Value::Null,
        Some(CircuitState::Open { since, error }) => {
            let micros = Clock::system().now().as_micros().saturating_sub(since.as_micros());
            json!({ "is_open": true, "seconds": micros / 1_000_000, "error": error.to_string() })
        }
        Some(_) => json!({ "is_open": false }),
    }
}
