//! The state of this instance, which the operators' page requests once per second.

use std::{env, process};

use axum::{Json, extract::State};
use serde_json::{Value, json};
use tower_quota::{CircuitState, clock::Clock};

use super::admin::{Admin, RulesOf};

/// Returns the name of this instance for operators, with at most 64 printable ASCII characters.
pub(crate) fn instance() -> String {
    let host = env::var("HOSTNAME").unwrap_or_default();
    let host: String = host.chars().filter(char::is_ascii_graphic).take(40).collect();
    let host = if host.is_empty() { "this host" } else { &host };
    format!("{host}, process {}", process::id())
}

pub(crate) async fn state(State(admin): State<Admin>) -> Json<Value> {
    let (rules, fleet) = match &admin.rules {
        RulesOf::Instance(book) => (book.to_json(), Value::Null),
        RulesOf::Fleet(fleet) => (Value::Null, fleet.to_json()),
    };
    Json(json!({
        "instance": instance(),
        "is_on": admin.handle.is_enabled(),
        "rules": rules,
        "fleet": fleet,
        "circuit": circuit(admin.limits.circuit()),
        "numbers": admin.numbers.now(),
        "rejected": admin.rejected.most(),
        "blocks": admin.blocks.to_json(),
    }))
}

pub(crate) async fn history(State(admin): State<Admin>) -> Json<Value> {
    Json(admin.numbers.kept())
}

/// `null` for a Redis Cluster, which has a circuit per node.
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
