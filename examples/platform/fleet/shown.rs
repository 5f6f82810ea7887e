//! The fleet, for the operators' page: what is published, by whom, and which instances run it.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use serde_json::{Value, json};
use tower_quota::{
    Access,
    clock::Clock,
    fleet::{AccessEntry, InstanceReport, PublishError, Published, RulesDocument},
};

use super::{super::admin::Failure, Fleet, failure, text};

pub(super) async fn show(State(fleet): State<Fleet>) -> Result<Json<Value>, Failure> {
    let publisher = fleet.publisher("");
    let (published, problem) = match publisher.current().await {
        Ok(published) => (published, None),
        // The instances go on with an older version: operators see which.
        Err(error @ PublishError::Unreadable(_)) => (None, Some(failure(error).1)),
        Err(error) => return Err(failure(error)),
    };
    let history = publisher.history().await.map_err(failure)?;
    let instances = fleet.rules.instances().await.map_err(super::unavailable)?;
    // Two reports of an instance may be there for a moment, when it has just changed its version. The later one counts.
    let named = |report: InstanceReport| (report.instance().to_owned(), report);
    let instances: BTreeMap<_, _> = instances.into_iter().map(named).collect();
    Ok(Json(json!({
        "published": published.as_ref().map(document),
        "problem": problem,
        "history": history.iter().map(version).collect::<Vec<_>>(),
        "instances": instances.values().map(instance).collect::<Vec<_>>(),
        "policies": policies(published.as_ref(), &history, &instances),
    })))
}

fn document(published: &Published) -> Value {
    let (version, document) = (published.version(), published.document());
    let now = Clock::system().now().as_micros() / 1_000_000;
    let holds = |entry: &&AccessEntry| entry.ends().is_none_or(|end| now < end);
    json!({
        "version": version.to_string(),
        "number": version.number(),
        "author": document.author(),
        "time": document.time(),
        "is_off": document.is_switched_off(),
        "rules": text(document.rules()),
        "percent": document.roll_out().map(|roll_out| roll_out.percent()),
        "named_callers": document.roll_out().map_or(0, |roll_out| roll_out.partitions().len()),
        "tried": document.roll_out().map(|roll_out| text(roll_out.rules())),
        "access": document.access().iter().filter(holds).map(|entry| access(entry, now)).collect::<Vec<_>>(),
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
        "seconds": entry.ends().map(|end| end.saturating_sub(now)),
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
        "is_off": document.is_switched_off(),
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
    })
}

/// The number of instances that run each policy, by the version of its rules.
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
