//! The rules in force, and the instances that run them.

use std::{
    collections::BTreeMap,
    fmt::Write,
    time::{Duration, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tower_quota::{
    QuotaPolicy, Rules,
    fleet::{InstanceReport, PublishError, RulesDocument, RulesVersion},
};

use super::{Failure, Report, options::Options};

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

pub(crate) async fn show(options: &Options, whole: bool) -> Result<Report, Failure> {
    let (publisher, rules) = (options.publisher()?, options.rules()?);
    let current = publisher.current().await;
    // Which instances go on with what is most wanted when the document cannot be read.
    let fleet = Fleet::new(rules.instances().await?);
    let published = match current {
        Ok(published) => published,
        Err(error @ PublishError::Unreadable(_)) => {
            let instances = instances_text(&fleet, None);
            let Failure::Broken(message) = Failure::from(error) else {
                unreachable!("what cannot be read is broken");
            };
            return Err(Failure::Broken(format!("{message}\n{}", instances.trim_end())));
        }
        Err(error) => return Err(error.into()),
    };
    let Some(published) = published else {
        let text = format!(
            "rule set {:?}: nothing was published, instances use the rules of their program\n",
            options.set
        );
        let text = text + &instances_text(&fleet, None);
        return Ok(Report::new(
            text,
            json!({"version": null, "instances": instances_json(&fleet)}),
        ));
    };
    let document = published.document();
    let json_text = document.to_json().map_err(|error| Failure::Broken(error.to_string()))?;
    if whole {
        let value = serde_json::from_str(&json_text).unwrap_or_default();
        return Ok(Report::new(json_text + "\n", value));
    }
    let mut text = format!("rule set {:?}: {published}, {}\n", options.set, date(document.time()));
    text += &document_text(document);
    text += &instances_text(&fleet, Some(published.version()));
    let document: Value = serde_json::from_str(&json_text).unwrap_or_default();
    let json = json!({
        "version": published.version().number(),
        "digest": published.version().to_string().split(' ').next_back(),
        "document": document,
        "instances": instances_json(&fleet),
    });
    Ok(Report::new(text, json))
}

pub(crate) async fn history(options: &Options) -> Result<Report, Failure> {
    let versions = options.publisher()?.history().await?;
    let mut text = String::new();
    for (document, before) in versions.iter().zip(versions.iter().skip(1).map(Some).chain([None])) {
        let what = summary(document, before);
        let (number, author, time) = (document.version(), document.author(), date(document.time()));
        let _ = writeln!(text, "version {number} by {author:?}, {time}: {what}");
    }
    if versions.is_empty() {
        text.push_str("nothing was published\n");
    }
    let json = versions
        .iter()
        .map(|document| json!({"version": document.version(), "author": document.author(), "time": document.time()}));
    Ok(Report::new(text, json.collect()))
}

/// The changes of a version, in a few words.
fn summary(document: &RulesDocument, before: Option<&RulesDocument>) -> String {
    let mut parts = Vec::new();
    if before.is_none_or(|before| before.rules() != document.rules()) {
        parts.push("rules for all".to_owned());
    }
    match (document.roll_out(), before.and_then(RulesDocument::roll_out)) {
        (after, before) if after == before => {}
        (Some(roll_out), _) => parts.push(format!("rules for {} %", roll_out.percent())),
        (None, _) => parts.push("end of the roll-out".to_owned()),
    }
    let was_off = before.is_some_and(RulesDocument::is_switched_off);
    if document.is_switched_off() != was_off {
        parts.push(if was_off { "limits on" } else { "limits OFF" }.to_owned());
    }
    if document.access() != before.map_or(&[][..], RulesDocument::access) {
        parts.push("access list".to_owned());
    }
    parts.join(", ")
}

fn document_text(document: &RulesDocument) -> String {
    let mut text = String::new();
    let _ = match document.is_switched_off() {
        true => writeln!(text, "limits: OFF, all requests pass uncounted"),
        false => writeln!(text, "limits: on"),
    };
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
        let subject = match (entry.as_network(), entry.as_key()) {
            (Some(network), _) => network.to_owned(),
            (None, Some((kind, value))) => format!("{kind} {value:?}"),
            (None, None) => String::new(),
        };
        let until = entry.ends().map_or_else(
            || "until it is removed".to_owned(),
            |end| format!("until {}", date(end)),
        );
        let _ = writeln!(text, "{:?} {subject} {until}", entry.access());
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
    let key = policy.key().map_or_else(String::new, |key| format!(", by {key}"));
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
        })
    });
    instances.collect()
}

/// Up to the year 9999.
fn date(seconds: u64) -> String {
    match seconds {
        0 => "at an unknown time".to_owned(),
        1..253_402_300_800 => httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds)),
        _ => format!("{seconds} s after 1970"),
    }
}
