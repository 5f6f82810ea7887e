//! The metrics of this instance, parsed from the Prometheus endpoint.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tokio::time::{Instant, interval};

/// Samples of the last five minutes, so that the operators' page shows what happened before it was opened.
const KEPT: usize = 60;
const PAUSE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Numbers {
    scope: &'static str,
    prometheus: PrometheusHandle,
    started: Instant,
    kept: Arc<Mutex<VecDeque<Value>>>,
}

impl Numbers {
    pub(crate) fn new(scope: &'static str, prometheus: PrometheusHandle) -> Self {
        Self {
            scope,
            prometheus,
            started: Instant::now(),
            kept: Arc::default(),
        }
    }

    /// Returns the current metrics, with the time of this process.
    pub(crate) fn now(&self) -> Value {
        let mut numbers = of_scope(self.scope, &self.prometheus.render());
        numbers["milliseconds"] = json!(self.started.elapsed().as_millis() as u64);
        numbers
    }

    /// Returns the metrics of the last five minutes, oldest first.
    pub(crate) fn kept(&self) -> Value {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().cloned().collect()
    }

    /// Takes a sample every five seconds.
    pub(crate) async fn keep(self) {
        let mut interval = interval(PAUSE);
        loop {
            interval.tick().await;
            let now = self.now();
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.truncate(KEPT - 1);
            kept.push_front(now);
        }
    }
}

struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

impl<'a> Sample<'a> {
    /// Returns `None` for lines that are not samples.
    fn read(line: &'a str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            while !rest.starts_with('}') {
                let (label, after) = rest.trim_start_matches(',').split_once("=\"")?;
                let (value, after) = quoted(after)?;
                labels.push((label, value));
                rest = after;
            }
            rest = &rest[1..];
        }
        let value = rest.trim().parse().ok()?;
        Some(Self { name, labels, value })
    }

    fn label(&self, name: &str) -> &str {
        let label = self.labels.iter().find(|(label, _)| *label == name);
        label.map_or("", |(_, value)| value)
    }
}

/// Returns a label's value up to its closing quotation mark, and the rest of the text.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    loop {
        match chars.next()? {
            (end, '"') => return Some((value, &text[end + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, other) => value.push(other),
        }
    }
}

/// Returns the counters for the operators' page, which computes their growth.
pub(crate) fn of_scope(scope: &str, page: &str) -> Value {
    let (mut decisions, mut shadows, mut buckets) = (Vec::new(), Vec::new(), Vec::new());
    let (mut undecided, mut cached) = (serde_json::Map::new(), 0.0);
    let samples = page.lines().filter_map(Sample::read);
    for sample in samples.filter(|sample| sample.label("scope") == scope) {
        let [tier, policy] = ["tier", "policy"].map(|name| sample.label(name));
        match sample.name {
            "tower_quota_decisions_total" => {
                decisions.push(json!([tier, policy, sample.label("outcome"), sample.value]));
            }
            "tower_quota_shadow_rejections_total" => shadows.push(json!([tier, policy, sample.value])),
            "tower_quota_store_seconds_bucket" => {
                // JSON cannot represent the last bound, `+Inf`.
                let border = sample
                    .label("le")
                    .parse()
                    .ok()
                    .filter(|border: &f64| border.is_finite());
                buckets.push(json!([border, sample.value]));
            }
            "tower_quota_undecided_total" => {
                undecided.insert(sample.label("reason").to_owned(), json!(sample.value));
            }
            "tower_quota_rejection_cache_hits_total" => cached = sample.value,
            _ => {}
        }
    }
    json!({
        "decisions": decisions,
        "shadows": shadows,
        "store_seconds": buckets,
        "undecided": undecided,
        "cached": cached,
    })
}
