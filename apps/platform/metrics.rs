//! The Prometheus endpoint. `tower_quota::telemetry` documents the metrics and suitable alerts.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Bucket bounds of all histograms, in seconds: around 1 ms for a nearby store, around the deadline of 50 ms, and above
/// for queued requests. Alerts cannot distinguish values above the last bound.
const BUCKETS: [f64; 13] = [
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 2.5, 10.0, 60.0,
];

/// Without buckets, the exporter would report quantiles, which cannot be aggregated across instances.
pub(crate) fn prometheus() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
}

/// The exporter keeps every sample until it is scraped or this function runs.
pub(crate) async fn upkeep(page: PrometheusHandle) {
    let mut interval = tokio::time::interval(Duration::from_secs(5));
    loop {
        interval.tick().await;
        page.run_upkeep();
    }
}
