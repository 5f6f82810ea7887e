//! The fleet for the operators' page: published versions, their authors, and the instances that run them.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use serde_json::{Value, json};
use tower_quota::{Access, clock::Clock};
use tower_quota_fleet::{
    AccessEntry, Change, Controls, FleetErrorKind, InstanceReport, Published, RulesDocument, SwitchOrder,
};

use super::{super::admin::Failure, Fleet, failure, text};

pub(super) async fn show(State(fleet): State<Fleet>) -> Result<Json<Value>, Failure> {
    let publisher = fleet.publisher("");
    let (published, problem) = match publisher.current().await {
        Ok(published) => (published, None),
        // The instances continue with an older version, which the page shows.
        Err(error) if error.kind() == FleetErrorKind::Unreadable => (None, Some(failure(error).1)),
        Err(error) => return Err(failure(error)),
    };
    let (controls, controls_problem) = match publisher.controls().await {
        Ok(known) => {
            let problem = known
                .access_problem()
                .map(|problem| format!("{problem}; `tower-quota-rules unblock --all` begins a new list\n"));
            (known, problem)
        }
        Err(error) => (Controls::default(), Some(failure(error).1)),
    };
    let history = publisher.history().await.map_err(failure)?;
    let changes = publisher.changes().await.map_err(failure)?;
    let instances = fleet.rules.instances().await.map_err(super::unavailable)?;
    // An instance that has just changed its version can have two reports for a short time. The later report is used.
    let named = |report: InstanceReport| (report.instance().to_owned(), report);
    let instances: BTreeMap<_, _> = instances.into_iter().map(named).collect();
    Ok(Json(json!({
        "published": published.as_ref().map(document),
        "problem": problem.or(controls_problem),
        "controls": self::controls(&controls),
        "changes": changes.iter().take(50).map(change).collect::<Vec<_>>(),
        "history": history.iter().map(version).collect::<Vec<_>>(),
        "instances": instances.values().map(instance).collect::<Vec<_>>(),
        "policies": policies(published.as_ref(), &history, &instances),
    })))
}

/// Returns the switch and the access list, which apply even without published rules.
pub(super) fn controls(controls: &Controls) -> Value {
    let now = now();
    json!({
        "switch": controls.switch().map(order),
        "switch_number": controls.switch().map_or(0, SwitchOrder::number),
        "access_number": controls.access_number(),
        "access": entries(controls.access(), now),
    })
}

pub(super) fn order(order: &SwitchOrder) -> Value {
    let now = now();
    json!({
        "is_off": order.is_off() && order.applies_at(now),
        "author": order.author(),
        "reason": order.reason(),
        "time": order.time(),
        "seconds": order.until().map(|until| until.saturating_sub(now)),
    })
}

fn change(change: &Change) -> Value {
    json!({
        "version": change.version(),
        "author": change.author(),
        "reason": change.reason(),
        "time": change.time(),
        "text": change.text(),
    })
}

fn now() -> u64 {
    Clock::system().now().as_micros() / 1_000_000
}

fn entries(entries: &[AccessEntry], now: u64) -> Vec<Value> {
    let holds = |entry: &&AccessEntry| entry.expiry().is_none_or(|end| now < end);
    entries.iter().filter(holds).map(|entry| access(entry, now)).collect()
}

fn document(published: &Published) -> Value {
    let (version, document) = (published.version(), published.document());
    json!({
        "version": version.to_string(),
        "number": version.number(),
        "author": document.author(),
        "time": document.time(),
        "rules": text(document.rules()),
        "percent": document.roll_out().map(|roll_out| roll_out.percent()),
        "named_callers": document.roll_out().map_or(0, |roll_out| roll_out.partitions().len()),
        "tried": document.roll_out().map(|roll_out| text(roll_out.rules())),
    })
}

fn access(entry: &AccessEntry, now: u64) -> Value {
    let client = match (entry.as_network(), entry.as_key()) {
        (Some(network), _) => json!({ "network": network }),
        (None, Some(("user", name))) => json!({ "user": name }),
        (None, Some((kind, value))) => json!({ "key": format!("{kind} {value}") }),
        (None, None) => Value::Null,
    };
    json!({
        "client": client,
        "seconds": entry.expiry().map(|end| end.saturating_sub(now)),
        "access": match entry.access() {
            Access::Allow => "allow",
            Access::Block => "block",
            _ => "limit",
        },
    })
}

fn version(document: &RulesDocument) -> Value {
    json!({
        "number": document.version(),
        "author": document.author(),
        "time": document.time(),
        "percent": document.roll_out().map(|roll_out| roll_out.percent()),
    })
}

fn instance(report: &InstanceReport) -> Value {
    json!({
        "name": report.instance(),
        "number": report.version().map(|version| version.number()),
        "version": report.version().map(|version| version.to_string()),
        "rejects": report.rejects().map(|version| version.number()),
        "is_overridden": report.is_overridden(),
        "is_off": report.is_off(),
        "reads_controls": report.controls().is_some(),
        "has_lost": report.has_lost(),
    })
}

/// Returns the number of instances that run each policy, by the version of its rules.
fn policies(
    published: Option<&Published>,
    history: &[RulesDocument],
    instances: &BTreeMap<String, InstanceReport>,
) -> Value {
    let mut running: BTreeMap<u64, u64> = BTreeMap::new();
    for version in instances.values().filter_map(InstanceReport::version) {
        *running.entry(version.number()).or_default() += 1;
    }
    let mut rows = Vec::new();
    for (number, count) in running.into_iter().rev() {
        let mut known = published.map(Published::document).into_iter().chain(history);
        let Some(document) = known.find(|document| document.version() == number) else {
            continue;
        };
        let tried = document
            .roll_out()
            .map(|roll_out| (roll_out.rules(), Some(roll_out.percent())));
        for (rules, percent) in std::iter::once((document.rules(), None)).chain(tried) {
            for (tier, policy) in rules.all_policies() {
                rows.push(json!({
                    "tier": tier.unwrap_or_default(),
                    "policy": policy.name(),
                    "quota": policy.quota(),
                    "window_seconds": policy.window().map(|window| window.as_secs()),
                    "percent": percent,
                    "number": number,
                    "instances": count,
                }));
            }
        }
    }
    Value::Array(rows)
}
