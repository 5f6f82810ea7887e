use std::{
    fmt::Write,
    time::{Duration, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tower_quota::{QuotaPolicy, Rules, clock::Clock};
use tower_quota_fleet::{AccessEntry, Controls, FleetErrorKind, RulesDocument, RulesPublisher};

use super::{
    fleet::{Fleet, until_reported},
    options::Options,
    outcome::{Failure, Report},
};

pub(crate) async fn show(options: &Options, whole: bool) -> Result<Report, Failure> {
    let (publisher, set) = (options.publisher()?, options.set()?);
    let current = publisher.current().await;
    if matches!(current, Ok(None)) {
        until_reported().await;
    }
    // Read first, because the state of the instances matters most if the document cannot be read.
    let fleet = Fleet::read(&options.rules()?).await?;
    let published = current.map_err(|error| match error.kind() {
        FleetErrorKind::Unreadable => {
            let instances = fleet.text(None);
            Failure::Broken(format!("{}\n{}", Failure::from(error), instances.trim_end()))
        }
        _ => error.into(),
    })?;
    let (controls, problem) = controls(&publisher).await;
    let Some(published) = published else {
        let text = format!("rule set {set:?}: {}\n{problem}", fleet.nothing_published());
        let text = text + &controls_text(&controls) + &fleet.text(None);
        return Ok(Report::new(
            text,
            json!({"version": null, "controls": controls_json(&controls), "instances": fleet.json()}),
        ));
    };
    let document = published.document();
    let json_text = document.to_json().map_err(|error| Failure::Broken(error.to_string()))?;
    if whole {
        let value = serde_json::from_str(&json_text).unwrap_or_default();
        return Ok(Report::new(json_text + "\n", value));
    }
    let mut text = format!("rule set {set:?}: {published}, {}\n", date(document.time()));
    text += &problem;
    text += &document_text(document, &controls);
    text += &fleet.text(Some(published.version()));
    let json = json!({
        "version": published.version().number(),
        "digest": published.version().to_string().split(' ').next_back(),
        "document": serde_json::from_str::<Value>(&json_text).unwrap_or_default(),
        "controls": controls_json(&controls),
        "instances": fleet.json(),
    });
    Ok(Report::new(text, json))
}

async fn controls(publisher: &RulesPublisher) -> (Controls, String) {
    match publisher.controls().await {
        Ok(controls) => {
            let advice = "`unblock --all` starts a new list";
            let problem = controls.access_problem();
            let problem = problem.map_or_else(String::new, |problem| format!("{problem}; {advice}\n"));
            (controls, problem)
        }
        Err(error) => (Controls::default(), format!("switch and access list: {error}\n")),
    }
}

pub(crate) async fn history(options: &Options) -> Result<Report, Failure> {
    let changes = options.publisher()?.changes().await?;
    let mut text = String::new();
    for change in &changes {
        let what = match (change.version(), change.is_roll_back()) {
            (None, _) => String::new(),
            (Some(version), false) => format!("version {version} "),
            (Some(version), true) => format!("version {version}, a rollback, "),
        };
        let reason = match change.reason() {
            "" => String::new(),
            reason => format!(" ({reason})"),
        };
        let _ = writeln!(text, "{what}by {:?}, {}{reason}:", change.author(), date(change.time()));
        for line in change.text().lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    if changes.is_empty() {
        text.push_str("no changes recorded in this Redis\n");
    }
    Ok(Report::new(text, serde_json::to_value(changes).unwrap_or_default()))
}

pub(crate) fn controls_text(controls: &Controls) -> String {
    let mut text = String::new();
    let now = now();
    if let Some(order) = controls.switch().filter(|order| order.applies_at(now)) {
        let position = position(order.is_off());
        let until = order
            .until()
            .map_or_else(String::new, |until| format!(", until {}", date(until)));
        let reason = if order.reason().is_empty() {
            String::new()
        } else {
            format!(" ({})", order.reason())
        };
        let (author, time) = (order.author(), date(order.time()));
        let _ = writeln!(text, "limits: {position}{until}, by {author:?}, {time}{reason}");
    }
    let applies = |entry: &&AccessEntry| entry.expiry().is_none_or(|end| now < end);
    for entry in controls.access().iter().filter(applies) {
        let _ = writeln!(text, "access list: {entry}");
    }
    text
}

pub(crate) fn controls_json(controls: &Controls) -> Value {
    json!({
        "switch": serde_json::to_value(controls.switch()).unwrap_or_default(),
        "access": serde_json::to_value(controls.access()).unwrap_or_default(),
    })
}

fn document_text(document: &RulesDocument, controls: &Controls) -> String {
    let mut text = controls_text(controls);
    if controls.switch().is_none_or(|order| !order.applies_at(now())) {
        text.push_str("limits: on\n");
    }
    text.push_str(&rules_text("rules", document.rules()));
    if let Some(roll_out) = document.roll_out() {
        let named = match roll_out.partitions().len() {
            0 => String::new(),
            number => format!(" and {number} listed callers"),
        };
        let title = format!("rules for {}%{named}", roll_out.percent());
        text.push_str(&rules_text(&title, roll_out.rules()));
    }
    text
}

fn rules_text(title: &str, rules: &Rules) -> String {
    let mut text = format!("{title}:\n");
    for policy in rules.policies() {
        let _ = writeln!(text, "  {}", policy_text(policy));
    }
    for (tier, policies) in rules.tiers() {
        let _ = match policies {
            None => writeln!(text, "  tier {tier:?}: unlimited"),
            Some(_) => writeln!(text, "  tier {tier:?}:"),
        };
        for policy in policies.unwrap_or_default() {
            let _ = writeln!(text, "    {}", policy_text(policy));
        }
    }
    text
}

fn policy_text(policy: &QuotaPolicy) -> String {
    let window = match (policy.window(), policy.calendar_window()) {
        (Some(window), _) => format!(" per {} s", window.as_secs()),
        (None, Some(calendar)) => format!(" per {:?} of {}", calendar.period(), calendar.time_zone()),
        (None, None) => " at a time".to_owned(),
    };
    let shadow = if policy.is_shadow() { ", a shadow" } else { "" };
    let key = policy.key_name().map_or_else(String::new, |key| format!(", by {key}"));
    format!(
        "{:?}: {} {}{window}{key}{shadow}",
        policy.name(),
        policy.quota(),
        policy.unit()
    )
}

fn position(is_off: bool) -> &'static str {
    if is_off {
        "OFF, all requests pass uncounted"
    } else {
        "on"
    }
}

fn now() -> u64 {
    Clock::system().now().as_micros() / 1_000_000
}

pub(crate) fn date(seconds: u64) -> String {
    match seconds {
        0 => "at an unknown time".to_owned(),
        1..253_402_300_800 => httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds)),
        _ => format!("Unix time {seconds}"),
    }
}
