//! The rules in force, and the instances that run them.

use std::{
    collections::BTreeMap,
    fmt::Write,
    time::{Duration, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tower_quota::{QuotaPolicy, Rules, clock::Clock};
use tower_quota_fleet::{
    AccessEntry, Controls, FleetErrorKind, InstanceReport, RulesDocument, RulesPublisher, RulesVersion, SwitchOrder,
};

use super::{Failure, Report, changes::until_reported, options::Options};

/// The instances that have reported, each once.
pub(crate) struct Fleet(BTreeMap<String, InstanceReport>);

impl Fleet {
    /// The later report of an instance counts.
    pub(crate) fn new(reports: Vec<InstanceReport>) -> Self {
        let named = |report: InstanceReport| (report.instance().to_owned(), report);
        Self(reports.into_iter().map(named).collect())
    }

    pub(crate) fn all_run(&self, version: RulesVersion) -> bool {
        let runs = |report: &InstanceReport| report.version() == Some(version) && report.rejects().is_none();
        self.0.values().all(runs)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if all instances obey the last order of the switch and the last access list.
    pub(crate) fn all_obey(&self, controls: &Controls) -> bool {
        // An order that reaches no instance may be for a rule set of another name.
        !self.0.is_empty() && self.0.values().all(|report| obeys(report, controls))
    }

    pub(crate) fn obedience_text(&self, controls: &Controls) -> String {
        let (obedient, others): (Vec<_>, Vec<_>) = self.0.values().partition(|report| obeys(report, controls));
        if self.0.is_empty() {
            return "instances: none has reported within the last 30 s; is this the right rule set?\n".to_owned();
        }
        let mut text = format!("instances: {} of {} obey\n", obedient.len(), self.0.len());
        for report in others {
            let why = match report.controls() {
                None => "does not read the switch and the access list",
                Some(_) => "has not read it yet",
            };
            let _ = writeln!(text, "  {} {why}", report.instance());
        }
        text
    }

    /// The rules that instances enforce while nothing is published.
    fn nothing_published(&self) -> String {
        let versions = self.by_version();
        match versions.iter().find_map(|(version, _)| *version) {
            Some(version) => format!(
                "nothing is published in this Redis, but instances enforce version {}. It has lost the rules: \
                 `restore FILE` publishes the document of an instance again",
                version.number()
            ),
            None => "nothing was published, instances use the rules of their program".to_owned(),
        }
    }

    /// The names of the instances of each version, the newest version first; `None` for the rules of the program.
    fn by_version(&self) -> Vec<(Option<RulesVersion>, Vec<&str>)> {
        let mut versions: Vec<(Option<RulesVersion>, Vec<&str>)> = Vec::new();
        for report in self.0.values() {
            let name = report.instance();
            match versions.iter_mut().find(|(version, _)| *version == report.version()) {
                Some((_, names)) => names.push(name),
                None => versions.push((report.version(), vec![name])),
            }
        }
        versions.sort_by_key(|(version, _)| std::cmp::Reverse(version.map(RulesVersion::number)));
        versions
    }
}

fn obeys(report: &InstanceReport, controls: &Controls) -> bool {
    let switch = controls.switch().map_or(0, SwitchOrder::number);
    let numbers = report.controls();
    numbers.is_some_and(|(its_switch, its_access)| its_switch == switch && its_access == controls.access_number())
}

pub(crate) async fn show(options: &Options, whole: bool) -> Result<Report, Failure> {
    let publisher = options.publisher()?;
    let current = publisher.current().await;
    if matches!(current, Ok(None)) {
        until_reported().await;
    }
    // Which instances go on with what is most wanted when the document cannot be read.
    let fleet = Fleet::new(options.rules()?.instances().await?);
    let published = current.map_err(|error| match error.kind() {
        FleetErrorKind::Unreadable => {
            let instances = instances_text(&fleet, None);
            Failure::Broken(format!("{}\n{}", Failure::from(error), instances.trim_end()))
        }
        _ => error.into(),
    })?;
    let (controls, problem) = controls(&publisher).await;
    let Some(published) = published else {
        let text = format!("rule set {:?}: {}\n{problem}", options.set, fleet.nothing_published());
        let text = text + &controls_text(&controls) + &instances_text(&fleet, None);
        return Ok(Report::new(
            text,
            json!({"version": null, "controls": controls_json(&controls), "instances": instances_json(&fleet)}),
        ));
    };
    let document = published.document();
    let json_text = document.to_json().map_err(|error| Failure::Broken(error.to_string()))?;
    if whole {
        let value = serde_json::from_str(&json_text).unwrap_or_default();
        return Ok(Report::new(json_text + "\n", value));
    }
    let mut text = format!("rule set {:?}: {published}, {}\n", options.set, date(document.time()));
    text += &problem;
    text += &document_text(document, &controls);
    text += &instances_text(&fleet, Some(published.version()));
    let json = json!({
        "version": published.version().number(),
        "digest": published.version().to_string().split(' ').next_back(),
        "document": serde_json::from_str::<Value>(&json_text).unwrap_or_default(),
        "controls": controls_json(&controls),
        "instances": instances_json(&fleet),
    });
    Ok(Report::new(text, json))
}

/// The switch and the access list, and what is wrong with them.
async fn controls(publisher: &RulesPublisher) -> (Controls, String) {
    match publisher.controls().await {
        Ok(controls) => {
            let advice = "`unblock --all` begins a new list";
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
        text.push_str("nothing was changed, as far as this Redis knows\n");
    }
    let json = changes.iter().map(|change| {
        json!({
            "version": change.version(), "author": change.author(), "time": change.time(), "reason": change.reason(),
            "text": change.text(),
        })
    });
    Ok(Report::new(text, json.collect()))
}

/// The position of the fleet's switch, and the access list that applies without rules.
pub(crate) fn controls_text(controls: &Controls) -> String {
    let mut text = String::new();
    let now = now();
    if let Some(order) = controls.switch().filter(|order| order.applies_at(now)) {
        let position = if order.is_off() {
            "OFF, all requests pass uncounted"
        } else {
            "on"
        };
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
        let position = if document.is_switched_off() {
            "OFF, all requests pass uncounted"
        } else {
            "on"
        };
        let _ = writeln!(text, "limits: {position}");
    }
    text.push_str(&rules_text("rules", document.rules()));
    if let Some(roll_out) = document.roll_out() {
        let named = match roll_out.partitions().len() {
            0 => String::new(),
            number => format!(" and {number} named callers"),
        };
        let title = format!("rules for {} %{named}", roll_out.percent());
        text.push_str(&rules_text(&title, roll_out.rules()));
    }
    for entry in document.access() {
        let _ = writeln!(text, "access list of the document: {entry}");
    }
    if document.blocks_unknown_addresses() {
        text.push_str("Block clients of unknown addresses\n");
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

/// The number of instances that run each version, and the problems of single instances. `current` is the version that
/// they should run.
pub(crate) fn instances_text(fleet: &Fleet, current: Option<RulesVersion>) -> String {
    if fleet.0.is_empty() {
        return "instances: none has reported within the last 30 s\n".to_owned();
    }
    let mut text = format!("instances: {}\n", fleet.0.len());
    for (version, names) in fleet.by_version() {
        let what = match version {
            Some(version) => format!("version {}", version.number()),
            None => "the rules of their program".to_owned(),
        };
        // The names of instances without a problem help no reader.
        let _ = match version == current && current.is_some() {
            true => writeln!(text, "  {} run {what}", names.len()),
            false => writeln!(text, "  {} run {what}: {}", names.len(), names.join(", ")),
        };
    }
    for report in fleet.0.values() {
        if let Some(rejected) = report.rejects() {
            let _ = writeln!(
                text,
                "  {} REJECTS version {}; its log says why",
                report.instance(),
                rejected.number()
            );
        }
        if report.is_overridden() {
            let _ = writeln!(text, "  {} is overridden by hand", report.instance());
        }
        if report.is_off() {
            let _ = writeln!(text, "  {} applies NO LIMITS", report.instance());
        }
        if report.controls().is_none() {
            let _ = writeln!(
                text,
                "  {} does not read the switch and the access list",
                report.instance()
            );
        }
        if report.has_lost() {
            let _ = writeln!(
                text,
                "  {} enforces something that this Redis has lost",
                report.instance()
            );
        }
    }
    text
}

pub(crate) fn instances_json(fleet: &Fleet) -> Value {
    let number = |version: Option<RulesVersion>| version.map(RulesVersion::number);
    let instances = fleet.0.values().map(|report| {
        json!({
            "instance": report.instance(),
            "version": number(report.version()),
            "rejects": number(report.rejects()),
            "overridden": report.is_overridden(),
            "off": report.is_off(),
            "reads_controls": report.controls().is_some(),
            "lost": report.has_lost(),
        })
    });
    instances.collect()
}

/// Seconds since the Unix epoch, by the clock of this machine.
fn now() -> u64 {
    Clock::system().now().as_micros() / 1_000_000
}

/// Up to the year 9999.
fn date(seconds: u64) -> String {
    match seconds {
        0 => "at an unknown time".to_owned(),
        1..253_402_300_800 => httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds)),
        _ => format!("{seconds} s after 1970"),
    }
}
