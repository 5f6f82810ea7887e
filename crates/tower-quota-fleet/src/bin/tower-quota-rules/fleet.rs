use std::{fmt::Write, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tower_quota::StoreError;
use tower_quota_fleet::{Controls, InstanceReport, RedisRules, RulesVersion, SwitchOrder};

use super::options::Part;

/// Instances report a loss of data with their next poll.
pub(crate) const REPORTED_WITHIN: Duration = Duration::from_secs(2);

pub(crate) async fn until_reported() {
    sleep_until(Instant::now() + REPORTED_WITHIN).await;
}

pub(crate) struct Fleet(Vec<InstanceReport>);

impl Fleet {
    pub(crate) async fn read(rules: &RedisRules) -> Result<Self, StoreError> {
        Ok(Self(rules.instances().await?))
    }

    pub(crate) fn all_run(&self, version: RulesVersion) -> bool {
        let runs = |report: &InstanceReport| report.version() == Some(version) && report.rejects().is_none();
        self.0.iter().all(runs)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn all_obey(&self, controls: &Controls, part: Part) -> bool {
        // An order that reaches no instance may be for a misspelled rule set.
        !self.0.is_empty() && self.0.iter().all(|report| obeys(report, controls, part))
    }

    pub(crate) fn obedience_text(&self, controls: &Controls, part: Part) -> String {
        let (obedient, others): (Vec<_>, Vec<_>) = self.0.iter().partition(|report| obeys(report, controls, part));
        if self.0.is_empty() {
            return "instances: no reports within the last 30 s; is this the right rule set?\n".to_owned();
        }
        let mut text = format!("instances: applied by {} of {}\n", obedient.len(), self.0.len());
        for report in others {
            let why = match report.controls() {
                None => "does not read the switch and the access list",
                Some(_) => "has not read the change yet",
            };
            let _ = writeln!(text, "  {} {why}", report.instance());
        }
        text
    }

    pub(crate) fn nothing_published(&self) -> String {
        let versions = self.by_version();
        match versions.iter().find_map(|(version, _)| *version) {
            Some(version) => format!(
                "nothing is published in this Redis, but instances enforce version {}. Redis has lost the rules: \
                 `restore FILE` publishes the document of an instance again",
                version.number()
            ),
            None => "nothing published; instances use the built-in rules of their program".to_owned(),
        }
    }

    /// `None` is the rules of the program.
    fn by_version(&self) -> Vec<(Option<RulesVersion>, Vec<&str>)> {
        let mut versions: Vec<(Option<RulesVersion>, Vec<&str>)> = Vec::new();
        for report in &self.0 {
            let name = report.instance();
            match versions.iter_mut().find(|(version, _)| *version == report.version()) {
                Some((_, names)) => names.push(name),
                None => versions.push((report.version(), vec![name])),
            }
        }
        versions.sort_by_key(|(version, _)| std::cmp::Reverse(version.map(RulesVersion::number)));
        versions
    }

    pub(crate) fn text(&self, current: Option<RulesVersion>) -> String {
        if self.0.is_empty() {
            return "instances: no reports within the last 30 s\n".to_owned();
        }
        let mut text = format!("instances: {}\n", self.0.len());
        for (version, names) in self.by_version() {
            let what = match version {
                Some(version) => format!("version {}", version.number()),
                None => "the built-in rules of their program".to_owned(),
            };
            // Names are listed only for instances with a problem.
            let _ = match version == current && current.is_some() {
                true => writeln!(text, "  {} run {what}", names.len()),
                false => writeln!(text, "  {} run {what}: {}", names.len(), names.join(", ")),
            };
        }
        for report in &self.0 {
            let rejects = report
                .rejects()
                .map(|version| format!("REJECTS version {}; see its log for the reason", version.number()));
            let problem = |is_one: bool, problem: &str| is_one.then(|| problem.to_owned());
            let problems = [
                rejects,
                problem(report.is_overridden(), "is overridden locally"),
                problem(report.is_off(), "applies NO LIMITS"),
                problem(
                    report.controls().is_none(),
                    "does not read the switch and the access list",
                ),
                problem(report.has_lost(), "enforces data that this Redis has lost"),
            ];
            for problem in problems.into_iter().flatten() {
                let _ = writeln!(text, "  {} {problem}", report.instance());
            }
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let number = |version: Option<RulesVersion>| version.map(RulesVersion::number);
        let instances = self.0.iter().map(|report| {
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
}

/// Redis may have lost the part that was not changed, which instances still enforce.
fn obeys(report: &InstanceReport, controls: &Controls, part: Part) -> bool {
    report.controls().is_some_and(|(switch, access)| match part {
        Part::Access => access == controls.access_number(),
        Part::Switch => switch == controls.switch().map_or(0, SwitchOrder::number),
    })
}
