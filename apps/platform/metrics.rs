//! The page for Prometheus. `tower_quota::telemetry` says what its numbers mean, and which alerts to make of them.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Borders of the buckets of every histogram, in seconds: around 1 ms for a store that is near, around the deadline of
/// 50 ms, and beyond it for requests that wait for their turn. No alert can fire above the last one.
const BUCKETS: [f64; 13] = [
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 2.5, 10.0, 60.0,
];

/// Without buckets the page would show quantiles, which cannot be added up over instances.
pub(crate) fn prometheus() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
}

/// The exporter keeps every measured time until a request reads the page or the program calls this.
pub(crate) async fn upkeep(page: PrometheusHandle) {
    let mut interval = tokio::time::interval(Duration::from_secs(5));
    loop {
        interval.tick().await;
        page.run_upkeep();
    }
}
